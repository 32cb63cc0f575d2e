//! The commands see sealed owners like those in blocks: a real store with slices, compared with a plain map.

use std::fs;
use std::ops::Range;
use std::path::Path;

use dedupd::dedupe::{KindId, SliceMark, SlicePartition, WindowId};
use dedupd::ports::{SealJob, Sealing, StoreError, ToForget};
use dedupd::store::Lock;
use dedupd::tools::state::{Lengths, LookupResult, Standing, export, import, inspect, verify};
use indicatif::ProgressBar;
use serde_json::Value;

use super::*;

pub(super) type Model = BTreeMap<(PartitionId, Offset), Identity>;

/// Ends of the two slices. The second one is inside a block.
pub(super) const SLICE_ENDS: [Offset; 2] = [2_500, 5_050];
/// Where partition 2 is truncated, inside the second slice, and its end after it is filled again.
pub(super) const CUT: Offset = 3_000;
pub(super) const END: [(PartitionId, Offset); 2] = [(0, 6_000), (2, 4_000)];
/// Sealed ones of both slices, one in the block that reaches across the end of the second slice, and a later one.
pub(super) const FORGOTTEN: [Offset; 4] = [7, 4_999, 5_051, 5_900];

/// A stopped instance's directory, and what it contains.
pub(super) struct Instance {
    pub dir: tempfile::TempDir,
    pub model: Model,
    pub shares_slices: bool,
    /// Whether the blocks of the second slice were removed.
    removes_blocks: bool,
}

pub(super) fn shared_binding(shares_slices: bool) -> Binding {
    Binding { shares_slices: Some(shares_slices), ..binding(HashKind::Xxh3) }
}

pub(super) fn open_shared(dir: &Path, shares_slices: bool) -> SledStore {
    let opened = open(dir, &shared_binding(shares_slices), CACHE_BYTES, DEADLINE).unwrap();
    assert_eq!(opened.quarantined, None);
    opened.store
}

/// One record every two seconds; two of three are owners.
pub(super) fn arrival(offset: Offset) -> i64 {
    T + 2_000 * offset.cast_signed()
}

fn owners(partition: PartitionId, range: Range<Offset>, attempt: u64) -> Vec<(Offset, Identity)> {
    let number = |offset| offset + attempt * 1_000_000;
    let owners = range.filter(|offset| offset % 3 != 0);
    owners.map(|offset| (offset, id(partition, number(offset), Hasher::Xxh3))).collect()
}

/// Appends blocks of 300 offsets, committed.
fn append(
    store: &mut SledStore,
    model: &mut Model,
    partition: PartitionId,
    range: Range<Offset>,
    attempt: u64,
) {
    for first in range.clone().step_by(300) {
        let next = (first + 300).min(range.end);
        let entries = owners(partition, first..next, attempt);
        model.extend(entries.iter().map(|(offset, identity)| ((partition, *offset), *identity)));
        let block = Block {
            hash: HashKind::Xxh3,
            window: partition.into(),
            first,
            next,
            time_first_ms: arrival(first),
            time_last_ms: arrival(next - 1),
            entries,
        };
        store.put(&block, head(next, arrival(next - 1))).unwrap();
    }
}

/// Owners to seal, with marks of 250 offsets.
fn to_seal(partition: PartitionId, range: Range<Offset>) -> SlicePartition {
    let mark = |first: Offset| {
        let next = (first + 250).min(range.end);
        let count = owners(partition, first..next, 0).len() as u64;
        SliceMark { next, count, time_ms: (arrival(first), arrival(next - 1)) }
    };
    let marks = range.clone().step_by(250).map(mark).collect();
    SlicePartition { partition, first: range.start, next: range.end, marks }
}

