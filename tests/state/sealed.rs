//! The commands see sealed owners like the others, and filters: a real store with slices, compared with a plain map.

use std::fs;
use std::ops::Range;
use std::path::Path;

use dedupd::dedupe::{FilterBits, OwnerRun, SealedRange, SliceMark, WindowId};
use dedupd::ports::{FilterJob, SealJob, Sealing, ToForget};
use dedupd::store::Lock;
use dedupd::tools::state::{Lengths, LookupResult, Standing, export, import, inspect, verify};
use indicatif::ProgressBar;
use serde_json::Value;

use super::portable::assert_filter;
use super::*;

type Model = BTreeMap<(PartitionId, Offset), Identity>;

const PARTITIONS: [PartitionId; 2] = [0, 2];
/// One past the last offset.
const END: Offset = 6_000;
/// Ends of the two slices of a window of one partition, as numbers. Both are inside a run.
const SLICE_ENDS: [Sequence; 2] = [1_660, 3_370];
/// Where partition 2 is undone, inside the second slice.
const CUT: Offset = 3_000;
/// Of partition 0: sealed ones of both slices, and others.
const FORGOTTEN: [Offset; 4] = [7, 4_999, 5_081, 5_900];

/// A stopped instance's directory, and what it contains.
struct Instance {
    dir: tempfile::TempDir,
    model: Model,
    topic_scope: bool,
    /// Whether the runs of the second slice were removed.
    removes_runs: bool,
}

/// A window: the partitions that it has, and all owners that were appended.
struct Filled {
    id: WindowId,
    partitions: Vec<PartitionId>,
    owners: Vec<StoredOwner>,
}

fn scope_binding(topic_scope: bool) -> Binding {
    Binding { topic_scope, ..binding(HashKind::Xxh3) }
}

fn open_scope(dir: &Path, topic_scope: bool) -> SledStore {
    let opened = open(dir, &scope_binding(topic_scope), CACHE_BYTES, DEADLINE).unwrap();
    assert_eq!(opened.quarantined, None);
    opened.store
}

/// One record every two seconds; two of three are owners.
fn arrival(offset: Offset) -> i64 {
    T + 2_000 * offset.cast_signed()
}

/// What is confirmed once these owners are stored.
fn head_of(owners: u64, time_ms: i64) -> Head {
    Head {
        confirmed: owners,
        last_entry: entry(owners),
        confirmed_entry: entry(owners),
        time_ms,
        ..Head::default()
    }
}

impl Filled {
    /// Appends runs of 300 offsets of each of these partitions.
    fn append(&mut self, store: &mut SledStore, model: &mut Model, range: Range<Offset>, attempt: u64) {
        for first in range.clone().step_by(300) {
            let offsets = (first..(first + 300).min(range.end)).filter(|offset| offset % 3 != 0);
            let owners = offsets.flat_map(|offset| {
                let owned = |of: &PartitionId| {
                    owner(*of, offset, arrival(offset), id(*of, offset + attempt * 1_000_000, Hasher::Xxh3))
                };
                self.partitions.iter().map(owned).collect::<Vec<_>>()
            });
            let owners: Vec<_> = owners.collect();
            model.extend(owners.iter().map(|it| ((it.at.partition, it.at.offset), it.identity.unwrap())));
            let (number, last_ms) = (self.owners.len() as u64, owners.last().unwrap().time_ms);
            let head = head_of(number + owners.len() as u64, last_ms);
            let times_ms = (owners[0].time_ms, last_ms);
            store.append(self.id, &OwnerRun { number, times_ms, owners: &owners }, &head).unwrap();
            self.owners.extend(owners);
        }
    }

