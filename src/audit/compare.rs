//! Compares raw with clean, one partition: values in, findings out, in bounded memory.
//!
//! Each clean record is matched to its raw record by id (or by content, where it has no id), wherever that
//! record is, so one loss or one duplicate never shifts the records after it. The longest increasing
//! subsequence of raw offsets is in order; all other matched records are out of order.
//!
//! The steps: both sides are sorted by fingerprint and joined ([`super::join`]); ambiguous records are assigned
//! one of their raw records ([`super::choice`]); the result, in clean order, is evaluated against the expected
//! records ([`super::evaluation`]). Every step reads and writes rows sequentially, so memory is bounded by
//! [`Scratch`] whatever the size of the partition. Only long chains are read at random, through a small buffer.

use std::io;

use super::choice::Choice;
use super::entry::{RecordRow, Unmatched};
use super::evaluation::Evaluation;
use super::expected::{RawCounts, RawLog, Rules};
use super::expected_records::ExpectedRecords;
use super::findings::{Counts, Finding, Findings};
use super::increasing::Copies;
use super::join::Joined;
use super::range::Part;
use super::record::Seen;
use super::spill::{Scratch, Sorter};
use crate::dedupe::PartitionId;

/// Which records may be missing without being lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gone {
    /// None: both topics are complete, so every difference is a finding.
    Nothing,
    /// Retention or compaction may have deleted raw records since they were processed, and the oldest clean
    /// records. Differences that this can explain are counted separately and are not findings: a clean
    /// record whose raw record is missing or differs, one out of order where raw has holes, and lost records
    /// before the first remaining one of a `clean_trimmed` partition.
    Allowed {
        /// Whether clean begins above offset 0.
        clean_trimmed: bool,
    },
}

/// What to compare, and how much to report.
#[derive(Debug, Clone, Copy)]
pub struct Scope {
    /// The partition, the same in raw and clean.
    pub partition: PartitionId,
    /// How many findings of each kind are reported with their coordinates.
    pub samples: usize,
    /// Which records may be missing without being lost.
    pub gone: Gone,
}

/// The result of one partition.
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
    /// The first findings of each kind.
    pub samples: Vec<Finding>,
}

/// A comparison in progress: records are added with [`Self::raw`] and [`Self::clean`], each side by increasing offset.
#[derive(Debug)]
pub struct Comparison {
    scratch: Scratch,
    rules: Rules,
    log: RawLog,
    raw: Sorter<RecordRow>,
    clean: Sorter<RecordRow>,
    clean_records: u64,
}

impl Comparison {
    /// An empty comparison.
    #[must_use]
    pub fn new(rules: Rules, scratch: &Scratch) -> Self {
        let sorter = || Sorter::new(scratch, 5 * scratch.unit());
        Self {
            scratch: scratch.clone(),
            rules,
            log: RawLog::new(rules),
            raw: sorter(),
            clean: sorter(),
            clean_records: 0,
        }
    }

    /// Adds the next raw record, which is in this part of the log. Fails if a temporary file fails.
    pub fn raw(&mut self, record: &Seen, part: Part) -> io::Result<()> {
        let row = self.log.row(record, part);
        self.raw.push(row)
    }

    /// Adds the next clean record. Fails if a temporary file fails.
    pub fn clean(&mut self, record: &Seen) -> io::Result<()> {
        self.clean_records += 1;
        self.clean.push(RecordRow::of_clean(record))
    }

    /// Compares, once both sides are read. Fails if a temporary file fails.
    pub fn finish(self, scope: Scope, unmatched: &mut UnmatchedRecords) -> io::Result<Outcome> {
        let Self { scratch, rules, log, raw, clean, clean_records } = self;
        let mut joined = Joined::new(&scratch, log.counts);
        joined.join(&rules, &mut raw.sorted()?, &mut clean.sorted()?)?;
        let Joined { singles, of_ids, of_contents, pairs, unmatched_clean, unseen, chains, counts, .. } =
            joined;
        let mut copies = Copies::of(&scratch, &mut singles.sorted()?)?;
        let mut of_ids = of_ids.sorted()?;
        let mut pairs = pairs.sorted()?;
        if of_ids.peek().is_some() || pairs.peek().is_some() {
            let mut placed = Choice::new(&scratch, &chains).all(&mut of_ids, &copies)?;
            while let Some(pair) = pairs.next()? {
                placed.push(pair)?;
            }
            copies = copies.and(&scratch, placed)?;
        }
        let mut of_contents = of_contents.sorted()?;
        if of_contents.peek().is_some() {
            let placed = Choice::new(&scratch, &chains).all(&mut of_contents, &copies)?;
            copies = copies.and(&scratch, placed)?;
        }
        let members = copies.longest_increasing(&scratch)?;
        let mut evaluation = Evaluation {
            scratch: &scratch,
            scope,
            rules: &rules,
            raw: counts,
            begin: log.begin.unwrap_or(0),
            uncertain_until_ms: log.first_ms.and_then(|first_ms| rules.uncertain_until(first_ms)),
            findings: Findings::new(scope.partition, scope.samples),
            gone: 0,
            outside: 0,
            unmatched: &mut unmatched.sorter,
        };
        let (taken, repeats) = evaluation.copies(&copies, &members)?;
        evaluation.repeats_within_window(repeats, &chains)?;
        let mut expected = ExpectedRecords::new(&taken, unseen.sorted()?)?;
        evaluation.unmatched_and_lost(unmatched_clean.sorted()?, (&copies, &members), &mut expected)?;
        Ok(Outcome {
            raw: counts,
            clean_records,
            counts: evaluation.findings.counts,
            gone: evaluation.gone,
            outside: evaluation.outside,
            samples: evaluation.findings.samples(),
        })
    }
}

/// Lost and phantom records of all partitions.
#[derive(Debug)]
pub struct UnmatchedRecords {
    sorter: Sorter<Unmatched>,
}

impl UnmatchedRecords {
    /// An empty set.
    #[must_use]
    pub fn new(scratch: &Scratch) -> Self {
        Self { sorter: Sorter::new(scratch, scratch.unit()) }
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
