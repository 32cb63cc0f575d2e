//! Memory, disk space and open files during steady traffic: `cargo bench --bench steady`.
//!
//! With the defaults a slice is sealed every five minutes and expires 15 minutes later: the window is 20 minutes, and 243 records/s, of
//! which a tenth are duplicates, fill the smallest slice in five minutes. `DEDUPD_BENCH_SECONDS` (default 3,600),
//! `DEDUPD_BENCH_RATE` and `DEDUPD_WINDOW__EXACT` change that.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a bench fails by panicking"
)]

mod support;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use dedupd::clock::monotonic;

use support::files::size_of_files;
use support::harness::{Pipe, Running, wait_until};
use support::spent::cpu_time;
use support::traffic::{Filler, Shape, Traffic};
use support::{broker, machine, resident_memory, setting, with_default_timeouts};

const PARTITIONS: usize = 12;
const LIMIT: Duration = Duration::from_mins(1);
const SECOND: Duration = Duration::from_secs(1);
/// Rows of the table.
const ROWS: u64 = 12;

fn main() {
    println!("{}", machine());
    let (rate, seconds): (u64, u64) =
        (setting("DEDUPD_BENCH_RATE", 243), setting("DEDUPD_BENCH_SECONDS", 3_600));
    let window = setting("DEDUPD_WINDOW__EXACT", "20m".to_owned());
    let kafka = broker();
    let pipe = Pipe::new(&kafka, "steady", PARTITIONS);
    let sidecar = with_default_timeouts(pipe.sidecar("a")).with("DEDUPD_WINDOW__EXACT", &window);
    let running = sidecar.start();
    running.wait_ready(LIMIT);
    let mut filler = Filler::new(&kafka, &pipe.raw, traffic());
    println!("{rate} records/s for {seconds} s, window.exact {window}");
    let (began, mut rows) = (monotonic(), Vec::new());
    for second in 1..=seconds {
        filler.send(rate);
        let until = SECOND * u32::try_from(second).unwrap();
        std::thread::sleep(until.saturating_sub(began.elapsed()));
        if second % (seconds / ROWS).max(1) == 0 {
            let row = Row::of(&running, &sidecar.state_dir);
            println!("{:>3} min: {row}", second / 60);
            rows.push(row);
        }
    }
    wait_until("all records to be processed", LIMIT, || {
        (["forwarded", "duplicate", "conflict"].map(|it| running.outcome(it)).iter().sum::<u64>()
            == filler.records())
        .then_some(())
    });
    assert_eq!(running.outcome("forwarded"), filler.ids(), "one record of each id is forwarded");
    let later = &rows[rows.len() / 2..];
    let range = |value: fn(&Row) -> f64| {
        let values = later.iter().map(value);
        let (lowest, highest) = (values.clone().fold(f64::MAX, f64::min), values.fold(0.0, f64::max));
        format!("{lowest:.1} to {highest:.1}")
    };
    println!(
        "second half: resident {} MiB, state {} MB, files {}, threads {}",
        range(|row| row.resident_mib),
        range(|row| row.state_mb),
        range(|row| row.files),
        range(|row| row.threads)
    );
    let cpu = cpu_time(running.pid()).as_secs_f64() / began.elapsed().as_secs_f64();
    println!("CPU {:.1} % of a core", 100.0 * cpu);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

/// What the process uses at one time.
struct Row {
    ids: f64,
    sealed: f64,
    resident_mib: f64,
    state_mb: f64,
    files: f64,
    threads: f64,
}

impl Row {
    fn of(running: &Running, state: &Path) -> Self {
        let process = Path::new("/proc").join(running.pid().to_string());
        let entries = |name: &str| std::fs::read_dir(process.join(name)).map_or(0, Iterator::count) as f64;
        let page = running.get("/metrics").expect("the metrics page");
        let sum = |name: &str| {
            let values = page.lines().filter(|line| line.starts_with(name));
            values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
        };
        Self {
            ids: sum("dedupd_window_ids{"),
            sealed: sum("dedupd_sealed_ids_total"),
            resident_mib: resident_memory(running.pid()),
            state_mb: size_of_files(state, &|_| true) as f64 / 1e6,
            files: entries("fd"),
            threads: entries("task"),
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{:.0} ids in the window, {:.0} sealed so far; resident {:.1} MiB, state {:.1} MB, {} files, {} threads",
            self.ids, self.sealed, self.resident_mib, self.state_mb, self.files, self.threads
        )
    }
}

fn traffic() -> Traffic {
    Traffic {
        shape: Shape::Json,
        records: 0,
        partitions: i32::try_from(PARTITIONS).unwrap(),
        repeats_percent: 10,
        repeats_among: 50_000,
        are_repeats_anywhere: true,
        value_bytes: Shape::Json.value_bytes(),
    }
}
