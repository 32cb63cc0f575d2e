//! Committed owners in memory, as substitutes for the local store.
#![allow(dead_code, reason = "each bench uses its own part")]

use std::collections::VecDeque;
use std::convert::Infallible;

use dedupd::dedupe::{Block, BlockError, BlockView, HashKind, Identity, Offset, Owners, Positions};
use dedupd::ports::SealedLookup;

/// Identities per stored block.
const BLOCK_IDS: u64 = 4_000;

/// Stores the owners that a transaction commits, and drops those that the window drops.
pub trait Ledger: Owners<Error: std::fmt::Debug> {
    /// The positions of identities in the sealed slices.
    fn positions(&self) -> Positions {
        Positions::keyed([7; 16])
    }
    fn append(&mut self, owners: &[(Offset, Identity)]);
    fn expire(&mut self, first: Offset);
    /// Finds the slices that may contain these identities.
    fn find(&self, _lookups: &mut [SealedLookup]) {}
    /// Whether an identity that the window does not contain is in a sealed slice.
    fn is_sealed(&self, _lookup: &SealedLookup) -> bool {
        false
    }
    /// Bytes on disk; `None` in memory.
    fn disk_bytes(&self) -> Option<u64> {
        None
    }
}

/// An array indexed by offset, 16 bytes per offset.
#[derive(Default)]
pub struct Array {
    first: Offset,
    identities: VecDeque<Identity>,
}

impl Owners for Array {
    type Error = Infallible;
    fn identity_of(&self, owner: Offset) -> Result<Option<Identity>, Infallible> {
        Ok(self.identities.get((owner - self.first) as usize).copied())
    }
}

impl Ledger for Array {
    fn append(&mut self, owners: &[(Offset, Identity)]) {
        for (offset, identity) in owners {
            while self.first + (self.identities.len() as u64) < *offset {
                self.identities.push_back(Identity([0; 16]));
            }
            self.identities.push_back(*identity);
        }
    }
    fn expire(&mut self, first: Offset) {
        let gone = ((first - self.first) as usize).min(self.identities.len());
        self.identities.drain(..gone);
        self.first = first;
    }
}

/// A block of these owners; `entries` must not be empty.
pub fn block(entries: Vec<(Offset, Identity)>) -> Block {
    Block {
        hash: HashKind::Xxh3,
        window: 0.into(),
        first: entries[0].0,
        next: entries[entries.len() - 1].0 + 1,
        time_first_ms: 0,
        time_last_ms: 0,
        entries,
    }
}

/// Encoded blocks, as in the local store.
#[derive(Default)]
pub struct Blocks {
    blocks: VecDeque<(Offset, Vec<u8>)>,
    open: Vec<(Offset, Identity)>,
}

impl Owners for Blocks {
    type Error = BlockError;
    fn identity_of(&self, owner: Offset) -> Result<Option<Identity>, BlockError> {
        if self.open.first().is_some_and(|(first, _)| *first <= owner) {
            let place = self.open.binary_search_by_key(&owner, |(offset, _)| *offset);
            return Ok(place.ok().map(|place| self.open[place].1));
        }
        let place = self.blocks.partition_point(|(first, _)| *first <= owner);
        match place.checked_sub(1).and_then(|place| self.blocks.get(place)) {
            Some((_, bytes)) => BlockView::trusted(bytes)?.identity_of(owner),
            None => Ok(None),
        }
    }
}

impl Ledger for Blocks {
    fn append(&mut self, owners: &[(Offset, Identity)]) {
        self.open.extend_from_slice(owners);
        while self.open.len() as u64 >= BLOCK_IDS {
            let rest = self.open.split_off(BLOCK_IDS as usize);
            let entries = std::mem::replace(&mut self.open, rest);
            self.blocks.push_back((entries[0].0, block(entries).encode()));
        }
    }
    fn expire(&mut self, first: Offset) {
        while self.blocks.get(1).is_some_and(|(next, _)| *next <= first) {
            self.blocks.pop_front();
        }
    }
}