/// Seals these owners, and removes their blocks if `removes`.
fn seal(store: &mut SledStore, partitions: Vec<SlicePartition>, removes: bool) {
    store.begin_seal(SealJob { kind: KindId::UNNAMED, partitions, is_urgent: false }).unwrap();
    let mut is_done = false;
    while !is_done || (removes && store.poll_seal().unwrap() != Sealing::Idle) {
        is_done = is_done || matches!(store.poll_seal().unwrap(), Sealing::Done(_));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Two partitions with two slices. With `removes_blocks` the blocks of the second slice are removed; without, the instance is
/// killed before that.
fn sealed(shares_slices: bool, removes_blocks: bool) -> Instance {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, mut model) = (open_shared(dir.path(), shares_slices), Model::new());
    for (partition, _) in END {
        append(&mut store, &mut model, partition, 0..6_000, 0);
    }
    let [first, second] = SLICE_ENDS;
    for (range, removes) in [(0..first, true), (first..second, removes_blocks)] {
        let mut jobs: Vec<_> =
            END.iter().map(|(partition, _)| vec![to_seal(*partition, range.clone())]).collect();
        if shares_slices {
            jobs = vec![jobs.concat()];
        }
        for job in jobs {
            seal(&mut store, job, removes);
        }
    }
    let before = store.head(0.into()).unwrap().unwrap();
    let forgotten = ToForget { owners: &FORGOTTEN, ..ToForget::default() };
    store.forget(0.into(), forgotten, before).unwrap();
    store.truncate(2.into(), CUT).unwrap();
    model.retain(|(partition, offset), _| *partition == 0 || *offset < CUT);
    model.retain(|(partition, offset), _| *partition == 2 || !FORGOTTEN.contains(offset));
    append(&mut store, &mut model, 2, CUT..4_000, 1);
    store.close().unwrap();
    Instance { dir, model, shares_slices, removes_blocks }
}

/// Runs a check with slices of all partitions and of each one, before and after the blocks of the second slice are removed.
pub(super) fn in_each_state(check: impl Fn(&Instance)) {
    for (shares_slices, removes_blocks) in [(true, true), (true, false), (false, true), (false, false)] {
        check(&sealed(shares_slices, removes_blocks));
    }
}

fn exported(dir: &Path, to: &Path) {
    let state = copied(dir);
    let done = export(&state.store, &state.binding, to, &ProgressBar::hidden()).unwrap();
    assert_eq!(done, verify(to, &ProgressBar::hidden()).unwrap());
    assert_eq!(done.header.binding, binding(HashKind::Xxh3), "the scope is not exported");
    state.close();
}

pub(super) fn imported(from: &Path, dir: &Path) {
    let _lock = Lock::acquire(dir).unwrap();
    import(from, dir, (CACHE_BYTES, DEADLINE), &ProgressBar::hidden()).unwrap();
}

/// What the blocks of a store contain. Checks their times.
pub(super) fn in_blocks(store: &SledStore) -> Model {
    let mut found = Model::new();
    for (partition, _) in END {
        store
            .scan(partition.into(), &mut |run| {
                let times = run.times_ms.0..=run.times_ms.1;
                assert!(times.end() - times.start() < 600_000, "{times:?}");
                for owner in run.owners {
                    let (offset, Some(identity)) = (owner.offset, owner.identity) else { continue };
                    assert!(times.contains(&arrival(offset)), "{offset} arrived at {}", arrival(offset));
                    assert_eq!(found.insert((partition, offset), identity), None, "{offset} is there twice");
                }
                Ok(())
            })
            .unwrap();
    }
    found
}

#[test]
fn an_imported_state_has_the_sealed_owners_in_blocks() {
    in_each_state(|instance| {
        let files = tempfile::tempdir().unwrap();
        let (file, again) = (files.path().join("file"), files.path().join("again"));
        exported(instance.dir.path(), &file);
        for shares_slices in [true, false] {
            let other = tempfile::tempdir().unwrap();
            imported(&file, other.path());
            exported(other.path(), &again);
            assert!(fs::read(&file).unwrap() == fs::read(&again).unwrap(), "the files differ");
            fs::remove_file(&again).unwrap();
            let store = open_shared(other.path(), shares_slices);
            assert!(in_blocks(&store) == instance.model, "other owners: {}", in_blocks(&store).len());
            assert!(!store.has_sealed());
            store.close().unwrap();
        }
    });
}

#[test]
fn the_state_of_the_other_tests_is_sealed_as_they_require() {
    in_each_state(|instance| {
        let store = open_shared(instance.dir.path(), instance.shares_slices);
        for ((partition, _), end) in END.into_iter().zip([SLICE_ENDS[1], CUT]) {
            let ranges: Vec<_> = store.sealed(partition.into()).iter().map(|of| of.first..of.next).collect();
            assert_eq!(ranges, [0..SLICE_ENDS[0], SLICE_ENDS[0]..end]);
            for range in
                [0..u64::MAX, 0..2_500, 100..101, 1_000..2_600, 2_500..2_501, 2_700..2_900, end..u64::MAX]
            {
                let mut found = Model::new();
                let mut insert = |window: WindowId, offset, identity| {
                    assert_eq!(found.insert((window.partition(), offset), identity), None);
                    Ok(())
                };
                store.scan_sealed(&[partition.into()], range.clone(), &mut insert).unwrap();
                let is_in =
                    |(own, at): &(PartitionId, Offset)| *own == partition && *at < end && range.contains(at);
                let expected: Model =
                    instance.model.iter().filter(|(at, _)| is_in(at)).map(|(at, id)| (*at, *id)).collect();
                assert!(found == expected, "{} of {} in {range:?}", found.len(), expected.len());
            }
        }
        let mut across = 0;
        let count = &mut |run: &dedupd::dedupe::OwnerRun<'_>| {
            across += u64::from(run.covered.start < SLICE_ENDS[1] && run.covered.end > SLICE_ENDS[1]);
            Ok(())
        };
        store.scan(0.into(), count).unwrap();
        assert_eq!(across, 1, "a run reaches across the end of the slice");
        // Of the partition that was sealed last.
        let unneeded = store.ids(2.into()).unwrap() > owners(2, CUT..4_000, 1).len() as u64;
        assert_eq!(unneeded, !instance.removes_blocks);
        store.close().unwrap();
    });
}

