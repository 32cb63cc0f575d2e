//! A sealed slice: the part of it that is in memory.
//!
//! The identities of a slice whose time has passed never change again. They are in a file, sorted by position, each with its owner
//! (`format/slice`). In memory are a filter over all of them and, for each page of the file, the first position in it. An
//! identity that the filter does not contain is not in the slice. Any other is looked up in one page, and found or not.
//!
//! A slice that is older than the exact part of its window has no pages: an identity that its filter contains was probably seen.
//!
//! Positions are keyed hashes of the identities, so they are uniform whatever the ids are.

mod build;
mod filter;
mod sizes;

#[cfg(test)]
mod tests;

use std::ops::{Range, RangeInclusive};

pub use build::{OwnerScan, SliceBuilder, SliceCoverage};
pub use filter::{FilterBits, FirstLevels};
use filter::{FilterReader, SliceFilter, part_of};
pub use sizes::{FILTERS, FilterPart, MERGED_PART, SMALLEST_SLICE, SealedBytes, slice_ids};

use super::positions::IndexKey;
use super::prefetch::prefetch;
use crate::dedupe::format::{KnownOwner, PAGE_BYTES, SliceError, SliceFooter, SlicePage};
use crate::dedupe::identity::Identity;

/// Pages that [`Slice::scan`] reads together: 128 KiB, which the allocator does not return to the system after each scan.
const PAGES_AT_ONCE: usize = 32;

/// A sealed slice.
#[derive(Debug)]
pub struct Slice {
    footer: SliceFooter,
    /// CRC32C of the footer.
    checksum: u32,
    filter: SliceFilter,
}

impl Slice {
    /// Reads and verifies the footer and the filter of a file of this length, not its pages. `read` fills a buffer from a position of
    /// the file; `damaged` makes its error of a damage.
    pub fn read<E>(
        length: u64,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
        damaged: impl Fn(SliceError) -> E,
    ) -> Result<Self, E> {
        let short = || damaged(SliceError::Truncated("the file"));
        let mut end = [0; SliceFooter::END_BYTES];
        read(length.checked_sub(end.len() as u64).ok_or_else(short)?, &mut end)?;
        let checksum = SliceFooter::checksum(&end);
        let footer = SliceFooter::length(&end).map_err(&damaged)? + end.len();
        let footer_at = length.checked_sub(footer as u64).ok_or_else(short)?;
        let mut bytes = vec![0; footer];
        read(footer_at, &mut bytes)?;
        let footer = SliceFooter::decode(&bytes).map_err(&damaged)?;
        let mut filter = FilterReader::new(footer.shards.len());
        let mut at = (footer.fences.len() * PAGE_BYTES) as u64;
        for entry in &footer.shards {
            let next = at + u64::from(entry.bytes);
            if next > footer_at {
                return Err(short());
            }
            bytes.resize(entry.bytes as usize, 0);
            read(at, &mut bytes)?;
            filter.push(&bytes, *entry).map_err(&damaged)?;
            at = next;
        }
        if at == footer_at { Ok(Self { footer, checksum, filter: filter.finish() }) } else { Err(short()) }
    }

    /// What the slice contains.
    pub fn footer(&self) -> &SliceFooter {
        &self.footer
    }

    /// CRC32C of the footer, which distinguishes the file from others.
    pub fn footer_checksum(&self) -> u32 {
        self.checksum
    }

    /// Whether the slice has the owners of its identities; otherwise it is a filter only.
    pub fn has_owners(&self) -> bool {
        !self.footer.fences.is_empty()
    }

    /// Share of the identities that the slice does not contain for which [`Slice::may_contain`] returns true.
    pub fn false_positive_rate(&self) -> f64 {
        self.filter.false_positive_rate()
    }

    /// Whether the slice may contain the identity: always for one that it contains, and for few others.
    #[inline]
    pub fn may_contain(&self, key: &IndexKey) -> bool {
        self.filter.contains(key.position.first)
    }

    /// Prefetches what [`Slice::may_contain`] reads for an identity that passes the first level.
    #[inline]
    pub fn prefetch_second(&self, key: &IndexKey) {
        self.filter.prefetch_second(key.position.first);
    }

    /// Prefetches what [`Slice::bytes_of`] reads.
    #[inline]
    pub fn prefetch_fences(&self, key: &IndexKey) {
        let fences = &self.footer.fences;
        if let Some(fence) = fences.get(part_of(key.position.first, fences.len())) {
            prefetch(fence);
        }
    }

