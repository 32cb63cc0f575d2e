//! The slices of a window.

use std::fs::File;
use std::io;
use std::iter;
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::SliceEntry;
use crate::dedupe::{
    FirstLevels, Identity, IndexKey, KnownOwner, SealedRange, Slice, SliceError, SliceFooter, SlicePartition,
};

/// The slices of a window, in the order of their owners. Replaced as a whole.
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

/// A registered slice.
#[derive(Debug)]
pub(in crate::store) struct SealedSlice {
    /// Number of its file.
    pub number: u32,
    pub slice: Arc<Slice>,
    pub entry: SliceEntry,
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
    /// The same slice with another entry.
    pub fn with(&self, entry: SliceEntry) -> Arc<Self> {
        Arc::new(Self { number: self.number, slice: Arc::clone(&self.slice), entry })
    }

    pub fn footer(&self) -> &SliceFooter {
        self.slice.footer()
    }

    /// What the owners of each partition cover that were not undone.
    pub fn partitions(&self) -> impl Iterator<Item = SlicePartition> {
        self.footer().owners.cover().partitions.iter().filter_map(|of| {
            let end = self.entry.ends.get(&of.partition);
            let next = end.map_or(of.next, |end| of.next.min(*end));
            (of.first < next).then_some(SlicePartition { next, ..*of })
        })
    }

    /// Number of identities that were not forgotten. How many were undone is not known.
    pub fn ids(&self) -> u64 {
        self.footer().ids.saturating_sub(self.entry.forgotten.len() as u64)
    }

    /// Its owners. Which of them were forgotten is not known, only how many.
    pub fn range(&self) -> SealedRange {
        let mut range = self.footer().range.clone();
        range.limit(self.ids());
        range
    }

    /// The earliest and the latest stream time of its owners, epoch milliseconds; 0 while unknown.
    pub fn owner_time_ms(&self) -> (i64, i64) {
        self.footer().owners.cover().time_ms
    }

    /// Whether an owner in the file was not removed since.
    pub fn has(&self, identity: Identity, owner: KnownOwner) -> bool {
        let end = self.entry.ends.get(&owner.at.partition);
        end.is_none_or(|end| owner.at.offset < *end) && !self.entry.forgotten.contains(&identity)
    }

    /// The owners of an identity that were not removed. `read` fills a buffer from a position of the file.
    pub fn owners_of(
        &self,
        key: &IndexKey,
        mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> Result<Vec<KnownOwner>, SliceReadError> {
        let read = |at, bytes: &mut [u8]| read(at, bytes).map_err(SliceReadError::Io);
        let mut owners = self.slice.owners_of(key, read, SliceReadError::Damaged)?;
        owners.retain(|owner| self.has(key.identity, *owner));
        Ok(owners)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::dedupe::{
        Coordinates, Digest, HashKind, OwnerScan, Positions, SliceBuilder, SliceCover, SliceCoverage,
        SliceMark,
    };

    fn identity(number: u64) -> Identity {
        Identity(u128::from(number).to_be_bytes())
    }

    /// A slice with ten identities.
    fn slice(number: u64) -> Arc<SealedSlice> {
        let (first, next) = (number * 10, number * 10 + 10);
        let range = SealedRange { first, next, marks: vec![SliceMark { next, count: 10, time_ms: (0, 0) }] };
        let (hash, window, cover) = (HashKind::Xxh3, 0.into(), SliceCover::default());
        let coverage = SliceCoverage { file: number, hash, window, range, cover, only_filter: None };
        let mut builder = SliceBuilder::new(coverage, Positions::keyed([7; 16]), OwnerScan::Everything);
        let mut file = Vec::new();
        let mut write = |part: &[u8]| -> Result<(), SliceError> {
            file.extend_from_slice(part);
            Ok(())
        };
        while builder.needs_pass() {
            for offset in first..next {
                let at = Coordinates { partition: 0, offset };
                builder.offer(identity(offset), Some(KnownOwner { at, time_ms: 0, digest: Digest::NONE }));
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
        let (number, slice) = (u32::try_from(number).unwrap(), Arc::new(slice));
        Arc::new(SealedSlice { number, slice, entry: SliceEntry::default() })
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
