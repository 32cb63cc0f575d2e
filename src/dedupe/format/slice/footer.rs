//! The footer of a slice file: what it covers, and where its pages and shards are.
//!
//! | bytes | field |
//! |---|---|
//! | 8 | number of the file: random, so that no other file has it |
//! | 1 | hash kind, as in a block |
//! | 8 | hash key id |
//! | 4 | number of the window |
//! | 8 | count of identities |
//! | 8 | number of the first owner |
//! | 8 | one past that of the last one |
//! | 4 | count of marks |
//! | for each | one past the number of its last owner (8), its count of owners (8), time of the window's clock at the first and at the last of them (8 each) |
//! | 8 | earliest stream time of an owner |
//! | 8 | latest one |
//! | 4 | number of the rule of the digests; 0: there are none |
//! | 4 | count of partitions |
//! | for each | partition (4), first offset covered (8), one past the last (8) |
//! | 4 | count of shards of the filter |
//! | count × 8 | bytes of the shard (4), its CRC32C (4) |
//! | 4 | count of pages |
//! | count × 8 | position of the first identity in each page, ascending |

use super::{OwnerLayout, SealedRange, SliceCover, SliceError, SliceMark, SlicePartition};
use crate::dedupe::format::block::{hash_code, hash_of};
use crate::dedupe::identity::{HashKind, WindowId};

const MAGIC: [u8; 4] = *b"DDS3";

/// Size and checksum of one shard of the filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardEntry {
    /// Bytes in the file.
    pub bytes: u32,
    /// Their CRC32C.
    pub crc: u32,
}

/// What a slice file contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceFooter {
    /// A random number that no other file has. The checksums of the pages depend on it.
    pub file: u64,
    /// The hash of the identities.
    pub hash: HashKind,
    /// The window that the slice belongs to.
    pub window: WindowId,
    /// Number of identities.
    pub ids: u64,
    /// The numbers of the owners.
    pub range: SealedRange,
    /// What the owners cover, and how they are stored.
    pub owners: OwnerLayout,
    /// The shards of the filter, in order.
    pub shards: Vec<ShardEntry>,
    /// For each page, the position of its first identity.
    pub fences: Vec<u64>,
}

impl SliceFooter {
    /// Bytes at the end of the file from which [`SliceFooter::length`] is read.
    pub const END_BYTES: usize = 12;

    /// The footer as stored, with its length, checksum and magic.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.file.to_le_bytes().to_vec();
        let (hash, key_id) = hash_code(self.hash);
        out.push(hash);
        out.extend_from_slice(&key_id.to_le_bytes());
        out.extend_from_slice(&self.window.number().to_le_bytes());
        push_all([self.ids, self.range.first, self.range.next], &mut out);
        push_count(self.range.marks.len(), &mut out);
        for SliceMark { next, count, time_ms: (first_ms, last_ms) } in &self.range.marks {
            push_all([*next, *count, first_ms.cast_unsigned(), last_ms.cast_unsigned()], &mut out);
        }
        let SliceCover { partitions, time_ms: (earliest, latest), rule } = self.owners.cover();
        push_all([earliest.cast_unsigned(), latest.cast_unsigned()], &mut out);
        out.extend_from_slice(&rule.to_le_bytes());
        push_count(partitions.len(), &mut out);
        for of in partitions {
            out.extend_from_slice(&of.partition.to_le_bytes());
            push_all([of.first, of.next], &mut out);
        }
        push_count(self.shards.len(), &mut out);
        for shard in &self.shards {
            out.extend_from_slice(&shard.bytes.to_le_bytes());
            out.extend_from_slice(&shard.crc.to_le_bytes());
        }
        push_count(self.fences.len(), &mut out);
        push_all(self.fences.iter().copied(), &mut out);
        let (bytes, crc) = (out.len(), crc32c::crc32c(&out));
        push_count(bytes, &mut out);
        out.extend_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(&MAGIC);
        out
    }

    /// Length of the footer in bytes, without [`SliceFooter::END_BYTES`], from these last bytes of a file.
    pub fn length(end: &[u8; Self::END_BYTES]) -> Result<usize, SliceError> {
        let [length, _, magic] = Self::end_fields(end);
        if magic != MAGIC {
            return Err(SliceError::Magic(magic));
        }
        usize::try_from(u32::from_le_bytes(length)).map_err(|_| SliceError::Truncated("the footer"))
    }

    /// CRC32C of the footer, from these last bytes of a file.
    pub fn checksum(end: &[u8; Self::END_BYTES]) -> u32 {
        let [_, crc, _] = Self::end_fields(end);
        u32::from_le_bytes(crc)
    }

    /// Length, CRC32C and magic.
    fn end_fields(end: &[u8; Self::END_BYTES]) -> [[u8; 4]; 3] {
        end.as_chunks().0.try_into().unwrap_or_default()
    }

    /// Verifies and decodes a footer and the [`SliceFooter::END_BYTES`] after it.
    pub fn decode(bytes: &[u8]) -> Result<Self, SliceError> {
        let truncated = SliceError::Truncated("the footer");
        let (rest, end) = bytes.split_last_chunk().ok_or_else(|| truncated.clone())?;
        if Self::length(end)? != rest.len() {
            return Err(truncated);
        }
        let found = Self::checksum(end);
        let computed = crc32c::crc32c(rest);
        if found != computed {
            return Err(SliceError::Checksum { what: "the footer", found, computed });
        }
        let mut reader = FieldReader(rest);
        let footer = reader.footer()?;
        match reader.0 {
            [] => Ok(footer),
            _ => Err(SliceError::Inconsistent("bytes behind the last field of the footer")),
        }
    }
}