    /// The owners of an identity that [`Slice::may_contain`] returns true for. Reads the page in which it can be. `read` and `damaged` as in
    /// [`Slice::read`].
    pub fn owners_of<E>(
        &self,
        key: &IndexKey,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
        damaged: impl Fn(SliceError) -> E,
    ) -> Result<Vec<KnownOwner>, E> {
        let mut owners = Vec::new();
        for number in self.pages_of(key).filter(|_| self.has_owners()) {
            let mut bytes = [0; PAGE_BYTES];
            read((number * PAGE_BYTES) as u64, &mut bytes)?;
            let page = self.page(number, &bytes).map_err(&damaged)?;
            let expected = self.expected_entry(number, page.count(), key);
            for owner in page.owners_of(key.identity, expected) {
                owners.push(owner.map_err(&damaged)?);
            }
        }
        Ok(owners)
    }

    /// Verifies the bytes of a page.
    fn page<'a>(&'a self, number: usize, bytes: &'a [u8]) -> Result<SlicePage<'a>, SliceError> {
        SlicePage::parse(bytes, &self.footer.owners, SlicePage::place(self.footer.file, number))
    }

    /// Where an identity is among the entries of a page, approximately: positions are uniform.
    fn expected_entry(&self, page: usize, entries: usize, key: &IndexKey) -> usize {
        let fence = |page| self.footer.fences.get(page).copied();
        let (first, next) = (fence(page).unwrap_or(0), fence(page + 1).unwrap_or(u64::MAX));
        let after = u128::from(key.position.first.saturating_sub(first)) * entries as u128;
        usize::try_from(after / u128::from(next.saturating_sub(first).max(1))).unwrap_or(0).min(entries)
    }

    /// Visits the identities with positions in a range, each with its owner, in the order of their positions; and some others. `read` and
    /// `damaged` as in [`Slice::read`].
    pub fn scan<E>(
        &self,
        positions: RangeInclusive<u64>,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
        damaged: impl Fn(SliceError) -> E,
        mut visit: impl FnMut(Identity, KnownOwner) -> Result<(), E>,
    ) -> Result<(), E> {
        let fences = &self.footer.fences;
        let first = fences.partition_point(|fence| fence < positions.start()).saturating_sub(1);
        let next = fences.partition_point(|fence| fence <= positions.end());
        let mut bytes = vec![0; PAGES_AT_ONCE * PAGE_BYTES];
        for begin in (first..next).step_by(PAGES_AT_ONCE) {
            let pages = bytes.get_mut(..PAGES_AT_ONCE.min(next - begin) * PAGE_BYTES).unwrap_or_default();
            read((begin * PAGE_BYTES) as u64, pages)?;
            for (number, page) in (begin..).zip(pages.chunks(PAGE_BYTES)) {
                for entry in self.page(number, page).map_err(&damaged)?.entries() {
                    let (identity, owner) = entry.map_err(&damaged)?;
                    visit(identity, owner)?;
                }
            }
        }
        Ok(())
    }

    /// The bytes of the file that [`Slice::owners_of`] reads.
    pub fn bytes_of(&self, key: &IndexKey) -> Range<u64> {
        let pages = self.pages_of(key);
        (pages.start() * PAGE_BYTES) as u64..((pages.end() + 1) * PAGE_BYTES) as u64
    }

    /// The pages in which the identity can be: one, or more if equal positions fill the end of a page.
    fn pages_of(&self, key: &IndexKey) -> RangeInclusive<usize> {
        let (fences, position) = (&self.footer.fences, key.position.first);
        let next = position.checked_add(1).map_or(fences.len(), |after| count_below(fences, after));
        let first = count_below(fences, position).saturating_sub(1);
        first..=next.saturating_sub(1)
    }

    /// Bytes in memory: 2.4 per identity of a slice with owners.
    pub fn memory_bytes(&self) -> u64 {
        self.filter.memory_bytes() + (self.footer.fences.len() * size_of::<u64>()) as u64
    }
}

/// How many of these positions, which are in ascending order, are below another one. Positions are uniform, so that is close to the expected
/// number: a binary search in all of them would read another cache line in most steps.
fn count_below(ascending: &[u64], position: u64) -> usize {
    let expected = part_of(position, ascending.len());
    let mut reach = 16;
    loop {
        let (begin, end) = (expected.saturating_sub(reach), ascending.len().min(expected + reach));
        let near = ascending.get(begin..end).unwrap_or_default();
        let below = near.partition_point(|other| *other < position);
        if (below > 0 || begin == 0) && (below < near.len() || end == ascending.len()) {
            return begin + below;
        }
        reach *= 4;
    }
}
