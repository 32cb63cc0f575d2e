//! Committed owners in memory, as substitutes for the local store.
#![allow(dead_code, reason = "each bench uses its own part")]

use std::collections::VecDeque;
use std::convert::Infallible;

use dedupd::dedupe::{Block, HashKind, Identity, Offset, Owners, Positions, Sequence, StoredOwner};
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

/// An array indexed by number, 24 bytes per owner.
#[derive(Default)]
pub struct Array {
    /// Number of the first one.
    first: Sequence,
    owners: VecDeque<(Offset, Identity)>,
}

impl Owners for Array {
    type Error = Infallible;
    fn owner(&self, number: Sequence, _: Option<Identity>) -> Result<StoredOwner, Infallible> {
        let (offset, identity) = self.owners[(number - self.first) as usize];
        Ok(StoredOwner { offset, identity: Some(identity) })
    }
}

impl Ledger for Array {
    fn append(&mut self, owners: &[(Offset, Identity)]) {
        self.owners.extend(owners);
    }
    fn expire(&mut self, first: Offset) {
        let gone = self.owners.partition_point(|(offset, _)| *offset < first);
        self.owners.drain(..gone);
        self.first += gone as Sequence;
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
