//! Throughput, disk usage and memory of the local store: `cargo bench --bench store [millions of ids]` (default 8).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a bench fails by panicking"
)]

#[path = "support/files.rs"]
mod files;

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use dedupd::clock::monotonic;
use dedupd::dedupe::{Coordinates, Digest, Identity, OwnerRun, SealedRange, SliceMark, StoredOwner};
use dedupd::ports::{Head, SealJob, SealedLookup, Sealing, Store};
use dedupd::store::{Binding, OWNER_BYTES, SledStore, open};
use files::drop_cached;

const IDS_PER_BLOCK: u64 = 4_000;
const CACHE_BYTES: u64 = 64 << 20;
const DEADLINE: Duration = Duration::from_secs(30);
/// Sealed slices, and look-ups in them.
const SLICES: u64 = 4;
const SEALED_LOOKUPS: u64 = 16_000;
/// Partitions of the look-ups in many files.
const SPREAD: u32 = 12;

fn main() {
    let millions = std::env::args().skip(1).find_map(|arg| arg.parse::<u64>().ok()).unwrap_or(8);
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let total = millions * 1_000_000 / IDS_PER_BLOCK * IDS_PER_BLOCK;

    let mut store = opened(dir.path());
    let start = monotonic();
    for first in (0..total).step_by(usize::try_from(IDS_PER_BLOCK).unwrap()) {
        append(&mut store, 0, first, IDS_PER_BLOCK);
    }
    rate("append, blocks of 4,000 ids", total, "ids/s", start);
    let start = monotonic();
    store.sync().unwrap();
    println!("{:40} {:>12.1?}", "flush and fsync", start.elapsed());
    store.close().unwrap();

    let start = monotonic();
    let mut store = opened(dir.path());
    rate("reopen with verification", total, "ids/s", start);
    let start = monotonic();
    let mut seen = 0;
    let mut visit = |run: &OwnerRun<'_>| {
        seen += run.owners.len() as u64;
        Ok(())
    };
    store.scan(0.into(), &mut visit).unwrap();
    assert_eq!(seen, total);
    rate("scan of every identity", total, "ids/s", start);
    // The first commit after the start.
    append(&mut store, 0, total, 1);
    lookups(&store, (1, total), "owner, anywhere");
    lookups(&store, (1, 400_000), "owner, within 400,000 ids");
    let bytes = store.disk_bytes().unwrap();
    println!("{:40} {:>12.2} bytes", "disk per id", bytes as f64 / total as f64);
    store.close().unwrap();

    spread(total);
    sealed(total);
    merged(total);
    trickle();
    rolling(millions);
    println!("{:40} {:>12}", "peak resident memory", peak_resident());
}

/// A full rolling window: one partition, the oldest owners expire when new ones are appended.
fn rolling(millions: u64) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut store = opened(dir.path());
    let window = millions * 1_000_000 / 4;
    let total = window * 6;
    let start = monotonic();
    for first in (0..total).step_by(usize::try_from(IDS_PER_BLOCK).unwrap()) {
        append(&mut store, 0, first, IDS_PER_BLOCK);
        store.expire(0.into(), first.saturating_sub(window), 0).unwrap();
    }
    rate("append and expire, rolling window", total, "ids/s", start);
    store.sync().unwrap();
    let live = window as f64 * OWNER_BYTES as f64;
    println!(
        "{:40} {:>12.2} x live",
        "disk of the rolling window",
        store.disk_bytes().unwrap() as f64 / live
    );
    store.close().unwrap();
}

/// Look-ups among the ids of many partitions, each with files of its own.
fn spread(total: u64) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut store = opened(dir.path());
    for first in (0..total / u64::from(SPREAD)).step_by(usize::try_from(IDS_PER_BLOCK).unwrap()) {
        (0..SPREAD).for_each(|partition| append(&mut store, partition, first, IDS_PER_BLOCK));
    }
    lookups(&store, (SPREAD, total / u64::from(SPREAD)), "owner, anywhere in 12 partitions");
    store.close().unwrap();
}

