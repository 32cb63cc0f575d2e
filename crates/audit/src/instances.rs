//! The raw records of one id in all partitions, and which of them clean may hold (topic scope).
//!
//! Copies in different partitions are read in any order, so each record of an id with several raw records may be the one that
//! clean holds, and [`super::owners`] decides what is missing. That includes a record that follows another one within the window
//! in its partition: the earlier one may have been dropped as a copy of a record in another partition, whose transaction was torn
//! and undone later. Only if no other partition has the id, such a record is certainly dropped. It is then not expected if it
//! equals the first one: a wrong match with it would turn one fault into many. Only the first [`DROPPED_MAX`] others of these are
//! expected, so that a fault can be attributed to them.

use super::PartitionId;
use super::entry::{Marks, Place, Record};
use super::expected::{RawCounts, Rules};

/// How many records of an id and a partition are expected although they are certainly dropped. Fewer than are searched.
const DROPPED_MAX: u64 = 64;

/// What is known about the raw records of an id before each of them is decided.
#[derive(Debug)]
pub(super) struct Instances {
    /// The first by stream time, then by place.
    first: (i64, Place),
    partition: PartitionId,
    /// Whether another partition also has one.
    is_spread: bool,
    /// One of them is before the audited range.
    before: bool,
    /// One of them is behind the audited range, or arrived during the audit.
    behind: bool,
}

impl Instances {
    /// With `is_spread`, the records count as those of several partitions wherever they are.
    pub fn new(record: &Record, is_spread: bool) -> Self {
        let mut instances = Self {
            first: (record.time_ms, record.place()),
            partition: record.partition,
            is_spread,
            before: false,
            behind: false,
        };
        instances.add(record);
        instances
    }

    pub fn add(&mut self, record: &Record) {
        self.first = self.first.min((record.time_ms, record.place()));
        self.is_spread |= record.partition != self.partition;
        let before = record.marks.has(Marks::BEFORE);
        self.before |= before;
        self.behind |= !before && !record.marks.has(Marks::DUE);
    }

    /// The expected record that the next raw record of the id adds, if any; by place. `here` is the first expected record of its
    /// partition, and their number.
    pub fn expect(
        &self,
        here: Option<(&Record, u64)>,
        record: &Record,
        rules: &Rules,
        counts: &mut RawCounts,
    ) -> Option<Record> {
        let may_be_due = record.marks.has(Marks::DUE);
        // A record with an id may be due wherever it is in the range, and only there.
        let one = u64::from(may_be_due);
        if record.marks.has(Marks::BEFORE) {
            return here.is_none().then(|| record.expected(false, Marks::OUTSIDE));
        }
        if self.before && !record.marks.has(Marks::FORCED) {
            counts.decided_outside += one;
            return Some(record.expected(false, Marks(Marks::REPEAT.0 | Marks::OUTSIDE.0)));
        }
        if (record.time_ms, record.place()) == self.first {
            counts.ids += one;
        } else if record.marks.has(Marks::FORCED) {
            counts.forced += one;
        } else if rules.within_window(self.first.0, record.time_ms) {
            counts.duplicates += one;
        } else {
            counts.beyond_window += one;
        }
        if record.marks.has(Marks::FORCED) {
            return Some(record.expected(may_be_due, Marks::REPEAT));
        }
        if let Some((first, count)) = here.filter(|(first, _)| self.is_dropped(first, record, rules)) {
            let is_expected = count < DROPPED_MAX && first.content != record.content;
            return is_expected.then(|| record.expected(false, Marks::REPEAT));
        }
        let is_outside = self.behind && self.is_spread;
        counts.decided_outside += if is_outside { one } else { 0 };
        let wanted = may_be_due && !is_outside;
        // No record of another partition can explain that the first of the only partition is missing.
        let due = wanted && here.is_none() && !self.is_spread;
        Some(record.expected(due, Marks::REPEAT.with(Marks::WANTED, wanted)))
    }

    /// Whether a record that follows `first` in its partition is certainly dropped.
    fn is_dropped(&self, first: &Record, record: &Record, rules: &Rules) -> bool {
        !self.is_spread && rules.within_window(first.time_ms, record.time_ms)
    }
}
