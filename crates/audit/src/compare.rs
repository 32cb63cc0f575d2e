//! Compares raw with clean, one partition: values in, findings out, in bounded memory.
//!
//! Each clean record is matched to its raw record by id (or by content, where it has no id), wherever that
//! record is, so one loss or one duplicate never shifts the records after it. The longest increasing
//! subsequence of raw offsets is in order; all other matched records are out of order.
//!
//! The steps: both sides are sorted by fingerprint and joined ([`super::join`]); ambiguous records are assigned
//! one of their raw records ([`super::choice`]); the result is evaluated against the expected records
//! ([`super::evaluation`]). All rows are in tables and sorters, so memory is bounded by [`Scratch`] whatever the
//! size of the partition. Only ambiguous records are read at random.

use std::io;

use super::PartitionId;
use super::dropped::{DroppedCounts, PAIRS, UnequalPair};
use super::entry::Unmatched;
use super::expected::RawCounts;
use super::findings::{Counts, Finding};
use super::spill::{Scratch, Sorter};

/// Which records may be missing without being lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gone {
    /// None: both topics are complete, so every difference is a finding.
    Nothing,
    /// Retention or compaction may have deleted raw records since they were processed, and the oldest clean
    /// records. Differences that this can explain are counted separately and are not findings: a clean
    /// record whose raw record is missing or differs, a second one that differs and is more than one window away, one out of
    /// order where raw has holes, and lost records before the first remaining one of a `clean_trimmed` partition.
    Allowed {
        /// Whether clean begins above offset 0.
        clean_trimmed: bool,
    },
}

/// What to compare, and how much to report.
#[derive(Debug, Clone, Copy)]
pub struct PartitionOptions {
    /// The partition, the same in raw and clean.
    pub partition: PartitionId,
    /// How many findings of each kind are reported with their coordinates.
    pub samples: usize,
    /// Which records may be missing without being lost.
    pub gone: Gone,
}

/// The result of one partition, or the sum of several.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Counts of the raw records.
    pub raw: RawCounts,
    /// Records in clean.
    pub clean_records: u64,
    /// Findings by kind.
    pub counts: Counts,
    /// Differences that retention or compaction explains.
    pub gone: u64,
    /// Clean records whose verdict depends on records before the range.
    pub outside: u64,
    /// Clean records that repeat an id within the window by their own timestamp, but arrived more than the window apart: they are late,
    /// or in clean twice. The topics do not show whether dedupd had to drop them.
    pub late_or_twice: u64,
    /// Lost records that precede all records of their partition that clean has in order; none if it has none.
    pub lost_at_start: u64,
    /// Timestamp of the first clean record of a partition with such lost records, epoch milliseconds; the latest of all partitions.
    pub starts_ms: Option<i64>,
    /// The first findings of each kind.
    pub samples: Vec<Finding>,
    /// Raw records that are not in clean because another one has their id.
    pub dropped: DroppedCounts,
    /// The first of those that are not equal, with the other one.
    pub unequal: Vec<UnequalPair>,
}

impl Outcome {
    /// Adds the result of another partition, and its findings up to `samples` of each kind in total.
    pub(super) fn add(&mut self, other: &Self, samples: usize) {
        self.raw += other.raw;
        self.clean_records += other.clean_records;
        self.counts += other.counts;
        self.gone += other.gone;
        self.outside += other.outside;
        self.late_or_twice += other.late_or_twice;
        self.lost_at_start += other.lost_at_start;
        self.starts_ms = self.starts_ms.max(other.starts_ms);
        self.dropped += other.dropped;
        self.unequal.extend(&other.unequal);
        self.unequal.truncate(PAIRS);
        for finding in &other.samples {
            if self.samples.iter().filter(|sample| sample.kind == finding.kind).count() < samples {
                self.samples.push(*finding);
            }
        }
    }
}

/// Lost and phantom records of all partitions.
#[derive(Debug)]
pub struct UnmatchedRecords {
    pub(super) sorter: Sorter<Unmatched>,
}

impl UnmatchedRecords {
    /// An empty set.
    #[must_use]
    pub fn new(scratch: &Scratch) -> Self {
        Self { sorter: Sorter::new(scratch, 2, Unmatched::by_fingerprint) }
    }

    /// The number of lost records that are phantoms in another partition, as many as can be paired. Fails if a
    /// temporary file fails.
    pub fn moved(self) -> io::Result<u64> {
        let mut sorted = self.sorter.sorted()?;
        let mut moved = 0;
        while let Some(fingerprint) = sorted.peek().map(|record| record.fingerprint) {
            let (mut lost, mut phantom, mut most) = (0_u64, 0_u64, 0);
            while let Some(partition) =
                sorted.peek().filter(|s| s.fingerprint == fingerprint).map(|s| s.partition)
            {
                let mut here = 0;
                while let Some(record) =
                    sorted.next_if(|s| (s.fingerprint, s.partition) == (fingerprint, partition))?
                {
                    here += 1;
                    *(if record.lost { &mut lost } else { &mut phantom }) += 1;
                }
                most = most.max(here);
            }
            // A pair needs two partitions: the partition with the most records limits the pairs to the rest.
            moved += lost.min(phantom).min(lost + phantom - most);
        }
        Ok(moved)
    }
}

#[cfg(test)]
mod tests;
