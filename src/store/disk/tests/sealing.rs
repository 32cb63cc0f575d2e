//! Owners are in a run or in a slice, whenever the power fails.

use std::ops::ControlFlow;

use super::*;
use crate::dedupe::{Digest, FilterBits, SealedRange, SliceMark};
use crate::ports::{FilterJob, SealJob, SealedLookup, SealedPlaces, Sealing, StoreError};
use crate::store::cut::clear;
use crate::store::sealed::write_merged;

/// Seals these owners, and waits until their runs are removed and slices are merged.
fn seal(store: &mut SledStore, numbers: Range<Sequence>) {
    let count = numbers.end - numbers.start;
    seal_counted(store, numbers, count);
}

/// Begins to seal these owners.
pub(super) fn begin(store: &mut SledStore, range: SealedRange) {
    store.begin_seal(SealJob { window: 0.into(), range, is_urgent: false }).unwrap();
}

/// These owners, of which so many were not forgotten.
fn range(numbers: Range<Sequence>, count: u64) -> SealedRange {
    let marks = vec![SliceMark { next: numbers.end, count, time_ms: (0, 0) }];
    SealedRange { first: numbers.start, next: numbers.end, marks }
}

fn ranges(store: &SledStore) -> Vec<(Sequence, Sequence)> {
    store.sealed(0.into()).iter().map(|of| (of.first, of.next)).collect()
}

fn seal_counted(store: &mut SledStore, numbers: Range<Sequence>, count: u64) {
    begin(store, range(numbers, count));
    let mut sealed = 0;
    loop {
        match store.poll_seal().unwrap() {
            Sealing::Idle => break,
            Sealing::Done(_) => sealed += 1,
            Sealing::Busy => std::thread::yield_now(),
            Sealing::Failed | Sealing::Paused => panic!("a slice was discarded"),
        }
    }
    assert_eq!(sealed, 1);
}

#[test]
fn a_power_loss_while_owners_are_sealed_and_slices_merged_loses_no_durable_owner() {
    let (disk, mut store) = filled(24, 250);
    disk.begin(&mut store);
    for first in (0..6_000).step_by(200) {
        seal(&mut store, first..first + 200);
        if first % 600 == 0 {
            forget(&disk, &mut store, first + 7);
        }
        store.sync().unwrap();
    }
    assert!(store.sealed(0.into()).len() <= 24, "nothing was merged");
    disk.end(100, 8);
    close(&disk, store);
}

/// An owner of another identity arrives at an offset that was undone.
#[test]
fn a_power_loss_while_sealed_owners_are_undone_or_dropped_loses_no_other() {
    let (disk, mut store) = filled(24, 250);
    (0..5_000).step_by(500).for_each(|first| seal(&mut store, first..first + 500));
    disk.begin(&mut store);
    for from in [5_800, 4_700, 4_400, 3_000] {
        undo(&disk, &mut store, place(from));
        disk.examine();
    }
    let owner =
        StoredOwner { at: place(3_000), time_ms: 0, identity: Some(Identity([7; 16])), digest: Digest::NONE };
    let run = OwnerRun { number: 6_000, times_ms: (0, 0), owners: &[owner] };
    store.append(0.into(), &run, &Head { confirmed: 6_000, ..Head::default() }).unwrap();
    store.sync().unwrap();
    disk.watch().expected.insert(3_000);
    for first in [700, 1_000, 2_100] {
        let kept = disk.watch().expected.split_off(&first);
        disk.watch().expected = kept;
        store.expire(0.into(), first, 0).unwrap();
        store.sync().unwrap();
    }
    assert_eq!(store.sealed(0.into()).first().map(|of| of.first), Some(2_000));
    disk.end(30, 6);
    close(&disk, store);
}

/// Replaces the oldest slice by a filter, and waits for it.
fn filter(store: &mut SledStore) {
    let job = FilterJob { window: 0.into(), before_ms: 1, span_ms: 0, bits: FilterBits::at_rate(1e-9) };
    assert_eq!(store.begin_filter(&job), Ok(true));
    while store.poll_seal().unwrap() != Sealing::Idle {
        std::thread::yield_now();
    }
}

fn places(store: &SledStore, number: Sequence) -> SealedPlaces {
    let key = store.positions().key(identity(number));
    store.sealed_places(&SealedLookup::new(0.into(), key)).unwrap()
}

