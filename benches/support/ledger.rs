//! Committed owners in memory, as substitutes for the local store.
#![allow(dead_code, reason = "each bench uses its own part")]

use std::collections::VecDeque;
use std::convert::Infallible;

use dedupd::dedupe::{
    Coordinates, Digest, Identity, Offset, Owner, Owners, Positions, Sequence, StampedOwner, StoredOwner,
    Window,
};
use dedupd::ports::SealedLookup;

/// Stores the owners that a transaction commits, and drops those that the window drops.
pub trait Ledger: Owners<Error: std::fmt::Debug> {
    /// The positions of identities in the sealed slices.
    fn positions(&self) -> Positions {
        Positions::keyed([7; 16])
    }
    /// The first one has this number.
    fn append(&mut self, number: Sequence, owners: &[StampedOwner]);
    /// Owners with lower numbers are not needed.
    fn expire(&mut self, first: Sequence);
    /// Moves old owners from the window into slices.
    fn seal(&mut self, _window: &mut Window) {}
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
        Ok(StoredOwner {
            at: Coordinates { partition: 0, offset },
            time_ms: 0,
            identity: Some(identity),
            digest: Digest::NONE,
        })
    }
}

impl Ledger for Array {
    fn append(&mut self, _: Sequence, owners: &[StampedOwner]) {
        self.owners.extend(owners.iter().map(|it| (it.owner.at.offset, it.owner.identity)));
    }
    fn expire(&mut self, first: Sequence) {
        self.owners.drain(..first.saturating_sub(self.first) as usize);
        self.first = self.first.max(first);
    }
}

/// The record at this offset as an owner, at a time.
pub fn owner(offset: Offset, stamp_ms: i64, identity: Identity) -> StampedOwner {
    let at = Coordinates { partition: 0, offset };
    StampedOwner { owner: Owner { at, time_ms: stamp_ms, identity, digest: Digest::NONE }, stamp_ms }
}
