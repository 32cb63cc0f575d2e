//! The end of a window's blocks: decides which small blocks are merged, and splits large blocks.
//!
//! Merging is hierarchical. At a low rate of one identity per block, 16 blocks are merged at a time: 16 blocks of 1
//! become one of 16, 16 of those become one of 256, and those fill a full block. Each identity is therefore written
//! at most four times (the append, and once per level). Rewriting one growing block at every append instead would
//! write a full block ten times per second for each window. At most 3 × 16 small blocks wait at a time, so a merge
//! fits into one atomic batch. Waiting blocks always follow all settled ones.

use super::files::Files;
use super::keys::{self, Key};
use super::record::Record;
use crate::dedupe::{Block, BlockView, Offset, WindowId};

/// Maximum size of a stored block in bytes. A block may be read as a whole for each look-up of one of its identities.
pub(super) const BLOCK_BYTES: usize = 24 * 1024;
/// A block of at least this size is settled and never merged again. Smaller blocks wait in sled, which keeps up to 16
/// values in a node (20 while two nodes are merged) and writes a node as a whole. A node must stay below
/// `open::SEGMENT_BYTES / 4`. Otherwise it is written to a file of its own, which is never synced.
const FULL_BYTES: usize = BLOCK_BYTES / 8;
/// Small blocks that together reach this size in bytes are merged into full ones.
const MERGE_BYTES: usize = BLOCK_BYTES * 3 / 4;
/// How many small blocks of one level are merged into one of the next.
const FAN_IN: usize = 16;
/// Upper bounds of the levels, in identities per block.
const LEVELS: [u64; 3] = [8, 128, u64::MAX];
/// Bytes reserved for the header and the last entry when a block is split by size.
const CUT_SLACK: usize = 128;

/// Metadata of a stored block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockMeta {
    /// Its first offset, which is also its key.
    pub first: Offset,
    /// One past the last offset it covers.
    pub next: Offset,
    /// Its encoded size in bytes.
    pub bytes: usize,
    /// Number of identities in it.
    pub identities: u64,
    /// Stream time at its first record, in epoch milliseconds.
    pub time_ms: i64,
}

/// In-memory state of a window's end, so that an append does not read it from the store.
#[derive(Debug, Default)]
pub(super) struct Tail {
    /// The stored record. `None` if nothing is stored.
    pub record: Option<Record>,
    /// One past the last covered offset; 0 when there is no block.
    pub end: Offset,
    /// A lower bound of the oldest block's `next`. An expiry below it has nothing to remove.
    pub oldest_next: Offset,
    /// The waiting blocks, by ascending offset.
    pub waiting_blocks: Vec<BlockMeta>,
    /// The files of the settled blocks.
    pub files: Files,
}

/// Where a block is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In a block file, permanently.
    Settled,
    /// In sled, at the end of the window, until it is merged with others.
    Waiting,
}

/// An encoded block with its key and place.
#[derive(Debug)]
pub(super) struct EncodedBlock {
    /// The tree that holds it.
    pub place: Place,
    /// Its key.
    pub key: Key,
    /// The encoded block.
    pub bytes: Vec<u8>,
    /// Its metadata.
    pub meta: BlockMeta,
}

impl EncodedBlock {
    /// Encodes a block. A small block is placed among the waiting ones.
    pub(super) fn new(block: &Block) -> Self {
        let bytes = block.encode();
        let meta = BlockMeta {
            first: block.first,
            next: block.next,
            bytes: bytes.len(),
            identities: block.entries.len() as u64,
            time_ms: block.time_first_ms,
        };
        let place = if meta.full() { Place::Settled } else { Place::Waiting };
        Self { place, key: keys::block(block.window, block.first), bytes, meta }
    }
}

impl BlockMeta {
    /// The metadata of a block that has `bytes` encoded bytes.
    pub(super) fn of(view: &BlockView<'_>, bytes: usize) -> Self {
        let Block { first, next, time_first_ms: time_ms, .. } = view.header;
        Self { first, next, bytes, identities: view.count() as u64, time_ms }
    }

    /// Whether it is large enough to be settled.
    pub(super) fn full(&self) -> bool {
        self.bytes >= FULL_BYTES
    }
}

impl Tail {
    /// Whether a block of stream time `time_ms` starts a new span of `span_ms`. Blocks are not merged across the
    /// border of a span.
    pub(super) fn starts_span(&self, time_ms: i64, span_ms: i64) -> bool {
        let span = |time_ms: i64| time_ms.div_euclid(span_ms.max(1));
        self.waiting_blocks.last().is_some_and(|meta| span(meta.time_ms) != span(time_ms))
    }

    /// How many of the last waiting blocks must be merged with a new small block.
    pub(super) fn merge_count(&self, new: &BlockMeta) -> usize {
        let all = self.waiting_blocks.len();
        let bytes = |run: usize| -> usize {
            self.waiting_blocks.iter().rev().take(run).map(|meta| meta.bytes).sum::<usize>() + new.bytes
        };
        if bytes(all) >= MERGE_BYTES || all >= LEVELS.len() * FAN_IN {
            return all;
        }
        let mut merged = 0;
        let mut identities = new.identities;
        for bound in LEVELS {
            if identities >= bound {
                continue;
            }
            let waiting = self.waiting_blocks.iter().rev().skip(merged);
            let run: Vec<_> = waiting.take_while(|meta| meta.identities < bound).collect();
            if run.len() + 1 < FAN_IN {
                break;
            }
            identities += run.iter().map(|meta| meta.identities).sum::<u64>();
            merged += run.len();
        }
        if bytes(merged) >= FULL_BYTES { all } else { merged }
    }
}

