//! The slices of the windows that share them.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::iter;
use std::ops::{Deref, Range};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::SliceEntry;
use crate::dedupe::{
    Coordinates, FirstLevels, IndexKey, KindId, Offset, PartitionId, Slice, SliceError, SlicePartition,
    WindowId,
};
use crate::store::keys;

/// Windows that share their slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::store) struct SliceGroup {
    pub kind: KindId,
    /// The partition; `None` for all partitions together.
    pub partition: Option<PartitionId>,
}

impl SliceGroup {
    /// The group of a window. `is_shared`: all partitions share their slices.
    pub fn of(window: WindowId, is_shared: bool) -> Self {
        Self { kind: window.kind(), partition: (!is_shared).then(|| window.partition()) }
    }

    /// The key of one of its slices in sled.
    pub fn key(self, number: u32) -> [u8; keys::SLICE] {
        keys::slice(self.kind, self.partition, number)
    }

    /// The part of these keys that all of its slices have in common.
    pub fn prefix(self) -> [u8; keys::SLICE - size_of::<u32>()] {
        let [prefix @ .., _, _, _, _] = self.key(0);
        prefix
    }

    /// One of its windows.
    pub fn window(self) -> WindowId {
        self.kind.window(self.partition.unwrap_or(0))
    }
}

/// The slices of a group, in their order. Replaced as a whole.
#[derive(Debug, Default)]
pub(in crate::store) struct SliceList {
    slices: Vec<Arc<SealedSlice>>,
    first_levels: FirstLevels,
}

impl From<Vec<Arc<SealedSlice>>> for SliceList {
    fn from(slices: Vec<Arc<SealedSlice>>) -> Self {
        let first_levels = FirstLevels::of(slices.iter().map(|slice| &*slice.slice));
        Self { slices, first_levels }
    }
}

impl Deref for SliceList {
    type Target = [Arc<SealedSlice>];

    fn deref(&self) -> &Self::Target {
        &self.slices
    }
}

impl SliceList {
    /// Prefetches what [`SliceList::passing`] reads.
    #[inline]
    pub fn prefetch(&self, key: &IndexKey) {
        self.first_levels.prefetch(key);
    }

    /// A bit for each of the oldest 64 slices that passes the first level of its filter. Prefetches the second level.
    #[inline]
    pub fn passing(&self, key: &IndexKey) -> u64 {
        let mut bits = 0;
        for (at, slice) in self.first_levels.passing(key).filter_map(|at| Some((at, self.slices.get(at)?))) {
            slice.slice.prefetch_second(key);
            bits |= bit(at);
        }
        bits
    }

    /// The slices of these bits, the newest first.
    #[inline]
    fn of_bits(&self, mut bits: u64) -> impl Iterator<Item = (usize, &SealedSlice)> {
        iter::from_fn(move || {
            let at = bits.checked_ilog2()? as usize;
            bits &= !bit(at);
            Some((at, &**self.slices.get(at)?))
        })
    }

    /// Those of the bits that [`SliceList::passing`] returned whose slices may contain an identity.
    #[inline]
    pub fn confirmed(&self, key: &IndexKey, passing: u64) -> u64 {
        let mut bits = 0;
        for (at, slice) in self.of_bits(passing).filter(|(_, slice)| slice.slice.may_contain(key)) {
            slice.slice.prefetch_fences(key);
            bits |= bit(at);
        }
        bits
    }

    /// The slices that may contain an identity, the newest first: of those that do not, at most 1 in 20,000. `confirmed` is what
    /// [`SliceList::confirmed`] returned.
    #[inline]
    pub fn candidates(&self, key: &IndexKey, confirmed: u64) -> impl Iterator<Item = &SealedSlice> {
        // Windows have fewer than 64 slices, unless many cannot be merged.
        let newest = self.slices.get(u64::BITS as usize..).unwrap_or_default().iter().rev();
        let newest = newest.map(|slice| &**slice).filter(|slice| slice.slice.may_contain(key));
        newest.chain(self.of_bits(confirmed).map(|(_, slice)| slice))
    }
}

