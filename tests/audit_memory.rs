//! The comparison of an audit stays below its memory at ten times the records, also where much is wrong, and where many
//! partitions are read at the same time.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(unsafe_code, reason = "an allocator that counts; it hands every call to that of the system")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use dedupd_audit::{
    Comparison, Counts, Fields, Fingerprints, Gone, MissingId, Outcome, Part, PartitionOptions, Rules,
    Scratch, Seen, UnmatchedRecords,
};

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract, and it is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The counters are those of the process, so the tests run one after the other.
static ALONE: Mutex<()> = Mutex::new(());

const MEMORY: usize = 4 << 20;
const WINDOW_MS: i64 = 1_000;

const RULES: Rules = Rules {
    window_ms: Some(WINDOW_MS),
    latest_ms: i64::MAX,
    missing_id: MissingId::Forwarded,
    due_below: u64::MAX,
    whole_from: 0,
    longest_ms: None,
    context_cut: false,
    from_ms: None,
};

fn seen(prints: &Fingerprints, offset: u64, id: Option<u64>, timestamp_ms: i64) -> Seen {
    let value = offset.to_le_bytes();
    let text = id.map(u64::to_le_bytes);
    let value = if id.is_some() { &value[..] } else { b"the same" };
    let timestamp_ms = Some(if id.is_some() { timestamp_ms } else { 0 });
    let fields = Fields { value: Some(value), timestamp_ms, ..Fields::default() };
    prints.seen(offset, text.as_ref().map(<[u8; 8]>::as_slice), &fields)
}

/// Which record stands at a raw offset: mostly new ids, some without, some from long before the window.
fn raw(prints: &Fingerprints, at: u64) -> Seen {
    let id = match at % 10 {
        0 => None,
        1 if at > 10_000 => Some(at - 9_999),
        _ => Some(at),
    };
    seen(prints, at, id, i64::try_from(at).unwrap())
}

const OPTIONS: PartitionOptions = PartitionOptions { partition: 0, samples: 10, gone: Gone::Nothing };

/// Compares so many records and returns what came out, and the most memory that was in use meanwhile.
fn compare(records: u64, is_wrong: bool) -> (Outcome, usize) {
    let dir = tempfile::tempdir().unwrap();
    let prints = Fingerprints::new(3);
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let scratch = Scratch::new(dir.path(), MEMORY);
    let mut comparison = Comparison::new(OPTIONS, RULES, &scratch);
    (0..records).for_each(|at| comparison.raw(0, &raw(&prints, at), Part::Within).unwrap());
    for at in 0..records {
        // Losses, a second half that stands before the first, and records that nobody wrote.
        let from = if is_wrong { (at + records / 2) % records } else { at };
        let mut record = Seen { offset: at, ..raw(&prints, from) };
        if is_wrong && at % 16 == 3 {
            record = seen(&prints, at, Some(u64::MAX - at), -2);
        }
        comparison.clean(0, &record).unwrap();
    }
    let mut strangers = UnmatchedRecords::new(&scratch);
    let outcome = comparison.finish(&mut strangers).unwrap().remove(&0).unwrap();
    assert_eq!(strangers.moved().unwrap(), 0);
    assert!(scratch.written() > records * 100, "it went through files");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    (outcome, PEAK.load(Ordering::Relaxed) - before)
}

#[test]
fn the_peak_stays_below_the_bound_at_ten_times_the_records() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for is_wrong in [false, true] {
        let (_, small) = compare(100_000, is_wrong);
        let (outcome, large) = compare(1_000_000, is_wrong);
        println!("wrong: {is_wrong}, {small} bytes, then {large}: {outcome:?}");
        assert!(small <= MEMORY && large <= MEMORY, "{small} and {large} bytes of {MEMORY}");
        assert_eq!(outcome.clean_records, 1_000_000);
        assert_eq!(outcome.counts == Counts::default(), !is_wrong, "{outcome:?}");
        if is_wrong {
            assert!(outcome.counts.phantom > 50_000 && outcome.counts.lost > 10_000, "{outcome:?}");
        }
    }
}

