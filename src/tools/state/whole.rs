//! All owners of a window as blocks: the sealed ones, put together from slices, then the others.

use std::collections::HashMap;
use std::ops::Range;

use super::find::bad_block;
use crate::dedupe::{Block, BlockView, HashKind, Identity, Offset, SliceMark, SlicePartition, WindowId};
use crate::ports::{Store, StoreError};

/// Sealed owners that are in memory at a time, 24 bytes each. A slice is not in the order of offsets, so it is read once for each part.
const OWNERS_AT_ONCE: u64 = 16 << 20;
/// Most identities of a block that is put together.
const IDS_PER_BLOCK: usize = 900;

/// Visits all owners of these windows as blocks: window by window, in ascending order of first offset. `hash` made the identities. A block of
/// sealed owners has the times of their mark. Owners in filters only are left out. A slice is read once for all windows that share it, as far as
/// memory allows.
pub fn scan_whole(
    store: &impl Store,
    hash: HashKind,
    mut windows: &[WindowId],
    visit: &mut dyn FnMut(&BlockView<'_>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    while !windows.is_empty() {
        let (now, later) = windows.split_at(read_together(store, windows));
        let mut all = match now {
            [_] => HashMap::new(),
            _ => sealed_owners(store, now, 0..Offset::MAX)?,
        };
        for window in now {
            let whole = all.remove(window);
            let empty = Block::empty(hash, *window, 0..0, 0);
            for part in store.sealed(*window).iter().flat_map(|range| parts(range, OWNERS_AT_ONCE)) {
                let read;
                let covered = part.first..part.next;
                let owners = if let Some(whole) = &whole {
                    within(whole, &covered)
                } else {
                    read = sealed_owners(store, &[*window], covered)?.remove(window).unwrap_or_default();
                    &read
                };
                blocks(&part, owners, &empty).try_for_each(|block| visit_encoded(&block, visit))?;
            }
            scan_unsealed(store, hash, *window, visit)?;
        }
        windows = later;
    }
    Ok(())
}

/// Number of the first of these windows whose sealed owners are in memory together: at least one.
fn read_together(store: &impl Store, windows: &[WindowId]) -> usize {
    let mut left = OWNERS_AT_ONCE;
    let fits = |window: &&WindowId| {
        let owners = store.sealed(**window).iter().map(SlicePartition::owners).sum();
        let rest = left.checked_sub(owners);
        left = rest.unwrap_or(0);
        rest.is_some()
    };
    windows.iter().take_while(fits).count().max(1)
}

/// The sealed owners of these windows in a range, in ascending order.
fn sealed_owners(
    store: &impl Store,
    windows: &[WindowId],
    range: Range<Offset>,
) -> Result<HashMap<WindowId, Vec<(Offset, Identity)>>, StoreError> {
    let mut owners: HashMap<WindowId, Vec<_>> = windows.iter().map(|window| (*window, Vec::new())).collect();
    store.scan_sealed(windows, range, &mut |window, offset, identity| {
        owners.entry(window).or_default().push((offset, identity));
        Ok(())
    })?;
    for owners in owners.values_mut() {
        owners.sort_unstable_by_key(|(offset, _)| *offset);
    }
    Ok(owners)
}

fn within<'a>(owners: &'a [(Offset, Identity)], range: &Range<Offset>) -> &'a [(Offset, Identity)] {
    let below = |end: Offset| owners.partition_point(|(offset, _)| *offset < end);
    owners.get(below(range.start)..below(range.end)).unwrap_or_default()
}