/// The bit of a slice; none for later slices.
fn bit(at: usize) -> u64 {
    u32::try_from(at).ok().and_then(|at| 1u64.checked_shl(at)).unwrap_or(0)
}

/// One past the last owner that each window has dropped.
pub(in crate::store) type DroppedEnds = HashMap<WindowId, Offset>;

/// A registered slice.
#[derive(Debug)]
pub(in crate::store) struct SealedSlice {
    /// Number of its file.
    pub number: u32,
    pub slice: Arc<Slice>,
    pub entry: SliceEntry,
    /// Stream times of its first and its last owner, epoch milliseconds; 0 while unknown.
    pub time_ms: (i64, i64),
}

/// Why a slice could not be read.
pub(in crate::store) enum SliceReadError {
    Io(io::Error),
    Damaged(SliceError),
}

/// Reads and verifies the footer and the filter of a slice file. Calls `check` before each read.
pub(in crate::store) fn read_slice<E>(
    path: &Path,
    check: impl Fn() -> Result<(), E>,
    failed: impl Fn(SliceReadError) -> E,
) -> Result<Slice, E> {
    let unread = |cause| failed(SliceReadError::Io(cause));
    let file = File::open(path).map_err(unread)?;
    let length = file.metadata().map_err(unread)?.len();
    let read = |at, bytes: &mut [u8]| {
        check()?;
        file.read_exact_at(bytes, at).map_err(unread)
    };
    Slice::read(length, read, |cause| failed(SliceReadError::Damaged(cause)))
}

impl SealedSlice {
    /// The slice in the file of this number.
    pub fn new(number: u32, slice: Arc<Slice>, entry: SliceEntry) -> Self {
        let marks = || slice.footer().owners.partitions().iter().flat_map(|of| &of.marks);
        let first = marks().map(|mark| mark.time_ms.0).min().unwrap_or(0);
        let last = marks().map(|mark| mark.time_ms.1).max().unwrap_or(0);
        Self { number, slice, entry, time_ms: (first, last) }
    }

    /// The same slice with another entry.
    pub fn with(&self, entry: SliceEntry) -> Arc<Self> {
        Arc::new(Self { slice: Arc::clone(&self.slice), entry, ..*self })
    }

    /// The covered partitions.
    pub fn partitions(&self) -> &[SlicePartition] {
        self.slice.footer().owners.partitions()
    }

    /// Whether the identity was forgotten, in a slice without owners.
    pub fn has_forgotten(&self, key: &IndexKey) -> bool {
        self.entry.forgotten_ids.contains(&key.identity)
    }

    /// One past the last owner of a partition that counts.
    fn end(&self, of: &SlicePartition) -> Offset {
        self.entry.ends.get(&of.partition).map_or(of.next, |end| of.next.min(*end))
    }

    /// Whether an owner in the file was not removed since.
    pub fn has(&self, owner: Coordinates) -> bool {
        let is_removed = self.entry.ends.get(&owner.partition).is_some_and(|end| owner.offset >= *end);
        !is_removed && !self.entry.forgotten.contains(&owner)
    }

    /// What the file covers of a partition.
    fn covered(&self, partition: PartitionId) -> Option<&SlicePartition> {
        SlicePartition::find(self.partitions(), partition).map(|(_, of)| of)
    }

    /// The offsets of a partition's owners that were not removed; `None` when there are none.
    pub fn offsets(&self, partition: PartitionId) -> Option<Range<Offset>> {
        let of = self.covered(partition)?;
        let offsets = of.first..self.end(of);
        (!offsets.is_empty() && !of.marks.is_empty()).then_some(offsets)
    }

    /// The owners of a partition that were not removed, with their marks; `None` when there are none.
    pub fn range(&self, partition: PartitionId) -> Option<SlicePartition> {
        let of = self.covered(partition)?;
        self.kept(of, of.first)
    }