/// Reads a group of partitions interleaved, then compares them one after the other. `written` is how many records of raw and
/// clean each has in fact, `expected` how many there were before they were read. Returns the size of the group, the peak
/// memory, and the bytes written to files.
fn compare_group(expected: u64, written: u64) -> (usize, usize, u64) {
    let dir = tempfile::tempdir().unwrap();
    let prints = Fingerprints::new(3);
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let scratch = Scratch::new(dir.path(), MEMORY);
    let count = scratch.group(std::iter::repeat_n(expected, 1_000));
    let mut group: Vec<_> =
        (0..count).map(|_| Comparison::in_group(OPTIONS, RULES, &scratch, expected)).collect();
    for at in 0..written / 2 {
        group.iter_mut().try_for_each(|comparison| comparison.clean(0, &raw(&prints, at))).unwrap();
    }
    for at in 0..written / 2 {
        let record = raw(&prints, at);
        group.iter_mut().try_for_each(|comparison| comparison.raw(0, &record, Part::Within)).unwrap();
    }
    let mut unmatched = UnmatchedRecords::new(&scratch);
    for comparison in group {
        let outcome = comparison.finish(&mut unmatched).unwrap().remove(&0).unwrap();
        assert_eq!((outcome.counts, outcome.clean_records), (Counts::default(), written / 2));
    }
    (count, PEAK.load(Ordering::Relaxed) - before, scratch.written())
}

#[test]
fn partitions_that_are_read_together_share_the_memory() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for expected in [40, 1_000, 4_000] {
        let (count, peak, spilled) = compare_group(expected, expected);
        println!("{count} partitions of {expected} records: {peak} bytes, {spilled} in files");
        assert!(count > 1 && peak <= MEMORY, "{peak} bytes of {MEMORY}");
        // Producers wrote while the audit read.
        let (_, peak, spilled) = compare_group(expected, expected * 20);
        println!("{count} partitions with 20 times that: {peak} bytes, {spilled} in files");
        assert!(peak <= MEMORY && spilled > 0, "{peak} bytes of {MEMORY}");
    }
}

const PARTITIONS: u32 = 8;
/// An id that all partitions have often.
const HOT: u64 = u64::MAX;

/// A record of a topic whose partitions take turns, and whether it is a copy of the one before it, in another partition.
fn of_topic(prints: &Fingerprints, at: u64) -> (u32, Seen, bool) {
    let id = match at % 10 {
        0 => None,
        2 => Some(at - 1),
        7 => Some(HOT),
        _ => Some(at),
    };
    let partition = u32::try_from(at % u64::from(PARTITIONS)).unwrap();
    let record = seen(prints, at, id, i64::try_from(at).unwrap());
    (partition, Seen { offset: at / u64::from(PARTITIONS), ..record }, at % 10 == 2)
}

