//! The model: compares raw with clean in memory. The streaming comparison must agree with it.

use std::collections::HashMap;

use super::expected::{Entry, Expected, Place};
use super::matching::{CleanLog, UnmatchedClean};
use super::order::longest_increasing;
use crate::audit::{Counts, Differing, Finding, Gone, Kind, Outcome, Scope, Seen};
use crate::dedupe::Offset;

/// How many expected records are searched for the original of an altered record.
const SEARCH_LIMIT: usize = 1024;

/// A comparison in progress: `expected` has all of raw, then clean records are added with [`Self::push`].
#[derive(Debug)]
pub(super) struct Plain {
    expected: Expected,
    clean: CleanLog,
}

impl Plain {
    /// Starts after all of raw is read.
    #[must_use]
    pub fn new(expected: Expected) -> Self {
        Self { expected, clean: CleanLog::default() }
    }

    /// Adds the next clean record, by increasing offset.
    pub fn push(&mut self, record: &Seen) {
        self.clean.push(&self.expected, record);
    }

    /// Compares, once all of clean is read.
    #[must_use]
    pub fn finish(self, scope: Scope) -> Outcome {
        let Self { expected, clean } = self;
        let places = clean.places(&expected);
        let mut evaluation = Evaluation {
            counts: Counts::default(),
            samples: Vec::new(),
            outside: 0,
            state: vec![EntryState::default(); expected.entries.len()],
            gone: 0,
            scope,
            expected: &expected,
            clean: &clean,
        };
        let in_order = evaluation.order(&places);
        evaluation.copies(&places, &in_order);
        evaluation.repeats_within_window(&places, &in_order);
        evaluation.unmatched(&places, &in_order);
        evaluation.losses();
        evaluation.outcome()
    }
}

/// What clean holds of an entry.
#[derive(Debug, Clone, Copy, Default)]
struct EntryState {
    /// Clean has a copy of it.
    seen: bool,
    /// One of the copies is in order.
    in_order: bool,
    /// One of the copies is unchanged.
    unchanged: bool,
}

struct Evaluation<'a> {
    scope: Scope,
    expected: &'a Expected,
    clean: &'a CleanLog,
    state: Vec<EntryState>,
    counts: Counts,
    samples: Vec<Finding>,
    gone: u64,
    outside: u64,
}

