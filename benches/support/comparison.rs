//! Throughput and memory of the comparison of `audit`: one partition of synthetic records, 10 % of them repeats; no broker.

use dedupd::clock::monotonic;
use dedupd_audit::{
    Comparison, Counts, Fields, Fingerprints, Gone, MissingId, Part, PartitionOptions, Rules, Scratch, Seen,
    UnmatchedRecords,
};

use super::support::peak_memory;

/// Compares as many millions of records, with as many MiB of memory, as the numbers among the arguments (default 10 and 256).
pub fn run(arguments: &[String]) {
    let mut numbers = arguments.iter().filter_map(|arg| arg.parse::<u64>().ok());
    let (millions, mib) = (numbers.next().unwrap_or(10), numbers.next().unwrap_or(256));
    let records = millions * 1_000_000;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let scratch = Scratch::new(dir.path(), usize::try_from(mib << 20).unwrap());
    let prints = Fingerprints::new(fastrand::u128(..));
    let mut comparison = Comparison::new(
        PartitionOptions { partition: 0, samples: 10, gone: Gone::Nothing },
        Rules {
            window_ms: None,
            latest_ms: i64::MAX,
            missing_id: MissingId::Forwarded,
            due_below: u64::MAX,
            whole_from: 0,
            longest_ms: None,
            context_cut: false,
            from_ms: None,
        },
        &scratch,
    );
    let start = monotonic();
    let mut clean = 0;
    for at in 0..records {
        comparison.raw(0, &record(&prints, at, at), Part::Within).unwrap();
        if at % 10 != 9 {
            comparison.clean(0, &record(&prints, clean, at)).unwrap();
            clean += 1;
        }
    }
    let read = start.elapsed();
    let outcomes = comparison.finish(&mut UnmatchedRecords::new(&scratch)).unwrap();
    let outcome = &outcomes[&0];
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!((outcome.counts, outcome.raw.duplicates), (Counts::default(), records / 10));
    let both = (records + clean) as f64;
    println!("{:44} {both:>14.0}", "records of raw and clean");
    println!("{:44} {:>14.0}", "records per second, sorted and compared", both / seconds);
    println!("{:44} {:>14.1}", "time until all records were read, s", read.as_secs_f64());
    println!("{:44} {:>14.1}", "total time, s", seconds);
    println!(
        "{:44} {:>14.0}",
        "bytes through temporary files per raw record",
        scratch.written() as f64 / records as f64
    );
    let peak = peak_memory(std::process::id());
    println!("{:44} {peak:>14.0}", format!("peak resident memory, MiB, limit {mib}"));
}

/// The record of raw offset `at` with its offset set to `offset`. Every tenth record repeats the previous one.
fn record(prints: &Fingerprints, offset: u64, at: u64) -> Seen {
    let id = format!("order-{}", if at % 10 == 9 { at - 1 } else { at });
    let value = [0x61_u8; 200];
    let timestamp_ms = Some(i64::try_from(at).unwrap());
    let fields = Fields { key: Some(id.as_bytes()), value: Some(&value), timestamp_ms, ..Fields::default() };
    prints.seen(offset, Some(id.as_bytes()), &fields)
}
