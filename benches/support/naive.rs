//! Common alternatives: sets in memory, one record per id in an embedded store, plain Bloom filters.
//!
//! None of them can undo an aborted transaction, return the owner of an id, or determine its position after a crash.
//! The benches measure only what they support.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hash};
use std::path::Path;

use dedupd::dedupe::Identity;
use fastbloom::BloomFilter;
use redb::{Database, ReadableTable, TableDefinition};

use super::contest::Contestant;
use super::files::size_of_files;
use super::stream::numbered;

const CACHE_BYTES: usize = 64 << 20;

/// A hash set of identities.
pub trait Set {
    /// Inserts an identity; returns false when the set already contains it.
    fn insert(&mut self, identity: u128) -> bool;
    fn remove(&mut self, identity: u128);
}

impl<S: BuildHasher> Set for std::collections::HashSet<u128, S> {
    fn insert(&mut self, identity: u128) -> bool {
        Self::insert(self, identity)
    }
    fn remove(&mut self, identity: u128) {
        Self::remove(self, &identity);
    }
}

impl<S: BuildHasher> Set for hashbrown::HashSet<u128, S>
where
    u128: Hash,
{
    fn insert(&mut self, identity: u128) -> bool {
        Self::insert(self, identity)
    }
    fn remove(&mut self, identity: u128) {
        Self::remove(self, &identity);
    }
}

/// A set with a queue of its identities. The oldest identity is removed when a new one is inserted into a full set.
pub struct Queued<S> {
    name: &'static str,
    set: S,
    queue: VecDeque<u128>,
    ids: u64,
}

impl<S: Set> Queued<S> {
    pub fn new(name: &'static str, ids: u64, set: S) -> Self {
        Self { name, set, queue: VecDeque::with_capacity(ids as usize + 1), ids }
    }
}

impl<S: Set> Contestant for Queued<S> {
    fn name(&self) -> &'static str {
        self.name
    }
    fn ids(&self) -> u64 {
        self.ids
    }
    fn transaction(&mut self, records: &[Identity]) -> u64 {
        let mut dropped = 0;
        for record in records {
            let identity = u128::from_ne_bytes(record.0);
            if self.set.insert(identity) {
                self.queue.push_back(identity);
                if self.queue.len() as u64 > self.ids
                    && let Some(oldest) = self.queue.pop_front()
                {
                    self.set.remove(oldest);
                }
            } else {
                dropped += 1;
            }
        }
        dropped
    }
    fn disk_bytes(&self) -> Option<u64> {
        None
    }
}

/// Eight plain Bloom filters in rotation, of which seven together contain the window.
pub struct RotatingFilters {
    name: &'static str,
    /// The newest last.
    filters: VecDeque<BloomFilter>,
    inserted: u64,
    ids: u64,
}

impl RotatingFilters {
    const FILTERS: u64 = 8;

    pub fn new(name: &'static str, ids: u64, rate: f64) -> Self {
        let made = BloomFilter::with_false_pos(rate / Self::FILTERS as f64).seed(&7);
        let filter = made.expected_items((ids / (Self::FILTERS - 1)) as usize);
        let filters = (0..Self::FILTERS).map(|_| filter.clone()).collect();
        Self { name, filters, inserted: 0, ids }
    }
}

impl Contestant for RotatingFilters {
    fn name(&self) -> &'static str {
        self.name
    }
    fn ids(&self) -> u64 {
        self.ids
    }
    fn transaction(&mut self, records: &[Identity]) -> u64 {
        let (mut dropped, most) = (0, self.ids / (Self::FILTERS - 1));
        for record in records {
            let hash = self.filters[0].source_hash(&u128::from_ne_bytes(record.0));
            // The newest first: most duplicates repeat a recent record.
            if self.filters.iter().rev().any(|filter| filter.contains_hash(hash)) {
                dropped += 1;
                continue;
            }
            if self.inserted == most {
                self.inserted = 0;
                self.filters.rotate_left(1);
                self.filters[Self::FILTERS as usize - 1].clear();
            }
            self.inserted += 1;
            self.filters[Self::FILTERS as usize - 1].insert_hash(hash);
        }
        dropped
    }
    fn disk_bytes(&self) -> Option<u64> {
        None
    }
}

/// One record per id in an embedded store. It finds the oldest id without any cost, because ids are numbered; a real
/// one would need a second index.
pub struct Records<S> {
    name: &'static str,
    store: S,
    dir: tempfile::TempDir,
    made: u64,
    ids: u64,
}

/// An embedded store.
pub trait Embedded: Sized {
    fn open(dir: &Path) -> Self;
    /// Drops duplicates, stores new ids, removes the oldest ones and commits; returns the number of records dropped.
    fn transaction(&mut self, records: &[Identity], made: &mut u64, ids: u64) -> u64;
}

impl<S: Embedded> Records<S> {
    pub fn below(dir: &Path, name: &'static str, ids: u64) -> Self {
        let dir = tempfile::tempdir_in(dir).unwrap();
        Self { name, store: S::open(dir.path()), dir, made: 0, ids }
    }
}

impl<S: Embedded> Contestant for Records<S> {
    fn name(&self) -> &'static str {
        self.name
    }
    fn ids(&self) -> u64 {
        self.ids
    }
    fn transaction(&mut self, records: &[Identity]) -> u64 {
        self.store.transaction(records, &mut self.made, self.ids)
    }
    fn disk_bytes(&self) -> Option<u64> {
        Some(size_of_files(self.dir.path(), &|_| true))
    }
}

/// Counts a new id; returns the oldest id if it must be removed.
fn next_expired(made: &mut u64, ids: u64) -> Option<Identity> {
    *made += 1;
    made.checked_sub(ids).filter(|oldest| *oldest > 0).map(numbered)
}

impl Embedded for sled::Db {
    fn open(dir: &Path) -> Self {
        let config = sled::Config::new().path(dir).cache_capacity(CACHE_BYTES as u64);
        config.mode(sled::Mode::HighThroughput).open().unwrap()
    }
    fn transaction(&mut self, records: &[Identity], made: &mut u64, ids: u64) -> u64 {
        let mut dropped = 0;
        for record in records {
            if self.get(record.0).unwrap().is_some() {
                dropped += 1;
                continue;
            }
            self.insert(record.0, &made.to_le_bytes()).unwrap();
            if let Some(oldest) = next_expired(made, ids) {
                self.remove(oldest.0).unwrap();
            }
        }
        self.flush().unwrap();
        dropped
    }
}

const OWNERS: TableDefinition<'_, [u8; 16], u64> = TableDefinition::new("owners");

impl Embedded for Database {
    fn open(dir: &Path) -> Self {
        Self::builder().set_cache_size(CACHE_BYTES).create(dir.join("owners.redb")).unwrap()
    }
    fn transaction(&mut self, records: &[Identity], made: &mut u64, ids: u64) -> u64 {
        let (mut dropped, writing) = (0, self.begin_write().unwrap());
        {
            let mut owners = writing.open_table(OWNERS).unwrap();
            for record in records {
                if owners.get(record.0).unwrap().is_some() {
                    dropped += 1;
                    continue;
                }
                owners.insert(record.0, *made).unwrap();
                if let Some(oldest) = next_expired(made, ids) {
                    owners.remove(oldest.0).unwrap();
                }
            }
        }
        writing.commit().unwrap();
        dropped
    }
}
