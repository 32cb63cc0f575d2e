//! The raw records of one id in all partitions, and which of them clean may hold (topic scope).
//!
//! Copies in different partitions are read in any order, so each record of an id with several raw records may be the one that
//! clean holds, and [`super::owners`] decides what is missing. A record that is certainly dropped, whichever of the others was
//! read first, is not expected if it equals the first one of its partition: a wrong match with such a record would turn one fault
//! into many. Only the first [`DROPPED_MAX`] others of these are expected, so that a fault can be attributed to them.

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
    /// The latest stream time, epoch milliseconds.
    latest_ms: i64,
    partition: PartitionId,
    /// Whether another partition also has one.
    is_spread: bool,
    /// One of them is before the audited range.
    before: bool,
    /// The partitions of records that clean may hold behind the audited range.
    behind: Behind,
}

/// The partitions of records that are behind the audited range, or arrived during the audit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behind {
    Nowhere,
    In(PartitionId),
    InSeveral,
}

impl Instances {
    pub fn new(record: &Record) -> Self {
        let mut instances = Self {
            first: (record.time_ms, record.place()),
            latest_ms: record.time_ms,
            partition: record.partition,
            is_spread: false,
            before: false,
            behind: Behind::Nowhere,
        };
        instances.add(record);
        instances
    }

    pub fn add(&mut self, record: &Record) {
        self.first = self.first.min((record.time_ms, record.place()));
        self.latest_ms = self.latest_ms.max(record.time_ms);
        self.is_spread |= record.partition != self.partition;
        let before = record.marks.has(Marks::BEFORE);
        self.before |= before;
        if !before && !record.marks.has(Marks::DUE) {
            self.behind = match self.behind {
                Behind::Nowhere => Behind::In(record.partition),
                Behind::In(partition) if partition == record.partition => self.behind,
                _ => Behind::InSeveral,
            };
        }
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
        if record.marks.has(Marks::BEFORE) {
            return here.is_none().then(|| record.expected(false, Marks::OUTSIDE));
        }
        if self.before && !record.marks.has(Marks::FORCED) {
            counts.decided_outside += 1;
            return Some(record.expected(false, Marks(Marks::REPEAT.0 | Marks::OUTSIDE.0)));
        }
        if (record.time_ms, record.place()) == self.first {
            counts.ids += 1;
        } else if record.marks.has(Marks::FORCED) {
            counts.forced += 1;
        } else if rules.within_window(self.first.0, record.time_ms) {
            counts.duplicates += 1;
        } else {
            counts.beyond_window += 1;
        }
        if record.marks.has(Marks::FORCED) {
            return Some(record.expected(may_be_due, Marks::REPEAT));
        }
        if let Some((first, count)) = here.filter(|(first, _)| self.is_dropped(first, record, rules)) {
            let is_expected = count < DROPPED_MAX && first.content != record.content;
            return is_expected.then(|| record.expected(false, Marks::REPEAT));
        }
        let is_elsewhere = match self.behind {
            Behind::Nowhere => false,
            Behind::In(partition) => partition != record.partition,
            Behind::InSeveral => true,
        };
        counts.decided_outside += u64::from(is_elsewhere && may_be_due);
        let wanted = may_be_due && !is_elsewhere;
        Some(record.expected(false, Marks::REPEAT.with(Marks::WANTED, wanted)))
    }

    /// Whether a record that follows `first` in its partition is certainly dropped: `first` is its owner, or what `first` was
    /// dropped for is.
    fn is_dropped(&self, first: &Record, record: &Record, rules: &Rules) -> bool {
        let after_all = || {
            rules.within_window(self.first.0, record.time_ms)
                && rules.within_window(record.time_ms, self.latest_ms)
        };
        rules.within_window(first.time_ms, record.time_ms) && (!self.is_spread || after_all())
    }
}
