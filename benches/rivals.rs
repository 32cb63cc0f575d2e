//! The decisions of dedupd compared with common alternatives, in one run: the same records in the same transactions.
//!
//! `cargo bench --bench rivals [-- <million ids>... <part of a name>...]`; without arguments 1 and 20 M ids and all
//! contestants. `scripts/count-cache-misses` counts instructions and cache misses of the contestants in memory.
//!
//! A round measures every contestant once; the result is the median of three rounds. Windows of 50 M ids and more
//! would take 20 GB together, so there each contestant runs its rounds alone. Rates are per CPU time of all threads:
//! time spent waiting for the disk does not count, time of background threads does.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a measurement fails by panicking"
)]

#[path = "support/allocated.rs"]
mod allocated;
#[path = "support/callgrind.rs"]
mod callgrind;
#[path = "support/contest.rs"]
mod contest;
#[path = "support/files.rs"]
mod files;
#[path = "support/ledger.rs"]
mod ledger;
#[path = "support/naive.rs"]
mod naive;
#[path = "support/ours.rs"]
mod ours;
#[path = "support/sealed.rs"]
mod sealed;
#[path = "support/spent.rs"]
mod spent;
#[path = "support/stream.rs"]
mod stream;

use std::path::Path;

use callgrind::{Request, send};
use contest::{Contestant, DUPLICATES_PERCENT, Entry, TRANSACTION};
use ledger::Array;
use naive::{Queued, Records, RotatingFilters};
use ours::{Ours, Stored};
use sealed::Sealed;

const ROUNDS: usize = 3;
/// From this number of ids on, contestants run one at a time.
const ALONE: u64 = 50_000_000;
/// Records per round for contestants that work mostly in memory, and for the slow ones.
const ROUND: u64 = 4_000_000;
const SLOW_ROUND: u64 = 500_000;
const SLOWEST_ROUND: u64 = 100_000;
/// Maximum number of ids for stores with one record per id, which use much memory: sled used 10 GB for 3 M ids.
const REDB_MAX_IDS: u64 = 2_000_000;
const SLED_MAX_IDS: u64 = 200_000;
/// Configured false-positive rate.
const RATE: f64 = 1e-9;

type Xxh3 = xxhash_rust::xxh3::Xxh3DefaultBuilder;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if let [count, name, millions] = &words[..]
        && count == "count"
    {
        return counted(name, millions.parse::<f64>().expect("million ids"));
    }
    let sizes: Vec<u64> = words.iter().filter_map(|word| word.parse().ok()).collect();
    let named: Vec<&str> =
        words.iter().map(String::as_str).filter(|word| word.parse::<u64>().is_err()).collect();
    println!(
        "transactions of {TRANSACTION} records, {DUPLICATES_PERCENT} % of them duplicates, mostly of recent records\n\
         (each power of two of distance is equally likely); median of {ROUNDS} rounds with lowest and highest"
    );
    if !sizes.contains(&100) {
        println!("100 M ids: cargo bench --bench rivals -- 100");
    }
    for millions in if sizes.is_empty() { vec![1, 20] } else { sizes } {
        contest(millions * 1_000_000, &named);
    }
}

fn contest(ids: u64, named: &[&str]) {
    println!("\n{} M ids in the window:", ids / 1_000_000);
    println!("  {:<44} {:>9}  M decisions/s per core    bytes per id: memory, disk", "", "M ids");
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut entries = entries(ids, dir.path());
    entries.retain(|(name, _)| named.is_empty() || named.iter().any(|part| name.contains(part)));
    if ids >= ALONE {
        for (_, make) in entries {
            let mut entry = make();
            (0..ROUNDS).for_each(|_| entry.measure());
            report(&mut entry);
        }
        return;
    }
    let mut entries: Vec<Entry> = entries.into_iter().map(|(_, make)| make()).collect();
    for _ in 0..ROUNDS {
        entries.iter_mut().for_each(Entry::measure);
    }
    for entry in &mut entries {
        report(entry);
    }
}

/// A contestant's name, and a function that creates it and fills its window.
type Make<'a> = (&'static str, Box<dyn FnOnce() -> Entry + 'a>);

