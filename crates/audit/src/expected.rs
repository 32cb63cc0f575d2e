//! The rules for what the clean partition must hold; [`super::join`] applies them. Topic scope has those of [`super::instances`]
//! and [`super::owners`] for the ids with several raw records.
//!
//! The first record of each id is due. A later one with the same id, within the window in stream time, must
//! not be in clean. One that comes after the window may be in clean or not: ids expire at the end of a
//! transaction, and the topics do not show where the transactions of the pipeline ended. If it is in clean, and within the window
//! by its own timestamp, it is counted apart: late or twice. A record that its producer forced is always due.

use std::ops::AddAssign;

use super::Offset;
use super::entry::{Marks, Record};
use super::range::Part;
use super::record::{Exempt, Seen};

/// How the pipeline treats raw records without an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingId {
    /// Each of them is due in clean.
    Forwarded,
    /// The header `dedupd.source` takes the place of the id. Each of those without it is due in clean.
    Identified,
    /// None of them may be in clean: they are dropped or dead-lettered, or the pipeline stops.
    Withheld,
}

/// The rules that determine which raw records clean must or may hold.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// How long an id is kept, ms of stream time; `None` is forever.
    pub window_ms: Option<i64>,
    /// How long an id is kept at most, ms of stream time, without the tolerances of the pipeline; `None` is forever.
    pub longest_ms: Option<i64>,
    /// Upper limit of stream time, epoch milliseconds.
    pub latest_ms: i64,
    /// How the pipeline treats records without an id.
    pub missing_id: MissingId,
    /// Records from this offset on may be in clean but need not be yet.
    pub due_below: Offset,
    /// Raw is complete from this offset on: a missing offset after it is a hole.
    pub whole_from: Offset,
    /// Whether some of the raw records before the range are deleted, so that earlier ids may be missing.
    pub context_cut: bool,
    /// Records with a timestamp before this need not be in clean, epoch milliseconds.
    pub from_ms: Option<i64>,
}

impl Rules {
    /// Whether an id that arrived at `then_ms` is certainly still in the window at `now_ms`, both in stream time.
    pub(super) fn within_window(&self, then_ms: i64, now_ms: i64) -> bool {
        self.window_ms.is_none_or(|window_ms| now_ms.saturating_sub(then_ms) <= window_ms)
    }

    /// Whether a record is in the audited range, also by its own timestamp, and was there at the start of the audit.
    fn is_in_range(&self, record: &Seen, part: Part) -> bool {
        part == Part::Within
            && record.offset < self.due_below
            && self.from_ms.is_none_or(|from_ms| record.content.timestamp_ms() >= from_ms)
    }
}

/// The longest time that an id of this window may be kept, ms: expiry is accurate to 1/256 of the window, and an owner that was
/// restored from a block may stay longer by the span of the block, up to 1/32 of the window.
pub(super) fn kept_ms(longest_ms: i64) -> i64 {
    longest_ms.saturating_add(longest_ms / 256).saturating_add(longest_ms / 32).saturating_add(1)
}

/// Counts of the records of a raw partition. All but `records` and `holes` are of those in the audited range.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RawCounts {
    /// Records that were read, in the range or not: those visible to a `read_committed` reader.
    pub records: u64,
    /// Those in the audited range that were there at the start of the audit.
    pub in_range: u64,
    /// Distinct ids, without those that also occur before the range.
    pub ids: u64,
    /// Records that repeat an id within the window.
    pub duplicates: u64,
    /// Records that repeat an id after the window.
    pub beyond_window: u64,
    /// Records that repeat an id and were forced by their producer.
    pub forced: u64,
    /// Records whose id also occurs before the range, in topic scope also after it in another partition: their verdict depends on
    /// that record.
    pub decided_outside: u64,
    /// Records without an id.
    pub without_id: u64,
    /// Records of a kind that is not de-duplicated, or of a forgotten id.
    pub exempt: u64,
    /// Whether offsets are missing before or between the records: deleted, compacted or aborted records, or
    /// transaction markers.
    pub holes: bool,
}

impl AddAssign for RawCounts {
    fn add_assign(&mut self, other: Self) {
        self.records += other.records;
        self.in_range += other.in_range;
        self.ids += other.ids;
        self.duplicates += other.duplicates;
        self.beyond_window += other.beyond_window;
        self.forced += other.forced;
        self.decided_outside += other.decided_outside;
        self.without_id += other.without_id;
        self.exempt += other.exempt;
        self.holes |= other.holes;
    }
}

/// Converts raw records, by increasing offset, to the rows that are sorted.
#[derive(Debug)]
pub(super) struct RawLog {
    rules: Rules,
    time_ms: i64,
    next: Offset,
    pub counts: RawCounts,
    /// First offset of the range, once it is reached.
    pub begin: Option<Offset>,
    /// Arrival of the first record, ms of stream time.
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

    /// Converts the next record, of partition 0.
    pub fn row(&mut self, record: &Seen, part: Part) -> Record {
        self.time_ms = self.time_ms.max(record.content.timestamp_ms().min(self.rules.latest_ms));
        self.first_ms.get_or_insert(self.time_ms);
        self.counts.holes |= record.offset != self.next;
        self.next = record.offset + 1;
        self.counts.records += 1;
        let is_in_range = self.rules.is_in_range(record, part);
        self.counts.in_range += u64::from(is_in_range);
        let is_exempt = record.exempt != Exempt::No;
        self.counts.exempt += u64::from(is_in_range && is_exempt);
        self.counts.without_id += u64::from(is_in_range && !record.has_id && !is_exempt);
        if part != Part::Before && self.begin.is_none() {
            self.begin = Some(record.offset);
        }
        let marks = Marks::default()
            .with(Marks::ID, record.has_id)
            .with(Marks::FORCED, is_exempt || record.forced && record.has_id)
            .with(Marks::BEFORE, part == Part::Before)
            // It would be due if it were the first of its id.
            .with(Marks::DUE, is_in_range && record.exempt != Exempt::Forgotten);
        let (time_ms, Seen { fingerprint, offset, content, digest, .. }) = (self.time_ms, *record);
        Record { offset, time_ms, content, digest, marks, ..Record::unknown(fingerprint) }
    }
}
