//! The journal: one partition of the state topic. Each transaction that writes something adds one *entry* to it.
//!
//! An entry is a group of records of one writer: blocks and forget records, then its *end record*. Entries are numbered without gaps, and
//! the number of an aborted one is used again. An entry counts only as a whole: without its end record it was never committed, because
//! the end record is acknowledged before the commit.
//!
//! Layout of an end record, little endian (version 1):
//!
//! | bytes | field |
//! |---|---|
//! | 4 | magic and version, `DDE1` |
//! | 8 | number of the entry |
//! | 4 | count of the records before it |
//! | 4 | CRC32C of the checksums of these records |
//! | 4 | count of sections |
//! | sections | for each partition of the transaction: see below |
//! | 4 | CRC32C of all preceding bytes |
//!
//! A section: partition (4), first and next raw offset (8 each), one past the last clean offset (8; all ones: none), stream time before and
//! after the transaction in epoch milliseconds (8 each), count of kinds whose windows are reset (2), and these kinds (2 each).

use std::fmt;

use serde::{Deserialize, Serialize};

use super::block::{BlockError, CRC_BYTES, Owner, take, verified_content};
use super::state_key::StateKey;
use crate::dedupe::coordinates::{Coordinates, Offset, PartitionId};
use crate::dedupe::identity::KindId;

const MAGIC: [u8; 4] = *b"DDE1";
const HEADER_BYTES: usize = 4 + 8 + 4 + 4 + 4;
const SECTION_BYTES: usize = 4 + 8 + 8 + 8 + 8 + 8 + 2;
const KIND_BYTES: usize = 2;
const NO_OFFSET: Offset = Offset::MAX;

/// Distinguishes an entry from all others of its journal, also from attempts with the same number that were aborted, unless they have the
/// same content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntryName {
    /// Its number, from 1 on.
    pub number: u64,
    /// CRC32C of its content, without the places of its records.
    pub crc: u32,
}

impl fmt::Display for EntryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (checksum {:08x})", self.number, self.crc)
    }
}

/// What an entry states about one partition of its transaction.
///
/// It replaces what came before at or beyond its first offset: one with an empty range undoes owners. Of the owners in the blocks of the entry only
/// those in its range count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Partition of the raw topic.
    pub partition: PartitionId,
    /// The raw offset at which the transaction began.
    pub first: Offset,
    /// The raw offset at which the next one begins.
    pub next: Offset,
    /// One past the last clean offset that it wrote; `None` when it wrote no clean record.
    pub clean_end: Option<Offset>,
    /// Stream time before the first record, epoch milliseconds; 0 while unknown.
    pub time_first_ms: i64,
    /// Stream time after the last record, epoch milliseconds; 0 while unknown.
    pub time_last_ms: i64,
    /// Kinds whose windows are reset with the transaction: the records before it were made by another rule.
    pub reset_kinds: Vec<KindId>,
}

impl Section {
    /// Whether an owner at this place belongs to the transaction.
    pub fn has(&self, at: Coordinates) -> bool {
        at.partition == self.partition && (self.first..self.next).contains(&at.offset)
    }

    /// The section that undoes all owners of the partition at or beyond the first offset.
    #[must_use]
    pub fn undone(&self) -> Self {
        Self { next: self.first, clean_end: None, time_last_ms: self.time_first_ms, ..self.clone() }
    }

    /// Without the place in the clean topic, which an attempt with the same content does not share.
    fn push_content(&self, out: &mut Vec<u8>, clean_end: Option<Offset>) {
        out.extend_from_slice(&self.partition.to_le_bytes());
        out.extend_from_slice(&self.first.to_le_bytes());
        out.extend_from_slice(&self.next.to_le_bytes());
        out.extend_from_slice(&clean_end.unwrap_or(NO_OFFSET).to_le_bytes());
        out.extend_from_slice(&self.time_first_ms.to_le_bytes());
        out.extend_from_slice(&self.time_last_ms.to_le_bytes());
        out.extend_from_slice(&u16::try_from(self.reset_kinds.len()).unwrap_or(u16::MAX).to_le_bytes());
        for kind in &self.reset_kinds {
            out.extend_from_slice(&kind.number().to_le_bytes());
        }
    }