    /// Seals these owners, with marks of 250, and removes their runs if `removes`.
    fn seal(&self, store: &mut SledStore, range: Range<Sequence>, removes: bool) {
        let time_ms = |number: Sequence| self.owners[number as usize].time_ms;
        let mark = |first: Sequence| {
            let next = (first + 250).min(range.end);
            SliceMark { next, count: next - first, time_ms: (time_ms(first), time_ms(next - 1)) }
        };
        let marks = range.clone().step_by(250).map(mark).collect();
        let range = SealedRange { first: range.start, next: range.end, marks };
        store.begin_seal(SealJob { window: self.id, range, is_urgent: false }).unwrap();
        let mut is_done = false;
        while !is_done || (removes && store.poll_seal().unwrap() != Sealing::Idle) {
            is_done = is_done || matches!(store.poll_seal().unwrap(), Sealing::Done(_));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The numbers of owners at these places.
    fn numbers(&self, matches: impl Fn(Coordinates) -> bool) -> Vec<Sequence> {
        (0..).zip(&self.owners).filter(|(_, owner)| matches(owner.at)).map(|(number, _)| number).collect()
    }
}

/// The ends of the slices of the windows of an instance.
fn slice_ends(topic_scope: bool) -> [Sequence; 2] {
    SLICE_ENDS.map(|end| if topic_scope { 2 * end } else { end })
}

/// Two partitions, sealed in two slices of each window. With `removes_runs` the runs of the second slice are removed; without, the instance is
/// killed before that.
fn sealed(topic_scope: bool, removes_runs: bool) -> Instance {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, mut model) = (open_scope(dir.path(), topic_scope), Model::new());
    let of = |partitions: &[PartitionId]| Filled {
        id: partitions[0].into(),
        partitions: partitions.to_vec(),
        owners: Vec::new(),
    };
    let mut windows = if topic_scope { vec![of(&PARTITIONS)] } else { vec![of(&[0]), of(&[2])] };
    let [first, second] = slice_ends(topic_scope);
    for window in &mut windows {
        window.append(&mut store, &mut model, 0..END, 0);
        window.seal(&mut store, 0..first, true);
        // Another one is not sealed before the runs are removed.
        let is_last = topic_scope || window.partitions == [2];
        window.seal(&mut store, first..second, removes_runs || !is_last);
    }
    let numbers = windows[0].numbers(|at| at.partition == 0 && FORGOTTEN.contains(&at.offset));
    let identities = FORGOTTEN.map(|offset| id(0, offset, Hasher::Xxh3));
    let forgotten = ToForget { numbers: &numbers, identities: &identities };
    let head = store.head(windows[0].id).unwrap().unwrap();
    store.forget(windows[0].id, forgotten, &head).unwrap();
    model.retain(|(partition, offset), _| *partition == 2 || !FORGOTTEN.contains(offset));
    let last = windows.last_mut().unwrap();
    let mut next = Some(0);
    while let Some(number) = next {
        next = store.undo(last.id, &[Coordinates { partition: 2, offset: CUT }], number).unwrap().next;
    }
    model.retain(|(partition, offset), _| *partition == 0 || *offset < CUT);
    last.partitions = vec![2];
    last.append(&mut store, &mut model, CUT..4_000, 1);
    store.close().unwrap();
    Instance { dir, model, topic_scope, removes_runs }
}

/// Runs a check in both scopes, before and after the runs of the second slice are removed.
fn in_each_state(check: impl Fn(&Instance)) {
    for (topic_scope, removes_runs) in [(true, true), (true, false), (false, true), (false, false)] {
        check(&sealed(topic_scope, removes_runs));
    }
}

fn exported(dir: &Path, to: &Path) {
    let state = copied(dir);
    let done = export(&state.store, &state.binding, to, &ProgressBar::hidden()).unwrap();
    assert_eq!(done, verify(to, &ProgressBar::hidden()).unwrap());
    state.close();
}

fn imported(from: &Path, dir: &Path) {
    let _lock = Lock::acquire(dir).unwrap();
    import(from, dir, CACHE_BYTES, DEADLINE, &ProgressBar::hidden()).unwrap();
}

/// The owners of a store that are not in slices. Checks their times.
fn in_runs(store: &SledStore) -> Model {
    let mut found = Model::new();
    for window in PARTITIONS {
        let mut latest_ms = 0;
        let mut visit = |run: &OwnerRun<'_>| {
            assert!(latest_ms <= run.times_ms.0 && run.times_ms.1 - run.times_ms.0 < 60_000 * 11);
            latest_ms = run.times_ms.1;
            for owner in run.owners {
                let (at, Some(identity)) = (owner.at, owner.identity) else { continue };
                assert_eq!(owner.time_ms, arrival(at.offset));
                assert!(owner.time_ms <= latest_ms);
                assert_eq!(found.insert((at.partition, at.offset), identity), None, "{at} is there twice");
            }
            Ok(())
        };
        store.scan(window.into(), &mut visit).unwrap();
    }
    found
}

