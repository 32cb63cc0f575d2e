//! The model: matches each clean record to a raw record, with both sides in memory.
//!
//! A clean record whose id only one expected record has is unambiguous. Several raw records may share an id
//! (the later ones came after the window) or a content (records without an id). Any assignment that explains
//! all of them is correct; a wrong one would turn one loss into many findings. So the unambiguous records are
//! the anchors, and the others are placed between them, in order: first those that share an id, then, between
//! all of these, those that share a content.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::expected::{Expected, Place, Shared};
use super::order::longest_increasing;
use crate::audit::{Content, Seen};
use crate::dedupe::Offset;

/// How many candidates are checked before a record counts as none of them.
const SEARCH_LIMIT: usize = 1024;

/// A clean record without a raw record.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnmatchedClean {
    pub content: Content,
}

/// The stored parts of one clean partition.
#[derive(Debug, Default)]
pub(super) struct CleanLog {
    pub offsets: Vec<Offset>,
    /// The first place of the record's fingerprint; `None` for unmatched records.
    firsts: Vec<Option<Place>>,
    pub unmatched: HashMap<usize, UnmatchedClean>,
    /// Contents of the records that may differ from the record at their place: ambiguous or changed ones.
    contents: HashMap<usize, Content>,
}

impl CleanLog {
    /// Adds the next clean record, by increasing offset.
    pub fn push(&mut self, expected: &Expected, record: &Seen) {
        let at = self.offsets.len();
        let first = expected.first(&record.fingerprint);
        self.offsets.push(record.offset);
        self.firsts.push(first);
        match first {
            None => {
                self.unmatched.insert(at, UnmatchedClean { content: record.content });
            }
            Some(first) => {
                let same = expected.entry(first).is_some_and(|entry| entry.content == record.content);
                if !same || !expected.chain(first).is_empty() {
                    self.contents.insert(at, record.content);
                }
            }
        }
    }

    /// The content of the record at `at`, if it differs from the content at its place.
    pub fn changed(&self, expected: &Expected, at: usize, place: Place) -> Option<Content> {
        let content = self.contents.get(&at)?;
        expected.entry(place).filter(|entry| entry.content != *content).map(|_| *content)
    }

    /// The place of each clean record; `None` for unmatched records.
    pub fn places(&self, expected: &Expected) -> Vec<Option<Place>> {
        let chained = |first: &Place| !expected.chain(*first).is_empty();
        let mut places: Vec<Option<Place>> =
            self.firsts.iter().map(|first| first.filter(|first| !chained(first))).collect();
        if expected.chains().next().is_some() {
            self.choose(expected, Shared::Id, &mut places);
            self.pair_up(expected, &mut places);
            self.choose(expected, Shared::Content, &mut places);
        }
        places
    }

    /// Assigns places to the records that share `shared`.
    fn choose(&self, expected: &Expected, shared: Shared, places: &mut [Option<Place>]) {
        let gaps = self.gaps(expected, shared, places);
        Choice { expected, taken: HashSet::new(), left: HashMap::new() }.all(self, gaps, places);
    }

    /// If clean has as many records of one content as raw, they are paired one by one.
    fn pair_up(&self, expected: &Expected, places: &mut [Option<Place>]) {
        let mut positions: HashMap<Place, Vec<usize>> = HashMap::new();
        for (at, first) in self.firsts.iter().enumerate() {
            if let Some(first) = first.filter(|first| expected.shares(*first) == Some(Shared::Content)) {
                positions.entry(first).or_default().push(at);
            }
        }
        for (first, positions) in positions {
            let chain = expected.chain(first);
            if positions.len() == chain.len() {
                positions.iter().zip(chain).for_each(|(at, place)| set(places, *at, *place));
            }
        }
    }