#[test]
fn a_filter_has_no_owners_that_were_undone_before_and_refuses_to_lose_others() {
    let (disk, mut store) = filled(8, 250);
    (0..2_000).step_by(1_000).for_each(|first| seal(&mut store, first..first + 1_000));
    undo(&disk, &mut store, place(401));
    filter(&mut store);
    let in_filter = |store: &SledStore| (0..1_000).filter(|it| places(store, *it).filters.len() == 1).count();
    assert_eq!(in_filter(&store), 700);
    // The filter covers nothing of this any more.
    undo(&disk, &mut store, place(401));
    let head = store.head(0.into()).unwrap().unwrap();
    let refused = store.undo(0.into(), &[place(399)], 0);
    assert_eq!(refused, Err(StoreError::InFilter(0.into())));
    assert_eq!((store.head(0.into()), in_filter(&store)), (Ok(Some(head)), 700), "it has changed something");
    assert_eq!(places(&store, 1_998).owners.len(), 1);
    for number in [7, 998, 1_998] {
        forget(&disk, &mut store, number);
    }
    assert_eq!((in_filter(&store), places(&store, 1_998)), (698, SealedPlaces::default()));
    // How many were undone is not known.
    assert_eq!(store.sealed(0.into()).iter().map(SealedRange::owners).sum::<u64>(), 698 + 999);
    close(&disk, store);
}

/// The worker appends while a thread reads the owners to seal.
#[test]
fn owners_are_visited_once_although_their_run_grows_meanwhile() {
    let (disk, mut store) = filled(4, 250);
    (1_000..1_015).for_each(|owner| append(&mut store, owner..owner + 1));
    let reader = store.clone();
    let (mut appended, mut visited, mut visits) = (1_015, Vec::new(), 0);
    let visit = &mut |run: &OwnerRun<'_>| {
        visits += 1;
        for (number, owner) in (run.number..).zip(run.owners) {
            if number >= 1_000 && appended < 1_300 {
                append(&mut store, appended..appended + 1);
                appended += 1;
            }
            visited.push((number, owner.identity.unwrap()));
        }
        Ok(ControlFlow::Continue(()))
    };
    reader.scan_runs(0.into(), 900, visit).unwrap();
    let expected: Vec<_> = (900..1_300).map(|number| (number, identity(number))).collect();
    assert!(visits > 2, "all was read at once");
    assert_eq!(visited, expected);
    drop(reader);
    close(&disk, store);
}

/// The oldest slice is merged with others, and all of its owners expire before the thread reads it.
#[test]
fn a_slice_that_is_dropped_while_it_is_merged_is_not_damaged() {
    let (disk, mut store) = filled(24, 250);
    (0..4_800).step_by(200).for_each(|first| seal(&mut store, first..first + 200));
    let written = write_merged(&mut store, 0.into(), &|| false, |store| {
        store.expire(0.into(), 450, 0).unwrap();
        store.sync().unwrap();
    });
    assert_eq!(written.err(), Some(StoreError::LeaseLost(0.into())));
    assert!(store.engine.failed.get().is_none());
    assert_eq!(store.sealed(0.into()).first().map(|of| of.first), Some(400));
    close(&disk, store);
}

/// A stop waits for the thread. What follows the last owner takes seconds where slices are large.
#[test]
fn a_thread_that_is_cancelled_ends_before_its_next_write_sync_or_read() {
    let (disk, mut store) = filled(8, 250);
    (0..2_000).step_by(500).for_each(|first| seal(&mut store, first..first + 500));
    let mut write_until = |is_cancelled: &dyn Fn(&Path) -> bool| {
        let path = store.engine.segments.path(store.engine.segments.allocate() + 1);
        let written = write_merged(&mut store, 0.into(), &|| is_cancelled(&path), |_| {});
        let is_synced = disk.watch().durable.bytes.contains_key(&name(&path));
        (written.err(), fs::metadata(&path).unwrap().len(), is_synced)
    };
    let cancelled = Some(StoreError::LeaseLost(0.into()));
    let (error, complete, _) = write_until(&|_| false);
    assert_eq!(error, None);
    let (error, length, _) = write_until(&|path| path.exists());
    assert_eq!(error, cancelled);
    assert!(length < complete, "{length} of {complete} bytes");
    let is_complete = |path: &Path| fs::metadata(path).is_ok_and(|file| file.len() == complete);
    assert_eq!(write_until(&is_complete), (cancelled.clone(), complete, false));
    let is_synced = |path: &Path| disk.watch().durable.bytes.contains_key(&name(path));
    assert_eq!(write_until(&is_synced), (cancelled, complete, true));
    close(&disk, store);
}