#[test]
fn an_imported_state_has_the_sealed_owners_in_runs() {
    in_each_state(|instance| {
        let (files, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (file, again) = (files.path().join("file"), files.path().join("again"));
        exported(instance.dir.path(), &file);
        imported(&file, other.path());
        let store = open_scope(other.path(), instance.topic_scope);
        assert!(in_runs(&store) == instance.model, "other owners: {}", in_runs(&store).len());
        assert!(!store.has_sealed());
        store.close().unwrap();
        exported(other.path(), &again);
        assert!(fs::read(&file).unwrap() == fs::read(&again).unwrap(), "the files differ");
        // The entries of the other scope are in other journals.
        let opened =
            open(other.path(), &scope_binding(!instance.topic_scope), CACHE_BYTES, DEADLINE).unwrap();
        assert!(opened.quarantined.is_some());
        opened.store.close().unwrap();
    });
}

#[test]
fn the_state_of_the_other_tests_is_sealed_as_they_require() {
    in_each_state(|instance| {
        let store = open_scope(instance.dir.path(), instance.topic_scope);
        let [first, second] = slice_ends(instance.topic_scope);
        // The window that was sealed last.
        let window = WindowId::from(if instance.topic_scope { 0 } else { 2 });
        let ranges: Vec<_> = store.sealed(window).iter().map(|of| of.first..of.next).collect();
        assert_eq!(ranges, [0..first, first..second]);
        let (mut across, mut before) = (0, 0);
        let mut count = |run: &OwnerRun<'_>| {
            across += u64::from(run.number < second && run.end() > second);
            before += u64::from(run.end() <= second);
            Ok(())
        };
        store.scan(window, &mut count).unwrap();
        assert_eq!(across, 1, "a run reaches across the end of the slice");
        assert_eq!(before == 0, instance.removes_runs);
        store.close().unwrap();
    });
}