    /// Decodes the section at `at`, and returns where the next one begins.
    fn decode(content: &[u8], at: usize) -> Result<(Self, usize), BlockError> {
        let kinds = usize::from(u16::from_le_bytes(take(content, at + SECTION_BYTES - 2)?));
        let kind = |number: usize| take(content, at + SECTION_BYTES + KIND_BYTES * number);
        let reset_kinds = (0..kinds).map(|number| Ok(KindId::numbered(u16::from_le_bytes(kind(number)?))));
        let section = Self {
            partition: u32::from_le_bytes(take(content, at)?),
            first: u64::from_le_bytes(take(content, at + 4)?),
            next: u64::from_le_bytes(take(content, at + 12)?),
            clean_end: Some(u64::from_le_bytes(take(content, at + 20)?)).filter(|end| *end != NO_OFFSET),
            time_first_ms: i64::from_le_bytes(take(content, at + 28)?),
            time_last_ms: i64::from_le_bytes(take(content, at + 36)?),
            reset_kinds: reset_kinds.collect::<Result<_, BlockError>>()?,
        };
        if section.first > section.next {
            return Err(BlockError::Inconsistent("first offset beyond next offset"));
        }
        let last = Coordinates { partition: section.partition, offset: section.next.saturating_sub(1) };
        if ![section.time_first_ms, section.time_last_ms].iter().all(|ms| Owner::is_possible(last, *ms)) {
            return Err(BlockError::Inconsistent("a section with an impossible place or time"));
        }
        Ok((section, at + SECTION_BYTES + KIND_BYTES * kinds))
    }
}

/// The end record of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryEnd {
    /// Its number.
    pub number: u64,
    /// Number of the records before this one.
    pub records: u32,
    /// CRC32C of the checksums of these records.
    pub content: u32,
    /// The partitions of the transaction, in ascending order.
    pub sections: Vec<Section>,
}

impl EntryEnd {
    /// The highest number of an entry, which no journal reaches. A higher one is refused, so that there is always a next number.
    pub const LAST_NUMBER: u64 = 1 << 62;

    /// Most sections of an end record of at most `bytes`, in each of which so many kinds may be reset.
    pub fn most_sections_in(bytes: usize, kinds: usize) -> usize {
        bytes.saturating_sub(HEADER_BYTES + CRC_BYTES) / (SECTION_BYTES + KIND_BYTES * kinds)
    }

    /// The end record of these encoded records.
    pub fn of<'a>(
        number: u64,
        records: impl Iterator<Item = &'a [u8]> + Clone,
        sections: Vec<Section>,
    ) -> Self {
        let (count, content) = (records.clone().count(), content_of(records));
        Self { number, records: u32::try_from(count).unwrap_or(u32::MAX), content, sections }
    }

    /// The name of the entry.
    pub fn name(&self) -> EntryName {
        let content = self.encode_with(|_| None);
        EntryName { number: self.number, crc: crc32c::crc32c(&content) }
    }

    /// What the entry states about a partition.
    pub fn section(&self, partition: PartitionId) -> Option<&Section> {
        let place = self.sections.binary_search_by_key(&partition, |section| section.partition);
        self.sections.get(place.ok()?)
    }

    /// Whether an owner at this place counts: it is in the range of the section of its partition.
    pub fn has(&self, at: Coordinates) -> bool {
        self.section(at.partition).is_some_and(|section| section.has(at))
    }

    /// Whether these bytes are an end record.
    pub fn is_here(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    fn encode_with(&self, clean_end: impl Fn(&Section) -> Option<Offset>) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + self.sections.len() * SECTION_BYTES + CRC_BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.records.to_le_bytes());
        out.extend_from_slice(&self.content.to_le_bytes());
        out.extend_from_slice(&u32::try_from(self.sections.len()).unwrap_or(u32::MAX).to_le_bytes());
        for section in &self.sections {
            section.push_content(&mut out, clean_end(section));
        }
        out
    }

    /// The encoded record.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.encode_with(|section| section.clean_end);
        out.extend_from_slice(&crc32c::crc32c(&out).to_le_bytes());
        out
    }

    /// Decodes a record and verifies its checksum.
    pub fn decode(bytes: &[u8]) -> Result<Self, BlockError> {
        let content = verified_content(bytes, MAGIC)?;
        let count = u32::from_le_bytes(take(content, 20)?) as usize;
        let (mut sections, mut at) = (Vec::new(), HEADER_BYTES);
        for _ in 0..count {
            let (section, next) = Section::decode(content, at)?;
            sections.push(section);
            at = next;
        }
        if !sections.is_sorted_by(|one, other| one.partition < other.partition) {
            return Err(BlockError::Inconsistent("sections out of order"));
        }
        if at != content.len() {
            return Err(BlockError::Inconsistent("more bytes than sections"));
        }
        let number = u64::from_le_bytes(take(content, 4)?);
        if number == 0 || number > Self::LAST_NUMBER {
            return Err(BlockError::Inconsistent("a number that no entry has"));
        }
        Ok(Self {
            number,
            records: u32::from_le_bytes(take(content, 12)?),
            content: u32::from_le_bytes(take(content, 16)?),
            sections,
        })
    }
}

