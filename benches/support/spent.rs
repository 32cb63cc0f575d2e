//! Clocks of the benches: CPU time of a thread and of a process.
#![allow(dead_code, reason = "each bench uses its own part")]

use std::time::Duration;

/// CPU time of this thread in seconds; elapsed time where the system does not report it.
pub fn spent() -> f64 {
    static START: std::sync::LazyLock<std::time::Instant> =
        std::sync::LazyLock::new(dedupd::clock::monotonic);
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = schedstat.and_then(|text| text.split(' ').next().and_then(|word| word.parse().ok()));
    nanos.map_or_else(|| START.elapsed(), Duration::from_nanos).as_secs_f64()
}

/// User and system time of a process. Linux counts it in units of 10 ms.
pub fn cpu_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a running process");
    // The second field is the name in parentheses, which may contain spaces. The fields after it start at number 3.
    let (_, fields) = stat.rsplit_once(')').expect("a stat line");
    let ticks = fields.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().unwrap());
    Duration::from_millis(ticks.sum::<u64>() * 10)
}
