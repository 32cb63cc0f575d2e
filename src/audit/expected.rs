//! What the clean partition has to hold, as rules; [`super::join`] applies them.
//!
//! The first record of each id is due. A later one of the same id at most the window younger, in
//! stream time, must not appear. One that is older than the window may appear or not: the window ends
//! with a transaction, and nobody but the pipeline knows where its transactions ended. A record that its
//! producer forced through is due each time.

use super::entry::{Filed, Marks};
use super::range::Part;
use super::record::Seen;
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
    /// Raw is whole from here on: whatever is missing behind is a hole.
    pub whole_from: Offset,
    /// Whether what tells the ids known before the range is gone in part.
    pub context_cut: bool,
    /// Records with a timestamp before this need not be in clean, ms since the epoch.
    pub from_ms: Option<i64>,
}

impl Rules {
    /// Whether an id that arrived then is certainly remembered now, both in ms of stream time.
    pub(super) fn remembered(&self, then_ms: i64, now_ms: i64) -> bool {
        self.window_ms.is_none_or(|window_ms| now_ms.saturating_sub(then_ms) <= window_ms)
    }

    /// Up to when, in ms of stream time, a first record can repeat one that is gone; `first_ms` is the arrival
    /// of the first that is left.
    pub(super) fn doubtful_until(&self, first_ms: i64) -> Option<i64> {
        self.context_cut
            .then(|| self.window_ms.map_or(i64::MAX, |window_ms| first_ms.saturating_add(window_ms)))
    }

    /// Whether a record would be due if it were the first of its id.
    fn may_be_due(&self, record: &Seen, part: Part) -> bool {
        part == Part::Within
            && record.offset < self.due_below
            && self.from_ms.is_none_or(|from_ms| record.content.timestamp_ms() >= from_ms)
    }
}

/// What a raw partition holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RawCounts {
    /// Records that a `read_committed` reader sees.
    pub records: u64,
    /// Different ids; without those that came before the range.
    pub ids: u64,
    /// Records that repeat an id within the window.
    pub duplicates: u64,
    /// Records that repeat an id older than the window.
    pub beyond_window: u64,
    /// Records that repeat an id and were forced through by their producer.
    pub forced: u64,
    /// Records whose id stands before the range too: what becomes of them is decided there.
    pub decided_outside: u64,
    /// Records without an id.
    pub without_id: u64,
    /// Whether offsets are missing before or between its records: deleted, compacted, aborted, or markers of
    /// transactions.
    pub holes: bool,
}

/// Raw records as they come, by rising offset, on their way to be sorted.
#[derive(Debug)]
pub(super) struct RawLog {
    rules: Rules,
    time_ms: i64,
    next: Offset,
    pub counts: RawCounts,
    /// First offset of the range, once it has begun.
    pub begin: Option<Offset>,
    /// When the first record arrived, ms of stream time.
    pub first_ms: Option<i64>,
}

impl RawLog {
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            time_ms: 0,
            next: rules.whole_from,
            counts: RawCounts::default(),
            begin: None,
            first_ms: None,
        }
    }

    /// Takes the next record.
    pub fn file(&mut self, record: &Seen, part: Part) -> Filed {
        self.time_ms = self.time_ms.max(record.content.timestamp_ms().min(self.rules.latest_ms));
        self.first_ms.get_or_insert(self.time_ms);
        self.counts.holes |= record.offset != self.next;
        self.next = record.offset + 1;
        self.counts.records += 1;
        self.counts.without_id += u64::from(!record.has_id);
        if part != Part::Before && self.begin.is_none() {
            self.begin = Some(record.offset);
        }
        let marks = Marks::default()
            .with(Marks::ID, record.has_id)
            .with(Marks::FORCED, record.forced)
            .with(Marks::BEFORE, part == Part::Before)
            .with(Marks::DUE, self.rules.may_be_due(record, part));
        Filed {
            print: record.print,
            offset: record.offset,
            time_ms: self.time_ms,
            content: record.content,
            marks,
        }
    }
}
