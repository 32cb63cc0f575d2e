//! How the owners of a slice are stored.

use super::{KnownOwner, SlicePartition};
use crate::dedupe::coordinates::{Coordinates, PartitionId};
use crate::dedupe::identity::Digest;

/// What owners cover.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SliceCover {
    /// The partitions, in ascending order.
    pub partitions: Vec<SlicePartition>,
    /// The earliest and the latest known stream time of an owner, epoch milliseconds; 0 when none is known.
    pub time_ms: (i64, i64),
    /// The rule of the digests, that of the newest owner; 0 without any. Digests of other rules are not stored.
    pub rule: u32,
}

impl SliceCover {
    /// Where a partition is among these; otherwise where it would be.
    fn find(&self, partition: PartitionId) -> Result<usize, usize> {
        // Where it is if none is missing.
        let first = self.partitions.first().map_or(partition, |of| of.partition);
        let expected = partition.checked_sub(first).map_or(usize::MAX, |at| at as usize);
        if self.partitions.get(expected).is_some_and(|of| of.partition == partition) {
            return Ok(expected);
        }
        self.partitions.binary_search_by_key(&partition, |of| of.partition)
    }

    /// Includes the offsets of a partition.
    #[inline]
    pub fn add(&mut self, other: SlicePartition) {
        match self.find(other.partition) {
            Ok(at) => self.partitions.get_mut(at).into_iter().for_each(|of| {
                (of.first, of.next) = (of.first.min(other.first), of.next.max(other.next));
            }),
            Err(at) => self.partitions.insert(at, other),
        }
    }

    /// Includes these stream times; 0 while unknown.
    #[inline]
    pub fn add_times(&mut self, first: i64, last: i64) {
        let (earliest, latest) = self.time_ms;
        if first != 0 {
            self.time_ms =
                if earliest == 0 { (first, last) } else { (earliest.min(first), latest.max(last)) };
        }
    }

    /// Includes an owner.
    #[inline]
    pub fn add_owner(&mut self, KnownOwner { at, time_ms, digest }: KnownOwner) {
        let Coordinates { partition, offset } = at;
        self.add(SlicePartition { partition, first: offset, next: offset.saturating_add(1) });
        self.add_times(time_ms, time_ms);
        self.add_rule(digest.rule());
    }

    /// Includes digests of this rule, newer than those so far; 0: there are none.
    #[inline]
    pub fn add_rule(&mut self, rule: u32) {
        self.rule = if rule == 0 { self.rule } else { rule };
    }
}

/// How owners are stored: as an index into the partitions, a distance from the partition's first offset, and one from the time before the earliest,
/// 0 while unknown; with a rule, the digest. Each has the same number of bytes in all pages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnerLayout {
    cover: SliceCover,
    partition_bytes: usize,
    offset_bytes: usize,
    time_bytes: usize,
    digest_bytes: usize,
}

impl OwnerLayout {
    /// The layout of owners that cover this; `None` if that is impossible.
    pub fn new(cover: SliceCover) -> Option<Self> {
        let partitions = &cover.partitions;
        let ascend = partitions.is_sorted_by(|a, b| a.partition < b.partition);
        let span = |of: &SlicePartition| of.next.checked_sub(of.first).filter(|span| *span > 0);
        let longest = partitions.iter().map(span).try_fold(0, |longest, span| Some(span?.max(longest)))?;
        let partition_bytes = match partitions.len() {
            0..=1 => 0,
            2..=256 => 1,
            257..=65_536 => 2,
            _ => 3,
        };
        let offset_bytes = bytes_of(longest.saturating_sub(1)).max(1);
        let (earliest, latest) = cover.time_ms;
        let time_bytes = match (earliest, latest) {
            (0, 0) => 0,
            _ => bytes_of(latest.abs_diff(earliest).checked_add(1)?),
        };
        let digest_bytes = if cover.rule == 0 { 0 } else { 4 };
        let is_possible = ascend && earliest <= latest;
        is_possible.then_some(Self { cover, partition_bytes, offset_bytes, time_bytes, digest_bytes })
    }

    /// What the owners cover.
    pub fn cover(&self) -> &SliceCover {
        &self.cover
    }

    /// Bytes of an identity with its owner: 17 to 39.
    pub fn entry_bytes(&self) -> usize {
        16 + self.partition_bytes + self.offset_bytes + self.time_bytes + self.digest_bytes
    }

    /// Appends an owner; returns false, and appends nothing, when the slice does not cover it.
    pub(super) fn push(
        &self,
        KnownOwner { at: owner, time_ms, digest }: KnownOwner,
        out: &mut Vec<u8>,
    ) -> bool {
        let ((earliest, latest), partitions) = (self.cover.time_ms, &self.cover.partitions);
        let Ok(at) = self.cover.find(owner.partition) else { return false };
        let of = partitions.get(at).filter(|of| (of.first..of.next).contains(&owner.offset));
        let Some(of) = of else { return false };
        if time_ms != 0 && !(earliest..=latest).contains(&time_ms) {
            return false;
        }
        let time = if time_ms == 0 { 0 } else { time_ms.abs_diff(earliest) + 1 };
        let mut field = |value: u64, bytes| {
            out.extend_from_slice(value.to_le_bytes().get(..bytes).unwrap_or_default());
        };
        field(at as u64, self.partition_bytes);
        field(owner.offset - of.first, self.offset_bytes);
        field(time, self.time_bytes);
        field(u64::from(digest.in_group(self.cover.rule)), self.digest_bytes);
        true
    }

    /// Reads an owner from the bytes that [`OwnerLayout::push`] appended.
    pub(super) fn read(&self, bytes: &[u8]) -> Option<KnownOwner> {
        let (place, rest) = bytes.split_at_checked(self.partition_bytes)?;
        let (distance, rest) = rest.split_at_checked(self.offset_bytes)?;
        let (time, digest) = rest.split_at_checked(self.time_bytes)?;
        let of = self.cover.partitions.get(usize::try_from(number(place)?).ok()?)?;
        let offset = of.first.checked_add(number(distance)?).filter(|offset| *offset < of.next)?;
        let (earliest, latest) = self.cover.time_ms;
        let time_ms = match number(time)?.checked_sub(1) {
            None => 0,
            Some(after) => earliest.checked_add_unsigned(after).filter(|time_ms| *time_ms <= latest)?,
        };
        let digest = Digest::stored(self.cover.rule, u32::try_from(number(digest)?).ok()?);
        Some(KnownOwner { at: Coordinates { partition: of.partition, offset }, time_ms, digest })
    }
}

/// Bytes that a number needs.
fn bytes_of(number: u64) -> usize {
    (u64::BITS - number.leading_zeros()).div_ceil(8) as usize
}

/// A little-endian number of up to eight bytes.
fn number(bytes: &[u8]) -> Option<u64> {
    let mut all = [0; 8];
    all.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(u64::from_le_bytes(all))
}
