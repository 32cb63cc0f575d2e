//! The rows that an audit sorts and stores.
//!
//! A *copy* is a clean record that is matched to a raw record, or will be.

use super::record::{Content, Differing, Fingerprint};
use super::spill::{Key, encode_fields};
use super::{Offset, PartitionId};

/// Facts about a record, as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Marks(pub u8);

impl Marks {
    /// The record has an id.
    pub const ID: Self = Self(1);
    /// Clean must hold it.
    pub const DUE: Self = Self(2);
    /// It repeats an id that may have expired from the window: clean may hold it.
    pub const REPEAT: Self = Self(4);
    /// The producer set the force header: it is forwarded whatever its id.
    pub const FORCED: Self = Self(8);
    /// It is before the audited range.
    pub const BEFORE: Self = Self(16);
    /// A record before the range has the same id.
    pub const OUTSIDE: Self = Self(32);
    /// A clean record was assigned to it.
    pub const TAKEN: Self = Self(64);

    /// Whether all of these are set.
    pub fn has(self, marks: Self) -> bool {
        self.0 & marks.0 == marks.0
    }

    /// Whether the verdict on its copies depends on records before the range.
    pub fn is_outside(self) -> bool {
        self.has(Self::OUTSIDE) || self.has(Self::BEFORE)
    }

    /// Adds `marks` if the condition holds.
    pub fn with(self, marks: Self, condition: bool) -> Self {
        if condition { Self(self.0 | marks.0) } else { self }
    }

    /// Removes `marks`.
    pub fn without(self, marks: Self) -> Self {
        Self(self.0 & !marks.0)
    }
}

encode_fields!(Marks { 0: u8 });

/// A record of raw or clean.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    pub fingerprint: Fingerprint,
    pub is_clean: bool,
    pub offset: Offset,
    /// Stream time at its arrival, epoch milliseconds; 0 for clean records.
    pub time_ms: i64,
    pub content: Content,
    pub marks: Marks,
}

encode_fields!(Record {
    fingerprint: Fingerprint,
    is_clean: bool,
    offset: Offset,
    time_ms: i64,
    content: Content,
    marks: Marks
});

impl Record {
    /// Sorts by fingerprint, then raw before clean, then by offset.
    pub fn by_fingerprint(&self) -> Key {
        (self.fingerprint.number(), self.is_clean.into(), self.offset)
    }

    pub fn by_offset(&self) -> Key {
        (0, self.offset, 0)
    }
}

/// Several raw records that clean must or may hold and that share a fingerprint: a range of rows in a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chain {
    /// Number of its first row.
    pub start: u64,
    /// Number of rows.
    pub len: u64,
}

impl Chain {
    /// One past its last row.
    pub fn end(self) -> u64 {
        self.start + self.len
    }
}

/// When a clean record is matched to its raw record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Round(u8);

impl Round {
    /// Exactly one raw record has its fingerprint.
    pub const UNIQUE: Self = Self(0);
    /// Several raw records share its id: all but the first came after the window, or are forced, and need not
    /// be in clean.
    pub const ID: Self = Self(1);
    /// Several raw records without an id share its content; each of those is due.
    pub const CONTENT: Self = Self(2);
    /// After all others.
    pub const END: Self = Self(3);
}

encode_fields!(Round { 0: u8 });

/// A clean record with its raw record, once that is assigned.
#[derive(Debug, Clone, Copy)]
pub(super) struct Copy {
    pub clean_offset: Offset,
    /// Offset of its raw record; [`Self::UNASSIGNED`] until its round.
    pub raw_offset: Offset,
    /// First row of the chain of its raw record, if that has one.
    pub chain: u64,
    /// Row of its raw record in that chain; until it is assigned, its row among the ambiguous records.
    pub row: u64,
    /// Fields that differ.
    pub fields: Differing,
    /// Marks of the raw record.
    pub marks: Marks,
    pub round: Round,
    /// Whether it belongs to the longest increasing subsequence, once that is known.
    pub in_order: bool,
}

encode_fields!(Copy {
    clean_offset: Offset,
    raw_offset: Offset,
    chain: u64,
    row: u64,
    fields: Differing,
    marks: Marks,
    round: Round,
    in_order: bool
});

impl Copy {
    /// The raw offset of a copy that has no raw record yet.
    const UNASSIGNED: Offset = Offset::MAX;

    /// Matches a clean record to the only raw record with its fingerprint.
    pub fn unique(clean: &Record, entry: &Record) -> Self {
        let mut copy = Self::unassigned(clean.offset, Round::UNIQUE, 0, 0);
        copy.assign(entry, 0, &clean.content);
        copy
    }

    /// A clean record whose raw record is found in `round`; `row` is its row among the ambiguous records.
    pub fn unassigned(clean_offset: Offset, round: Round, chain: u64, row: u64) -> Self {
        Self {
            clean_offset,
            raw_offset: Self::UNASSIGNED,
            chain,
            row,
            fields: Differing::default(),
            marks: Marks::default(),
            round,
            in_order: false,
        }
    }

    /// Assigns the raw record in this row of the chain; `content` is that of the clean record.
    pub fn assign(&mut self, entry: &Record, row: u64, content: &Content) {
        self.raw_offset = entry.offset;
        self.row = row;
        self.fields = entry.content.differing(content);
        self.marks = entry.marks;
    }

    /// Whether a raw record is assigned.
    pub fn is_assigned(&self) -> bool {
        self.raw_offset != Self::UNASSIGNED
    }

    pub fn by_clean_offset(&self) -> Key {
        (0, self.clean_offset, 0)
    }

    /// Sorts by raw offset; of several copies, the one in order comes first.
    pub fn by_raw_offset(&self) -> Key {
        (self.raw_offset.into(), (!self.in_order).into(), self.clean_offset)
    }
}

/// A clean record with several candidate raw records.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ambiguous {
    pub chain: Chain,
    pub content: Content,
}

encode_fields!(Chain { start: u64, len: u64 });
encode_fields!(Ambiguous { chain: Chain, content: Content });

/// A row of the copies, with the first row of its chain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link {
    pub chain: u64,
    pub copy: u64,
}

encode_fields!(Link { chain: u64, copy: u64 });

impl Link {
    /// Sorts by chain, then by clean offset.
    pub fn by_chain(&self) -> Key {
        (0, self.chain, self.copy)
    }
}

/// A lost or phantom record, to be searched in other partitions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unmatched {
    pub fingerprint: Fingerprint,
    pub partition: PartitionId,
    pub lost: bool,
}

encode_fields!(Unmatched { fingerprint: Fingerprint, partition: PartitionId, lost: bool });

impl Unmatched {
    /// Sorts by fingerprint, then by partition.
    pub fn by_fingerprint(&self) -> Key {
        (self.fingerprint.number(), self.partition.into(), 0)
    }
}
