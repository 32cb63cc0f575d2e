//! Memory and CPU time of this process, from `/proc`. On systems other than Linux they stay 0.

use std::fs;
use std::sync::Mutex;

use prometheus::Registry;

use super::registered::set;
use super::table::ProcessMetrics;

/// Ticks per second in `/proc/self/stat`: `USER_HZ`, 100 on every Linux that Rust supports.
const TICKS: f64 = 100.0;

/// Locked while the difference to the last value is added to a counter.
static ADDING: Mutex<()> = Mutex::new(());

impl ProcessMetrics {
    pub(super) fn of_this_build(registry: &Registry) -> Self {
        let metrics = Self::new(registry);
        set(&metrics.build, env!("CARGO_PKG_VERSION"), 1.0);
        metrics
    }

    /// Reads memory and CPU time.
    pub(super) fn read(&self) {
        if let Some(bytes) =
            fs::read_to_string("/proc/self/status").ok().and_then(|text| resident_bytes(&text))
        {
            self.resident.set(bytes);
        }
        let seconds = fs::read_to_string("/proc/self/stat").ok().and_then(|text| cpu_seconds(&text));
        if let (Some(seconds), Ok(_alone)) = (seconds, ADDING.lock()) {
            self.cpu.inc_by((seconds - self.cpu.get()).max(0.0));
        }
    }
}

/// `VmRSS` of `/proc/self/status`, which is in kB whatever the page size.
fn resident_bytes(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024.0)
}

/// Fields 14 and 15 of `/proc/self/stat`, counted after the name, which may contain blanks.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: Vec<f64> =
        fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse().ok()).collect();
    (ticks.len() == 2).then(|| ticks.iter().sum::<f64>() / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_proc_are_parsed() {
        assert_eq!(resident_bytes("VmHWM:\t   20 kB\nVmRSS:\t   12 kB\n"), Some(12_288.0));
        assert_eq!(resident_bytes("VmHWM:\t 20 kB\n"), None);
        let stat = "42 (a) b) S 1 42 42 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 1 0 100 0 0";
        assert_eq!(cpu_seconds(stat), Some(3.0));
        assert_eq!(cpu_seconds("42 (x) S 1"), None);
    }
}
