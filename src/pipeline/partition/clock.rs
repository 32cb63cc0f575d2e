//! The clock by which the windows of a journal expire: no partition reads its next record from before it.
//!
//! A partition with unread records is not before its own clock. One that was read to its end has the clock of the fastest partition, less its
//! *lateness*: clocks can differ all the time. Otherwise an owner could be gone when a copy that is closer to it than the window is
//! read. The clock is that of the commit before the last one: a broker may have undone the last one in some partitions, whose records are then read
//! again. It is the same rule for a journal with a single partition.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::dedupe::{Offset, PartitionId};
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::partition::Partition;
use crate::pipeline::partition::partitions::Partitions;
use crate::pipeline::safeguard::Safeguard;

/// What is known of the ends of the logs of the partitions.
#[derive(Debug, Default)]
pub struct Ends {
    /// Where the logs ended at some time, until all records before that are read.
    earlier: BTreeMap<PartitionId, RawEnd>,
}

impl Ends {
    /// Notes which partitions have no unread record, where that is certain, and how late they are: at most `most_ms`, the longest window.
    /// `ends` are those that were requested last.
    pub fn note(&mut self, partitions: &mut Partitions, ends: &BTreeMap<PartitionId, RawEnd>, most_ms: i64) {
        // Once all partitions are read beyond earlier ends, no record from before these is later than the fastest partition now.
        let is_passed = |p: &Partition| {
            let (next, end) = (Some(p.next).filter(|_| p.is_started)?, ends.get(&p.id)?);
            let earlier = self.earlier.get(&p.id)?;
            Some(next >= earlier.high.min(end.high) || end.is_reached(next))
        };
        let are_passed = partitions.iter().all(|p| is_passed(p) == Some(true));
        let fastest_ms = fastest_ms(partitions.iter());
        for partition in partitions.started_mut() {
            // Records of the open transaction may have to be read again.
            let end = ends.get(&partition.id);
            let end = end.filter(|end| partition.open.is_none() && end.is_reached(partition.next));
            let Some(end) = end else { continue };
            let earlier = self.earlier.get(&partition.id);
            let is_exact = are_passed && earlier.is_some_and(|earlier| partition.next <= earlier.high);
            let behind_ms = fastest_ms.saturating_sub(partition.time.ms());
            partition.lateness.read_to_end(*end, is_exact.then_some(behind_ms), most_ms);
        }
        if are_passed || partitions.iter().any(|p| !self.earlier.contains_key(&p.id)) {
            self.earlier.clone_from(ends);
        }
    }
}

/// The slowest of some partitions: how far it is read ([`Partition::reached_ms`]), and its number. `None` when there is none.
pub fn slowest<'a>(partitions: impl Iterator<Item = &'a Partition>) -> Option<(i64, PartitionId)> {
    partitions.map(|partition| (partition.reached_ms(), partition.id)).min()
}

/// The latest stream time of some partitions, epoch milliseconds; 0 while unknown.
pub fn fastest_ms<'a>(partitions: impl Iterator<Item = &'a Partition>) -> i64 {
    partitions.map(|partition| partition.time.ms()).max().unwrap_or(0)
}

/// The slowest partition, which holds back the clock by which windows expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lagging {
    /// Its number.
    pub partition: PartitionId,
    /// How far that clock is behind the one of the fastest partition.
    pub behind: Duration,
}

impl fmt::Display for Lagging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "partition {} is {} s behind", self.partition, self.behind.as_secs())
    }
}

/// How far the clock of a partition is behind the fastest one when it is read to its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lateness {
    /// At its last record, ms; `None` while that is not known.
    ms: Option<i64>,
    /// Whether the checkpoint of the committed offset does not have it.
    is_unsaved: bool,
    /// The stream time that its next record is not before, as far as that follows from reading it to its end; 0 when that was not seen.
    caught_up_ms: i64,
}