/// As a crash leaves it that comes while all state of a window is removed.
#[test]
fn slices_without_runs_and_head_count_as_stored_and_can_be_removed() {
    let (disk, mut store) = filled(8, 250);
    seal(&mut store, 0..1_000);
    store.with(0.into(), clear).unwrap();
    close(&disk, store);
    let mut store = disk.open();
    assert_eq!((store.head(0.into()), store.has_sealed()), (Ok(None), true));
    assert_eq!(store.stored_journals(), [0]);
    store.clear(&[0.into()]).unwrap();
    assert_eq!((store.stored_journals(), store.has_sealed()), (Vec::new(), false));
    close(&disk, store);
}

#[test]
fn a_slice_of_which_everything_was_forgotten_is_not_kept() {
    let (disk, mut store) = filled(2, 250);
    seal(&mut store, 0..100);
    (100..200).for_each(|owner| forget(&disk, &mut store, owner));
    seal_counted(&mut store, 100..200, 0);
    seal(&mut store, 200..300);
    assert_eq!(ranges(&store), [(0, 100), (200, 300)]);
    close(&disk, store);
}

#[test]
fn what_a_killed_process_has_sealed_is_complete() {
    let (disk, mut store) = filled(16, 250);
    disk.begin(&mut store);
    (0..3_000).step_by(1_000).for_each(|first| seal(&mut store, first..first + 1_000));
    let next = disk.killed();
    close(&disk, store);
    let mut reopened = next.open();
    seal(&mut reopened, 3_000..3_700);
    next.end(8, 1);
    close(&next, reopened);
}

#[test]
fn the_filters_of_a_window_are_in_memory_only_while_a_handle_holds_it() {
    let (disk, mut store) = filled(8, 250);
    (0..2_000).step_by(1_000).for_each(|first| seal(&mut store, first..first + 1_000));
    let mut worker = store.another();
    let mut other = worker.another();
    let bytes = |store: &SledStore| store.engine.sealed.memory_bytes();
    worker.acquire_lease(0.into());
    let of_window = bytes(&worker);
    assert!(of_window > 2_000, "{of_window}");
    other.release_lease(0.into());
    assert_eq!(bytes(&worker), of_window, "it does not hold the window");
    worker.release_lease(0.into());
    assert_eq!((bytes(&worker), worker.has_sealed()), (0, true));
    other.acquire_lease(0.into());
    assert_eq!(places(&other, 1_700).owners.first().map(|owner| owner.at), Some(place(1_700)));
    assert_eq!(bytes(&other), of_window);
    drop((other, worker));
    close(&disk, store);
    let mut store = disk.open();
    assert_eq!((store.engine.sealed.memory_bytes(), store.has_sealed()), (0, true), "not held yet");
    assert_eq!(ranges(&store), [(0, 1_000), (1_000, 2_000)]);
    assert_eq!(store.engine.sealed.memory_bytes(), of_window);
    // What is deleted does not have to be read.
    store.release_lease(0.into());
    store.clear(&[0.into()]).unwrap();
    assert_eq!((store.engine.sealed.memory_bytes(), store.has_sealed()), (0, false));
    store.sync().unwrap();
    close(&disk, store);
    assert!(disk.open().sealed(0.into()).is_empty());
}

#[test]
fn a_slice_of_a_window_that_another_handle_has_taken_is_discarded() {
    let (disk, store) = filled(8, 250);
    let (mut worker, mut other) = (store.another(), store.another());
    worker.acquire_lease(0.into());
    begin(&mut worker, range(0..1_000, 1_000));
    other.acquire_lease(0.into());
    assert_eq!(worker.poll_seal(), Ok(Sealing::Idle));
    assert!(!store.has_sealed());
    seal(&mut other, 0..1_000);
    assert_eq!(other.sealed(0.into()).len(), 1);
    drop((worker, other));
    close(&disk, store);
}

