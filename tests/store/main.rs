//! Compares the store on disk with the store in memory, and tests it against damage.
//!
//! A failing random case prints its seed. `STORE_SEED=<n>` runs only that case.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[path = "../support/appending.rs"]
mod appending;
#[path = "../support/crafted.rs"]
mod crafted;
mod damage;
mod directory;
mod finding;
mod golden;
mod hostile;
mod joining;
mod killed;
mod leases;
mod longer;
#[path = "../support/memory_store.rs"]
mod memory_store;
mod numbers;
mod rolling;
mod sealed;
mod soak;

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;
use std::{collections::BTreeMap, fs};

use appending::Appending;
use dedupd::clock::monotonic;
use dedupd::dedupe::{
    Block, EntryName, HashKind, Identity, Offset, PartitionId, Sequence, StoredOwner, Tail, WindowId,
};
use dedupd::ports::{Head, Store, ToForget};
use dedupd::store::{Binding, Lock, OpenError, Opened, SledStore, open};
use memory_store::MemoryStore;
use numbers::Numbers;
use proptest::prelude::*;

const CACHE_BYTES: u64 = 8 << 20;
const DEADLINE: Duration = Duration::from_secs(10);

fn binding() -> Binding {
    Binding { partitions: 4, ..Binding::default() }
}

fn opened(dir: &Path) -> Opened {
    open(dir, &binding(), CACHE_BYTES, DEADLINE).unwrap()
}

fn reopened(dir: &Path) -> SledStore {
    let Opened { store, quarantined } = opened(dir);
    assert_eq!(quarantined, None, "a store that was closed cleanly opens again");
    store
}

/// The identity at an offset. `writing` numbers its writes: a rewound group writes other identities.
fn identity(partition: PartitionId, offset: Offset, writing: u64) -> Identity {
    let mixed = (u128::from(offset) << 40 | u128::from(writing) << 8 | u128::from(partition))
        .wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
    Identity(mixed.to_le_bytes())
}

/// A block that covers `range`; every `step`th offset owns an identity.
fn block(partition: PartitionId, range: std::ops::Range<Offset>, step: u64, writing: u64) -> Block {
    let time = i64::try_from(range.start * 10).unwrap();
    let owners = range.clone().step_by(usize::try_from(step).unwrap());
    Block {
        hash: HashKind::Xxh3,
        window: partition.into(),
        first: range.start,
        next: range.end,
        time_first_ms: time,
        time_last_ms: time + 5,
        entries: owners.map(|owner| (owner, identity(partition, owner, writing))).collect(),
    }
}

fn head(confirmed: Offset) -> Head {
    Head { confirmed, state_next: confirmed * 3, stream_time_ms: -7, tail: None, ..Head::default() }
}

/// An entry whose section ends before this offset.
fn entry(number: u64, next: Offset) -> Tail {
    Tail { entry: EntryName { number, crc: 0xC0FF_EE00 + u32::try_from(number).unwrap() }, next, from: None }
}

/// Scans all owners, and returns those with an identity. The scan stops after each run and is continued.
fn contents(store: &impl Store, partition: PartitionId) -> BTreeMap<Offset, Identity> {
    let mut seen = BTreeMap::new();
    let (mut last, mut number) = (0, 0);
    let mut visit = |owner: &StoredOwner| {
        let twice = owner.identity.and_then(|identity| seen.insert(owner.offset, identity));
        assert_eq!(twice, None, "owner {} twice", owner.offset);
    };
    let mut runs = |run: &dedupd::dedupe::OwnerRun<'_>| {
        assert!(run.covered.start >= last && run.number >= number, "runs overlap or are out of order");
        (last, number) = (run.covered.end, run.number + run.owners.len() as Sequence);
        assert!(run.owners.is_sorted_by(|a, b| a.offset < b.offset), "owners are out of order");
        assert!(
            run.owners.iter().all(|owner| run.covered.contains(&owner.offset)),
            "an owner is not covered"
        );
        run.owners.iter().for_each(&mut visit);
        Ok(ControlFlow::Break(()))
    };
    let mut from = Some(0);
    while let Some(next) = from {
        from = store.scan_from(partition.into(), next, &mut runs).unwrap();
    }
    assert!(store.next_number(partition.into()).unwrap() >= number, "partition {partition}");
    assert_eq!(store.ids(partition.into()), Ok(seen.len() as u64), "partition {partition}");
    seen
}

/// Blocks of these numbers of offsets, one after the other.
fn blocks(partition: PartitionId, (first, lengths): (Offset, &[u64]), step: u64, writing: u64) -> Vec<Block> {
    let mut next = first;
    let ranges = lengths.iter().map(|length| {
        let first = next;
        next += length;
        first..next
    });
    ranges.map(|covered| block(partition, covered, step, writing)).collect()
}