impl Lateness {
    /// As a checkpoint has it, of a partition with this stream time: what was read to its end does not survive a restart. One without records is
    /// not late.
    pub fn of(saved_ms: Option<i64>, stream_time_ms: i64) -> Self {
        Self { ms: saved_ms.or((stream_time_ms <= 0).then_some(0)), ..Self::default() }
    }

    /// A transaction of the partition was committed, with a checkpoint that has this.
    pub fn save(&mut self, ms: Option<i64>) {
        (self.ms, self.is_unsaved) = (ms, false);
    }

    /// Called when the partition has no unread record: it was read up to `end`. `behind_ms` is how far it is behind the fastest partition, if no
    /// other one has unread records from before its last one. Otherwise the fastest one might still be found to be faster. It counts as late by
    /// `most_ms` at most, and while nothing else is known.
    fn read_to_end(&mut self, end: RawEnd, behind_ms: Option<i64>, most_ms: i64) {
        if let (None, Some(_)) = (self.ms, behind_ms) {
            (self.ms, self.is_unsaved) = (behind_ms, true);
        }
        let late_ms = self.ms.unwrap_or(most_ms).clamp(0, most_ms);
        self.caught_up_ms = self.caught_up_ms.max(end.fastest_ms.saturating_sub(late_ms));
    }
}

impl WorkerOptions {
    /// What a checkpoint has while it is not known how late the partition is.
    pub(crate) fn unknown_lateness(&self) -> Option<i64> {
        (!self.keeps(Safeguard::KnownLateness)).then_some(0)
    }
}

impl Partition {
    /// How late the partition is after the open transaction, ms; `None` while that is not known: its records are measured when they are committed.
    pub fn late_ms(&self) -> Option<i64> {
        self.lateness.ms.filter(|_| self.open.as_ref().is_none_or(|open| open.records == 0))
    }

    /// Whether a restart would find the partition later than it is by more than a small part of the longest window.
    pub fn has_unsaved_lateness(&self, longest_ms: i64) -> bool {
        let silent_ms = self.lateness.caught_up_ms.saturating_sub(self.time.ms());
        self.lateness.is_unsaved && silent_ms > longest_ms / 256
    }

    /// The stream time that the next record of the partition is not before, epoch milliseconds, unless it is later than its records
    /// were so far.
    pub fn reached_ms(&self) -> i64 {
        self.time.ms().max(self.lateness.caught_up_ms)
    }
}

/// Where the log of a raw partition ended, and the stream time of the fastest partition at some moment before that, epoch
/// milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawEnd {
    /// The last stable offset.
    pub stable: Offset,
    /// The high watermark. Beyond the last stable offset there are records of open transactions, which cannot be read yet.
    pub high: Offset,
    /// The stream time.
    pub fastest_ms: i64,
    /// Another reader has found no committed record between this offset and the last stable one.
    pub empty_from: Option<Offset>,
}

impl RawEnd {
    /// Whether it is known that there are only markers and aborted records from this offset up to the last stable one.
    pub fn is_empty_from(&self, next: Offset) -> bool {
        self.empty_from.is_some_and(|from| from <= next)
    }

    /// Whether there was no unread record from this offset on: it is the high watermark, or what lies before that is only markers and
    /// aborted records.
    pub fn is_reached(&self, next: Offset) -> bool {
        next >= self.high || self.stable >= self.high && self.is_empty_from(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lateness_that_no_measurement_gives_counts_as_the_nearest_possible_one() {
        let end = RawEnd { stable: 1, high: 1, fastest_ms: 10_000, empty_from: None };
        for (saved, counts_as) in [
            (Some(i64::MIN), 0),
            (Some(-5), 0),
            (Some(0), 0),
            (Some(700), 700),
            (Some(1_001), 1_000),
            (Some(i64::MAX), 1_000),
            (None, 1_000),
        ] {
            let mut lateness = Lateness::of(saved, 1);
            lateness.read_to_end(end, None, 1_000);
            assert_eq!(end.fastest_ms - lateness.caught_up_ms, counts_as, "{saved:?}");
        }
    }
}
