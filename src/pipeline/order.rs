//! What comes next in a partition: a record, a gap of the log, or a record that does not belong here.
//!
//! A log has gaps where compaction took records, where a transaction was aborted, where markers stand. A consumer can
//! also hand over, after a seek, records that it had fetched for the position before. Taken for a gap, such a record
//! would make everything between C and itself look old, and all of it would be lost. The sequence that must not happen:
//!
//! ```text
//! C = 10, read up to 30, abort, seek to 10 ─→ 31 (left from before) is taken, next = 32 ─→ 10, 11, … are "stale"
//! ```
//!
//! What is left from before comes before anything of the new position does, because both go through one queue. So the
//! first record after a seek is believed when it is the expected one; when it lies beyond, the partition is sought again, and only
//! the lowest record of that reading as the first of the next is proof of a gap: what was left from before the first seek is
//! gone by then, and what may be left from between the two begins behind what came. A record that was passed over and comes all the same
//! proves the opposite, and nothing of it may be committed.

use std::collections::VecDeque;
use std::ops::Range;

use crate::dedupe::Offset;

/// Gaps remembered since the last seek; the newest.
const GAPS: usize = 256;

/// What a record is to its partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The next one.
    Next,
    /// It was here before.
    Repeated,
    /// It may be the next one, but only a second reading can tell: seek again.
    Unproven,
    /// It was passed over as if it did not exist.
    Missed,
}

/// How far the reading since the last seek is proven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// Nothing came yet. The reading before began with this record, if it began with one beyond the expected.
    Begun(Option<Offset>),
    /// Began beyond the expected record, and has to be begun again. This is the lowest that came of it.
    Doubted(Offset),
    /// Began as it had to.
    Proven,
}

/// What came since the last seek.
#[derive(Debug)]
pub struct Order {
    reading: Reading,
    gaps: VecDeque<Range<Offset>>,
}

impl Default for Order {
    fn default() -> Self {
        Self { reading: Reading::Begun(None), gaps: VecDeque::new() }
    }
}

impl Order {
    /// Judges the record at `at` where `next` is expected, or any later one if the log has a gap.
    pub fn judge(&mut self, next: Offset, at: Offset) -> Arrival {
        match self.reading {
            Reading::Doubted(first) => {
                // What is lower came of the new position, and is what the next reading has to begin with.
                if at >= next {
                    self.reading = Reading::Doubted(first.min(at));
                }
                return Arrival::Unproven;
            }
            _ if at < next => return self.back(at),
            Reading::Begun(before) if at > next && before != Some(at) => {
                self.reading = Reading::Doubted(at);
                return Arrival::Unproven;
            }
            Reading::Begun(_) | Reading::Proven => self.reading = Reading::Proven,
        }
        if at > next {
            self.gaps.push_back(next..at);
            if self.gaps.len() > GAPS {
                self.gaps.pop_front();
            }
        }
        Arrival::Next
    }

    fn back(&self, at: Offset) -> Arrival {
        if self.gaps.iter().any(|gap| gap.contains(&at)) { Arrival::Missed } else { Arrival::Repeated }
    }

    /// Whether the partition has to be sought again.
    #[must_use]
    pub fn is_doubted(&self) -> bool {
        matches!(self.reading, Reading::Doubted(_))
    }

    /// The partition was sought again, to the record that is expected next.
    pub fn sought_again(&mut self) {
        if let Reading::Doubted(at) = self.reading {
            self.reading = Reading::Begun(Some(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Arrival::{Missed, Next, Repeated, Unproven};

    #[test]
    fn records_in_their_order_are_next_and_those_seen_before_are_repeated() {
        let mut order = Order::default();
        let judged: Vec<Arrival> = [(10, 9), (10, 10), (11, 11), (12, 11), (12, 3), (12, 12)]
            .map(|(next, at)| order.judge(next, at))
            .into();
        assert_eq!(judged, [Repeated, Next, Next, Repeated, Repeated, Next]);
    }

    #[test]
    fn a_gap_behind_a_seek_is_believed_when_two_readings_agree() {
        let mut order = Order::default();
        assert_eq!(order.judge(10, 12), Unproven);
        assert_eq!(order.judge(10, 13), Unproven, "what else came with it was fetched with it");
        assert_eq!(order.judge(10, 9), Unproven);
        assert!(order.is_doubted());
        order.sought_again();
        assert_eq!((order.is_doubted(), order.judge(10, 12)), (false, Next));
        assert_eq!(order.judge(13, 15), Next, "within a reading gaps are the log's");
    }

    #[test]
    fn a_record_left_from_before_the_seek_is_not_believed() {
        let mut order = Order::default();
        assert_eq!(order.judge(10, 31), Unproven);
        order.sought_again();
        assert_eq!((order.judge(10, 10), order.judge(11, 11)), (Next, Next));
        let mut order = Order::default();
        assert_eq!(order.judge(10, 31), Unproven);
        order.sought_again();
        assert_eq!(order.judge(10, 32), Unproven, "another one is no proof");
        order.sought_again();
        assert_eq!(order.judge(10, 31), Unproven);
        order.sought_again();
        assert_eq!(order.judge(10, 31), Next);
    }

    #[test]
    fn the_expected_record_behind_a_doubted_one_disproves_the_gap() {
        let mut order = Order::default();
        for _ in 0..3 {
            // The same record is left over each time, as each reading was taken up to it.
            assert_eq!([15, 10, 11].map(|at| order.judge(10, at)), [Unproven; 3]);
            order.sought_again();
        }
        assert_eq!(order.judge(10, 10), Next);
    }

    #[test]
    fn a_record_that_was_passed_over_proves_that_there_was_no_gap() {
        let mut order = Order::default();
        assert_eq!((order.judge(10, 10), order.judge(11, 20)), (Next, Next));
        let judged: Vec<Arrival> = [10, 11, 19, 20].map(|at| order.judge(21, at)).into();
        assert_eq!(judged, [Repeated, Missed, Missed, Repeated]);
    }

    #[test]
    fn gaps_remembered_are_bounded() {
        let mut order = Order::default();
        let mut next = 0;
        assert_eq!(order.judge(next, 0), Next);
        for _ in 0..GAPS + 10 {
            next += 1;
            assert_eq!(order.judge(next, next + 1), Next);
            next += 1;
        }
        assert_eq!(order.gaps.len(), GAPS);
        assert_eq!((order.judge(next + 1, 1), order.judge(next + 1, next - 1)), (Repeated, Missed));
    }
}
