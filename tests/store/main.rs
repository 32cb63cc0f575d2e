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

use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::time::Duration;
use std::{collections::BTreeMap, fs};

use appending::Appending;
use dedupd::clock::monotonic;
use dedupd::dedupe::{
    Coordinates, Digest, EntryName, HashKind, Identity, OwnerRun, PartitionId, Sequence, StoredOwner,
    WindowId,
};
use dedupd::ports::{Covered, Head, Store, StoreError, ToForget, Undone};
use dedupd::store::{Binding, Lock, OWNER_BYTES, OpenError, Opened, SledStore, open};
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

/// The identity of an owner. `writing` numbers the writes of a test.
fn identity(journal: PartitionId, number: Sequence, writing: u64) -> Identity {
    let mixed = (u128::from(number) << 40 | u128::from(writing) << 8 | u128::from(journal))
        .wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
    Identity(mixed.to_le_bytes())
}

/// An owner of a journal with this number: of one of three partitions, whose offsets do not ascend with the numbers, and come again in later writes.
fn owner(journal: PartitionId, number: Sequence, writing: u64) -> StoredOwner {
    let partition = PartitionId::try_from(number % 3).unwrap();
    StoredOwner {
        at: Coordinates { partition, offset: (number ^ 5) / (1 + writing % 3) },
        time_ms: i64::try_from(number * 10).unwrap(),
        identity: Some(identity(journal, number, writing)),
        digest: Digest::stored(3, u32::try_from(number % 1_000).unwrap()),
    }
}

/// The owners with these numbers.
fn owners(journal: PartitionId, numbers: Range<Sequence>, writing: u64) -> Vec<StoredOwner> {
    numbers.map(|number| owner(journal, number, writing)).collect()
}

fn head(confirmed: Sequence) -> Head {
    let end = |partition| (partition, Covered { next: confirmed, time_ms: 7 });
    let covered = [0, 2].map(end).into();
    Head { confirmed, state_next: confirmed * 3, time_ms: 9, covered, ..Head::default() }
}

#[allow(clippy::unnecessary_wraps, reason = "as in a head")]
fn entry(number: u64) -> Option<EntryName> {
    Some(EntryName { number, crc: 0xC0FF_EE00 + u32::try_from(number).unwrap() })
}

/// Scans all owners, and returns those with an identity. The scan stops after each run and is continued.
fn contents(store: &impl Store, journal: PartitionId) -> BTreeMap<Sequence, StoredOwner> {
    let (mut seen, mut next) = (BTreeMap::new(), 0);
    let mut runs = |run: &OwnerRun<'_>| {
        assert!(run.number >= next, "runs overlap or are out of order");
        next = run.end();
        let owners = (run.number..).zip(run.owners.iter().copied());
        seen.extend(owners.filter(|(_, owner)| owner.identity.is_some()));
        Ok(ControlFlow::Break(()))
    };
    let mut from = Some(0);
    while let Some(number) = from {
        from = store.scan_from(journal.into(), number, &mut runs).unwrap();
    }
    assert!(store.next_number(journal.into()).unwrap() >= next, "journal {journal}");
    assert_eq!(store.ids(journal.into()), Ok(seen.len() as u64), "journal {journal}");
    seen
}

#[derive(Debug, Clone)]
enum Step {
    /// Appends owners of these numbers, one after the other; `gap` numbers before the first are left out.
    Append {
        journal: PartitionId,
        gap: u64,
        lengths: Vec<u64>,
    },
    Truncate {
        journal: PartitionId,
        back: u64,
    },
    Undo {
        journal: PartitionId,
        partition: PartitionId,
        back: u64,
    },
    Expire {
        journal: PartitionId,
        keep: u64,
    },
    SetHead {
        journal: PartitionId,
        confirmed: Sequence,
    },
    Forget {
        journal: PartitionId,
        back: Vec<u64>,
    },
    Clear {
        journals: Vec<PartitionId>,
    },
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let journal = 0u32..3;
    let length = prop_oneof![6 => 0u64..12, 3 => 1u64..400, 2 => 1_000u64..6_000];
    let lengths = prop_oneof![
        3 => length.prop_map(|length| vec![length]),
        1 => prop::collection::vec(1u64..40, 2..60),
        1 => prop::collection::vec(0u64..2_000, 2..9),
    ];
    let back = prop_oneof![0u64..30, 0u64..2_000, 0u64..20_000];
    let step = prop_oneof![
        12 => (journal.clone(), prop_oneof![4 => Just(0u64), 1 => 0u64..50], lengths)
            .prop_map(|(journal, gap, lengths)| Step::Append { journal, gap, lengths }),
        3 => (journal.clone(), back.clone()).prop_map(|(journal, back)| Step::Truncate { journal, back }),
        2 => (journal.clone(), 0u32..4, back.clone())
            .prop_map(|(journal, partition, back)| Step::Undo { journal, partition, back }),
        3 => (journal.clone(), back).prop_map(|(journal, keep)| Step::Expire { journal, keep }),
        1 => (journal.clone(), 0u64..20_000).prop_map(|(journal, confirmed)| Step::SetHead { journal, confirmed }),
        2 => (journal.clone(), prop::collection::vec(0u64..6_000, 0..5))
            .prop_map(|(journal, back)| Step::Forget { journal, back }),
        1 => prop::collection::vec(journal, 1..3).prop_map(|journals| Step::Clear { journals }),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..120)
}