#[derive(Debug, Clone)]
enum Step {
    /// Blocks of these numbers of offsets, the first at the end or `gap` beyond it; every `step`th offset is an owner. As many numbers are
    /// left out.
    Append {
        partition: PartitionId,
        gap: u64,
        lengths: Vec<u64>,
        step: u64,
    },
    /// Blocks of which the first starts `back` below the end.
    Rewind {
        partition: PartitionId,
        back: u64,
        lengths: Vec<u64>,
    },
    Truncate {
        partition: PartitionId,
        back: u64,
    },
    Expire {
        partition: PartitionId,
        keep: u64,
    },
    SetHead {
        partition: PartitionId,
        confirmed: Offset,
    },
    Forget {
        partition: PartitionId,
        back: Vec<u64>,
    },
    Clear {
        partition: PartitionId,
    },
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let partition = 0u32..3;
    let length = prop_oneof![6 => 0u64..12, 3 => 1u64..400, 2 => 1_000u64..6_000];
    let lengths = prop_oneof![
        3 => length.prop_map(|length| vec![length]),
        1 => prop::collection::vec(1u64..40, 2..60),
        1 => prop::collection::vec(0u64..2_000, 2..9),
    ];
    let back = prop_oneof![0u64..30, 0u64..2_000, 0u64..20_000];
    let step = prop_oneof![
        12 => (partition.clone(), prop_oneof![4 => Just(0u64), 1 => 0u64..50], lengths.clone(), prop_oneof![3 => Just(1u64), 1 => 2u64..300])
            .prop_map(|(partition, gap, lengths, step)| Step::Append { partition, gap, lengths, step }),
        2 => (partition.clone(), back.clone(), lengths).prop_map(|(partition, back, lengths)| Step::Rewind { partition, back, lengths }),
        2 => (partition.clone(), back.clone()).prop_map(|(partition, back)| Step::Truncate { partition, back }),
        3 => (partition.clone(), back).prop_map(|(partition, keep)| Step::Expire { partition, keep }),
        1 => (partition.clone(), 0u64..20_000).prop_map(|(partition, confirmed)| Step::SetHead { partition, confirmed }),
        2 => (partition.clone(), prop::collection::vec(0u64..6_000, 0..5))
            .prop_map(|(partition, back)| Step::Forget { partition, back }),
        1 => partition.prop_map(|partition| Step::Clear { partition }),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..120)
}

/// Both stores, and the ranges in which they must agree.
struct Pair {
    dir: tempfile::TempDir,
    disk: Option<SledStore>,
    memory: MemoryStore,
    end: BTreeMap<PartitionId, Offset>,
    floor: BTreeMap<PartitionId, Offset>,
    numbers: BTreeMap<PartitionId, Numbers>,
    writing: u64,
}