impl Evaluation<'_> {
    fn entry(&self, place: Place) -> Option<&Entry> {
        self.expected.entry(place)
    }

    fn state(&mut self, place: Place, change: impl FnOnce(&mut EntryState)) -> EntryState {
        let Some(state) = self.state.get_mut(place as usize) else { return EntryState::default() };
        let before = *state;
        change(state);
        before
    }

    fn add(&mut self, kind: Kind, place: Option<Place>, at: Option<usize>, fields: Differing) {
        let raw = place.and_then(|place| self.entry(place)).map(|entry| entry.offset);
        let clean = at.and_then(|at| self.clean.offsets.get(at)).copied();
        self.report(kind, raw, clean, fields);
    }

    fn report(&mut self, kind: Kind, raw: Option<Offset>, clean: Option<Offset>, fields: Differing) {
        let slot = match kind {
            Kind::Lost => &mut self.counts.lost,
            Kind::Duplicated => &mut self.counts.duplicated,
            Kind::OutOfOrder => &mut self.counts.out_of_order,
            Kind::Altered => &mut self.counts.altered,
            Kind::Phantom => &mut self.counts.phantom,
        };
        *slot += 1;
        if *slot <= self.scope.samples as u64 {
            self.samples.push(Finding { kind, partition: self.scope.partition, raw, clean, fields });
        }
    }

    fn allows_gone(&self) -> bool {
        self.scope.gone != Gone::Nothing
    }

    /// Which clean records are in order.
    fn order(&mut self, places: &[Option<Place>]) -> Vec<bool> {
        let in_order = longest_increasing(places);
        for (at, (place, in_order)) in places.iter().zip(&in_order).enumerate() {
            let Some(place) = *place else { continue };
            let unchanged = self.clean.changed(self.expected, at, place).is_none();
            self.state(place, |state| {
                state.in_order |= in_order;
                state.unchanged |= unchanged;
            });
        }
        in_order
    }

    /// Evaluates clean records that have a place: all but one of those that share a place are duplicates.
    fn copies(&mut self, places: &[Option<Place>], in_order: &[bool]) {
        for (at, (place, in_order)) in places.iter().zip(in_order).enumerate() {
            let Some(place) = *place else { continue };
            let before = self.state(place, |state| state.seen |= *in_order || !state.in_order);
            if !in_order && (before.in_order || before.seen) {
                self.add(Kind::Duplicated, Some(place), Some(at), Differing::default());
                continue;
            }
            if self.entry(place).is_some_and(|entry| entry.outside) {
                self.outside += 1;
                if !before.unchanged {
                    continue;
                }
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

    /// Finds duplicates of ids that were seen again after the window: a record that follows such a record
    /// within the window must not be in clean.
    fn repeats_within_window(&mut self, places: &[Option<Place>], in_order: &[bool]) {
        let repeats = |place: &Place| self.entry(*place).is_some_and(|entry| entry.repeat);
        let taken: HashMap<Place, usize> = places
            .iter()
            .zip(in_order)
            .enumerate()
            .filter_map(|(at, (place, in_order))| place.filter(|_| *in_order).map(|place| (place, at)))
            .filter(|(place, _)| repeats(place))
            .collect();
        if taken.is_empty() {
            return;
        }
        for chain in self.expected.chains() {
            let first = chain.first().and_then(|first| self.entry(*first)).filter(|e| !e.outside);
            let mut owner_ms = first.map(|first| first.time_ms);
            for place in chain {
                let (Some(at), Some(entry)) = (taken.get(place), self.entry(*place)) else { continue };
                let time_ms = entry.time_ms;
                if owner_ms.is_some_and(|owner_ms| self.expected.within_window(owner_ms, time_ms)) {
                    self.add(Kind::Duplicated, Some(*place), Some(*at), Differing::default());
                } else {
                    owner_ms = Some(time_ms);
                }
            }
        }
    }

    /// Evaluates clean records without a place: one counts as altered if a lost record at the same position
    /// resembles it.
    fn unmatched(&mut self, places: &[Option<Place>], in_order: &[bool]) {
        let begin = self.expected.begin.unwrap_or(0);
        let begin = self.expected.entries.partition_point(|entry| entry.offset < begin);
        let mut here = Place::try_from(begin).unwrap();
        for (at, (place, in_order)) in places.iter().zip(in_order).enumerate() {
            match place {
                Some(place) if *in_order => here = here.max(place + 1),
                Some(_) => {}
                None => {
                    let Some(record) = self.clean.unmatched.get(&at).copied() else { continue };
                    here = self.unmatched_clean(at, &record, here);
                }
            }
        }
    }

    /// Returns the first place where the next one may be found.
    fn unmatched_clean(&mut self, at: usize, record: &UnmatchedClean, here: Place) -> Place {
        if self.expected.is_older(&record.content) {
            self.outside += 1;
            return here;
        }
        if self.allows_gone() {
            self.gone += 1;
            return here;
        }
        let unseen = |place: &Place| self.state.get(*place as usize).is_some_and(|s| !s.seen);
        let lost = (here..).take(SEARCH_LIMIT).take_while(unseen).find(|place| {
            self.entry(*place).is_some_and(|entry| entry.due && entry.content.resembles(&record.content))
        });
        if let Some(place) = lost {
            self.state(place, |state| state.seen = true);
            let fields = self.entry(place).map(|entry| entry.content.differing(&record.content));
            self.add(Kind::Altered, Some(place), Some(at), fields.unwrap_or_default());
            return place + 1;
        }
        self.add(Kind::Phantom, None, Some(at), Differing::default());
        here
    }

    fn losses(&mut self) {
        let trimmed = self.scope.gone == Gone::Allowed { clean_trimmed: true };
        let mut before_first = trimmed;
        for place in 0..self.expected.entries.len() {
            let state = self.state.get(place).copied().unwrap_or_default();
            before_first &= !state.in_order;
            let Ok(place) = Place::try_from(place) else { break };
            if state.seen || !self.entry(place).is_some_and(|entry| entry.due) {
                continue;
            }
            if before_first || (self.allows_gone() && self.expected.is_uncertain(place)) {
                self.gone += 1;
                self.state(place, |state| state.seen = true);
            } else {
                self.add(Kind::Lost, Some(place), None, Differing::default());
            }
        }
    }

    fn outcome(self) -> Outcome {
        Outcome {
            raw: self.expected.raw,
            clean_records: self.clean.offsets.len() as u64,
            counts: self.counts,
            gone: self.gone,
            outside: self.outside,
            samples: self.samples,
        }
    }
}
