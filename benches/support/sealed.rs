//! Sealed slices as the ledger of a window, which holds the newest identities only.

use std::collections::VecDeque;
use std::fs::{self, OpenOptions};
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use dedupd::dedupe::{
    Coordinates, HashKind, Identity, IndexKey, KindId, Offset, Owners, SliceBuilder, SliceCoverage,
    SlicePartition,
};
use dedupd::ports::{Store, StoreError};
use dedupd::store::StoredSlice;

use super::contest::TRANSACTION;
use super::ledger::Ledger;
use super::ours::{BLOCK_IDS, Ours, Stored};

/// The store has the owners that are not sealed yet. A slice is sealed at the first commit after its last record.
pub struct Sealed {
    stored: Stored,
    slices: VecDeque<StoredSlice>,
    dir: tempfile::TempDir,
    /// One past the last owner.
    next: Offset,
    end_of_slices: Offset,
    /// Sealed slices in a full window.
    count: u64,
    /// Records and identities of a slice.
    records: u64,
    ids: u64,
}

impl Sealed {
    /// A full window of `ids` has `count` sealed slices, and one more is open. `records` is the number of records, including
    /// duplicates, in a window.
    pub fn window(dir: &Path, name: &'static str, ids: u64, records: u64, count: u64) -> Ours<Self> {
        let records = records / count;
        let ledger = Self {
            stored: Stored::below(dir),
            slices: VecDeque::new(),
            dir: tempfile::tempdir_in(dir).unwrap(),
            next: 0,
            end_of_slices: 0,
            count,
            records,
            ids: ids / count,
        };
        // A slice is sealed after the transaction in which it ends. Until then its identities are in the index.
        Ours::sealed(name, ids, count, records + 2 * TRANSACTION, ledger)
    }

    fn path(&self, first: Offset) -> PathBuf {
        self.dir.path().join(first.to_string())
    }

    fn path_of(&self, slice: &StoredSlice) -> PathBuf {
        self.path(slice.slice().footer().owners.partitions()[0].first)
    }

    fn seal(&mut self, covered: Range<Offset>) {
        let partitions =
            vec![SlicePartition { partition: 0, first: covered.start, next: covered.end, marks: Vec::new() }];
        let coverage = SliceCoverage { hash: HashKind::Xxh3, kind: KindId::UNNAMED, partitions };
        let builder = SliceBuilder::new(coverage, self.ids).unwrap();
        let path = self.path(covered.start);
        let file = OpenOptions::new().create_new(true).write(true).open(&path).unwrap();
        let store = &self.stored.store;
        let first_block = covered.start.saturating_sub(BLOCK_IDS as u64);
        StoredSlice::write(
            builder,
            |_, offer| {
                let scanned = store.scan_from(0.into(), first_block, &mut |view| {
                    let offer_covered = |offset, identity| {
                        if covered.contains(&offset) {
                            offer(identity, Coordinates { partition: 0, offset });
                        }
                    };
                    view.for_each(offer_covered).unwrap();
                    let ended = view.header.next >= covered.end;
                    Ok(if ended { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
                });
                scanned.map(drop)
            },
            |at, bytes| file.write_all_at(bytes, at).map_err(|e| StoreError::Io(e.to_string())),
        )
        .unwrap();
        file.sync_all().unwrap();
        self.slices.push_back(StoredSlice::open(&path).unwrap());
        self.end_of_slices = covered.end;
        self.stored.expire(covered.end);
        if self.slices.len() as u64 > self.count {
            let oldest = self.slices.pop_front().unwrap();
            fs::remove_file(self.path_of(&oldest)).unwrap();
        }
    }
}

impl Owners for Sealed {
    type Error = StoreError;
    fn identity_of(&self, owner: Offset) -> Result<Option<Identity>, StoreError> {
        self.stored.identity_of(owner)
    }

    fn owns(&self, owner: Offset, identity: Identity) -> Result<bool, StoreError> {
        self.stored.owns(owner, identity)
    }
}

impl Ledger for Sealed {
    fn append(&mut self, owners: &[(Offset, Identity)]) {
        self.stored.append(owners);
        self.next = owners.last().map_or(self.next, |(last, _)| last + 1);
    }

    /// Seals the slices that have ended. Their owners leave the store then, not when the window drops them.
    fn expire(&mut self, _first: Offset) {
        while self.end_of_slices + self.records <= self.next {
            self.seal(self.end_of_slices..self.end_of_slices + self.records);
        }
    }

    fn prefetch(&self, key: &IndexKey) {
        self.slices.iter().for_each(|slice| slice.slice().prefetch(key));
    }

    fn is_sealed(&self, key: &IndexKey) -> bool {
        let mut slices = self.slices.iter().rev().filter(|slice| slice.slice().may_contain(key));
        slices.any(|slice| !slice.owners_of(key).unwrap().is_empty())
    }

    fn disk_bytes(&self) -> Option<u64> {
        let slices = self.slices.iter().map(|slice| fs::metadata(self.path_of(slice)).unwrap().len());
        Some(self.stored.disk_bytes()? + slices.sum::<u64>())
    }
}
