//! The rows that an audit sorts and stores.
//!
//! A *copy* is a clean record that is matched to a raw record, or will be.

use super::digest::Digest;
use super::record::{Content, Differing, Fingerprint};
use super::spill::{Key, encode_fields};
use super::{Offset, PartitionId};

/// Where a record is in its topic. The partitions are taken one after the other.
pub(super) type Place = (PartitionId, Offset);

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
    /// It is forwarded whatever its id: the producer set the force header, or it is compared by its content although it may have one.
    pub const FORCED: Self = Self(8);
    /// It is before the audited range.
    pub const BEFORE: Self = Self(16);
    /// A record before the range has the same id.
    pub const OUTSIDE: Self = Self(32);
    /// A clean record was assigned to it.
    pub const TAKEN: Self = Self(64);
    /// Clean must hold it, or another record with its id that explains why it was dropped.
    pub const WANTED: Self = Self(128);

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
    pub partition: PartitionId,
    pub is_clean: bool,
    pub offset: Offset,
    /// Stream time at its arrival, epoch milliseconds; 0 for clean records.
    pub time_ms: i64,
    pub content: Content,
    /// Of raw records: stands for what is compared.
    pub digest: Digest,
    pub marks: Marks,
}

encode_fields!(Record {
    fingerprint: Fingerprint,
    partition: PartitionId,
    is_clean: bool,
    offset: Offset,
    time_ms: i64,
    content: Content,
    digest: Digest,
    marks: Marks
});

impl Record {
    /// A record of which only the fingerprint is known.
    pub fn unknown(fingerprint: Fingerprint) -> Self {
        let (content, digest, marks) = (Content::default(), Digest::NONE, Marks::default());
        Self { fingerprint, partition: 0, is_clean: false, offset: 0, time_ms: 0, content, digest, marks }
    }

    /// Sorts by fingerprint, then raw before clean, then by place.
    pub fn by_fingerprint(&self) -> Key {
        let side = u64::from(self.is_clean) << PartitionId::BITS;
        (self.fingerprint.number(), side | u64::from(self.partition), self.offset)
    }

    /// As [`Self::by_fingerprint`], but the records of a side by the hash of their headers: behind `rekey` these name the raw
    /// record, in whatever partition the clean record is.
    pub fn by_headers(&self) -> Key {
        (self.fingerprint.number(), self.is_clean.into(), self.content.headers())
    }

    pub fn by_place(&self) -> Key {
        (0, self.partition.into(), self.offset)
    }

    pub fn place(&self) -> Place {
        (self.partition, self.offset)
    }

    /// Whether it is a raw record with this fingerprint.
    pub fn is_raw_of(&self, fingerprint: Fingerprint) -> bool {
        self.fingerprint == fingerprint && !self.is_clean
    }

    /// Its own timestamp if that is valid and below the stream time at its arrival, otherwise the stream time, epoch milliseconds.
    pub fn own_ms(&self) -> i64 {
        match self.content.timestamp_ms() {
            timestamp_ms @ 1.. => timestamp_ms.min(self.time_ms),
            _ => self.time_ms,
        }
    }

    /// This record as one that clean must hold, or may hold.
    pub fn expected(&self, due: bool, marks: Marks) -> Self {
        let kept = self.marks.without(Marks::DUE).with(Marks::DUE, due);
        Self { marks: kept.with(marks, true), ..*self }
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
    pub partition: PartitionId,
    pub clean_offset: Offset,
    /// Partition of its raw record: the same one, unless the topics between raw and clean were written by `rekey`.
    pub raw_partition: PartitionId,
    /// Offset of its raw record; [`Self::UNASSIGNED`] until its round.
    pub raw_offset: Offset,
    /// First row of the chain of its raw record, if that has one.
    pub chain: u64,
    /// Row of its raw record in that chain; until it is assigned, its row among the ambiguous records.
    pub row: u64,
    /// Fields that differ.
    pub fields: Differing,
    /// From the stream time of its raw record to its timestamp, ms; at least 0.
    pub distance_ms: i64,
    /// Marks of the raw record.
    pub marks: Marks,
    pub round: Round,
    /// Whether it belongs to the longest increasing subsequence, once that is known.
    pub in_order: bool,
}

encode_fields!(Copy {
    partition: PartitionId,
    clean_offset: Offset,
    raw_partition: PartitionId,
    raw_offset: Offset,
    chain: u64,
    row: u64,
    fields: Differing,
    distance_ms: i64,
    marks: Marks,
    round: Round,
    in_order: bool
});

impl Copy {
    /// The raw offset of a copy that has no raw record yet.
    const UNASSIGNED: Offset = Offset::MAX;

    /// Matches a clean record to the only raw record that it can be, which is in this row of the chains if it is there.
    pub fn unique(clean: &Record, entry: &Record, row: u64) -> Self {
        let mut copy = Self::unassigned(clean.place(), Round::UNIQUE, row, 0);
        copy.assign(entry, row, &clean.content);
        copy
    }

    /// A clean record whose raw record is found in `round`; `row` is its row among the ambiguous records.
    pub fn unassigned((partition, clean_offset): Place, round: Round, chain: u64, row: u64) -> Self {
        Self {
            partition,
            clean_offset,
            raw_partition: partition,
            raw_offset: Self::UNASSIGNED,
            chain,
            row,
            fields: Differing::default(),
            distance_ms: 0,
            marks: Marks::default(),
            round,
            in_order: false,
        }
    }

    /// Assigns the raw record in this row of the chain; `content` is that of the clean record.
    pub fn assign(&mut self, entry: &Record, row: u64, content: &Content) {
        self.raw_partition = entry.partition;
        self.raw_offset = entry.offset;
        self.row = row;
        self.fields = entry.content.differing(content);
        self.distance_ms = entry.time_ms.saturating_sub(content.timestamp_ms()).saturating_abs();
        self.marks = entry.marks;
    }

    /// Whether a raw record is assigned.
    pub fn is_assigned(&self) -> bool {
        self.raw_offset != Self::UNASSIGNED
    }

    pub fn raw_place(&self) -> Place {
        (self.raw_partition, self.raw_offset)
    }

    pub fn clean_place(&self) -> Place {
        (self.partition, self.clean_offset)
    }

    pub fn by_clean_place(&self) -> Key {
        (0, self.partition.into(), self.clean_offset)
    }

    /// Sorts by the place in raw; of several copies, the one in order comes first.
    pub fn by_raw_place(&self) -> Key {
        let place = (u128::from(self.raw_partition) << Offset::BITS) | u128::from(self.raw_offset);
        let side = u64::from(!self.in_order) << PartitionId::BITS;
        (place, side | u64::from(self.partition), self.clean_offset)
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