/// As [`compare`], for all partitions of a topic together.
fn compare_topic(records: u64, is_wrong: bool) -> (Counts, usize) {
    let dir = tempfile::tempdir().unwrap();
    let prints = Fingerprints::new(3);
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let scratch = Scratch::new(dir.path(), MEMORY);
    let partitions = (0..PARTITIONS)
        .map(|partition| (PartitionOptions { partition, samples: 10, gone: Gone::Nothing }, RULES));
    let mut comparison = Comparison::of_topic(partitions, Some(WINDOW_MS), &scratch);
    let mut hot = None;
    let mut ends = BTreeMap::new();
    for at in 0..records {
        let (partition, record, is_copy) = of_topic(&prints, at);
        comparison.raw(partition, &record, Part::Within).unwrap();
        let is_hot = at % 10 == 7;
        let is_dropped = is_copy || is_hot && hot.is_some_and(|last| at - last <= WINDOW_MS.unsigned_abs());
        if is_hot && !is_dropped {
            hot = Some(at);
        }
        // Duplicates, records that are in the next partition, and records that nobody wrote.
        let (partition, record) = match at % 16 {
            3 if is_wrong => ((partition + 1) % PARTITIONS, record),
            5 if is_wrong => (partition, seen(&prints, 0, Some(HOT - 1 - at), -2)),
            _ if is_dropped && !is_wrong => continue,
            _ => (partition, record),
        };
        let end = ends.entry(partition).or_insert(0);
        comparison.clean(partition, &Seen { offset: *end, ..record }).unwrap();
        *end += 1;
    }
    let mut unmatched = UnmatchedRecords::new(&scratch);
    let outcomes = comparison.finish(&mut unmatched).unwrap();
    assert_eq!(unmatched.moved().unwrap() > records / 100, is_wrong);
    let mut counts = Counts::default();
    for outcome in outcomes.values() {
        counts += outcome.counts;
    }
    println!("{records} records: {} bytes per record in files, {counts}", scratch.written() / records);
    assert!(scratch.written() > records * 100, "it went through files");
    (counts, PEAK.load(Ordering::Relaxed) - before)
}

/// As [`compare`], for raw topics behind `rekey`: of the records with even numbers there is a copy in another partition, which is in
/// clean, and [`HOT`] is there once. The number of a record stands for the header that names it.
fn compare_behind_rekey(records: u64) -> (Counts, usize) {
    let dir = tempfile::tempdir().unwrap();
    let prints = Fingerprints::new(3);
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let scratch = Scratch::new(dir.path(), MEMORY);
    let logs = (0..2 * PARTITIONS)
        .map(|partition| (PartitionOptions { partition, samples: 10, gone: Gone::Nothing }, RULES));
    let mut comparison = Comparison::behind_rekey(logs, Some(WINDOW_MS), &scratch);
    for at in 0..records {
        let number = at.to_le_bytes();
        let headers = vec![(&b"source"[..], Some(&number[..]))];
        let fields = Fields { headers, timestamp_ms: Some(at.cast_signed()), ..Fields::default() };
        let is_hot = at % 10 == 7;
        let id = if is_hot { HOT } else { at / 2 };
        let partition = u32::try_from(at % u64::from(PARTITIONS)).unwrap();
        let seen = prints.seen(at, Some(&id.to_le_bytes()), &fields);
        comparison.raw(partition, &seen, Part::Within).unwrap();
        if at == 57 || at % 2 == 1 && !is_hot || at % 10 == 6 {
            comparison.clean(PARTITIONS + u32::try_from(at % 3).unwrap(), &seen).unwrap();
        }
    }
    let outcomes = comparison.finish(&mut UnmatchedRecords::new(&scratch)).unwrap();
    let mut counts = Counts::default();
    for outcome in outcomes.values() {
        counts += outcome.counts;
    }
    println!("{records} records: {} bytes per record in files, {counts}", scratch.written() / records);
    (counts, PEAK.load(Ordering::Relaxed) - before)
}

#[test]
fn several_topics_are_compared_within_the_bound() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for records in [100_000, 1_000_000] {
        let (counts, peak) = compare_behind_rekey(records);
        println!("{records} records: {peak} bytes");
        assert!(peak <= MEMORY && counts == Counts::default(), "{peak} bytes of {MEMORY}: {counts}");
    }
}

#[test]
fn all_partitions_of_a_topic_are_compared_within_the_bound() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for is_wrong in [false, true] {
        let (_, small) = compare_topic(100_000, is_wrong);
        let (counts, large) = compare_topic(1_000_000, is_wrong);
        println!("wrong: {is_wrong}, {small} bytes, then {large}");
        assert!(small <= MEMORY && large <= MEMORY, "{small} and {large} bytes of {MEMORY}");
        assert_eq!(counts == Counts::default(), !is_wrong, "{counts}");
        if is_wrong {
            let found = [counts.duplicated, counts.lost, counts.phantom];
            assert!(found.iter().all(|count| *count > 50_000), "{counts}");
        }
    }
}