#[test]
fn a_slice_without_offsets_in_the_range_is_not_read() {
    let instance = sealed(true, true);
    let store = open_shared(instance.dir.path(), true);
    let is_slice = |(_, (bytes, _)): &(PathBuf, (Vec<u8>, _))| bytes.ends_with(b"DDS1");
    let mut slices: Vec<_> = files(instance.dir.path()).into_iter().filter(is_slice).collect();
    // Files are numbered in the order in which they were written.
    slices.sort_by_key(|(path, _)| (path.as_os_str().len(), path.clone()));
    let (older, (mut bytes, _)) = slices.swap_remove(0);
    bytes[100] ^= 1;
    fs::write(older, bytes).unwrap();
    let count = |range: Range<Offset>| {
        let mut count = 0;
        let mut add = |_, _, _| {
            count += 1;
            Ok(())
        };
        store.scan_sealed(&[0.into()], range, &mut add).map(|()| count)
    };
    assert_eq!(count(SLICE_ENDS[0]..SLICE_ENDS[1]), Ok(owners(0, SLICE_ENDS[0]..SLICE_ENDS[1], 0).len() - 1));
    assert!(matches!(count(SLICE_ENDS[0] - 1..SLICE_ENDS[1]), Err(StoreError::Corrupt(_))));
}

/// Bytes that this thread has read from files.
fn bytes_read() -> u64 {
    let figures = fs::read_to_string("/proc/thread-self/io").unwrap();
    figures.strip_prefix("rchar: ").and_then(|rest| rest.lines().next()?.parse().ok()).unwrap()
}

/// It has owners of all partitions. It was read twice for each of them.
#[test]
#[cfg(target_os = "linux")]
fn an_export_reads_a_slice_twice_for_any_number_of_partitions() {
    const PARTITIONS: PartitionId = 40;
    let (dir, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let binding = Binding { partitions: PARTITIONS, ..shared_binding(true) };
    let mut store = open(dir.path(), &binding, CACHE_BYTES, DEADLINE).unwrap().store;
    let mut model = Model::new();
    (0..PARTITIONS).for_each(|partition| append(&mut store, &mut model, partition, 0..900, 0));
    seal(&mut store, (0..PARTITIONS).map(|partition| to_seal(partition, 0..900)).collect(), true);
    store.close().unwrap();
    let state = copied(dir.path());
    let before = bytes_read();
    let done =
        export(&state.store, &state.binding, &files.path().join("file"), &ProgressBar::hidden()).unwrap();
    let (read, slice) = (bytes_read() - before, done.ids * 17);
    assert_eq!(done.ids, model.len() as u64);
    assert!(read > slice && read < 4 * slice, "{read} bytes for a slice of {slice}");
    state.close();
}

/// The owners of partition 2 are older than those of partition 0 in the slices before, as after a restore in which one partition is behind.
#[test]
fn slices_are_in_the_order_in_which_they_were_sealed_after_a_restart_too() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, mut model) = (open_shared(dir.path(), true), Model::new());
    append(&mut store, &mut model, 0, 0..4_500, 0);
    append(&mut store, &mut model, 2, 0..900, 0);
    let small = |number: u64| vec![to_seal(0, number * 100..number * 100 + 100)];
    (0..3).for_each(|number| seal(&mut store, small(number), true));
    seal(&mut store, vec![to_seal(0, 300..2_300), to_seal(2, 0..900)], true);
    (23..43).for_each(|number| seal(&mut store, small(number), true));
    store.close().unwrap();
    let mut store = open_shared(dir.path(), true);
    // There are more than 24 now, and eight neighbours are merged.
    (43..45).for_each(|number| seal(&mut store, small(number), true));
    let ranges: Vec<_> = store.sealed(0.into()).iter().map(|of| of.first..of.next).collect();
    assert!(ranges.len() < 22, "{ranges:?}");
    assert!(ranges.is_sorted_by(|a, b| a.end <= b.start), "{ranges:?}");
    store.close().unwrap();
}

