//! The end of a partition's blocks: which small ones to join, and how blocks are cut to size.
//!
//! Joining is hierarchical. A trickle of one identity a block is joined sixteen at a time: 16 blocks
//! of 1 become one of 16, 16 of those one of 256, and those fill one full block. Each identity is so
//! rewritten at most four times (appended, then once a level), where rewriting one growing block
//! at every append would write a full block ten times a second for each partition. At most
//! 3 × 16 small blocks wait at a time, so a join fits into one atomic batch. Waiting blocks always lie
//! behind all settled ones.

use super::files::Files;
use super::keys::{self, Key};
use super::record::Record;
use crate::dedupe::{Block, BlockView, Offset, PartitionId};

/// No stored block is larger: it is read as a whole for each of its identities that is asked for.
pub(super) const BLOCK_BYTES: usize = 24 * 1024;
/// A block of this size is settled and never joined again. What is smaller waits in sled, which keeps up
/// to 16 values in a node (20 while two are merged) and writes it as a whole; that must stay below
/// `open::SEGMENT_BYTES / 4`, or it goes into a file of its own, which is never synced.
const FULL_BYTES: usize = BLOCK_BYTES / 8;
/// Small blocks that together reach this become full ones.
const JOIN_BYTES: usize = BLOCK_BYTES * 3 / 4;
/// How many small blocks of one level make one of the next.
const FAN: usize = 16;
/// Levels, by identities in a block.
const LEVELS: [u64; 3] = [8, 128, u64::MAX];
/// Slack for the header and the last entry when a block is cut by size.
const CUT_SLACK: usize = 128;

/// The measures of a stored block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// Its first offset, and so its key.
    pub first: Offset,
    /// One past the last offset it covers.
    pub next: Offset,
    /// Its encoded size.
    pub bytes: usize,
    /// How many identities it holds.
    pub identities: u64,
    /// Stream time at its first record, ms since the epoch.
    pub time_ms: i64,
}

/// What an append needs to know of a partition without reading it.
#[derive(Debug, Default)]
pub(super) struct Tail {
    /// The stored record; `None` when nothing is stored.
    pub record: Option<Record>,
    /// One past the last covered offset; 0 when there is no block.
    pub end: Offset,
    /// At most the `next` of the oldest block: an expiry below it has nothing to do.
    pub oldest_next: Offset,
    /// The waiting small blocks, by rising offset.
    pub pieces: Vec<Piece>,
    /// The files of the settled ones.
    pub files: Files,
}

/// Where a block is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// For good.
    Settled,
    /// At the end, until it is joined with others.
    Waiting,
}

/// An encoded block, its key and place.
#[derive(Debug)]
pub(super) struct Packed {
    /// In which tree.
    pub place: Place,
    /// Under which key.
    pub key: Key,
    /// The encoded block.
    pub bytes: Vec<u8>,
    /// Its size and place.
    pub piece: Piece,
}

impl Packed {
    /// Encodes a block; a small one is to wait.
    pub(super) fn new(block: &Block) -> Self {
        let bytes = block.encode();
        let piece = Piece {
            first: block.first,
            next: block.next,
            bytes: bytes.len(),
            identities: block.entries.len() as u64,
            time_ms: block.time_first_ms,
        };
        let place = if piece.full() { Place::Settled } else { Place::Waiting };
        Self { place, key: keys::block(block.partition, block.first), bytes, piece }
    }
}

impl Piece {
    /// The measures of a block of this many bytes.
    pub(super) fn of(view: &BlockView<'_>, bytes: usize) -> Self {
        let Block { first, next, time_first_ms: time_ms, .. } = view.header;
        Self { first, next, bytes, identities: view.count() as u64, time_ms }
    }

    /// Whether it is left as it is for good.
    pub(super) fn full(&self) -> bool {
        self.bytes >= FULL_BYTES
    }
}

impl Tail {
    /// Whether a block of stream time `time_ms` begins a new stretch of `span_ms`, over the border
    /// of which nothing is joined.
    pub(super) fn begins_stretch(&self, time_ms: i64, span_ms: i64) -> bool {
        let stretch = |time_ms: i64| time_ms.div_euclid(span_ms.max(1));
        self.pieces.last().is_some_and(|piece| stretch(piece.time_ms) != stretch(time_ms))
    }