/// The rest of a footer.
struct FieldReader<'a>(&'a [u8]);

impl FieldReader<'_> {
    fn footer(&mut self) -> Result<SliceFooter, SliceError> {
        let file = self.number()?;
        let (code, key_id) = (self.take::<1>()?[0], self.number()?);
        let hash = hash_of(code, key_id).map_err(|_| SliceError::Inconsistent("unknown hash kind"))?;
        let window = WindowId::numbered(u32::from_le_bytes(self.take()?));
        let (ids, range) = (self.number()?, self.range()?);
        let (time_ms, rule) = (self.times()?, u32::from_le_bytes(self.take()?));
        let partitions = self.list(20, |fields| {
            let partition = u32::from_le_bytes(fields.take()?);
            Ok(SlicePartition { partition, first: fields.number()?, next: fields.number()? })
        })?;
        let owners = OwnerLayout::new(SliceCover { partitions, time_ms, rule })
            .ok_or(SliceError::Inconsistent("impossible partitions or times"))?;
        let shards = self.list(8, |fields| {
            Ok(ShardEntry {
                bytes: u32::from_le_bytes(fields.take()?),
                crc: u32::from_le_bytes(fields.take()?),
            })
        })?;
        let fences = self.list(8, Self::number)?;
        if !fences.is_sorted() {
            return Err(SliceError::Inconsistent("pages out of order"));
        }
        Ok(SliceFooter { file, hash, window, ids, range, owners, shards, fences })
    }

    fn range(&mut self) -> Result<SealedRange, SliceError> {
        let (first, next) = (self.number()?, self.number()?);
        let marks = self.list(32, |fields| {
            Ok(SliceMark { next: fields.number()?, count: fields.number()?, time_ms: fields.times()? })
        })?;
        let is_within = |mark: &SliceMark| mark.next > first && mark.next <= next;
        if !marks.is_sorted_by(|a, b| a.next < b.next) || !marks.iter().all(is_within) {
            return Err(SliceError::Inconsistent("marks outside the numbers of the owners"));
        }
        Ok(SealedRange { first, next, marks })
    }

    fn number(&mut self) -> Result<u64, SliceError> {
        self.take().map(u64::from_le_bytes)
    }

    fn times(&mut self) -> Result<(i64, i64), SliceError> {
        Ok((self.number()?.cast_signed(), self.number()?.cast_signed()))
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], SliceError> {
        let (field, rest) = self.0.split_first_chunk().ok_or(SliceError::Truncated("the footer"))?;
        self.0 = rest;
        Ok(*field)
    }

    /// Reads a count, and as many entries of `bytes` bytes. The count is compared with the rest first, so that a wrong one
    /// allocates nothing.
    fn list<T>(
        &mut self,
        bytes: usize,
        mut entry: impl FnMut(&mut Self) -> Result<T, SliceError>,
    ) -> Result<Vec<T>, SliceError> {
        let count = u32::from_le_bytes(self.take()?) as usize;
        if count > self.0.len() / bytes {
            return Err(SliceError::Truncated("the footer"));
        }
        (0..count).map(|_| entry(self)).collect()
    }
}

/// Appends a length. Slices are far below 2³² pages (16 TB); a larger one is not readable.
fn push_count(count: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
}

fn push_all(numbers: impl IntoIterator<Item = u64>, out: &mut Vec<u8>) {
    out.extend(numbers.into_iter().flat_map(u64::to_le_bytes));
}
