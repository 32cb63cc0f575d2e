//! Classifies each record of a partition: the next one, the first one after a gap in the log, or one of an earlier position.
//!
//! A log has gaps where compaction removed records, where a transaction was aborted, and at transaction markers.
//! After a seek, a consumer can also return records that it had fetched for the previous position. If such a record
//! were taken for the first record after a gap, everything between C and the record would look old, and all of it
//! would be lost. The sequence that must not happen:
//!
//! ```text
//! C = 10, read up to 30, abort, seek to 10 ─→ 31 (of the previous position) is processed, next = 32 ─→ 10, 11, … are "stale"
//! ```
//!
//! Records of the previous position arrive before any record of the new one, because both pass through one queue. So
//! the first record after a seek is accepted when it is the expected one. When it lies beyond, the partition is
//! sought again. Only when the lowest record of that reading is also the first record of the next reading, the gap is
//! proven: records from before the first seek are gone by then, and records left from between the two seeks have
//! higher offsets than those already returned. A record that was skipped as a gap but arrives later proves the
//! opposite, and nothing of the transaction may be committed.

use std::collections::VecDeque;
use std::ops::Range;

use crate::dedupe::Offset;

/// Number of gaps kept since the last seek; the newest ones.
const GAPS: usize = 256;

/// Position of a record relative to the expected one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The next record.
    Next,
    /// A record that was already processed.
    Repeated,
    /// It may be the next record after a gap, but a second reading has to confirm it: seek again.
    Unproven,
    /// The same, and a record with a higher offset has arrived before it in this reading.
    Late,
    /// The record with which this reading began, after a lower one: the first time it was left from before the seek, and the lower one is not late.
    Left,
    /// A record that was skipped as part of a gap.
    Missed,
}

/// What is known about the reading since the last seek.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SeekResult {
    /// No record arrived yet. Contains the first record of the previous reading, if that lay beyond the expected one.
    Begun(Option<Offset>),
    /// The reading began beyond the expected record and has to be repeated. Contains its first record and its lowest one.
    Doubted { first: Offset, lowest: Offset },
    /// The start of the reading is confirmed.
    Proven,
}

/// The records since the last seek.
#[derive(Debug)]
pub struct Order {
    reading: SeekResult,
    gaps: VecDeque<Range<Offset>>,
}

impl Default for Order {
    fn default() -> Self {
        Self { reading: SeekResult::Begun(None), gaps: VecDeque::new() }
    }
}

impl Order {
    /// A reading that begins before the expected record, at offsets without records: one that arrives from there shows that the log is another one.
    pub fn with_gap(empty: Range<Offset>) -> Self {
        let mut order = Self::default();
        order.skip(empty);
        order
    }

    /// The expected record lies behind these offsets, which have no record.
    pub fn skip(&mut self, empty: Range<Offset>) {
        if empty.is_empty() {
            return;
        }
        self.gaps.push_back(empty);
        if self.gaps.len() > GAPS {
            self.gaps.pop_front();
        }
    }

    /// Classifies the record at `at` when `next` is expected, or any later record if the log has a gap.
    pub fn judge(&mut self, next: Offset, at: Offset) -> Arrival {
        match self.reading {
            SeekResult::Doubted { first, lowest } => {
                // A lower record belongs to the new position, and is the one that the next reading has to begin with.
                if (next..lowest).contains(&at) {
                    self.reading = SeekResult::Doubted { first, lowest: at };
                    return Arrival::Late;
                }
                return if at == first && lowest < first { Arrival::Left } else { Arrival::Unproven };
            }
            _ if at < next => return self.behind(at),
            SeekResult::Begun(before) if at > next && before != Some(at) => {
                self.reading = SeekResult::Doubted { first: at, lowest: at };
                return Arrival::Unproven;
            }
            SeekResult::Begun(_) | SeekResult::Proven => self.reading = SeekResult::Proven,
        }
        self.skip(next..at);
        Arrival::Next
    }

    fn behind(&self, at: Offset) -> Arrival {
        if self.gaps.iter().any(|gap| gap.contains(&at)) { Arrival::Missed } else { Arrival::Repeated }
    }

    /// Whether the partition has to be sought again.
    pub fn is_doubted(&self) -> bool {
        matches!(self.reading, SeekResult::Doubted { .. })
    }

    /// Called after a confirmed partition was sought to the expected record: records that were fetched before may still arrive.
    pub fn sought(&mut self) {
        self.reading = SeekResult::Begun(None);
    }

