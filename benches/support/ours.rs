//! The window of dedupd as a contestant, with a store for the 16 bytes of each owner.

use std::path::Path;
use std::time::Duration;

use dedupd::dedupe::window::CHUNK;
use dedupd::dedupe::{
    HashKind, Identity, Offset, Owners, Positions, Sequence, StoredOwner, TimeSource, Verdict, Window,
    WindowLimits,
};
use dedupd::ports::{Head, SealedLookup, Store, StoreError};
use dedupd::store::{Binding, SledStore, open};

use super::appending::Appending;
use super::contest::Contestant;
use super::ledger::{Ledger, block};

/// Stream time of the first record, in epoch milliseconds. Each record is 1 ms later.
const START_MS: i64 = 1_700_000_000_000;
const CACHE_BYTES: u64 = 64 << 20;
const DEADLINE: Duration = Duration::from_mins(1);
/// Maximum number of identities per block in the state topic.
pub const BLOCK_IDS: usize = 4_000;

/// A window, used as in the pipeline.
pub struct Ours<L> {
    name: &'static str,
    window: Window,
    ledger: L,
    at: Offset,
    lookups: Vec<SealedLookup>,
    /// Number of identities in the full window.
    ids: u64,
}

impl<L: Ledger> Ours<L> {
    /// A window with all identities in the exact part.
    pub fn exact(name: &'static str, ids: u64, ledger: L) -> Self {
        let limits = WindowLimits {
            exact: Duration::from_hours(1_000_000),
            max_ids: ids,
            time: TimeSource::Record,
            bloom: None,
        };
        let mut window = Window::new(limits, ledger.positions());
        window.reserve(ids + ids / 64);
        Self { name, window, ledger, at: 0, lookups: Vec::with_capacity(CHUNK), ids }
    }

    /// A window whose newest identities, one part in `parts`, are in the exact part, for as long as `held` records arrive. The ledger
    /// has the others in sealed slices.
    pub fn sealed(name: &'static str, ids: u64, parts: u64, held: u64, ledger: L) -> Self {
        let limits = WindowLimits {
            exact: Duration::from_millis(held),
            max_ids: u64::MAX,
            time: TimeSource::Record,
            bloom: None,
        };
        let mut window = Window::new(limits, ledger.positions());
        window.reserve(ids / parts + ids / parts / 64);
        Self { name, window, ledger, at: 0, lookups: Vec::with_capacity(CHUNK), ids }
    }

    fn commit(&mut self) {
        let covered = self.window.next()..self.at;
        for block in self.window.blocks(HashKind::Xxh3, 0.into(), covered, BLOCK_IDS) {
            if !block.entries.is_empty() {
                self.ledger.append(&block.entries);
            }
        }
        let first_live = self.window.commit(self.at);
        self.ledger.expire(first_live);
    }
}

impl<L: Ledger> Contestant for Ours<L> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn ids(&self) -> u64 {
        self.ids
    }

    fn transaction(&mut self, records: &[Identity]) -> u64 {
        let mut dropped = 0;
        for chunk in records.chunks(CHUNK) {
            self.lookups.clear();
            let keys = chunk.iter().map(|identity| self.window.key(*identity));
            self.lookups.extend(keys.map(|key| SealedLookup::new(0.into(), key)));
            self.ledger.find(&mut self.lookups);
            for lookup in &self.lookups {
                let key = &lookup.key;
                self.window.observe(Some(START_MS + self.at.cast_signed()), i64::MAX);
                match self.window.verdict(self.at, key, &self.ledger).unwrap() {
                    Verdict::New if self.ledger.is_sealed(lookup) => dropped += 1,
                    Verdict::New | Verdict::Retry => self.window.admit(self.at, key),
                    Verdict::Duplicate { .. } => dropped += 1,
                }
                self.at += 1;
            }
        }
        self.commit();
        dropped
    }

    fn disk_bytes(&self) -> Option<u64> {
        self.ledger.disk_bytes()
    }
}

/// The local store itself, in its own directory.
pub struct Stored {
    pub store: SledStore,
    _dir: tempfile::TempDir,
}

impl Stored {
    pub fn below(dir: &Path) -> Self {
        let dir = tempfile::tempdir_in(dir).unwrap();
        let binding = Binding { partitions: 1, ..Binding::default() };
        Self { store: open(dir.path(), &binding, CACHE_BYTES, DEADLINE).unwrap().store, _dir: dir }
    }
}

impl Owners for Stored {
    type Error = StoreError;
    fn owner(&self, number: Sequence, expected: Option<Identity>) -> Result<StoredOwner, StoreError> {
        Ok(self.store.owner(0.into(), number, expected)?.expect("the owner is stored"))
    }
}

impl Ledger for Stored {
    fn positions(&self) -> Positions {
        self.store.positions()
    }
    fn append(&mut self, owners: &[(Offset, Identity)]) {
        let block = block(owners.to_vec());
        let next = block.next;
        let head =
            Head { confirmed: next, state_next: next, stream_time_ms: 0, tail: None, ..Head::default() };
        self.store.put(&block, head).unwrap();
    }
    fn expire(&mut self, first: Offset) {
        self.store.expire(0.into(), first, 0).unwrap();
    }
    fn disk_bytes(&self) -> Option<u64> {
        Some(self.store.disk_bytes().unwrap())
    }
}