/// Bytes that this thread has read from files.
#[cfg(target_os = "linux")]
fn bytes_read() -> u64 {
    let figures = fs::read_to_string("/proc/thread-self/io").unwrap();
    figures.strip_prefix("rchar: ").and_then(|rest| rest.lines().next()?.parse().ok()).unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn an_export_reads_a_slice_twice_for_any_number_of_partitions() {
    let (dir, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let binding = Binding { partitions: 40, ..scope_binding(true) };
    let mut store = open(dir.path(), &binding, CACHE_BYTES, DEADLINE).unwrap().store;
    let (mut model, partitions) = (Model::new(), (0..40).collect());
    let mut window = Filled { id: 0.into(), partitions, owners: Vec::new() };
    window.append(&mut store, &mut model, 0..900, 0);
    window.seal(&mut store, 0..window.owners.len() as u64, true);
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

#[test]
fn an_inspection_counts_sealed_owners() {
    in_each_state(|instance| {
        let state = copied(instance.dir.path());
        let inspection = inspect(&state, &ProgressBar::hidden()).unwrap();
        let mut sealed = 0;
        let windows: Vec<_> = inspection.windows.iter().map(|it| WindowId::from(it.journal)).collect();
        let count = &mut |_, _, _| {
            sealed += 1;
            Ok(())
        };
        state.store.scan_sealed(&windows, count).unwrap();
        state.close();
        assert_eq!(inspection.ids, instance.model.len() as u64);
        let sum = |of: fn(&Value) -> u64, json: &Value| {
            json["windows"].as_array().unwrap().iter().map(of).sum::<u64>()
        };
        let json: Value =
            serde_json::from_str(&dedupd(instance.dir.path(), &["inspect", "--json"]).out).unwrap();
        assert_eq!(sum(|it| it["sealed_ids"].as_u64().unwrap(), &json), sealed);
        assert_eq!(sum(|it| it["unconfirmed_ids"].as_u64().unwrap(), &json), 0);
        for window in &inspection.windows {
            assert_eq!(window.bytes, (window.ids - window.sealed_ids) * 40);
        }
        let text = dedupd(instance.dir.path(), &["inspect"]).out;
        let expected = format!("  {} sealed\n", inspection.windows[0].sealed_ids);
        assert!(text.contains(&expected), "no {expected:?} in\n{text}");
    });
}

/// Partition, offset and standing of the owners of an identity, in a window of this length.
fn standings(state: &Copied, identity: Identity, length: Duration) -> Vec<(PartitionId, Offset, Standing)> {
    let lengths = Lengths::new(length, Vec::new());
    let answer = LookupResult::of(identity, state, None, &lengths, &ProgressBar::hidden()).unwrap();
    assert!(answer.in_filters.is_empty());
    assert!(answer.found.iter().all(|found| found.time_ms == arrival(found.offset)));
    answer.found.iter().map(|found| (found.partition, found.offset, found.standing)).collect()
}

#[test]
fn a_sealed_id_is_found_and_its_age_decides_whether_it_counts() {
    in_each_state(|instance| {
        let state = copied(instance.dir.path());
        let of = |partition, number| id(partition, number, Hasher::Xxh3);
        let exact = |partition, offset| vec![(partition, offset, Standing::Exact)];
        let hour = Duration::from_hours(1);
        // The window's clock is that of the last run: at offset 4,000 in the window of partition 2.
        let newest = if instance.topic_scope { [2_300, 5_500] } else { [4_300, 5_500] };
        for offset in newest {
            assert_eq!(standings(&state, of(0, offset), hour), exact(0, offset), "{offset}");
        }
        assert_eq!(standings(&state, of(2, 2_600), hour), exact(2, 2_600));
        for (partition, offset) in [(0, 10), (2, 100)] {
            assert_eq!(
                standings(&state, of(partition, offset), hour),
                [(partition, offset, Standing::Expired)]
            );
            assert_eq!(standings(&state, of(partition, offset), LENGTH), exact(partition, offset));
        }
        for offset in FORGOTTEN {
            assert_eq!(standings(&state, of(0, offset), LENGTH), [], "{offset} is forgotten");
        }
        for offset in [3_001, 3_500, 5_051, 5_501] {
            assert_eq!(standings(&state, of(2, offset), LENGTH), [], "{offset} is undone");
        }
        assert_eq!(standings(&state, of(2, 1_003_500 - 1), hour), exact(2, 3_499));
        assert_eq!(standings(&state, of(0, 6_001), LENGTH), []);
        state.close();
    });
}

/// Makes a filter of the first slice of each window.
fn filter(instance: &Instance) {
    let mut store = open_scope(instance.dir.path(), instance.topic_scope);
    let windows = if instance.topic_scope { &PARTITIONS[..1] } else { &PARTITIONS };
    for window in windows {
        let job = FilterJob {
            window: (*window).into(),
            before_ms: arrival(2_700),
            span_ms: 1_000_000,
            bits: FilterBits::at_rate(1e-9),
        };
        assert!(store.begin_filter(&job).unwrap());
        while store.poll_seal().unwrap() != Sealing::Idle {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(store.filters((*window).into()).len(), 1);
    }
    store.close().unwrap();
}

#[test]
fn commands_show_filters_and_an_export_reports_what_it_has_not() {
    in_each_state(|instance| {
        filter(instance);
        let dir = instance.dir.path();
        let found = dedupd(dir, &["inspect", "--id", "order-0-100"]);
        assert!(
            found.code == 1 && found.out.contains("in the filter of 2023-11-14T22:13:22.000Z"),
            "{found:?}"
        );
        assert!(found.out.contains("a record with it counts as probably seen"), "{found:?}");
        let text = dedupd(dir, &["inspect"]).out;
        assert!(text.contains("filters without owners of journal 0") && text.contains("e-1"), "{text}");
        let (file, other) = (dir.with_extension("export"), tempfile::tempdir().unwrap());
        let exported = dedupd(dir, &["export", "--to", file.to_str().unwrap()]);
        assert!(exported.out.contains("which are in filters only"), "{exported:?}");
        imported(&file, other.path());
        let store = open_scope(other.path(), instance.topic_scope);
        // Of one partition, 1,660 owners are in it.
        let in_filter = 1_660 / 2 * 3;
        let rest: Model =
            instance.model.clone().into_iter().filter(|((_, at), _)| *at >= in_filter).collect();
        assert!(in_runs(&store) == rest, "{} owners of {}", in_runs(&store).len(), rest.len());
        assert_eq!(store.missing_ms(0.into()), Ok(arrival(in_filter - 1) + 1));
        store.close().unwrap();
        fs::remove_file(file).unwrap();
        assert_filter(dir, in_filter);
    });
}