/// 14,000 owners of one slice, each forgotten alone, made blobs of 463 MB: its entry had all of them, and sled never frees what is larger than a quarter
/// of a segment.
#[test]
fn forgotten_owners_need_little_space_and_stay_forgotten() {
    const IDS: u64 = 20_000;
    const FORGOTTEN: u64 = 14_000;
    let dir = tempfile::tempdir().unwrap();
    let open = || crate::store::open(dir.path(), &binding(), CACHE_BYTES, DEADLINE).unwrap();
    let mut store = open().store;
    (0..IDS).step_by(1_000).for_each(|first| append(&mut store, first..first + 1_000));
    seal(&mut store, 0..IDS);
    store.sync().unwrap();
    let before = store.disk_bytes().unwrap();
    let head = store.head(0.into()).unwrap().unwrap();
    for owner in 0..FORGOTTEN {
        let identities = &[identity(owner * IDS / FORGOTTEN)];
        store.forget(0.into(), ToForget { identities, ..ToForget::default() }, &head).unwrap();
    }
    (IDS - 2..IDS).for_each(|number| drop(store.undo(0.into(), &[place(number - 8)], 0).unwrap()));
    store.sync().unwrap();
    let grown = store.disk_bytes().unwrap() - before;
    assert!(grown < 8 << 20, "{grown} bytes");
    assert_eq!(fs::read_dir(store.path().join("blobs")).unwrap().count(), 0);
    store.close().unwrap();
    let Opened { mut store, quarantined } = open();
    assert_eq!(quarantined, None);
    let forgotten: BTreeSet<_> = (0..FORGOTTEN).map(|owner| owner * IDS / FORGOTTEN).collect();
    let left: BTreeSet<_> = (0..IDS - 10).filter(|owner| !forgotten.contains(owner)).collect();
    assert_eq!(owners(&store), left);
    // With the slice, all of that is removed.
    store.clear(&[0.into()]).unwrap();
    assert!(store.engine.slices.iter().keys().all(|key| key.unwrap() == crate::store::keys::SLICE_COUNT));
    store.close().unwrap();
}

/// The key of something that was removed from a slice.
fn key_of_a_removal(store: &SledStore) -> sled::IVec {
    let mut keys = store.engine.slices.iter().keys().map(Result::unwrap);
    keys.find(|key| key.len() > crate::store::keys::SLICE).unwrap()
}

/// A kill between the removal of a slice and that of what was removed from it.
#[test]
fn what_was_removed_from_a_slice_that_is_gone_does_not_affect_a_later_one() {
    let (disk, mut store) = filled(8, 250);
    seal(&mut store, 0..500);
    seal(&mut store, 500..1_000);
    forget(&disk, &mut store, 7);
    let key = key_of_a_removal(&store);
    let value = store.engine.slices.get(&key).unwrap().unwrap();
    store.expire(0.into(), 500, 0).unwrap();
    assert_eq!(store.engine.slices.get(&key).unwrap(), None);
    store.engine.slices.insert(&key, value).unwrap();
    close(&disk, store);
    let store = disk.open();
    assert_eq!(store.engine.slices.get(&key).unwrap(), None);
    assert_eq!(store.sealed(0.into()).len(), 1);
    // Without one of its removals a slice is damaged.
    let mut store = store;
    forget(&disk, &mut store, 507);
    let key = key_of_a_removal(&store);
    store.engine.slices.remove(&key).unwrap();
    close(&disk, store);
    assert!(opened(disk.root.path(), Arc::new(small_sled), Arc::new(FileSystem)).quarantined.is_some());
}

/// A start that reads large slices from a slow disk is not taken for hanging.
#[test]
fn a_start_reports_progress_for_each_part_of_a_slice_that_it_reads() {
    let (disk, mut store) = filled(8, 250);
    (0..2_000).step_by(1_000).for_each(|first| seal(&mut store, first..first + 1_000));
    let reports = std::cell::Cell::new(0);
    let Ok((_, files)) = crate::store::sealed::read_all(&store.engine, &|| reports.set(reports.get() + 1))
    else {
        panic!("it does not open")
    };
    // The end, the footer and the only shard of each, and once for the entries.
    assert_eq!((files.len(), reports.get()), (2, 7));
    close(&disk, store);
}
