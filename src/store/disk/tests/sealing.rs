//! Owners are in a block or in a slice, whenever the power fails.

use super::*;
use crate::dedupe::{KindId, SliceMark, SlicePartition};
use crate::ports::{SealJob, SealedLookup, Sealing, StoreError};
use crate::store::cut::clear;
use crate::store::sealed::write_merged;

/// Seals these owners, and waits until their blocks are removed and slices are merged.
fn seal(store: &mut SledStore, covered: Range<Offset>) {
    let count = covered.end - covered.start;
    seal_counted(store, covered, count);
}

/// Begins to seal these owners.
pub(super) fn begin(store: &mut SledStore, covered: Range<Offset>, marks: Vec<SliceMark>) {
    let range = SlicePartition { partition: 0, first: covered.start, next: covered.end, marks };
    store.begin_seal(SealJob { kind: KindId::UNNAMED, partitions: vec![range], is_urgent: false }).unwrap();
}

fn seal_counted(store: &mut SledStore, covered: Range<Offset>, count: u64) {
    let marks = vec![SliceMark { next: covered.end, count, time_ms: (0, 0) }];
    begin(store, covered, marks);
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

#[test]
fn a_power_loss_while_sealed_owners_are_undone_or_dropped_loses_no_other() {
    let (disk, mut store) = filled(24, 250);
    (0..5_000).step_by(500).for_each(|first| seal(&mut store, first..first + 500));
    disk.begin(&mut store);
    for from in [4_700, 4_400, 3_000, 2_999] {
        disk.watch().expected.split_off(&from);
        store.truncate(0.into(), from).unwrap();
        // Other identities at the same offsets.
        let entries = (from..from + 50).map(|owner| (owner, Identity([7; 16]))).collect();
        let block = Block { entries, ..Block::empty(HashKind::Xxh3, 0.into(), from..from + 50, 0) };
        let number = store.next_number(0.into()).unwrap();
        disk.examine();
        // New owners are not fsynced: a power loss before the next sync puts the database aside.
        let expected = mem::take(&mut disk.watch().expected);
        store.append(&block, number, Head { confirmed: from + 50, ..Head::default() }).unwrap();
        store.sync().unwrap();
        disk.watch().expected = expected;
    }
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

#[test]
fn owners_that_are_written_again_count_although_others_at_their_offsets_were_dropped() {
    let (disk, mut store) = filled(8, 250);
    seal(&mut store, 0..1_000);
    store.expire(0.into(), 900, 0).unwrap();
    store.truncate(0.into(), 100).unwrap();
    append(&mut store, 100..600);
    seal(&mut store, 100..400);
    seal(&mut store, 400..600);
    store.truncate(0.into(), 590).unwrap();
    let ranges = store.sealed(0.into());
    let ends: Vec<_> = ranges.iter().map(|of| (of.first, of.next)).collect();
    assert_eq!(ends, [(100, 400), (400, 590)]);
    close(&disk, store);
}

/// The worker appends while a thread reads the owners to seal.
#[test]
fn owners_are_offered_once_although_their_run_grows_meanwhile() {
    let (disk, mut store) = filled(4, 250);
    (1_000..1_015).for_each(|owner| append(&mut store, owner..owner + 1));
    let reader = store.clone();
    let mut appended = 1_015;
    let mut offered = Vec::new();
    let checks = std::cell::Cell::new(0);
    let check = || {
        checks.set(checks.get() + 1);
        Ok(())
    };
    let mut offer = |owner, identity| {
        if owner >= 1_000 && appended < 1_300 {
            append(&mut store, appended..appended + 1);
            appended += 1;
        }
        offered.push((owner, identity));
    };
    reader.offer_owners(0.into(), 900..1_015, &check, &mut offer).unwrap();
    let expected: Vec<_> =
        (900..1_015u64).map(|owner| (owner, Identity(u128::from(owner).to_le_bytes()))).collect();
    assert!(checks.get() > 1, "all was read at once");
    assert_eq!(offered, expected);
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
fn slices_without_blocks_and_head_count_as_stored_and_can_be_removed() {
    let (disk, mut store) = filled(8, 250);
    seal(&mut store, 0..1_000);
    store.with(0.into(), clear).unwrap();
    close(&disk, store);
    let mut store = disk.open();
    assert_eq!((store.head(0.into()), store.has_sealed()), (Ok(None), true));
    assert_eq!(store.stored_partitions(), [0]);
    store.clear(0.into()).unwrap();
    assert_eq!((store.stored_partitions(), store.has_sealed()), (Vec::new(), false));
    close(&disk, store);
}

#[test]
fn a_slice_of_which_everything_was_forgotten_is_not_kept() {
    let (disk, mut store) = filled(2, 250);
    seal(&mut store, 0..100);
    (100..200).for_each(|owner| forget(&disk, &mut store, owner));
    seal_counted(&mut store, 100..200, 0);
    seal(&mut store, 200..300);
    let ranges: Vec<_> = store.sealed(0.into()).iter().map(|of| (of.first, of.next)).collect();
    assert_eq!(ranges, [(0, 100), (200, 300)]);
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

/// Partition scope: a window has slices of its own.
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
    let places = |store: &SledStore, owner: u64| {
        let key = store.positions().key(Identity(u128::from(owner).to_le_bytes()));
        store.sealed_places(&SealedLookup::new(0.into(), key)).unwrap().owners
    };
    assert_eq!(places(&other, 1_700).first().map(|owner| owner.offset), Some(1_700));
    assert_eq!(bytes(&other), of_window);
    drop((other, worker));
    close(&disk, store);
    let mut store = disk.open();
    assert_eq!((store.engine.sealed.memory_bytes(), store.has_sealed()), (0, true), "not held yet");
    let ranges: Vec<_> = store.sealed(0.into()).iter().map(|of| (of.first, of.next)).collect();
    assert_eq!(ranges, [(0, 1_000), (1_000, 2_000)]);
    assert_eq!(store.engine.sealed.memory_bytes(), of_window);
    // What is deleted does not have to be read.
    store.release_lease(0.into());
    store.clear(0.into()).unwrap();
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
    begin(&mut worker, 0..1_000, vec![SliceMark { next: 1_000, count: 1_000, time_ms: (0, 0) }]);
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
        let forgotten = ToForget { owners: &[owner * IDS / FORGOTTEN], ..ToForget::default() };
        store.forget(0.into(), forgotten, head).unwrap();
    }
    store.truncate(0.into(), IDS - 10).unwrap();
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
    store.clear(0.into()).unwrap();
    assert!(store.engine.slices.iter().keys().all(|key| key.unwrap() == crate::store::keys::SLICE_COUNT));
    store.close().unwrap();
}

/// A kill between the removal of a slice and that of what was removed from it.
#[test]
fn what_was_removed_from_a_slice_that_is_gone_does_not_affect_a_later_one() {
    let (disk, mut store) = filled(8, 250);
    seal(&mut store, 0..500);
    seal(&mut store, 500..1_000);
    forget(&disk, &mut store, 7);
    let key = store.engine.slices.iter().keys().map(Result::unwrap).find(|key| key.len() > 10).unwrap();
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
    let key = store.engine.slices.iter().keys().map(Result::unwrap).find(|key| key.len() > 10).unwrap();
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