    /// The ambiguous records in clean order, each with the places between the anchors around it.
    fn gaps(&self, expected: &Expected, shared: Shared, singles: &[Option<Place>]) -> Vec<Gap> {
        let anchors = longest_increasing(singles);
        let mut gaps: Vec<Gap> = Vec::new();
        let (mut start, mut closed) = (0, 0);
        for (at, ((first, single), anchor)) in self.firsts.iter().zip(singles).zip(&anchors).enumerate() {
            match (first, single) {
                (_, Some(place)) if *anchor => {
                    gaps.iter_mut().skip(closed).for_each(|gap| gap.places.end = *place);
                    closed = gaps.len();
                    start = place + 1;
                }
                (Some(first), None) if expected.shares(*first) == Some(shared) => {
                    gaps.push(Gap { at, first: *first, places: start..Place::MAX });
                }
                _ => {}
            }
        }
        gaps
    }
}

/// An ambiguous clean record.
#[derive(Debug)]
struct Gap {
    /// Its position in clean.
    at: usize,
    /// The first place of its fingerprint.
    first: Place,
    /// The places between the anchors around it.
    places: Range<Place>,
}

/// Assigns places to ambiguous clean records.
struct Choice<'a> {
    expected: &'a Expected,
    taken: HashSet<Place>,
    /// Due places that are not taken, by the first of their chain; computed on first use.
    left: HashMap<Place, Vec<Place>>,
}

impl Choice<'_> {
    /// Assigns the records that fit between their anchors first, then the rest.
    fn all(&mut self, log: &CleanLog, gaps: Vec<Gap>, places: &mut [Option<Place>]) {
        let mut low = 0;
        let mut rest = Vec::new();
        for mut gap in gaps {
            gap.places.start = gap.places.start.max(low);
            let Some(content) = log.contents.get(&gap.at) else { continue };
            match self.fitting(&gap, content) {
                Some(place) => {
                    low = place + 1;
                    self.taken.insert(place);
                    set(places, gap.at, place);
                }
                None => rest.push((gap, *content)),
            }
        }
        for (gap, content) in rest {
            set(places, gap.at, self.elsewhere(&gap, &content));
        }
    }

    /// The part of the chain that lies between the anchors.
    fn between(&self, gap: &Gap) -> &[Place] {
        let chain = self.expected.chain(gap.first);
        let from = chain.partition_point(|place| *place < gap.places.start);
        let to = chain.partition_point(|place| *place < gap.places.end);
        chain.get(from..to).unwrap_or(&[])
    }

    fn is_same(&self, place: Place, content: &Content) -> bool {
        self.expected.entry(place).is_some_and(|entry| entry.content == *content)
    }

    fn fitting(&self, gap: &Gap, content: &Content) -> Option<Place> {
        let free = self.between(gap).iter().filter(|place| !self.taken.contains(place));
        free.take(SEARCH_LIMIT).copied().find(|place| self.is_same(*place, content))
    }

    /// In this order: an untaken due place with this content (the record moved), any place with this
    /// content (a duplicate), an untaken due place (the record changed), the first place (a duplicate).
    fn elsewhere(&mut self, gap: &Gap, content: &Content) -> Place {
        self.find_left(gap.first);
        let left = self.left(gap.first);
        let same = |place: &Place| self.is_same(*place, content);
        if let Some(at) = left.iter().take(SEARCH_LIMIT).position(same) {
            return self.take(gap.first, at);
        }
        let chain = self.expected.chain(gap.first);
        if let Some(place) = chain.iter().take(SEARCH_LIMIT).copied().find(same) {
            return place;
        }
        if left.is_empty() { gap.first } else { self.take(gap.first, 0) }
    }

    fn left(&self, first: Place) -> &[Place] {
        self.left.get(&first).map_or(&[], Vec::as_slice)
    }

    fn find_left(&mut self, first: Place) {
        let Self { expected, taken, left } = self;
        left.entry(first).or_insert_with(|| {
            let due = |place: &Place| expected.entry(*place).is_some_and(|entry| entry.due);
            let chain = expected.chain(first).iter().copied();
            chain.filter(|place| due(place) && !taken.contains(place)).collect()
        });
    }

    fn take(&mut self, first: Place, at: usize) -> Place {
        let left = self.left.entry(first).or_default();
        let place = if at < left.len() { left.remove(at) } else { first };
        self.taken.insert(place);
        place
    }
}

fn set(places: &mut [Option<Place>], at: usize, place: Place) {
    if let Some(slot) = places.get_mut(at) {
        *slot = Some(place);
    }
}