    /// How many of the last pieces are to be joined with a new small block.
    pub(super) fn due(&self, new: &Piece) -> usize {
        let all = self.pieces.len();
        let bytes = |run: usize| -> usize {
            self.pieces.iter().rev().take(run).map(|piece| piece.bytes).sum::<usize>() + new.bytes
        };
        if bytes(all) >= JOIN_BYTES || all >= LEVELS.len() * FAN {
            return all;
        }
        let mut joined = 0;
        let mut identities = new.identities;
        for bound in LEVELS {
            if identities >= bound {
                continue;
            }
            let waiting = self.pieces.iter().rev().skip(joined);
            let run: Vec<_> = waiting.take_while(|piece| piece.identities < bound).collect();
            if run.len() + 1 < FAN {
                break;
            }
            identities += run.iter().map(|piece| piece.identities).sum::<u64>();
            joined += run.len();
        }
        if bytes(joined) >= FULL_BYTES { all } else { joined }
    }
}

/// Neighbouring blocks as one. Offsets between them, covered by none, become covered: nothing was
/// owned there.
pub(super) fn join(blocks: impl IntoIterator<Item = Block>) -> Option<Block> {
    blocks.into_iter().reduce(|mut whole, next| {
        whole.next = next.next;
        whole.time_last_ms = whole.time_last_ms.max(next.time_last_ms);
        whole.entries.extend(next.entries);
        whole
    })
}

/// Encodes a block, in equal parts of at most [`BLOCK_BYTES`]. The parts cover the same range
/// without gaps; each keeps the times of the whole, because only those are known.
pub(super) fn pack(block: &Block) -> Vec<Packed> {
    let whole = Packed::new(block);
    if whole.bytes.len() <= BLOCK_BYTES {
        return vec![whole];
    }
    let mut parts = whole.bytes.len().div_ceil(BLOCK_BYTES - CUT_SLACK);
    let mut rest = whole.bytes.len();
    let mut packed = Vec::with_capacity(parts);
    let mut part = Block { entries: Vec::new(), ..*block };
    let mut bytes = 0;
    for &(offset, identity) in &block.entries {
        let entry = 16 + varint_bytes(offset - part.entries.last().map_or(part.first, |last| last.0));
        if parts > 1 && bytes + entry > rest.div_ceil(parts) && !part.entries.is_empty() {
            part.next = offset;
            packed.push(Packed::new(&part));
            part.first = offset;
            part.entries.clear();
            (parts, rest, bytes) = (parts - 1, rest - bytes, 0);
        }
        bytes += entry;
        part.entries.push((offset, identity));
    }
    part.next = block.next;
    packed.push(Packed::new(&part));
    for packed in &mut packed {
        packed.place = Place::Settled;
    }
    packed
}

/// Whether a block can be stored: owners rise and lie in the covered range.
pub(super) fn consistent(block: &Block) -> bool {
    let covered = block.first..block.next;
    block.first <= block.next
        && block.entries.is_sorted_by(|a, b| a.0 < b.0)
        && block.entries.iter().all(|(owner, _)| covered.contains(owner))
}

/// The key range of a partition.
pub(super) fn range(partition: PartitionId) -> std::ops::RangeInclusive<Key> {
    keys::block(partition, 0)..=keys::block(partition, Offset::MAX)
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
            partition: 3,
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
    fn parts_are_full_but_within_the_limit_and_join_to_the_whole() {
        for (count, step) in [(1, 1), (3_000, 1), (4_000, 1), (50_000, 1), (20_000, 300), (9_000, 1 << 40)] {
            let whole = block(77, 77 + count * step, step);
            let parts = pack(&whole);
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
            assert_eq!(join(decoded), Some(whole));
        }
    }

    #[test]
    fn a_trickle_is_rewritten_at_most_four_times_and_few_pieces_wait() {
        let mut tail = Tail::default();
        let (mut written, mut most) = (0u64, 0);
        let total = 100_000;
        for first in 0..total {
            let mut new = Piece { first, next: first + 1, bytes: 61 + 17, identities: 1, time_ms: 0 };
            let keep = tail.pieces.len() - tail.due(&new);
            for old in tail.pieces.split_off(keep) {
                new.first = new.first.min(old.first);
                new.identities += old.identities;
            }
            new.bytes = 61 + 17 * usize::try_from(new.identities).unwrap();
            written += new.identities;
            if new.full() {
                assert!(new.bytes <= BLOCK_BYTES && tail.pieces.is_empty());
            } else {
                tail.pieces.push(new);
            }
            most = most.max(tail.pieces.len());
        }
        assert!(written > total && written <= 4 * total, "{written} identities written for {total}");
        assert!(most < 3 * FAN, "{most} pieces");
    }

    #[test]
    fn an_inconsistent_block_is_told() {
        assert!(consistent(&block(5, 9, 1)));
        assert!(!consistent(&Block { next: 8, ..block(5, 9, 1) }));
        assert!(!consistent(&Block { first: 6, ..block(5, 9, 1) }));
        let mut twice = block(5, 9, 1);
        twice.entries[1].0 = 5;
        assert!(!consistent(&twice));
    }
}
