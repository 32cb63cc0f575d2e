//! The model: raw against clean with everything in memory, for the streaming comparison to agree with.

use std::collections::HashMap;

use super::expected::{Entry, Expected, Place};
use super::matching::{CleanLog, Stray};
use super::order::longest_rise;
use crate::audit::{Counts, Differing, Finding, Gone, Kind, Outcome, Scope, Seen};
use crate::dedupe::Offset;

/// How far a changed record is looked for among lost ones.
const REACH: usize = 1024;

/// A comparison under way: first all of raw is in `expected`, then clean comes by [`Self::push`].
#[derive(Debug)]
pub(super) struct Plain {
    expected: Expected,
    clean: CleanLog,
}

impl Plain {
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
            counts: Counts::default(),
            samples: Vec::new(),
            outside: 0,
            standing: vec![Standing::default(); expected.entries.len()],
            gone: 0,
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
    counts: Counts,
    samples: Vec<Finding>,
    gone: u64,
    outside: u64,
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
        self.tell(kind, raw, clean, fields);
    }

    fn tell(&mut self, kind: Kind, raw: Option<Offset>, clean: Option<Offset>, fields: Differing) {
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
            let first = chain.first().and_then(|first| self.entry(*first)).filter(|e| !e.outside);
            let mut owner_ms = first.map(|first| first.time_ms);
            for place in chain {
                let (Some(at), Some(entry)) = (taken.get(place), self.entry(*place)) else { continue };
                let time_ms = entry.time_ms;
                if owner_ms.is_some_and(|owner_ms| self.expected.remembered(owner_ms, time_ms)) {
                    self.add(Kind::Duplicated, Some(*place), Some(*at), Differing::default());
                } else {
                    owner_ms = Some(time_ms);
                }
            }
        }
    }

    /// Clean records without a place: a changed one, if it stands where one is lost and resembles it.
    fn strays(&mut self, places: &[Option<Place>], in_order: &[bool]) {
        let begin = self.expected.begin.unwrap_or(0);
        let begin = self.expected.entries.partition_point(|entry| entry.offset < begin);
        let mut here = Place::try_from(begin).unwrap();
        for (at, (place, in_order)) in places.iter().zip(in_order).enumerate() {
            match place {
                Some(place) if *in_order => here = here.max(place + 1),
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
        if self.expected.is_older(&stray.content) {
            self.outside += 1;
            return here;
        }
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
            if before_first || (self.allows_gone() && self.expected.is_doubtful(place)) {
                self.gone += 1;
                self.standing(place, |standing| standing.seen = true);
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