/// Merges neighbouring blocks. Offsets between them that no block covered become covered: none of them owned an
/// identity.
pub(super) fn merge(blocks: impl IntoIterator<Item = Block>) -> Option<Block> {
    blocks.into_iter().reduce(|mut whole, next| {
        whole.next = next.next;
        whole.time_last_ms = whole.time_last_ms.max(next.time_last_ms);
        whole.entries.extend(next.entries);
        whole
    })
}

/// Encodes a block in equal parts of at most [`BLOCK_BYTES`]. The parts cover the same range without gaps. Each part
/// keeps the times of the whole block, because more precise ones are not known.
pub(super) fn encode_in_parts(block: &Block) -> Vec<EncodedBlock> {
    let whole = EncodedBlock::new(block);
    if whole.bytes.len() <= BLOCK_BYTES {
        return vec![whole];
    }
    let mut parts = whole.bytes.len().div_ceil(BLOCK_BYTES - CUT_SLACK);
    let mut rest = whole.bytes.len();
    let mut encoded = Vec::with_capacity(parts);
    let mut part = Block { entries: Vec::new(), ..*block };
    let mut bytes = 0;
    for &(offset, identity) in &block.entries {
        let entry = 16 + varint_bytes(offset - part.entries.last().map_or(part.first, |last| last.0));
        if parts > 1 && bytes + entry > rest.div_ceil(parts) && !part.entries.is_empty() {
            part.next = offset;
            encoded.push(EncodedBlock::new(&part));
            part.first = offset;
            part.entries.clear();
            (parts, rest, bytes) = (parts - 1, rest - bytes, 0);
        }
        bytes += entry;
        part.entries.push((offset, identity));
    }
    part.next = block.next;
    encoded.push(EncodedBlock::new(&part));
    for encoded in &mut encoded {
        encoded.place = Place::Settled;
    }
    encoded
}

/// Whether a block can be stored: its owners are ascending and within the covered range.
pub(super) fn consistent(block: &Block) -> bool {
    let covered = block.first..block.next;
    block.first <= block.next
        && block.entries.is_sorted_by(|a, b| a.0 < b.0)
        && block.entries.iter().all(|(owner, _)| covered.contains(owner))
}

/// The key range of a window.
pub(super) fn range(window: WindowId) -> std::ops::RangeInclusive<Key> {
    keys::block(window, 0)..=keys::block(window, Offset::MAX)
}

fn varint_bytes(value: u64) -> usize {
    let bits = u64::BITS - value.leading_zeros();
    bits.div_ceil(7).max(1) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedupe::{HashKind, Identity};

    fn block(first: Offset, next: Offset, step: u64) -> Block {
        let owners = (first..next).step_by(usize::try_from(step).unwrap());
        Block {
            hash: HashKind::Xxh3,
            window: 3.into(),
            first,
            next,
            time_first_ms: 10,
            time_last_ms: 20,
            entries: owners
                .map(|o| (o, Identity([o.to_le_bytes(); 2].concat().try_into().unwrap())))
                .collect(),
        }
    }

    #[test]
    fn parts_are_full_but_within_the_limit_and_merge_to_the_whole_block() {
        for (count, step) in [(1, 1), (3_000, 1), (4_000, 1), (50_000, 1), (20_000, 300), (9_000, 1 << 40)] {
            let whole = block(77, 77 + count * step, step);
            let parts = encode_in_parts(&whole);
            for part in &parts {
                assert!(part.bytes.len() <= BLOCK_BYTES, "{} bytes", part.bytes.len());
                assert!(
                    parts.len() == 1
                        || (part.place == Place::Settled && part.bytes.len() > BLOCK_BYTES / 2 - 64),
                    "{} bytes, one of {}",
                    part.bytes.len(),
                    parts.len()
                );
            }
            let decoded: Vec<_> = parts.iter().map(|part| Block::decode(&part.bytes).unwrap()).collect();
            assert!(decoded.windows(2).all(|pair| pair[0].next == pair[1].first));
            assert_eq!(merge(decoded), Some(whole));
        }
    }

    #[test]
    fn single_identities_are_written_at_most_four_times_and_few_blocks_wait() {
        let mut tail = Tail::default();
        let (mut written, mut most) = (0u64, 0);
        let total = 100_000;
        for first in 0..total {
            let mut new = BlockMeta { first, next: first + 1, bytes: 61 + 17, identities: 1, time_ms: 0 };
            let keep = tail.waiting_blocks.len() - tail.merge_count(&new);
            for old in tail.waiting_blocks.split_off(keep) {
                new.first = new.first.min(old.first);
                new.identities += old.identities;
            }
            new.bytes = 61 + 17 * usize::try_from(new.identities).unwrap();
            written += new.identities;
            if new.full() {
                assert!(new.bytes <= BLOCK_BYTES && tail.waiting_blocks.is_empty());
            } else {
                tail.waiting_blocks.push(new);
            }
            most = most.max(tail.waiting_blocks.len());
        }
        assert!(written > total && written <= 4 * total, "{written} identities written for {total}");
        assert!(most < 3 * FAN_IN, "{most} waiting blocks");
    }

    #[test]
    fn an_inconsistent_block_is_detected() {
        assert!(consistent(&block(5, 9, 1)));
        assert!(!consistent(&Block { next: 8, ..block(5, 9, 1) }));
        assert!(!consistent(&Block { first: 6, ..block(5, 9, 1) }));
        let mut twice = block(5, 9, 1);
        twice.entries[1].0 = 5;
        assert!(!consistent(&twice));
    }
}