/// Visits the stored owners as blocks in ascending order of first offset, without owners that are sealed. `hash` made the identities.
fn scan_unsealed(
    store: &impl Store,
    hash: HashKind,
    window: WindowId,
    visit: &mut dyn FnMut(&BlockView<'_>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let sealed = sealed_end(store, window);
    store.scan(window, &mut |run| {
        if run.covered.end <= sealed {
            return Ok(());
        }
        let covered = run.covered.start.max(sealed)..run.covered.end;
        let owners = run.owners.iter().filter(|owner| owner.offset >= sealed);
        let entries = owners.filter_map(|owner| Some((owner.offset, owner.identity?))).collect();
        let (time_first_ms, time_last_ms) = run.times_ms;
        let empty = Block::empty(hash, window, covered, 0);
        visit_encoded(&Block { time_first_ms, time_last_ms, entries, ..empty }, visit)
    })
}

/// One past the last sealed owner. Other stored owners below it are sealed too, or do not count.
pub fn sealed_end(store: &impl Store, window: WindowId) -> Offset {
    store.sealed(window).last().map_or(0, |range| range.next)
}

fn visit_encoded(
    block: &Block,
    visit: &mut dyn FnMut(&BlockView<'_>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let bytes = block.encode();
    visit(&BlockView::trusted(&bytes).map_err(|cause| bad_block(block.window, block.first, &cause))?)
}

/// Divides a range between marks into parts of at most `most` owners; a mark with more is a part of its own.
fn parts(range: &SlicePartition, most: u64) -> Vec<SlicePartition> {
    let (mut parts, mut first, mut left) = (Vec::<SlicePartition>::new(), range.first, 0);
    for mark in &range.marks {
        if let Some(part) = parts.last_mut().filter(|_| mark.count <= left) {
            part.marks.push(*mark);
            part.next = mark.next;
            left -= mark.count;
        } else {
            let marks = vec![*mark];
            parts.push(SlicePartition { partition: range.partition, first, next: mark.next, marks });
            left = most.saturating_sub(mark.count);
        }
        first = mark.next;
    }
    parts
}

/// The owners of a part, in ascending order, as blocks. Each has owners of one mark.
fn blocks<'a>(
    part: &'a SlicePartition,
    mut owners: &'a [(Offset, Identity)],
    empty: &'a Block,
) -> impl Iterator<Item = Block> + 'a {
    let mut first = part.first;
    let chunks = part.marks.iter().flat_map(move |mark| {
        let (of_mark, rest) = owners.split_at(owners.partition_point(|(offset, _)| *offset < mark.next));
        owners = rest;
        of_mark.chunks(IDS_PER_BLOCK).map(move |chunk| (mark, chunk))
    });
    chunks.map(move |(mark, chunk)| {
        let SliceMark { time_ms: (time_first_ms, time_last_ms), .. } = *mark;
        let next = chunk.last().map_or(first, |(offset, _)| offset + 1);
        let block =
            Block { first, next, time_first_ms, time_last_ms, entries: chunk.to_vec(), ..empty.clone() };
        first = next;
        block
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(marks: &[(Offset, u64)]) -> SlicePartition {
        let next = marks.last().unwrap().0;
        let mark = |(next, count): &(Offset, u64)| SliceMark {
            next: *next,
            count: *count,
            time_ms: (next.cast_signed(), next.cast_signed() + 1),
        };
        SlicePartition { partition: 3, first: 10, next, marks: marks.iter().map(mark).collect() }
    }

    fn bounds(parts: &[SlicePartition]) -> Vec<(Offset, Offset, usize)> {
        parts.iter().map(|part| (part.first, part.next, part.marks.len())).collect()
    }

    #[test]
    fn the_parts_of_a_range_are_whole_marks_and_cover_it_without_gaps() {
        let range = range(&[(20, 5), (30, 5), (40, 1), (90, 30), (95, 0), (100, 10)]);
        assert_eq!(bounds(&parts(&range, 10)), [(10, 30, 2), (30, 40, 1), (40, 95, 2), (95, 100, 1)]);
        assert_eq!(bounds(&parts(&range, 1_000)), [(10, 100, 6)]);
        assert_eq!(parts(&range, 0).iter().flat_map(|part| &part.marks).count(), 6);
    }

    #[test]
    fn blocks_are_below_the_size_limit_and_have_the_times_of_their_marks() {
        let range = range(&[(1_000, 0), (2_000, 0), (5_000, 0)]);
        // The second mark has no owners left.
        let owners: Vec<_> =
            (10..5_000).filter(|at| !(1_000..2_000).contains(at)).map(|at| (at, Identity([7; 16]))).collect();
        let empty = Block::empty(HashKind::Xxh3, 3.into(), 0..0, 0);
        let made: Vec<_> = blocks(&range, &owners, &empty).collect();
        let entries: Vec<_> = made.iter().flat_map(|block| block.entries.clone()).collect();
        assert_eq!(entries, owners);
        assert!(made.is_sorted_by(|a, b| a.next <= b.first) && made.len() == 6, "{}", made.len());
        for block in &made {
            let end = if block.next <= 1_000 { 1_000 } else { 5_000 };
            assert_eq!((block.time_first_ms, block.time_last_ms), (end, end + 1), "{}", block.first);
            assert!(block.entries.iter().all(|(owner, _)| (block.first..block.next).contains(owner)));
        }
    }

    #[test]
    fn a_block_of_distant_owners_fits_into_the_store() {
        let far = u64::MAX / IDS_PER_BLOCK as u64 - 1;
        let entries = (0..IDS_PER_BLOCK as u64).map(|at| (at * far, Identity([7; 16]))).collect();
        let block = Block { entries, ..Block::empty(HashKind::Xxh3, 3.into(), 0..u64::MAX, 0) };
        assert!(block.encoded_bytes() < 24 << 10, "{}", block.encoded_bytes());
    }
}