fn lengths(limits: WindowLimits) -> Lengths {
    Lengths::new(limits, Vec::new())
}

fn exact_only() -> WindowLimits {
    WindowLimits { bloom: None, ..limits() }
}

#[test]
fn an_inspection_counts_sealed_owners() {
    in_each_state(|instance| {
        let count = |partition, below| {
            let ids = instance.model.keys().filter(|(own, at)| *own == partition && *at < below);
            ids.count() as u64
        };
        {
            let state = copied(instance.dir.path());
            let inspection = inspect(&state, &ProgressBar::hidden()).unwrap();
            state.close();
            assert_eq!(inspection.ids, instance.model.len() as u64);
            for (report, end) in inspection.partitions.iter().zip([SLICE_ENDS[1], CUT]) {
                let partition = report.partition;
                let counts = (report.ids, report.sealed_ids, report.unconfirmed_ids);
                assert_eq!(counts, (count(partition, u64::MAX), count(partition, end), 0), "{partition}");
                let next = END.iter().find(|(own, _)| *own == partition).unwrap().1;
                assert_eq!((report.first, report.next), (Some(0), Some(next)));
                // A run of 300 offsets, and the rest of the one that reaches across.
                assert_eq!(report.runs, (next - end).div_ceil(300));
                assert_eq!(report.bytes, (report.ids - report.sealed_ids) * 24);
            }
        }
        let text = dedupd(instance.dir.path(), &["inspect"]).out;
        let expected = format!("  {} sealed\n", count(0, SLICE_ENDS[1]));
        assert!(text.contains(&expected), "no {expected:?} in\n{text}");
        let json: Value =
            serde_json::from_str(&dedupd(instance.dir.path(), &["inspect", "--json"]).out).unwrap();
        assert_eq!(json["partitions"][1]["sealed_ids"], count(2, CUT));
    });
}

/// Standings of an identity: the owner's partition and offset, and how the window treats it.
fn standings(
    state: &Copied,
    identity: Identity,
    limits: WindowLimits,
) -> Vec<(PartitionId, Offset, Standing)> {
    let answer = LookupResult::of(identity, state, None, &lengths(limits), &ProgressBar::hidden()).unwrap();
    assert!(answer.in_filters.is_empty());
    let found = answer.found.into_iter().map(|found| {
        let owned = found.owned;
        let times = owned.time_first_ms..=owned.time_last_ms;
        assert!(times.contains(&arrival(owned.offset)) && times.end() - times.start() < 600_000, "{owned:?}");
        (found.partition, owned.offset, found.standing)
    });
    found.collect()
}

#[test]
fn a_sealed_id_is_found_and_its_age_decides_whether_it_counts() {
    in_each_state(|instance| {
        let state = copied(instance.dir.path());
        let of = |partition, number| id(partition, number, Hasher::Xxh3);
        let exact = |partition, offset| vec![(partition, offset, Standing::Exact)];
        // The last hour begins at offset 4,200 of partition 0 and at 2,200 of partition 2.
        for (partition, offset) in [(0, 4_801), (0, 5_048), (0, 5_050), (0, 5_500), (2, 2_600), (2, 2_999)] {
            let found = standings(&state, of(partition, offset), exact_only());
            assert_eq!(found, exact(partition, offset));
        }
        for (partition, offset) in [(0, 10), (0, 3_001), (2, 100)] {
            let found = standings(&state, of(partition, offset), exact_only());
            assert_eq!(found, [(partition, offset, Standing::Expired)]);
            // Its slice has the owners, so it is exact in a longer window.
            assert_eq!(standings(&state, of(partition, offset), limits()), exact(partition, offset));
        }
        // Partition 2 was truncated, and other records followed.
        for offset in FORGOTTEN {
            assert_eq!(standings(&state, of(0, offset), exact_only()), [], "{offset} is forgotten");
        }
        for offset in [3_001, 3_500, 5_048, 5_500] {
            assert_eq!(standings(&state, of(2, offset), exact_only()), [], "{offset} is truncated");
        }
        assert_eq!(standings(&state, of(2, 1_003_500), exact_only()), exact(2, 3_500));
        assert_eq!(standings(&state, of(0, 6_001), exact_only()), []);
        state.close();
    });
}