/// Look-ups of identities that are in four sealed slices: a page for each, from the page cache or from the disk.
fn sealed(total: u64) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut store = opened(dir.path());
    let of_slice = total / SLICES / IDS_PER_BLOCK * IDS_PER_BLOCK;
    for first in (0..of_slice * SLICES).step_by(usize::try_from(of_slice).unwrap()) {
        let range = append_slice(&mut store, first..first + of_slice);
        store.begin_seal(SealJob { window: 0.into(), range, is_urgent: false }).unwrap();
        while store.poll_seal().unwrap() != Sealing::Idle {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    store.sync().unwrap();
    let known = of_slice * SLICES;
    in_slices(&store, (known, false), "sealed, pages in the page cache");
    for (ahead, what) in
        [(false, "sealed, from the disk, one by one"), (true, "sealed, from the disk, 64 together")]
    {
        drop_cached(dir.path());
        in_slices(&store, (known, ahead), what);
    }
    in_slices(&store, (known, true), "sealed, 64 together, pages in the cache");
    store.close().unwrap();
}

/// How fast slices are written, and merged when there are more than 24.
fn merged(total: u64) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut store = opened(dir.path());
    let of_slice = total / 8 / IDS_PER_BLOCK * IDS_PER_BLOCK;
    let mut time = [Duration::ZERO; 2];
    let (mut sealed, mut merged) = (0, 0);
    for first in (0..of_slice * 30).step_by(usize::try_from(of_slice).unwrap()) {
        let range = append_slice(&mut store, first..first + of_slice);
        let (mut start, mut slices) = (monotonic(), store.sealed(0.into()).len());
        store.begin_seal(SealJob { window: 0.into(), range, is_urgent: false }).unwrap();
        loop {
            match store.poll_seal().unwrap() {
                Sealing::Done(_) => {
                    sealed += of_slice;
                    time[0] += start.elapsed();
                    (start, slices) = (monotonic(), store.sealed(0.into()).len());
                }
                Sealing::Busy => std::thread::sleep(Duration::from_millis(1)),
                Sealing::Failed | Sealing::Paused => panic!("a slice was discarded"),
                Sealing::Idle => break,
            }
        }
        let ranges = store.sealed(0.into());
        if ranges.len() < slices {
            // The slices that were merged are one range now.
            merged += ranges.iter().map(SealedRange::owners).max().unwrap();
            time[1] += start.elapsed();
        }
    }
    for (what, ids, time) in [("seal", sealed, time[0]), ("merge", merged, time[1])] {
        println!("{what:40} {:>12.0} ids/s", ids as f64 / time.as_secs_f64());
    }
    store.close().unwrap();
}

/// Appends owners with these numbers, and returns them as owners to seal.
fn append_slice(store: &mut SledStore, owners: Range<u64>) -> SealedRange {
    let Range { start: first, end: next } = owners;
    let blocks = (first..next).step_by(usize::try_from(IDS_PER_BLOCK).unwrap());
    blocks.for_each(|first| append(store, 0, first, IDS_PER_BLOCK));
    let marks = vec![SliceMark { next, count: next - first, time_ms: (0, 0) }];
    SealedRange { first, next, marks }
}

fn in_slices(store: &SledStore, (known, ahead): (u64, bool), what: &str) {
    let (count, mut random) = (SEALED_LOOKUPS, fastrand::Rng::with_seed(2));
    let start = monotonic();
    let together = if ahead { 64 } else { 1 };
    for _ in 0..count / together {
        let mut lookup =
            || SealedLookup::new(0.into(), store.positions().key(identity(0, random.u64(0..known))));
        let mut lookups: Vec<_> = (0..together).map(|_| lookup()).collect();
        store.find_sealed(&mut lookups.iter_mut().collect::<Vec<_>>());
        for lookup in &lookups {
            assert_eq!(store.sealed_places(lookup).unwrap().owners.len(), 1);
        }
    }
    rate(what, count, "look-ups/s", start);
}

/// Many partitions with little traffic: one identity per block.
fn trickle() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut store = opened(dir.path());
    let (partitions, rounds) = (50u32, 2_000u64);
    let start = monotonic();
    for round in 0..rounds {
        for partition in 0..partitions {
            append(&mut store, partition, round, 1);
        }
    }
    rate("append, blocks of 1 id, 50 partitions", rounds * u64::from(partitions), "appends/s", start);
    println!("{:40} {:>12}", "disk after 100,000 appends", store.disk_bytes().unwrap());
    store.close().unwrap();
}

fn lookups(store: &SledStore, (partitions, range): (u32, u64), what: &str) {
    let count = 1_000_000;
    let mut random = fastrand::Rng::with_seed(1);
    let start = monotonic();
    for _ in 0..count {
        let (partition, offset) = (random.u32(0..partitions), random.u64(0..range));
        // Each offset has an owner, so that is its number too.
        let expected = Some(identity(partition, offset));
        let owner = store.owner(partition.into(), offset, expected).unwrap().unwrap();
        assert_eq!((owner.at.offset, owner.identity), (offset, expected));
    }
    rate(what, count, "look-ups/s", start);
}

fn opened(dir: &Path) -> SledStore {
    let binding = Binding { partitions: 50, ..Binding::default() };
    open(dir, &binding, CACHE_BYTES, DEADLINE).unwrap().store
}

fn append(store: &mut SledStore, partition: u32, first: u64, count: u64) {
    let time = i64::try_from(first / 100).unwrap();
    let owner = |offset| StoredOwner {
        at: Coordinates { partition, offset },
        time_ms: time,
        identity: Some(identity(partition, offset)),
        digest: Digest::NONE,
    };
    let owners: Vec<_> = (first..first + count).map(owner).collect();
    let head = Head { confirmed: first, state_next: first, time_ms: time, ..Head::default() };
    let run = OwnerRun { number: first, times_ms: (time, time), owners: &owners };
    store.append(partition.into(), &run, &head).unwrap();
}

fn identity(partition: u32, offset: u64) -> Identity {
    let mixed = (u128::from(offset) << 32 | u128::from(partition))
        .wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
    Identity(mixed.to_le_bytes())
}

fn rate(what: &str, count: u64, unit: &str, start: Instant) {
    println!("{what:40} {:>12.0} {unit}", count as f64 / start.elapsed().as_secs_f64());
}

fn peak_resident() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.map_or_else(|| "unknown".to_owned(), |kib| kib.trim().to_owned())
}