    /// Called after the partition was sought again, to the expected record.
    pub fn sought_again(&mut self) {
        if let SeekResult::Doubted { lowest, .. } = self.reading {
            self.reading = SeekResult::Begun(Some(lowest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Arrival::{Late, Left, Missed, Next, Repeated, Unproven};

    #[test]
    fn records_in_their_order_are_next_and_those_seen_before_are_repeated() {
        let mut order = Order::default();
        let judged: Vec<Arrival> = [(10, 9), (10, 10), (11, 11), (12, 11), (12, 3), (12, 12)]
            .map(|(next, at)| order.judge(next, at))
            .into();
        assert_eq!(judged, [Repeated, Next, Next, Repeated, Repeated, Next]);
    }

    #[test]
    fn a_gap_after_a_seek_is_accepted_when_two_readings_agree() {
        let mut order = Order::default();
        assert_eq!(order.judge(10, 12), Unproven);
        assert_eq!(order.judge(10, 13), Unproven, "the following records were fetched together with it");
        assert_eq!(order.judge(10, 9), Unproven);
        assert!(order.is_doubted());
        order.sought_again();
        assert_eq!((order.is_doubted(), order.judge(10, 12)), (false, Next));
        assert_eq!(order.judge(13, 15), Next, "within a reading, a gap is a gap in the log");
    }

    #[test]
    fn a_record_left_from_before_the_seek_is_not_accepted() {
        let mut order = Order::default();
        assert_eq!(order.judge(10, 31), Unproven);
        order.sought_again();
        assert_eq!((order.judge(10, 10), order.judge(11, 11)), (Next, Next));
        let mut order = Order::default();
        assert_eq!(order.judge(10, 31), Unproven);
        order.sought_again();
        assert_eq!(order.judge(10, 32), Unproven, "a different record is no proof");
        order.sought_again();
        assert_eq!(order.judge(10, 31), Unproven);
        order.sought_again();
        assert_eq!(order.judge(10, 31), Next);
    }

    #[test]
    fn after_another_seek_the_records_fetched_before_it_are_not_accepted() {
        let mut order = Order::default();
        assert_eq!((order.judge(10, 10), order.judge(11, 14)), (Next, Next));
        order.sought();
        assert_eq!(order.judge(15, 40), Unproven);
        order.sought_again();
        // Not a second reading: it begins with another record.
        assert_eq!(order.judge(15, 41), Unproven);
        order.sought_again();
        let judged: Vec<Arrival> = [(15, 15), (16, 12)].map(|(next, at)| order.judge(next, at)).into();
        assert_eq!(judged, [Next, Missed], "the gaps of before the seek are kept");
    }

    #[test]
    fn the_expected_record_after_an_unproven_one_disproves_the_gap() {
        let mut order = Order::default();
        for _ in 0..3 {
            // The same record is left over each time, because each reading ended before it.
            assert_eq!([15, 10, 11].map(|at| order.judge(10, at)), [Unproven, Late, Unproven]);
            order.sought_again();
        }
        assert_eq!(order.judge(10, 10), Next);
    }

    #[test]
    fn a_record_that_arrives_again_after_a_lower_one_was_left_from_before_the_seek() {
        let mut order = Order::default();
        let judged = [15, 15, 18, 10, 11, 15, 18].map(|at| order.judge(10, at));
        assert_eq!(judged, [Unproven, Unproven, Unproven, Late, Unproven, Left, Unproven]);
    }

    #[test]
    fn a_skipped_record_that_arrives_later_proves_that_there_was_no_gap() {
        let mut order = Order::default();
        assert_eq!((order.judge(10, 10), order.judge(11, 20)), (Next, Next));
        let judged: Vec<Arrival> = [10, 11, 19, 20].map(|at| order.judge(21, at)).into();
        assert_eq!(judged, [Repeated, Missed, Missed, Repeated]);
    }

    #[test]
    fn a_record_at_offsets_that_have_none_is_missed() {
        let mut order = Order::with_gap(8..10);
        assert_eq!([9, 10].map(|at| order.judge(10, at)), [Missed, Next]);
        order.skip(11..13);
        let judged: Vec<Arrival> = [7, 10, 11, 12, 13].map(|at| order.judge(13, at)).into();
        assert_eq!(judged, [Repeated, Repeated, Missed, Missed, Next]);
    }

    #[test]
    fn the_number_of_stored_gaps_is_bounded() {
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
