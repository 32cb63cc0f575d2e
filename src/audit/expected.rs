//! What the clean partition has to hold, computed from the raw partition alone.
//!
//! The first record of each id is due. A later one of the same id at most the window younger, in
//! stream time, must not appear. One that is older than the window may appear or not: the window ends
//! with a transaction, and nobody but the pipeline knows where its transactions ended.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use super::record::{AsIs, Content, Print, Seen};
use crate::dedupe::Offset;

/// What happens to raw records without an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingId {
    /// Each of them is due in clean.
    Forwarded,
    /// None of them may be in clean: dropped, dead-lettered, or stopped at.
    Withheld,
}

/// How raw records become expectations.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// How long an id is remembered, ms of stream time; `None` is for ever.
    pub window_ms: Option<i64>,
    /// No record moves stream time beyond this, ms since the epoch.
    pub latest_ms: i64,
    /// What happens to records without an id.
    pub missing_id: MissingId,
    /// Records from this offset on may be in clean but need not yet.
    pub due_below: Offset,
}

/// One record that clean must or may hold.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub offset: Offset,
    pub content: Content,
    /// Stream time at which it arrived, ms since the epoch.
    pub time_ms: i64,
    /// Whether clean must hold it.
    pub due: bool,
    /// Whether it repeats an id that is older than the window.
    pub again: bool,
}

/// What several places of one print have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shared {
    /// One id; all but the first are older than the window and need not be in clean.
    Id,
    /// The whole content; none of them has an id, and each is due.
    Content,
}

/// Position of an entry; entries are in raw order.
pub(super) type Place = u32;

/// The records of one raw partition that clean must or may hold.
#[derive(Debug)]
pub struct Expected {
    rules: Rules,
    time_ms: i64,
    next: Offset,
    first: HashMap<Print, Place, BuildHasherDefault<AsIs>>,
    /// Places that share a print, under the first of them, which they include.
    chains: HashMap<Place, Vec<Place>>,
    pub(super) entries: Vec<Entry>,
    pub(super) raw: RawCounts,
}

/// What a raw partition holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RawCounts {
    /// Records that a `read_committed` reader sees.
    pub records: u64,
    /// Different ids.
    pub ids: u64,
    /// Records that repeat an id within the window.
    pub duplicates: u64,
    /// Records that repeat an id older than the window.
    pub beyond_window: u64,
    /// Records without an id.
    pub without_id: u64,
    /// Whether offsets are missing before or between its records: deleted, compacted, aborted, or markers of
    /// transactions.
    pub holes: bool,
}

impl Expected {
    /// Nothing yet.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            time_ms: 0,
            next: 0,
            first: HashMap::default(),
            chains: HashMap::new(),
            entries: Vec::new(),
            raw: RawCounts::default(),
        }
    }

    /// Takes the next raw record, by rising offset.
    pub fn push(&mut self, record: &Seen) {
        self.time_ms = self.time_ms.max(record.content.timestamp_ms().min(self.rules.latest_ms));
        self.raw.holes |= record.offset != self.next;
        self.next = record.offset + 1;
        self.raw.records += 1;
        if !record.has_id {
            self.raw.without_id += 1;
            if self.rules.missing_id == MissingId::Forwarded {
                self.enter(record, false);
            }
            return;
        }
        let Some(first) = self.first.get(&record.print) else {
            self.raw.ids += 1;
            self.enter(record, false);
            return;
        };
        let arrived_ms = self.entry(*first).map_or(0, |entry| entry.time_ms);
        if self.remembered(arrived_ms, self.time_ms) {
            self.raw.duplicates += 1;
        } else {
            self.raw.beyond_window += 1;
            self.enter(record, true);
        }
    }

    /// Whether an id that arrived then is certainly remembered now, both in ms of stream time.
    pub(super) fn remembered(&self, then_ms: i64, now_ms: i64) -> bool {
        self.rules.window_ms.is_none_or(|window_ms| now_ms.saturating_sub(then_ms) <= window_ms)
    }

    fn enter(&mut self, record: &Seen, again: bool) {
        let place = Place::try_from(self.entries.len()).unwrap_or(Place::MAX);
        let first = *self.first.entry(record.print).or_insert(place);
        if first != place {
            self.chains.entry(first).or_insert_with(|| vec![first]).push(place);
        }
        self.entries.push(Entry {
            offset: record.offset,
            content: record.content,
            time_ms: self.time_ms,
            due: !again && record.offset < self.rules.due_below,
            again,
        });
    }

    /// The first place of a print.
    pub(super) fn first(&self, print: &Print) -> Option<Place> {
        self.first.get(print).copied()
    }

    /// All places of a print, by its first; empty when there is only that one.
    pub(super) fn chain(&self, first: Place) -> &[Place] {
        self.chains.get(&first).map_or(&[], Vec::as_slice)
    }

    /// What the records of a print have in common, if it has several.
    pub(super) fn shares(&self, first: Place) -> Option<Shared> {
        let second = *self.chain(first).get(1)?;
        let again = self.entry(second).is_some_and(|entry| entry.again);
        Some(if again { Shared::Id } else { Shared::Content })
    }

    /// All prints with more than one place.
    pub(super) fn chains(&self) -> impl Iterator<Item = &[Place]> {
        self.chains.values().map(Vec::as_slice)
    }

    /// Every print with its first place.
    pub(super) fn prints(&self) -> impl Iterator<Item = (&Print, Place)> {
        self.first.iter().map(|(print, first)| (print, *first))
    }

    pub(super) fn entry(&self, place: Place) -> Option<&Entry> {
        self.entries.get(place as usize)
    }
}
