//! The model: what the clean partition must hold, with all of the raw partition in memory.

use std::collections::HashMap;

use crate::audit::{Content, Fingerprint, MissingId, Part, RawCounts, Rules, Seen};
use crate::dedupe::Offset;

/// One record that clean must or may hold.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "a model favours plain flags")]
pub(super) struct Entry {
    pub offset: Offset,
    pub content: Content,
    /// Stream time at its arrival, epoch milliseconds.
    pub time_ms: i64,
    /// Whether clean must hold it.
    pub due: bool,
    /// Whether it repeats an id after the window.
    pub repeat: bool,
    /// Whether the verdict on its copies depends on records before the range.
    pub outside: bool,
    pub has_id: bool,
}

/// What several places of one fingerprint have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shared {
    /// One id; all but the first came after the window and need not be in clean.
    Id,
    /// The complete content; none of them has an id, and each is due.
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
    /// First offset of the range.
    pub(super) begin: Option<Offset>,
    first_ms: Option<i64>,
    first: HashMap<Fingerprint, Place>,
    /// Places that share a fingerprint, by the first of them, which is included.
    chains: HashMap<Place, Vec<Place>>,
    pub(super) entries: Vec<Entry>,
    pub(super) raw: RawCounts,
}

impl Expected {
    /// No records yet.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            time_ms: 0,
            next: rules.whole_from,
            begin: None,
            first_ms: None,
            first: HashMap::default(),
            chains: HashMap::new(),
            entries: Vec::new(),
            raw: RawCounts::default(),
        }
    }

    /// Adds the next raw record, by increasing offset.
    pub fn push(&mut self, record: &Seen, part: Part) {
        self.time_ms = self.time_ms.max(record.content.timestamp_ms().min(self.rules.latest_ms));
        self.first_ms.get_or_insert(self.time_ms);
        self.raw.holes |= record.offset != self.next;
        self.next = record.offset + 1;
        self.raw.records += 1;
        let before = part == Part::Before;
        if !before {
            self.begin.get_or_insert(record.offset);
        }
        let due = part == Part::Within
            && record.offset < self.rules.due_below
            && self.rules.from_ms.is_none_or(|from_ms| record.content.timestamp_ms() >= from_ms);
        let mut entry = Entry {
            offset: record.offset,
            content: record.content,
            time_ms: self.time_ms,
            due,
            repeat: false,
            outside: before,
            has_id: record.has_id,
        };
        if !record.has_id {
            self.raw.without_id += 1;
            if self.rules.missing_id == MissingId::Forwarded {
                self.enter(record, entry);
            }
            return;
        }
        let Some(first) = self.first.get(&record.fingerprint).and_then(|first| self.entry(*first)).cloned()
        else {
            self.raw.ids += u64::from(!before);
            self.enter(record, entry);
            return;
        };
        if before {
            return;
        }
        if record.forced {
            self.raw.forced += 1;
        } else if first.outside {
            self.raw.decided_outside += 1;
            entry = Entry { due: false, repeat: true, outside: true, ..entry };
        } else if self.within_window(first.time_ms, self.time_ms) {
            self.raw.duplicates += 1;
            return;
        } else {
            self.raw.beyond_window += 1;
            entry = Entry { due: false, repeat: true, ..entry };
        }
        self.enter(record, entry);
    }

    /// Whether an id that arrived at `then_ms` is certainly still in the window at `now_ms`, both in stream time.
    pub(super) fn within_window(&self, then_ms: i64, now_ms: i64) -> bool {
        self.rules.window_ms.is_none_or(|window_ms| now_ms.saturating_sub(then_ms) <= window_ms)
    }

    /// Whether a record may repeat a deleted one from before the first remaining record.
    pub(super) fn is_uncertain(&self, place: Place) -> bool {
        let Some(entry) = self.entry(place).filter(|_| self.rules.context_cut) else { return false };
        self.rules.window_ms.is_none_or(|window_ms| entry.time_ms - self.first_ms.unwrap() <= window_ms)
    }

    /// Whether a clean record is older than the range.
    pub(super) fn is_older(&self, content: &Content) -> bool {
        self.rules.from_ms.is_some_and(|from_ms| content.timestamp_ms() < from_ms)
    }

    fn enter(&mut self, record: &Seen, entry: Entry) {
        let place = Place::try_from(self.entries.len()).unwrap();
        let first = *self.first.entry(record.fingerprint).or_insert(place);
        if first != place {
            self.chains.entry(first).or_insert_with(|| vec![first]).push(place);
        }
        self.entries.push(entry);
    }

    /// The first place of a fingerprint.
    pub(super) fn first(&self, fingerprint: &Fingerprint) -> Option<Place> {
        self.first.get(fingerprint).copied()
    }

    /// All places of a fingerprint, by its first; empty if there is only one.
    pub(super) fn chain(&self, first: Place) -> &[Place] {
        self.chains.get(&first).map_or(&[], Vec::as_slice)
    }

    /// What the records of a fingerprint share, if it has several.
    pub(super) fn shares(&self, first: Place) -> Option<Shared> {
        let second = *self.chain(first).get(1)?;
        let has_id = self.entry(second).is_some_and(|entry| entry.has_id);
        Some(if has_id { Shared::Id } else { Shared::Content })
    }

    /// All fingerprints with more than one place, by the first of them.
    pub(super) fn chains(&self) -> impl Iterator<Item = &[Place]> {
        let mut chains: Vec<&[Place]> = self.chains.values().map(Vec::as_slice).collect();
        chains.sort_unstable();
        chains.into_iter()
    }

    pub(super) fn entry(&self, place: Place) -> Option<&Entry> {
        self.entries.get(place as usize)
    }
}
