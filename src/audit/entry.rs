//! The rows that an audit sorts and stores.
//!
//! A *copy* is a clean record that is matched to a raw record.

use super::record::{Content, Differing, Fingerprint, Seen};
use super::spill::{Parts, Row};
use crate::dedupe::{Offset, PartitionId};

/// Facts about a record, as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
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

/// A record of raw or clean. Ordered by fingerprint, then by offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RecordRow {
    pub fingerprint: Fingerprint,
    pub offset: Offset,
    /// Stream time at its arrival, epoch milliseconds; 0 for clean records.
    pub time_ms: i64,
    pub content: Content,
    pub marks: Marks,
}

impl RecordRow {
    pub fn of_clean(record: &Seen) -> Self {
        let marks = Marks::default().with(Marks::ID, record.has_id);
        Self {
            fingerprint: record.fingerprint,
            offset: record.offset,
            time_ms: 0,
            content: record.content,
            marks,
        }
    }
}

impl Row for RecordRow {
    const BYTES: usize = 16 + 8 + 8 + Content::BYTES + 1;

    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.fingerprint.0);
        self.offset.put(out);
        self.time_ms.cast_unsigned().put(out);
        self.content.put(out);
        out.push(self.marks.0);
    }

    fn get(parts: &mut Parts<'_>) -> Self {
        Self {
            fingerprint: Fingerprint(parts.bytes()),
            offset: parts.u64(),
            time_ms: parts.u64().cast_signed(),
            content: Content::get(parts),
            marks: Marks(parts.u8()),
        }
    }
}

/// A record ordered by offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ByOffset(pub RecordRow);

impl Ord for ByOffset {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0.offset, self.0.fingerprint).cmp(&(other.0.offset, other.0.fingerprint))
    }
}

impl PartialOrd for ByOffset {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Row for ByOffset {
    const BYTES: usize = RecordRow::BYTES;

    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn get(parts: &mut Parts<'_>) -> Self {
        Self(RecordRow::get(parts))
    }
}

/// Several raw records that clean must or may hold and that share a fingerprint: a range of rows in a spill file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Chain {
    /// Number of its first row.
    pub start: u64,
    /// Number of rows.
    pub len: u64,
}

impl Chain {
    /// For a record whose fingerprint is unique.
    pub const NONE: Self = Self { start: u64::MAX, len: 0 };
}

impl Row for Chain {
    const BYTES: usize = 16;

    fn put(&self, out: &mut Vec<u8>) {
        self.start.put(out);
        self.len.put(out);
    }

    fn get(parts: &mut Parts<'_>) -> Self {
        Self { start: parts.u64(), len: parts.u64() }
    }
}

/// A clean record with its raw record. Ordered by clean offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Copy {
    pub clean_offset: Offset,
    pub raw_offset: Offset,
    pub chain: Chain,
    /// Fields that differ.
    pub fields: Differing,
    /// Marks of the raw record.
    pub marks: Marks,
}

impl Copy {
    /// Matches the clean record at `clean_offset` to this raw record.
    pub fn new(clean_offset: Offset, content: &Content, entry: &RecordRow, chain: Chain) -> Self {
        let fields = entry.content.differing(content);
        Self { clean_offset, raw_offset: entry.offset, chain, fields, marks: entry.marks }
    }
}

impl Row for Copy {
    const BYTES: usize = 8 + 8 + Chain::BYTES + 2;

    fn put(&self, out: &mut Vec<u8>) {
        self.clean_offset.put(out);
        self.raw_offset.put(out);
        self.chain.put(out);
        out.extend_from_slice(&[self.fields.bits(), self.marks.0]);
    }

    fn get(parts: &mut Parts<'_>) -> Self {
        Self {
            clean_offset: parts.u64(),
            raw_offset: parts.u64(),
            chain: Chain::get(parts),
            fields: Differing::of_bits(parts.u8()),
            marks: Marks(parts.u8()),
        }
    }
}

/// A copy, and whether it is in order. Ordered by raw offset; of several copies, the one in order comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Placed {
    pub copy: Copy,
    pub in_order: bool,
}

impl Placed {
    pub fn taken(&self) -> Taken {
        Taken { raw_offset: self.copy.raw_offset, in_order: self.in_order }
    }
}

impl Ord for Placed {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let key = |placed: &Self| (placed.copy.raw_offset, !placed.in_order, placed.copy.clean_offset);
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for Placed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Row for Placed {
    const BYTES: usize = Copy::BYTES + 1;

    fn put(&self, out: &mut Vec<u8>) {
        self.copy.put(out);
        out.push(u8::from(self.in_order));
    }

    fn get(parts: &mut Parts<'_>) -> Self {
        Self { copy: Copy::get(parts), in_order: parts.u8() != 0 }
    }
}

/// A raw record that a clean record is matched to. Ordered by raw offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Taken {
    pub raw_offset: Offset,
    pub in_order: bool,
}

impl Row for Taken {
    const BYTES: usize = 9;

    fn put(&self, out: &mut Vec<u8>) {
        self.raw_offset.put(out);
        out.push(u8::from(self.in_order));
    }

    fn get(parts: &mut Parts<'_>) -> Self {
        Self { raw_offset: parts.u64(), in_order: parts.u8() != 0 }
    }
}

/// A clean record with several candidate raw records. Ordered by clean offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ambiguous {
    pub clean_offset: Offset,
    pub chain: Chain,
    pub content: Content,
}

impl Row for Ambiguous {
    const BYTES: usize = 8 + Chain::BYTES + Content::BYTES;

    fn put(&self, out: &mut Vec<u8>) {
        self.clean_offset.put(out);
        self.chain.put(out);
        self.content.put(out);
    }

    fn get(parts: &mut Parts<'_>) -> Self {
        Self { clean_offset: parts.u64(), chain: Chain::get(parts), content: Content::get(parts) }
    }
}

/// A value that belongs to a chain: a raw offset that is taken, or an ambiguous record. Ordered by chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Link<T> {
    pub chain: Chain,
    pub of: T,
}

impl<T: Row> Row for Link<T> {
    const BYTES: usize = Chain::BYTES + T::BYTES;

    fn put(&self, out: &mut Vec<u8>) {
        self.chain.put(out);
        self.of.put(out);
    }

    fn get(parts: &mut Parts<'_>) -> Self {
        Self { chain: Chain::get(parts), of: T::get(parts) }
    }
}

/// A lost or phantom record, to be searched in other partitions. Ordered by fingerprint, then partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Unmatched {
    pub fingerprint: Fingerprint,
    pub partition: PartitionId,
    pub lost: bool,
}

impl Row for Unmatched {
    const BYTES: usize = 16 + 4 + 1;

    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.fingerprint.0);
        out.extend_from_slice(&self.partition.to_le_bytes());
        out.push(u8::from(self.lost));
    }

    fn get(parts: &mut Parts<'_>) -> Self {
        Self {
            fingerprint: Fingerprint(parts.bytes()),
            partition: PartitionId::from_le_bytes(parts.bytes()),
            lost: parts.u8() != 0,
        }
    }
}