/// Both stores, and what they should have.
struct Pair {
    dir: tempfile::TempDir,
    disk: Option<SledStore>,
    memory: MemoryStore,
    floor: BTreeMap<PartitionId, Sequence>,
    numbers: BTreeMap<PartitionId, Numbers>,
    writing: u64,
}

/// Undoes all owners of a partition at or beyond an offset, and returns those outside of slices.
fn undo_all(
    store: &mut dyn Store,
    window: WindowId,
    from: Coordinates,
) -> Result<Vec<(Sequence, Identity)>, StoreError> {
    let (mut all, mut number) = (Vec::new(), Some(0));
    while let Some(at) = number {
        let Undone { owners, next } = store.undo(window, &[from], at)?;
        all.extend(owners);
        number = next;
    }
    Ok(all)
}

impl Pair {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disk = Some(opened(dir.path()).store);
        let (floor, numbers) = (BTreeMap::new(), BTreeMap::new());
        Self { dir, disk, memory: MemoryStore::new(), floor, numbers, writing: 0 }
    }

    /// Changes both. Returns both results.
    fn both<T>(&mut self, change: impl Fn(&mut dyn Store) -> Result<T, StoreError>) -> [T; 2] {
        [change(self.disk.as_mut().unwrap()).unwrap(), change(&mut self.memory).unwrap()]
    }

    fn next(&self, journal: PartitionId) -> Sequence {
        self.numbers.get(&journal).map_or(0, |numbers| numbers.next)
    }

    fn run(&mut self, step: &Step) {
        self.writing += 1;
        let writing = self.writing;
        match *step {
            Step::Append { journal, gap, ref lengths } => {
                let mut number = self.next(journal) + gap;
                for length in lengths {
                    let owners = owners(journal, number..number + length, writing);
                    self.append(journal, number, &owners);
                    number += length;
                }
            }
            Step::Truncate { journal, back } => {
                let from = self.next(journal).saturating_sub(back);
                let numbers = self.numbers.entry(journal).or_default();
                let floor = self.floor.get(&journal).copied().unwrap_or(0).max(from);
                // Each may also have removed expired owners.
                let expected: Vec<_> = numbers.owners.range(floor..).map(|(_, owner)| *owner).collect();
                numbers.truncate(from);
                for removed in self.both(|store| store.truncate(journal.into(), from)) {
                    assert!(removed.ends_with(&expected), "{expected:?} of {removed:?}");
                }
            }
            Step::Undo { journal, partition, back } => {
                let from = Coordinates { partition, offset: self.next(journal).saturating_sub(back) };
                self.numbers.entry(journal).or_default().undo(from);
                let floor = self.floor(journal);
                let undone = self.both(|store| undo_all(store, journal.into(), from));
                let [disk, memory] = undone.map(|mut undone| {
                    undone.retain(|(number, _)| *number >= floor);
                    undone
                });
                assert_eq!(disk, memory);
            }
            Step::Expire { journal, keep } => {
                let first = self.next(journal).saturating_sub(keep);
                let floor = self.floor.entry(journal).or_default();
                *floor = first.max(*floor);
                self.both(|store| store.expire(journal.into(), first, 0));
            }
            Step::SetHead { journal, confirmed } => {
                self.both(|store| store.set_head(journal.into(), &head(confirmed)));
            }
            Step::Forget { journal, ref back } => {
                let next = self.next(journal);
                let numbers: Vec<_> = back.iter().map(|back| next.saturating_sub(*back)).collect();
                // Of the entry with the forget record.
                let head = Head { last_entry: entry(writing), ..head(next) };
                self.numbers.entry(journal).or_default().forget(&numbers);
                let forgotten = ToForget { numbers: &numbers, ..ToForget::default() };
                self.both(|store| store.forget(journal.into(), forgotten, &head));
            }
            Step::Clear { ref journals } => {
                let windows: Vec<WindowId> = journals.iter().map(|journal| (*journal).into()).collect();
                self.floor.retain(|journal, _| !journals.contains(journal));
                self.numbers.retain(|journal, _| !journals.contains(journal));
                self.both(|store| store.clear(&windows));
            }
            Step::Reopen => {
                self.disk.take().unwrap().close().unwrap();
                self.disk = Some(reopened(self.dir.path()));
            }
        }
    }

    fn append(&mut self, journal: PartitionId, number: Sequence, owners: &[StoredOwner]) {
        self.numbers.entry(journal).or_default().append(number, owners);
        let time_ms = i64::try_from(number * 10).unwrap();
        let run = OwnerRun { number, times_ms: (time_ms, time_ms + 5), owners };
        self.both(|store| store.append(journal.into(), &run, &head(run.end())));
    }

    fn floor(&self, journal: PartitionId) -> Sequence {
        self.floor.get(&journal).copied().unwrap_or(0)
    }

    /// From the first owner that has not expired both stores are equal. Below, each may keep runs that reach across.
    fn compare(&self) {
        let disk = self.disk.as_ref().unwrap();
        let stores = [disk, &self.memory as &dyn Store];
        assert_eq!(disk.stored_journals(), self.memory.stored_journals());
        for journal in 0..3 {
            let (floor, window) = (self.floor(journal), WindowId::from(journal));
            assert_eq!(disk.head(window).unwrap(), self.memory.head(window).unwrap());
            assert_eq!(
                stores.map(|it| it.next_number(window)),
                [Ok(self.next(journal)), Ok(self.next(journal))]
            );
            let (on_disk, in_memory) = (contents(disk, journal), contents(&self.memory, journal));
            assert!(on_disk.range(floor..).eq(in_memory.range(floor..)), "journal {journal} differs");
            let Some(Numbers { next, owners }) = self.numbers.get(&journal) else { continue };
            let held = owners.range(floor..);
            let with_identity = held.clone().filter(|(_, owner)| owner.identity.is_some());
            assert!(on_disk.range(floor..).eq(with_identity), "journal {journal}");
            for (number, owner) in held.step_by(7) {
                for asked in [None, Some(Identity([0; 16])), owner.identity] {
                    let found = stores.map(|it| it.owner(window, *number, asked));
                    assert_eq!(found, [Ok(Some(*owner)), Ok(Some(*owner))], "{number} of {window}");
                }
            }
            for number in [*next, next + 1] {
                let found = stores.map(|it| it.owner(window, number, None));
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
    let unconfirmed = Head { last_entry: entry(9), confirmed_entry: entry(8), ..head(4_321) };
    store.put(1.into(), &owners(1, 0..5_000, 1), &unconfirmed).unwrap();
    assert_eq!(store.truncate(1.into(), 4_321).unwrap(), owners(1, 4_321..5_000, 1));
    assert_eq!(contents(&store, 1).len(), 4_321);
    assert_eq!(store.head(1.into()).unwrap(), Some(unconfirmed.confirmed_only()));
    assert_eq!(store.truncate(1.into(), 100).unwrap().len(), 4_221);
    // The journal is read from its start.
    let expected = Head { confirmed: 100, time_ms: 9, ..Head::default() };
    assert_eq!((store.head(1.into()), store.next_number(1.into())), (Ok(Some(expected)), Ok(100)));
}

#[test]
fn a_number_that_was_used_is_rejected_also_when_its_owner_has_expired() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = opened(dir.path()).store;
    let rejects_used_numbers = |store: &mut dyn Store| {
        store.put(1.into(), &owners(1, 0..5_000, 1), &head(5_000)).unwrap();
        store.expire(1.into(), 5_000, 0).unwrap();
        let (run, next) = (owners(1, 0..10, 2), store.next_number(1.into()).unwrap());
        assert_eq!((store.ids(1.into()), next), (Ok(0), 5_000));
        let run = OwnerRun { number: next - 1, times_ms: (0, 0), owners: &run };
        assert!(matches!(store.append(1.into(), &run, &head(1)), Err(StoreError::Corrupt(_))));
        store.append(1.into(), &OwnerRun { number: next, ..run }, &head(1)).unwrap();
        assert_eq!(store.next_number(1.into()), Ok(5_010));
    };
    rejects_used_numbers(&mut store);
    rejects_used_numbers(&mut MemoryStore::new());
    store.close().unwrap();
    assert_eq!(reopened(dir.path()).next_number(1.into()), Ok(5_010));
}

#[test]
fn a_rolling_window_needs_little_disk_space() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = opened(dir.path()).store;
    let (window, length) = (300_000, 1_000);
    for first in (0..window * 8).step_by(1_000) {
        store.put(0.into(), &owners(0, first..first + length, 1), &head(first)).unwrap();
        store.expire(0.into(), (first + length).saturating_sub(window), 0).unwrap();
    }
    store.sync().unwrap();
    let live = (contents(&store, 0).len() * OWNER_BYTES) as u64;
    let disk = store.disk_bytes().unwrap();
    // An eighth of the live bytes may have expired in the oldest file. Besides the owners, sled holds some segments.
    assert!(disk <= live / 4 * 5 + (6 << 20), "{disk} bytes on disk for {live} live");
    let blobs = fs::read_dir(store.path().join("blobs")).unwrap().count();
    assert_eq!(blobs, 0, "a node was written to a file of its own, which is never synced");
}