/// CRC32C of the checksums at the ends of encoded records.
fn content_of<'a>(records: impl Iterator<Item = &'a [u8]>) -> u32 {
    let checksum = |record: &'a [u8]| record.last_chunk::<CRC_BYTES>().copied().unwrap_or_default();
    records.fold(0, |crc, record| crc32c::crc32c_append(crc, &checksum(record)))
}

/// A record of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalRecord {
    /// Its offset in the journal.
    pub offset: Offset,
    /// Its key.
    pub key: StateKey,
    /// Its value: encoded, with a checksum at its end.
    pub bytes: Vec<u8>,
}

/// An entry as read from its journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Blocks and forget records, in their order; empty unless [`Entry::is_whole`].
    pub records: Vec<JournalRecord>,
    /// Its end record.
    pub end: EntryEnd,
    /// The key of its end record.
    pub key: StateKey,
    /// Offset of the first of its records that was read.
    pub begin: Offset,
    /// Offset of its end record.
    pub at: Offset,
    /// Whether all of its records were read. Of the first entry of a log, retention may have deleted some.
    pub is_whole: bool,
}

/// Puts the records of a journal together to entries.
///
/// The records of one writer are consecutive. A worker that has lost the journal may still write between those of its successor.
#[derive(Debug, Default)]
pub struct EntryReader(Vec<(String, Vec<JournalRecord>)>);

impl EntryReader {
    /// Offset of the first record whose entry has not ended.
    pub fn first_pending(&self) -> Option<Offset> {
        self.0.iter().flat_map(|(_, records)| records).map(|record| record.offset).min()
    }

    /// Adds the next record. Returns the entry that it ends.
    pub fn push(&mut self, record: JournalRecord) -> Result<Option<Entry>, BlockError> {
        let place = self.0.iter().position(|(writer, _)| *writer == record.key.writer);
        let place = place.unwrap_or_else(|| {
            self.0.push((record.key.writer.clone(), Vec::new()));
            self.0.len() - 1
        });
        let Some((_, pending)) = self.0.get_mut(place) else { return Ok(None) };
        if !EntryEnd::is_here(&record.bytes) {
            pending.push(record);
            return Ok(None);
        }
        let end = EntryEnd::decode(&record.bytes)?;
        let first = pending.len().checked_sub(end.records as usize);
        // Records before those are of an attempt that was aborted before its end.
        let mut records = first.map(|first| pending.split_off(first)).unwrap_or_default();
        pending.clear();
        let begin = records.first().map_or(record.offset, |first| first.offset);
        let is_whole =
            first.is_some() && content_of(records.iter().map(|record| &*record.bytes)) == end.content;
        if !is_whole {
            records.clear();
        }
        Ok(Some(Entry { records, end, key: record.key, begin, at: record.offset, is_whole }))
    }
}

#[cfg(test)]
mod tests;