impl Pair {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disk = Some(opened(dir.path()).store);
        let (end, floor, numbers) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { dir, disk, memory: MemoryStore::new(), end, floor, numbers, writing: 0 }
    }

    fn both(&mut self, change: impl Fn(&mut dyn Store) -> Vec<(Offset, Identity)>, floor: Offset) {
        let above =
            |removed: Vec<_>| removed.into_iter().filter(|(owner, _)| *owner >= floor).collect::<Vec<_>>();
        let disk = above(change(self.disk.as_mut().unwrap()));
        assert_eq!(disk, above(change(&mut self.memory)));
    }

    fn run(&mut self, step: &Step) {
        self.writing += 1;
        let writing = self.writing;
        match *step {
            Step::Append { partition, gap, ref lengths, step } => {
                let first = self.end.get(&partition).copied().unwrap_or(0) + gap;
                self.append(&blocks(partition, (first, lengths), step, writing), gap);
            }
            Step::Rewind { partition, back, ref lengths } => {
                let first = self.end.get(&partition).copied().unwrap_or(0).saturating_sub(back);
                self.append(&blocks(partition, (first, lengths), 1, writing), 0);
            }
            Step::Truncate { partition, back } => {
                let end = self.end.entry(partition).or_default();
                *end = end.saturating_sub(back);
                let (from, floor) = (*end, self.floor(partition));
                self.numbers.entry(partition).or_default().truncate(from);
                self.both(|store| store.truncate(partition.into(), from).unwrap(), floor);
            }
            Step::Expire { partition, keep } => {
                let first = self.end.get(&partition).copied().unwrap_or(0).saturating_sub(keep);
                let floor = self.floor.entry(partition).or_default();
                *floor = first.max(*floor);
                self.both(
                    |store| {
                        store.expire(partition.into(), first, 0).unwrap();
                        Vec::new()
                    },
                    0,
                );
            }
            Step::SetHead { partition, confirmed } => self.both(
                |store| {
                    store.set_head(partition.into(), head(confirmed)).unwrap();
                    Vec::new()
                },
                0,
            ),
            Step::Forget { partition, ref back } => {
                let end = self.end.get(&partition).copied().unwrap_or(0);
                let owners: Vec<Offset> = back.iter().map(|back| end.saturating_sub(*back)).collect();
                // Of the entry with the forget record.
                let head = Head { tail: Some(entry(writing, end)), ..head(end) };
                self.numbers.entry(partition).or_default().forget(&owners);
                self.both(
                    |store| {
                        let forgotten = ToForget { owners: &owners, ..ToForget::default() };
                        store.forget(partition.into(), forgotten, head).unwrap();
                        Vec::new()
                    },
                    0,
                );
            }
            Step::Clear { partition } => {
                self.end.remove(&partition);
                self.floor.remove(&partition);
                self.numbers.remove(&partition);
                self.both(
                    |store| {
                        store.clear(partition.into()).unwrap();
                        Vec::new()
                    },
                    0,
                );
            }
            Step::Reopen => {
                self.disk.take().unwrap().close().unwrap();
                self.disk = Some(reopened(self.dir.path()));
            }
        }
    }

    fn append(&mut self, blocks: &[Block], gap: u64) {
        let last = blocks.last().unwrap();
        let partition = last.window.partition();
        self.end.insert(partition, last.next);
        let number = self.numbers.entry(partition).or_default().append(blocks, gap);
        self.both(
            |store| {
                store.append_all(blocks, number, head(last.next)).unwrap();
                Vec::new()
            },
            0,
        );
    }

    fn floor(&self, partition: PartitionId) -> Offset {
        self.floor.get(&partition).copied().unwrap_or(0)
    }

    /// Above the expired offsets both stores are equal. Below, each may keep runs that reach across.
    fn compare(&self) {
        let disk = self.disk.as_ref().unwrap();
        for partition in 0..3 {
            let floor = self.floor(partition);
            let window = WindowId::from(partition);
            assert_eq!(disk.head(window).unwrap(), self.memory.head(window).unwrap());
            let (on_disk, in_memory) = (contents(disk, partition), contents(&self.memory, partition));
            assert!(on_disk.range(floor..).eq(in_memory.range(floor..)), "partition {partition} differs");
            let Some(Numbers { next, owners }) = self.numbers.get(&partition) else { continue };
            let held = owners.iter().filter(|(_, owner)| owner.offset >= floor);
            let identities = held.clone().filter_map(|(_, owner)| Some((owner.offset, owner.identity?)));
            assert!(
                on_disk.range(floor..).map(|(at, id)| (*at, *id)).eq(identities),
                "partition {partition}"
            );
            for (number, owner) in held.step_by(7) {
                for asked in [None, Some(Identity([0; 16])), owner.identity] {
                    let found = [disk, &self.memory as &dyn Store].map(|it| it.owner(window, *number, asked));
                    assert_eq!(found, [Ok(Some(*owner)), Ok(Some(*owner))], "{number} of {window}");
                }
            }
            for number in [*next, next + 1] {
                let found = [disk, &self.memory as &dyn Store].map(|it| it.owner(window, number, None));
                assert_eq!(found, [Ok(None), Ok(None)], "{number} of {window}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: std::env::var("STORE_CASES").map_or(48, |cases| cases.parse().unwrap()), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn disk_and_memory_return_the_same_results_for_any_history(steps in steps()) {
        let mut pair = Pair::new();
        for (number, step) in steps.iter().enumerate() {
            pair.run(step);
            if number % 8 == 0 {
                pair.compare();
            }
        }
        pair.run(&Step::Reopen);
        pair.compare();
    }
}

#[test]
fn truncation_returns_exactly_what_it_removes_and_lowers_a_head_that_confirms_more() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = opened(dir.path()).store;
    store.put(&block(1, 0..5_000, 1, 1), head(5_000)).unwrap();
    let removed = store.truncate(1.into(), 4_321).unwrap();
    let expected: Vec<_> = (4_321..5_000).map(|offset| (offset, identity(1, offset, 1))).collect();
    assert_eq!(removed, expected);
    assert_eq!(contents(&store, 1).len(), 4_321);
    let expected = Head { confirmed: 4_321, stream_time_ms: -7, ..Head::default() };
    assert_eq!(store.head(1.into()).unwrap(), Some(expected));
    store.set_head(1.into(), head(100)).unwrap();
    assert_eq!(store.truncate(1.into(), 200).unwrap().len(), 4_121);
    assert_eq!(store.head(1.into()).unwrap(), Some(head(100)), "a head below the truncation stays");
}

#[test]
fn a_rolling_window_needs_little_disk_space() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = opened(dir.path()).store;
    let (window, length) = (300_000, 1_000);
    for first in (0..window * 8).step_by(1_000) {
        store.put(&block(0, first..first + length, 1, 1), head(first)).unwrap();
        store.expire(0.into(), (first + length).saturating_sub(window), 0).unwrap();
    }
    store.sync().unwrap();
    let live = contents(&store, 0).len() as u64 * 24;
    let disk = store.disk_bytes().unwrap();
    // An eighth of the live bytes may have expired in the oldest file. Besides the owners, sled holds some segments.
    assert!(disk <= live / 4 * 5 + (6 << 20), "{disk} bytes on disk for {live} live");
    let blobs = fs::read_dir(store.path().join("blobs")).unwrap().count();
    assert_eq!(blobs, 0, "a node was written to a file of its own, which is never synced");
}
