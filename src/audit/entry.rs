//! The rows that an audit sorts and keeps.

use super::record::{Content, Differing, Print, Seen};
use super::spill::{Parts, Row};
use crate::dedupe::{Offset, PartitionId};

/// What is known of a record, as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Marks(pub u8);

impl Marks {
    /// The record has an id.
    pub const ID: Self = Self(1);
    /// Clean must hold it.
    pub const DUE: Self = Self(2);
    /// It repeats an id that the window may have forgotten: clean may hold it.
    pub const AGAIN: Self = Self(4);
    /// The producer wanted it through whatever its id.
    pub const FORCED: Self = Self(8);
    /// It stands before the range that is audited.
    pub const BEFORE: Self = Self(16);
    /// A record before the range has its id.
    pub const OUTSIDE: Self = Self(32);

    /// Whether all of these are set.
    pub fn has(self, marks: Self) -> bool {
        self.0 & marks.0 == marks.0
    }

    /// Whether something before the range decides about its copies.
    pub fn is_outside(self) -> bool {
        self.has(Self::OUTSIDE) || self.has(Self::BEFORE)
    }

    /// These too, if the condition holds.
    pub fn with(self, marks: Self, condition: bool) -> Self {
        if condition { Self(self.0 | marks.0) } else { self }
    }

    /// Without these.
    pub fn without(self, marks: Self) -> Self {
        Self(self.0 & !marks.0)
    }
}

/// A record of raw or clean. Ordered by print, then by offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Filed {
    pub print: Print,
    pub offset: Offset,
    /// Stream time at which it arrived, ms since the epoch; 0 for clean records.
    pub time_ms: i64,
    pub content: Content,
    pub marks: Marks,
}

impl Filed {
    /// A clean record.
    pub fn of_clean(record: &Seen) -> Self {
        let marks = Marks::default().with(Marks::ID, record.has_id);
        Self { print: record.print, offset: record.offset, time_ms: 0, content: record.content, marks }
    }
}

impl Row for Filed {
    const BYTES: usize = 16 + 8 + 8 + Content::BYTES + 1;

    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.print.0);
        self.offset.put(out);
        self.time_ms.cast_unsigned().put(out);
        self.content.put(out);
        out.push(self.marks.0);
    }

    fn get(parts: &mut Parts<'_>) -> Self {
        Self {
            print: Print(parts.bytes()),
            offset: parts.u64(),
            time_ms: parts.u64().cast_signed(),
            content: Content::get(parts),
            marks: Marks(parts.u8()),
        }
    }
}

/// A record ordered by where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Standing(pub Filed);

impl Ord for Standing {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0.offset, self.0.print).cmp(&(other.0.offset, other.0.print))
    }
}

impl PartialOrd for Standing {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Row for Standing {
    const BYTES: usize = Filed::BYTES;

    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn get(parts: &mut Parts<'_>) -> Self {
        Self(Filed::get(parts))
    }
}

/// Several raw records that clean must or may hold and that share a print: a stretch of a tape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Chain {
    /// Number of its first row.
    pub start: u64,
    /// How many rows.
    pub len: u64,
}

impl Chain {
    /// Of a record that is alone with its print.
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
    /// Its offset in clean.
    pub at: Offset,
    /// Offset of the raw record.
    pub place: Offset,
    pub chain: Chain,
    /// What differs.
    pub fields: Differing,
    /// Those of the raw record.
    pub marks: Marks,
}

impl Copy {
    /// The clean record at `at` with this raw record.
    pub fn new(at: Offset, content: &Content, entry: &Filed, chain: Chain) -> Self {
        let fields = entry.content.differing(content);
        Self { at, place: entry.offset, chain, fields, marks: entry.marks }
    }
}

impl Row for Copy {
    const BYTES: usize = 8 + 8 + Chain::BYTES + 2;

    fn put(&self, out: &mut Vec<u8>) {
        self.at.put(out);
        self.place.put(out);
        self.chain.put(out);
        out.extend_from_slice(&[self.fields.bits(), self.marks.0]);
    }

    fn get(parts: &mut Parts<'_>) -> Self {
        Self {
            at: parts.u64(),
            place: parts.u64(),
            chain: Chain::get(parts),
            fields: Differing::of_bits(parts.u8()),
            marks: Marks(parts.u8()),
        }
    }
}

/// A copy, with whether it stands in order. Ordered by its raw record; of several, the one that stands in
/// order comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Placed {
    pub copy: Copy,
    pub in_order: bool,
}

impl Placed {
    /// What it leaves of its raw record.
    pub fn taken(&self) -> Taken {
        Taken { place: self.copy.place, in_order: self.in_order }
    }
}

impl Ord for Placed {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let key = |placed: &Self| (placed.copy.place, !placed.in_order, placed.copy.at);
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

/// A raw record that some clean record is. Ordered as they stand in raw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Taken {
    pub place: Offset,
    pub in_order: bool,
}

impl Row for Taken {
    const BYTES: usize = 9;

    fn put(&self, out: &mut Vec<u8>) {
        self.place.put(out);
        out.push(u8::from(self.in_order));
    }

    fn get(parts: &mut Parts<'_>) -> Self {
        Self { place: parts.u64(), in_order: parts.u8() != 0 }
    }
}

/// A clean record with several raw records to choose from. Ordered by clean offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Choosing {
    pub at: Offset,
    pub chain: Chain,
    pub content: Content,
}

impl Row for Choosing {
    const BYTES: usize = 8 + Chain::BYTES + Content::BYTES;

    fn put(&self, out: &mut Vec<u8>) {
        self.at.put(out);
        self.chain.put(out);
        self.content.put(out);
    }

    fn get(parts: &mut Parts<'_>) -> Self {
        Self { at: parts.u64(), chain: Chain::get(parts), content: Content::get(parts) }
    }
}

/// A place within a chain, and what took it or asks for one. Ordered by chain.
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

/// A lost or phantom record, to be looked for in other partitions. Ordered by print, then partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stranger {
    pub print: Print,
    pub partition: PartitionId,
    pub lost: bool,
}

impl Row for Stranger {
    const BYTES: usize = 16 + 4 + 1;

    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.print.0);
        out.extend_from_slice(&self.partition.to_le_bytes());
        out.push(u8::from(self.lost));
    }

    fn get(parts: &mut Parts<'_>) -> Self {
        Self {
            print: Print(parts.bytes()),
            partition: PartitionId::from_le_bytes(parts.bytes()),
            lost: parts.u8() != 0,
        }
    }
}
