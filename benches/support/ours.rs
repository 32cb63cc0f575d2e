//! The window of dedupd as a contestant, with a store for the 16 bytes of each owner.

use std::path::Path;
use std::time::Duration;

use dedupd::dedupe::window::CHUNK;
use dedupd::dedupe::{
    Coordinates, Identity, Offset, OwnerRun, Owners, Positions, RecordTime, Sequence, StampedOwner,
    StoredOwner, TimeSource, Verdict, Window, WindowLimits,
};
use dedupd::ports::{Head, SealedLookup, Store, StoreError};
use dedupd::store::{Binding, SledStore, open};

use super::contest::Contestant;
use super::ledger::{Ledger, owner};

/// Stream time of the first record, in epoch milliseconds. Each record is 1 ms later.
const START_MS: i64 = 1_700_000_000_000;
const CACHE_BYTES: u64 = 64 << 20;
const DEADLINE: Duration = Duration::from_mins(1);
/// Owners of a run.
const RUN_OWNERS: usize = 4_000;

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

    /// A window for as long as `records` records arrive. The ledger seals its owners; one part in `parts` and another one are in the index.
    pub fn sealed(name: &'static str, ids: u64, parts: u64, records: u64, ledger: L) -> Self {
        let limits = WindowLimits {
            exact: Duration::from_millis(records),
            max_ids: u64::MAX,
            time: TimeSource::Record,
            bloom: None,
        };
        let mut window = Window::new(limits, ledger.positions());
        window.reserve(2 * ids / parts);
        Self { name, window, ledger, at: 0, lookups: Vec::with_capacity(CHUNK), ids }
    }

    fn commit(&mut self) {
        self.ledger.append(self.window.next_number(), self.window.pending());
        self.window.set_horizon(START_MS + self.at.cast_signed());
        let first_needed = self.window.commit();
        self.ledger.expire(first_needed);
        self.ledger.seal(&mut self.window);
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
                let stamp_ms = START_MS + self.at.cast_signed();
                let time = RecordTime { own_ms: stamp_ms, stream_ms: stamp_ms };
                let at = Coordinates { partition: 0, offset: self.at };
                match self.window.verdict(at, time, key, &self.ledger).unwrap() {
                    Verdict::New if self.ledger.is_sealed(lookup) => dropped += 1,
                    Verdict::New | Verdict::Retry => {
                        self.window.admit(owner(self.at, stamp_ms, key.identity), key);
                    }
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
    fn append(&mut self, number: Sequence, owners: &[StampedOwner]) {
        for (number, owners) in (number..).step_by(RUN_OWNERS).zip(owners.chunks(RUN_OWNERS)) {
            let stored: Vec<StoredOwner> = owners.iter().map(|it| it.owner.into()).collect();
            let times_ms = (owners[0].stamp_ms, owners[owners.len() - 1].stamp_ms);
            let run = OwnerRun { number, times_ms, owners: &stored };
            let head = Head { confirmed: run.end(), ..Head::default() };
            self.store.append(0.into(), &run, &head).unwrap();
        }
    }
    fn expire(&mut self, first: Sequence) {
        self.store.expire(0.into(), first, 0).unwrap();
    }
    fn disk_bytes(&self) -> Option<u64> {
        Some(self.store.disk_bytes().unwrap())
    }
}