fn entries(ids: u64, dir: &Path) -> Vec<Make<'_>> {
    let few = ids.min(REDB_MAX_IDS);
    let fewest = ids.min(SLED_MAX_IDS);
    let records = ids * 100 / (100 - DUPLICATES_PERCENT);
    let stored = || Stored::below(dir);
    vec![
        filled("dedupd, exact; owners in an array", ROUND, 1, move |name| exact(name, ids)),
        filled("dedupd, exact; owners in its store", ROUND, 1, move |name| Ours::exact(name, ids, stored())),
        filled(
            "dedupd, 1/10 exact, 10 sealed slices; its store",
            whole_slices(records, 10),
            2,
            move |name| Sealed::window(dir, name, ids, records, 10),
        ),
        filled("dedupd, 1/3 exact, 3 sealed slices; its store", whole_slices(records, 3), 2, move |name| {
            Sealed::window(dir, name, ids, records, 3)
        }),
        filled("HashSet with xxh3, and a queue", ROUND, 1, move |name| xxh3(name, ids)),
        filled("hashbrown with its own hasher, and a queue", ROUND, 1, move |name| foldhash(name, ids)),
        filled("fastbloom, 8 rotating filters", ROUND, 1, move |name| RotatingFilters::new(name, ids, RATE)),
        filled("redb, one record per id", SLOW_ROUND, 1, move |name| {
            Records::<redb::Database>::below(dir, name, few)
        }),
        filled("sled, one record per id", SLOWEST_ROUND, 1, move |name| {
            Records::<sled::Db>::below(dir, name, fewest)
        }),
    ]
}

/// Records of a round in which a whole number of slices is sealed, of `count` in a window: the rate includes building them.
fn whole_slices(records: u64, count: u64) -> u64 {
    let slice = records / count;
    ROUND.div_ceil(slice) * slice
}

fn filled<'a, C: Contestant + 'static>(
    name: &'static str,
    round: u64,
    windows: u64,
    make: impl FnOnce(&'static str) -> C + 'a,
) -> Make<'a> {
    (name, Box::new(move || Entry::filled(|| Box::new(make(name)), round, windows)))
}

fn exact(name: &'static str, ids: u64) -> Ours<Array> {
    Ours::exact(name, ids, Array::default())
}

fn xxh3(name: &'static str, ids: u64) -> impl Contestant + 'static {
    let set = std::collections::HashSet::with_capacity_and_hasher(ids as usize, Xxh3::new());
    Queued::new(name, ids, set)
}

fn foldhash(name: &'static str, ids: u64) -> impl Contestant + 'static {
    let set = hashbrown::HashSet::with_capacity(ids as usize);
    Queued::new(name, ids, set)
}

fn report(entry: &mut Entry) {
    entry.rates.sort_by(f64::total_cmp);
    let ids = entry.contestant.ids() as f64;
    let disk =
        entry.contestant.disk_bytes().map_or("-".to_owned(), |bytes| format!("{:.1}", bytes as f64 / ids));
    let wrong = if entry.wrong > 0 { format!("  {} wrong", entry.wrong) } else { String::new() };
    println!(
        "  {:<44} {:>9.1}  {:>6.2} ({:.2} to {:.2}) {:>14.1} {disk:>8}{wrong}",
        entry.contestant.name(),
        ids / 1e6,
        entry.rates[ROUNDS / 2] / 1e6,
        entry.rates[0] / 1e6,
        entry.rates[ROUNDS - 1] / 1e6,
        entry.bytes as f64 / ids,
    );
}

/// Ten transactions of one contestant under callgrind, after ten that fill the simulated caches.
fn counted(name: &str, millions: f64) {
    #[expect(clippy::cast_sign_loss, reason = "a size")]
    let ids = (millions * 1e6) as u64;
    let make = || -> Box<dyn Contestant> {
        match name {
            "exact" => Box::new(exact("exact", ids)),
            "xxh3" => Box::new(xxh3("xxh3", ids)),
            "hashbrown" => Box::new(foldhash("hashbrown", ids)),
            "fastbloom" => Box::new(RotatingFilters::new("fastbloom", ids, RATE)),
            _ => panic!("exact, xxh3, hashbrown or fastbloom, not {name}"),
        }
    };
    let mut entry = Entry::filled(make, ROUND, 1);
    let batches: Vec<_> = (0..20)
        .map(|_| {
            let mut records = Vec::new();
            let expected = entry.draw(&mut records);
            (records, expected)
        })
        .collect();
    let mut judge = |(records, expected): &(Vec<_>, u64)| entry.judge(records, *expected);
    send(Request::StartInstrumentation);
    let mut wrong = batches[..10].iter().map(&mut judge).sum::<u64>();
    send(Request::ZeroStats);
    wrong += batches[10..].iter().map(&mut judge).sum::<u64>();
    send(Request::StopInstrumentation);
    println!("counted {} records, {wrong} of them new and wrongly dropped", 10 * TRANSACTION);
}