    /// The owners of a partition from an offset on.
    fn kept(&self, of: &SlicePartition, from: Offset) -> Option<SlicePartition> {
        let next = self.end(of);
        let first = of.first.max(from);
        let mut marks: Vec<_> = of.marks.iter().filter(|mark| mark.next > first).copied().collect();
        // The count of a mark that is cut is not known.
        let cut = marks.partition_point(|mark| mark.next < next);
        marks.truncate(cut + 1);
        marks.last_mut().into_iter().for_each(|last| last.next = last.next.min(next));
        let is_empty = marks.is_empty() || first >= next;
        (!is_empty).then_some(SlicePartition { partition: of.partition, first, next, marks })
    }

    /// The owners that were neither removed nor dropped by their windows.
    pub fn live(&self, kind: KindId, dropped: &DroppedEnds) -> Vec<SlicePartition> {
        let partitions = self.partitions().iter();
        let from = |of: &SlicePartition| dropped.get(&kind.window(of.partition)).copied().unwrap_or(0);
        partitions.filter_map(|of| self.kept(of, from(of))).collect()
    }

    /// Whether it is a filter that contains an owner which was removed.
    pub fn is_wrong(&self) -> bool {
        !self.slice.has_owners() && !self.entry.ends.is_empty()
    }

    /// The owners of an identity that were not removed. `read` fills a buffer from a position of the file.
    pub fn owners_of(
        &self,
        key: &IndexKey,
        mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> Result<Vec<Coordinates>, SliceReadError> {
        let read = |at, bytes: &mut [u8]| read(at, bytes).map_err(SliceReadError::Io);
        let mut owners = self.slice.owners_of(key, read, SliceReadError::Damaged)?;
        owners.retain(|owner| self.has(*owner));
        Ok(owners)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::dedupe::{HashKind, Identity, OwnerScan, Positions, SliceBuilder, SliceCoverage};

    fn identity(number: u64) -> Identity {
        Identity(u128::from(number).to_be_bytes())
    }

    /// A slice with ten identities.
    fn slice(number: u64) -> Arc<SealedSlice> {
        let (first, next) = (number * 10, number * 10 + 10);
        let partitions = vec![SlicePartition { partition: 0, first, next, marks: Vec::new() }];
        let (hash, kind) = (HashKind::Xxh3, KindId::UNNAMED);
        let coverage = SliceCoverage { file: number, hash, kind, partitions, only_filter: None };
        let mut builder =
            SliceBuilder::new(coverage, Positions::keyed([7; 16]), 10, OwnerScan::Everything).unwrap();
        let mut file = Vec::new();
        let mut write = |part: &[u8]| -> Result<(), SliceError> {
            file.extend_from_slice(part);
            Ok(())
        };
        while builder.needs_pass() {
            for offset in first..next {
                builder.offer(identity(offset), Some(Coordinates { partition: 0, offset }));
            }
            builder.end_pass(&mut write, |error| error).unwrap();
        }
        builder.finish(&mut write).unwrap();
        let read = |at: u64, bytes: &mut [u8]| {
            let at = usize::try_from(at).unwrap();
            bytes.copy_from_slice(file.get(at..at + bytes.len()).unwrap());
            Ok(())
        };
        let slice = Slice::read(file.len() as u64, read, |error: SliceError| error).unwrap();
        Arc::new(SealedSlice::new(u32::try_from(number).unwrap(), Arc::new(slice), SliceEntry::default()))
    }

    #[test]
    fn the_slice_of_an_identity_is_found_among_any_number_of_slices() {
        let list = SliceList::from((0..100).map(slice).collect::<Vec<_>>());
        let mut others = 0;
        for number in 0..2_000 {
            let key = Positions::keyed([7; 16]).key(identity(number));
            let confirmed = list.confirmed(&key, list.passing(&key));
            let found: Vec<u32> = list.candidates(&key, confirmed).map(|slice| slice.number).collect();
            assert!(found.is_sorted_by(|newer, older| newer > older), "{number}: {found:?}");
            let own = u32::try_from(number / 10).unwrap();
            assert_eq!(found.contains(&own), number < 1_000, "{number}: {found:?}");
            others += found.iter().filter(|other| **other != own).count();
        }
        // Filters of so few identities have more false positives.
        assert!(others < 400, "{others}");
    }
}
