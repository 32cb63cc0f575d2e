//! A window whose newest slice is in the exact index, and whose older identities are in sealed slices, as a contestant.

use std::collections::VecDeque;
use std::fs::{self, OpenOptions};
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dedupd::dedupe::window::CHUNK;
use dedupd::dedupe::{
    Coordinates, HashKind, Identity, IndexKey, KindId, Offset, SliceBuilder, SliceCoverage, SlicePartition,
    TimeSource, Verdict, Window, WindowLimits,
};
use dedupd::ports::Store;
use dedupd::store::StoredSlice;

use super::contest::{Contestant, TRANSACTION};
use super::ledger::Ledger;
use super::ours::Stored;

pub struct Sealed {
    name: &'static str,
    window: Window,
    ledger: Stored,
    slices: VecDeque<StoredSlice>,
    dir: tempfile::TempDir,
    at: Offset,
    end_of_slices: Offset,
    keys: Vec<IndexKey>,
    ids: u64,
    /// Sealed slices in a full window.
    count: u64,
    /// Records of a slice.
    records: u64,
}

impl Sealed {
    /// A full window of `ids` has `count` sealed slices, and one more is open. `records` is the number of records, including
    /// duplicates, in a window.
    pub fn below(dir: &Path, name: &'static str, ids: u64, records: u64, count: u64) -> Self {
        let records = records / count;
        // A slice is sealed after the transaction in which it ends. Until then its identities are in the index.
        let limits = WindowLimits {
            exact: Duration::from_millis(records + 2 * TRANSACTION),
            max_ids: u64::MAX,
            time: TimeSource::Record,
            bloom: None,
        };
        let mut window = Window::new(limits);
        window.reserve(ids / count + ids / count / 64);
        Self {
            name,
            window,
            ledger: Stored::below(dir),
            slices: VecDeque::new(),
            dir: tempfile::tempdir_in(dir).unwrap(),
            at: 0,
            end_of_slices: 0,
            keys: Vec::with_capacity(CHUNK),
            ids,
            count,
            records,
        }
    }

    fn is_sealed_duplicate(&self, key: &IndexKey) -> bool {
        self.slices.iter().rev().any(|slice| !slice.owners_of(key).unwrap().is_empty())
    }

    fn commit(&mut self) {
        let covered = self.window.next()..self.at;
        for block in self.window.blocks(HashKind::Xxh3, 0.into(), covered, 4_000) {
            if !block.entries.is_empty() {
                self.ledger.append(&block.entries);
            }
        }
        self.window.commit(self.at);
        while self.end_of_slices + self.records <= self.at {
            self.seal(self.end_of_slices..self.end_of_slices + self.records);
        }
    }

    fn path(&self, first: Offset) -> PathBuf {
        self.dir.path().join(first.to_string())
    }

    fn seal(&mut self, covered: Range<Offset>) {
        let partitions = vec![SlicePartition { partition: 0, first: covered.start, next: covered.end }];
        let coverage =
            SliceCoverage { hash: HashKind::Xxh3, kind: KindId::UNNAMED, time_ms: (0, 0), partitions };
        let builder = SliceBuilder::new(coverage, self.ids / self.count).unwrap();
        let path = self.path(covered.start);
        let file = OpenOptions::new().create_new(true).write(true).open(&path).unwrap();
        let store = &self.ledger.store;
        StoredSlice::write(
            builder,
            |offer| {
                store
                    .scan_from(0.into(), covered.start.saturating_sub(4_000), &mut |view| {
                        view.for_each(|offset, identity| {
                            if covered.contains(&offset) {
                                offer(identity, Coordinates { partition: 0, offset });
                            }
                        })
                        .unwrap();
                        let ended = view.header.next >= covered.end;
                        Ok(if ended { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
                    })
                    .map(drop)
            },
            |at, bytes| file.write_all_at(bytes, at),
        )
        .unwrap();
        file.sync_all().unwrap();
        self.slices.push_back(StoredSlice::open(&path).unwrap());
        self.end_of_slices = covered.end;
        self.ledger.expire(covered.end);
        if self.slices.len() as u64 > self.count {
            let oldest = self.slices.pop_front().unwrap();
            fs::remove_file(self.path(oldest.slice().footer().owners.partitions()[0].first)).unwrap();
        }
    }
}

impl Contestant for Sealed {
    fn name(&self) -> &'static str {
        self.name
    }

    fn ids(&self) -> u64 {
        self.ids
    }

    fn transaction(&mut self, records: &[Identity]) -> u64 {
        let mut dropped = 0;
        for chunk in records.chunks(CHUNK) {
            self.keys.clear();
            self.keys.extend(chunk.iter().map(|identity| self.window.key(*identity)));
            for key in &self.keys {
                self.slices.iter().for_each(|slice| slice.slice().prefetch(key));
            }
            for key in &self.keys {
                self.window.observe(Some(1_700_000_000_000 + self.at.cast_signed()), i64::MAX);
                match self.window.verdict(self.at, key, &self.ledger).unwrap() {
                    Verdict::New if self.is_sealed_duplicate(key) => dropped += 1,
                    Verdict::New | Verdict::Retry => self.window.admit(self.at, key),
                    Verdict::Duplicate { .. } | Verdict::Probable { .. } => dropped += 1,
                }
                self.at += 1;
            }
        }
        self.commit();
        dropped
    }

    fn disk_bytes(&self) -> Option<u64> {
        let slices = self.slices.iter().map(|slice| {
            fs::metadata(self.path(slice.slice().footer().owners.partitions()[0].first)).unwrap().len()
        });
        Some(self.ledger.disk_bytes()? + slices.sum::<u64>())
    }
}
