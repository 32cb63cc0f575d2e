//! Raw against clean, one partition: values in, findings out, in bounded memory.
//!
//! Each clean record finds its raw record by id (or by content, where it has no id), wherever that
//! stands, so one loss or one repeat never shifts what follows it. What moved is told by the longest
//! run of records that are in raw order; the others are out of order.
//!
//! The way: both sides are sorted by print and joined ([`super::join`]); records with several to choose from
//! are given one ([`super::choice`]); the result, in clean order, is judged against what was expected
//! ([`super::account`]). Every step reads and writes rows in sequence, so memory is what [`Scratch`] was given,
//! whatever the size of the partition; only reading long chains jumps, and that through a small buffer.

use std::io;

use super::account::Account;
use super::choice::Choice;
use super::entry::{Filed, Stranger};
use super::expected::{RawCounts, RawLog, Rules};
use super::findings::{Counts, Finding, Findings};
use super::join::Joined;
use super::ledger::Ledger;
use super::range::Part;
use super::record::Seen;
use super::rise::Copies;
use super::spill::{Scratch, Sorter};
use crate::dedupe::PartitionId;

/// What can be missing without being lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gone {
    /// Both topics are whole: what does not fit is wrong.
    Nothing,
    /// Retention or compaction may have taken raw records since they were processed, and the oldest
    /// clean ones. What that can explain is counted apart, and is no finding: a clean record whose raw
    /// record is not there or reads otherwise, one out of order where raw has holes, and lost ones before
    /// the first that is left of a `clean_trimmed` partition.
    Allowed {
        /// Whether clean begins above offset 0.
        clean_trimmed: bool,
    },
}

/// What to compare, and how much to tell.
#[derive(Debug, Clone, Copy)]
pub struct Scope {
    /// The partition, the same in raw and clean.
    pub partition: PartitionId,
    /// How many findings of each kind are told by their coordinates.
    pub samples: usize,
    /// What can be missing without being lost.
    pub gone: Gone,
}

/// What came out of one partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// What raw holds.
    pub raw: RawCounts,
    /// Records in clean.
    pub clean_records: u64,
    /// What is wrong.
    pub counts: Counts,
    /// Records that do not fit, which retention or compaction explains.
    pub gone: u64,
    /// Clean records about which something before the range decides.
    pub outside: u64,
    /// The first findings of each kind.
    pub samples: Vec<Finding>,
}

/// A comparison under way: records come by [`Self::raw`] and [`Self::clean`], each side by rising offset.
#[derive(Debug)]
pub struct Comparison {
    scratch: Scratch,
    rules: Rules,
    log: RawLog,
    raw: Sorter<Filed>,
    clean: Sorter<Filed>,
    clean_records: u64,
}

impl Comparison {
    /// Nothing yet.
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

    /// Takes the next raw record, which lies in this part of the log. Fails when temporary files do.
    pub fn raw(&mut self, record: &Seen, part: Part) -> io::Result<()> {
        let filed = self.log.file(record, part);
        self.raw.push(filed)
    }

    /// Takes the next clean record. Fails when temporary files do.
    pub fn clean(&mut self, record: &Seen) -> io::Result<()> {
        self.clean_records += 1;
        self.clean.push(Filed::of_clean(record))
    }

    /// All has been read. Fails when temporary files do.
    pub fn finish(self, scope: Scope, strangers: &mut Strangers) -> io::Result<Outcome> {
        let Self { scratch, rules, log, raw, clean, clean_records } = self;
        let mut joined = Joined::new(&scratch, log.counts);
        joined.join(&rules, &mut raw.sorted()?, &mut clean.sorted()?)?;
        let Joined { singles, of_ids, of_contents, pairs, strays, unseen, chains, counts, .. } = joined;
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
        let members = copies.longest_rise(&scratch)?;
        let mut account = Account {
            scratch: &scratch,
            scope,
            rules: &rules,
            raw: counts,
            begin: log.begin.unwrap_or(0),
            doubtful_until_ms: log.first_ms.and_then(|first_ms| rules.doubtful_until(first_ms)),
            findings: Findings::new(scope.partition, scope.samples),
            gone: 0,
            outside: 0,
            strangers: &mut strangers.sorter,
        };
        let (taken, again) = account.copies(&copies, &members)?;
        account.repeats_within_window(again, &chains)?;
        let mut ledger = Ledger::new(&taken, unseen.sorted()?)?;
        account.strays_and_losses(strays.sorted()?, (&copies, &members), &mut ledger)?;
        Ok(Outcome {
            raw: counts,
            clean_records,
            counts: account.findings.counts,
            gone: account.gone,
            outside: account.outside,
            samples: account.findings.samples(),
        })
    }
}

/// Lost and phantom records of all partitions.
#[derive(Debug)]
pub struct Strangers {
    sorter: Sorter<Stranger>,
}

impl Strangers {
    /// None yet.
    #[must_use]
    pub fn new(scratch: &Scratch) -> Self {
        Self { sorter: Sorter::new(scratch, scratch.unit()) }
    }

    /// Lost records that are phantoms of another partition, as many as can be paired. Fails when temporary
    /// files do.
    pub fn moved(self) -> io::Result<u64> {
        let mut sorted = self.sorter.sorted()?;
        let mut moved = 0;
        while let Some(print) = sorted.peek().map(|stranger| stranger.print) {
            let (mut lost, mut phantom, mut most) = (0_u64, 0_u64, 0);
            while let Some(partition) = sorted.peek().filter(|s| s.print == print).map(|s| s.partition) {
                let mut here = 0;
                while let Some(stranger) = sorted.next_if(|s| (s.print, s.partition) == (print, partition))? {
                    here += 1;
                    *(if stranger.lost { &mut lost } else { &mut phantom }) += 1;
                }
                most = most.max(here);
            }
            // Pairs within the partition that has most of them cannot be avoided beyond this.
            moved += lost.min(phantom).min(lost + phantom - most);
        }
        Ok(moved)
    }
}

#[cfg(test)]
mod tests;
