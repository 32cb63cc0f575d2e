//! Raw against clean, one partition: values in, findings out.
//!
//! Each clean record finds its raw record by id (or by content, where it has no id), wherever that
//! stands, so one loss or one repeat never shifts what follows it. What moved is told by the longest
//! run of records that are in raw order; the others are out of order. Memory is about 200 bytes for each
//! id of the partition at hand, whatever the size of the records.

use std::collections::HashMap;

use super::expected::{Entry, Expected, Place, RawCounts};
use super::findings::{Counts, Finding, Findings, Kind};
use super::matching::{CleanLog, Stray};
use super::order::longest_rise;
use super::record::{Differing, Print, Seen};
use crate::dedupe::{Offset, PartitionId};

/// How far a changed record is looked for among lost ones.
const REACH: usize = 1024;

/// Most lost or phantom records of a partition that are looked for in other partitions.
const MOVED_MAX: usize = 1_000_000;

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
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// What raw holds.
    pub raw: RawCounts,
    /// Records in clean.
    pub clean_records: u64,
    /// What is wrong.
    pub counts: Counts,
    /// Records that do not fit, which retention or compaction explains.
    pub gone: u64,
    /// The first findings of each kind.
    pub samples: Vec<Finding>,
    /// Lost records, for finding them in other partitions; at most a million.
    pub lost: Vec<(Print, Offset)>,
    /// Phantom records, for the same.
    pub phantom: Vec<(Print, Offset)>,
}

/// A comparison under way: first all of raw is in `expected`, then clean comes by [`Self::push`].
#[derive(Debug)]
pub struct Comparison {
    expected: Expected,
    clean: CleanLog,
}

impl Comparison {
    /// Begins with all of raw read.
    #[must_use]
    pub fn new(expected: Expected) -> Self {
        Self { expected, clean: CleanLog::default() }
    }

    /// Takes the next clean record, by rising offset.
    pub fn push(&mut self, record: &Seen) {
        self.clean.push(&self.expected, record);
    }

    /// All of clean has been read.
    #[must_use]
    pub fn finish(self, scope: Scope) -> Outcome {
        let Self { expected, clean } = self;
        let places = clean.places(&expected);
        let mut account = Account {
            findings: Findings::new(scope.partition, scope.samples),
            standing: vec![Standing::default(); expected.entries.len()],
            gone: 0,
            phantom: Vec::new(),
            scope,
            expected: &expected,
            clean: &clean,
        };
        let in_order = account.order(&places);
        account.copies(&places, &in_order);
        account.repeats_within_window(&places, &in_order);
        account.strays(&places, &in_order);
        account.losses();
        account.outcome()
    }
}

/// What is known of an entry.
#[derive(Debug, Clone, Copy, Default)]
struct Standing {
    /// Some clean record is it.
    seen: bool,
    /// One of them stands where it should.
    in_order: bool,
    /// One of them is unchanged.
    unchanged: bool,
}

struct Account<'a> {
    scope: Scope,
    expected: &'a Expected,
    clean: &'a CleanLog,
    standing: Vec<Standing>,
    findings: Findings,
    gone: u64,
    phantom: Vec<(Print, Offset)>,
}

