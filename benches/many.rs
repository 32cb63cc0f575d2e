//! Many small topics, one process each: `cargo bench --bench many`.
//!
//! `DEDUPD_BENCH_TOPICS` (default 40) raw topics with `DEDUPD_BENCH_PARTITIONS` (default 6) partitions and
//! `DEDUPD_BENCH_RECORDS` (default 10,000) records each. One process with one worker processes a topic, with the default
//! settings. Measured are memory and the CPU time of idle processes and of the broker: one process, all, and all with a spare each.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a bench fails by panicking"
)]

mod support;

use std::time::Duration;

use dedupd::clock::monotonic;

use support::harness::{Kafka, Pipe, Running, wait_until};
use support::spent::cpu_time;
use support::traffic::{Shape, Traffic, fill};
use support::{broker, machine, peak_memory, setting, with_default_timeouts};

const LIMIT: Duration = Duration::from_mins(5);
/// The time after the last start in which the processes become idle.
const SETTLE: Duration = Duration::from_secs(10);
/// Time over which the CPU of idle processes is measured.
const IDLE: Duration = Duration::from_secs(30);

fn main() {
    println!("{}", machine());
    let topics: usize = setting("DEDUPD_BENCH_TOPICS", 40);
    let partitions: usize = setting("DEDUPD_BENCH_PARTITIONS", 6);
    let records: u64 = setting("DEDUPD_BENCH_RECORDS", 10_000);
    println!("{topics} topics with {partitions} partitions and {records} records each, 10 % repeats");
    let kafka = broker();
    let pipes: Vec<Pipe<'_>> = (0..topics)
        .map(|number| {
            let pipe = Pipe::new(&kafka, &format!("many-{number:02}"), partitions);
            fill(&kafka, &pipe.raw, traffic(records, partitions));
            pipe
        })
        .collect();
    measure(&kafka, &[], "no process");
    let mut active: Vec<Running> = Vec::new();
    for count in [1, topics] {
        let began = monotonic();
        active.extend(pipes[active.len()..count].iter().map(|pipe| start(pipe, "a")));
        for process in &active {
            process.wait_running(partitions, LIMIT);
        }
        println!("{count} processed their topics {:.1} s after the start", began.elapsed().as_secs_f64());
        for pipe in &pipes[..count] {
            pipe.wait_caught_up(partitions, LIMIT);
        }
        measure(&kafka, &active, &format!("{count} active"));
    }
    let spares: Vec<Running> = pipes.iter().map(|pipe| start(pipe, "b")).collect();
    for spare in &spares {
        wait_until("the spares", LIMIT, || spare.has_role("spare").then_some(()));
    }
    measure(&kafka, &spares, &format!("{topics} spares, beside the active ones"));
    for process in spares.iter().chain(&active) {
        assert_eq!(process.ended(), None, "{}", process.text());
    }
}

fn traffic(records: u64, partitions: usize) -> Traffic {
    Traffic {
        shape: Shape::Json,
        records,
        partitions: i32::try_from(partitions).unwrap(),
        repeats_percent: 10,
        repeats_among: u64::MAX,
        are_repeats_anywhere: false,
        value_bytes: Shape::Json.value_bytes(),
    }
}

fn start(pipe: &Pipe<'_>, instance: &str) -> Running {
    with_default_timeouts(pipe.sidecar(instance)).start()
}

/// Prints memory and CPU time of idle processes, the average of a process.
fn measure(kafka: &Kafka, processes: &[Running], what: &str) {
    std::thread::sleep(SETTLE);
    let spent = || -> (Duration, Duration) {
        let all = processes.iter().map(|process| cpu_time(process.pid())).sum();
        (all, cpu_time(kafka.pid().unwrap()))
    };
    let (began, before) = (monotonic(), spent());
    std::thread::sleep(IDLE);
    let (elapsed, after) = (began.elapsed().as_secs_f64(), spent());
    let share =
        |before: Duration, after: Duration| (after.as_secs_f64() - before.as_secs_f64()) / elapsed * 100.0;
    let broker = share(before.1, after.1);
    if processes.is_empty() {
        println!("{what}: the broker {broker:.1} % of a core");
        return;
    }
    let count = processes.len() as f64;
    let average = |value: &dyn Fn(u32) -> f64| {
        processes.iter().map(|process| value(process.pid())).sum::<f64>() / count
    };
    println!(
        "{what}: each RSS {:.1} MiB, PSS {:.1} MiB, at most {:.1} MiB, {:.2} % of a core; together PSS {:.0} MiB, {:.1} % of a \
         core; the broker {broker:.1} %",
        average(&|pid| memory(pid, "Rss:")),
        average(&|pid| memory(pid, "Pss:")),
        average(&peak_memory),
        share(before.0, after.0) / count,
        average(&|pid| memory(pid, "Pss:")) * count,
        share(before.0, after.0),
    );
}

/// A value of the memory of a process, in MiB. Pss counts a page that several processes share in parts.
fn memory(pid: u32, name: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a line with this name");
    line.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1024.0
}
