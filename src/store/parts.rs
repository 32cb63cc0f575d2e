//! Encodes blocks as they are stored: large blocks are split, small ones are merged.

use crate::dedupe::{Block, Offset};

/// Maximum size of a stored block in bytes. A block may be read as a whole for each look-up of one of its identities.
pub(super) const BLOCK_BYTES: usize = 24 * 1024;
/// A block of at least this size is written to a file and never merged again. Smaller blocks wait in sled, which keeps up to 16
/// values in a node (20 while two nodes are merged) and writes a node as a whole. A node must stay below
/// `open::SEGMENT_BYTES / 4`. Otherwise it is written to a file of its own, which is never synced.
pub(super) const FULL_BYTES: usize = BLOCK_BYTES / 8;
/// Small blocks that together reach this size in bytes are merged into full ones.
pub(super) const MERGE_BYTES: usize = BLOCK_BYTES * 3 / 4;
/// Bytes reserved for the header and the last entry when a block is split by size.
const CUT_SLACK: usize = 128;

#[derive(Debug)]
pub(super) struct EncodedBlock {
    /// Its first offset, which is its key.
    pub first: Offset,
    /// One past the last offset it covers.
    pub next: Offset,
    /// Number of identities in it.
    pub identities: u32,
    /// Stream time at its first record, in epoch milliseconds.
    pub time_ms: i64,
    /// Whether it is written to a block file. Otherwise it waits in sled.
    pub goes_to_file: bool,
    pub bytes: Vec<u8>,
}

impl EncodedBlock {
    /// Encodes a block. A small block waits.
    pub(super) fn new(block: &Block) -> Self {
        let bytes = block.encode();
        Self { goes_to_file: bytes.len() >= FULL_BYTES, ..Self::of(block, block.entries.len(), bytes) }
    }

    /// A filed block with this header.
    pub(super) fn of(header: &Block, count: usize, bytes: Vec<u8>) -> Self {
        Self {
            first: header.first,
            next: header.next,
            identities: u32::try_from(count).unwrap_or(u32::MAX),
            time_ms: header.time_first_ms,
            goes_to_file: true,
            bytes,
        }
    }
}

pub(super) fn merge(blocks: impl IntoIterator<Item = Block>) -> Option<Block> {
    blocks.into_iter().reduce(|mut whole, next| {
        merge_into(&mut whole, &next);
        whole
    })
}

/// Merges the following block into a block. Offsets between them that no block covered become covered: none of them owned an
/// identity.
pub(super) fn merge_into(whole: &mut Block, next: &Block) {
    whole.next = next.next;
    whole.time_last_ms = whole.time_last_ms.max(next.time_last_ms);
    whole.entries.extend_from_slice(&next.entries);
}

/// Whether two blocks fit into one stored block, with offset deltas of at most two bytes.
pub(super) fn fits_with(block: &Block, next: &Block) -> bool {
    (block.entries.len() + next.entries.len()) * (16 + 2) <= BLOCK_BYTES - CUT_SLACK
}

/// Encodes a block in equal parts of at most [`BLOCK_BYTES`]. The parts cover the same range without gaps. Each part
/// keeps the times of the whole block, because more precise ones are not known.
pub(super) fn encode_in_parts(block: &Block) -> Vec<EncodedBlock> {
    let mut rest = block.encoded_bytes();
    if rest <= BLOCK_BYTES {
        return vec![EncodedBlock::new(block)];
    }
    let mut parts = rest.div_ceil(BLOCK_BYTES - CUT_SLACK);
    let mut encoded = Vec::with_capacity(parts);
    let mut part = Block { entries: Vec::new(), ..*block };
    let mut bytes = 0;
    for &(offset, identity) in &block.entries {
        let entry = Block::entry_bytes(offset - part.entries.last().map_or(part.first, |last| last.0));
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
        encoded.goes_to_file = true;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedupe::{HashKind, Identity};

    fn block(first: Offset, next: Offset, step: u64) -> Block {
        let owners = (first..next).step_by(usize::try_from(step).unwrap());
        let entries = owners.map(|o| (o, Identity([o.to_le_bytes(); 2].concat().try_into().unwrap())));
        let empty = Block::empty(HashKind::Xxh3, 3.into(), first..next, 10);
        Block { time_last_ms: 20, entries: entries.collect(), ..empty }
    }

    #[test]
    fn parts_are_full_but_within_the_limit_and_merge_to_the_whole_block() {
        for (count, step) in [(1, 1), (3_000, 1), (4_000, 1), (50_000, 1), (20_000, 300), (9_000, 1 << 40)] {
            let whole = block(77, 77 + count * step, step);
            let parts = encode_in_parts(&whole);
            for part in &parts {
                assert!(part.bytes.len() <= BLOCK_BYTES, "{} bytes", part.bytes.len());
                assert!(
                    parts.len() == 1 || (part.goes_to_file && part.bytes.len() > BLOCK_BYTES / 2 - 64),
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
    fn an_inconsistent_block_is_detected() {
        assert!(consistent(&block(5, 9, 1)));
        assert!(!consistent(&Block { next: 8, ..block(5, 9, 1) }));
        assert!(!consistent(&Block { first: 6, ..block(5, 9, 1) }));
        let mut twice = block(5, 9, 1);
        twice.entries[1].0 = 5;
        assert!(!consistent(&twice));
    }
}