impl Account<'_> {
    fn entry(&self, place: Place) -> Option<&Entry> {
        self.expected.entry(place)
    }

    fn standing(&mut self, place: Place, change: impl FnOnce(&mut Standing)) -> Standing {
        let Some(standing) = self.standing.get_mut(place as usize) else { return Standing::default() };
        let before = *standing;
        change(standing);
        before
    }

    fn add(&mut self, kind: Kind, place: Option<Place>, at: Option<usize>, fields: Differing) {
        let raw = place.and_then(|place| self.entry(place)).map(|entry| entry.offset);
        let clean = at.and_then(|at| self.clean.offsets.get(at)).copied();
        self.findings.add(kind, raw, clean, fields);
    }

    fn allows_gone(&self) -> bool {
        self.scope.gone != Gone::Nothing
    }

    /// Which clean records stand where they should.
    fn order(&mut self, places: &[Option<Place>]) -> Vec<bool> {
        let in_order = longest_rise(places);
        for (at, (place, in_order)) in places.iter().zip(&in_order).enumerate() {
            let Some(place) = *place else { continue };
            let unchanged = self.clean.changed(self.expected, at, place).is_none();
            self.standing(place, |standing| {
                standing.in_order |= in_order;
                standing.unchanged |= unchanged;
            });
        }
        in_order
    }

    /// Clean records that have a place: each but one of those that share it is a repeat.
    fn copies(&mut self, places: &[Option<Place>], in_order: &[bool]) {
        for (at, (place, in_order)) in places.iter().zip(in_order).enumerate() {
            let Some(place) = *place else { continue };
            let before = self.standing(place, |standing| standing.seen |= *in_order || !standing.in_order);
            if !in_order && (before.in_order || before.seen) {
                self.add(Kind::Duplicated, Some(place), Some(at), Differing::default());
                continue;
            }
            if !before.unchanged {
                self.changed(place, at);
            }
            if !in_order && (before.unchanged || !self.allows_gone()) {
                self.moved(place, at);
            }
        }
    }

    fn changed(&mut self, place: Place, at: usize) {
        if self.allows_gone() {
            self.gone += 1;
            return;
        }
        let content = self.clean.changed(self.expected, at, place);
        let fields = content.zip(self.entry(place)).map(|(content, entry)| entry.content.differing(&content));
        self.add(Kind::Altered, Some(place), Some(at), fields.unwrap_or_default());
    }

    fn moved(&mut self, place: Place, at: usize) {
        if self.allows_gone() && self.expected.raw.holes {
            self.gone += 1;
        } else {
            self.add(Kind::OutOfOrder, Some(place), Some(at), Differing::default());
        }
    }

    /// Ids that came again after the window: what followed such a record within the window must not be.
    fn repeats_within_window(&mut self, places: &[Option<Place>], in_order: &[bool]) {
        let again = |place: &Place| self.entry(*place).is_some_and(|entry| entry.again);
        let taken: HashMap<Place, usize> = places
            .iter()
            .zip(in_order)
            .enumerate()
            .filter_map(|(at, (place, in_order))| place.filter(|_| *in_order).map(|place| (place, at)))
            .filter(|(place, _)| again(place))
            .collect();
        if taken.is_empty() {
            return;
        }
        for chain in self.expected.chains() {
            let mut owner_ms = chain.first().and_then(|first| self.entry(*first)).map_or(0, |e| e.time_ms);
            for place in chain {
                let (Some(at), Some(entry)) = (taken.get(place), self.entry(*place)) else { continue };
                let time_ms = entry.time_ms;
                if self.expected.remembered(owner_ms, time_ms) {
                    self.add(Kind::Duplicated, Some(*place), Some(*at), Differing::default());
                } else {
                    owner_ms = time_ms;
                }
            }
        }
    }

    /// Clean records without a place: a changed one, if it stands where one is lost and resembles it.
    fn strays(&mut self, places: &[Option<Place>], in_order: &[bool]) {
        let mut here: Place = 0;
        for (at, (place, in_order)) in places.iter().zip(in_order).enumerate() {
            match place {
                Some(place) if *in_order => here = place + 1,
                Some(_) => {}
                None => {
                    let Some(stray) = self.clean.strays.get(&at).copied() else { continue };
                    here = self.stray(at, &stray, here);
                }
            }
        }
    }

    /// Returns where the next one may be found.
    fn stray(&mut self, at: usize, stray: &Stray, here: Place) -> Place {
        if self.allows_gone() {
            self.gone += 1;
            return here;
        }
        let unseen = |place: &Place| self.standing.get(*place as usize).is_some_and(|s| !s.seen);
        let lost = (here..).take(REACH).take_while(unseen).find(|place| {
            self.entry(*place).is_some_and(|entry| entry.due && entry.content.resembles(&stray.content))
        });
        if let Some(place) = lost {
            self.standing(place, |standing| standing.seen = true);
            let fields = self.entry(place).map(|entry| entry.content.differing(&stray.content));
            self.add(Kind::Altered, Some(place), Some(at), fields.unwrap_or_default());
            return place + 1;
        }
        self.add(Kind::Phantom, None, Some(at), Differing::default());
        if self.phantom.len() < MOVED_MAX
            && let Some(offset) = self.clean.offsets.get(at)
        {
            self.phantom.push((stray.print, *offset));
        }
        here
    }

    fn losses(&mut self) {
        let trimmed = self.scope.gone == Gone::Allowed { clean_trimmed: true };
        let mut before_first = trimmed;
        for place in 0..self.expected.entries.len() {
            let standing = self.standing.get(place).copied().unwrap_or_default();
            before_first &= !standing.in_order;
            let Ok(place) = Place::try_from(place) else { break };
            if standing.seen || !self.entry(place).is_some_and(|entry| entry.due) {
                continue;
            }
            if before_first {
                self.gone += 1;
                self.standing(place, |standing| standing.seen = true);
            } else {
                self.add(Kind::Lost, Some(place), None, Differing::default());
            }
        }
    }

    fn outcome(self) -> Outcome {
        let lost = if self.findings.counts.lost > 0 { self.lost_prints() } else { Vec::new() };
        Outcome {
            raw: self.expected.raw,
            clean_records: self.clean.offsets.len() as u64,
            counts: self.findings.counts,
            gone: self.gone,
            samples: self.findings.samples,
            lost,
            phantom: self.phantom,
        }
    }

    fn lost_prints(&self) -> Vec<(Print, Offset)> {
        let is_lost = |place: &Place| {
            self.entry(*place).is_some_and(|entry| entry.due)
                && self.standing.get(*place as usize).is_some_and(|standing| !standing.seen)
        };
        let places = |first: Place| {
            let chain = self.expected.chain(first);
            chain.iter().copied().chain(chain.is_empty().then_some(first)).filter(is_lost)
        };
        let all =
            self.expected.prints().flat_map(|(print, first)| places(first).map(|place| (*print, place)));
        all.filter_map(|(print, place)| Some((print, self.entry(place)?.offset))).take(MOVED_MAX).collect()
    }
}

#[cfg(test)]
mod tests;
