//! The identification of this process, and its memory, CPU time, threads and files, from `/proc`. On systems other than Linux the
//! latter stay 0. Not the collector of the prometheus crate: it counts whole seconds of CPU time only.

use std::fs;
use std::sync::Mutex;

use super::status::About;
use super::table::ProcessMetrics;

/// Ticks per second in `/proc/self/stat`: `USER_HZ`, 100 on every Linux that Rust supports.
const TICKS: f64 = 100.0;

/// Locked while the difference to the last value is added to a counter.
static ADDING: Mutex<()> = Mutex::new(());

impl ProcessMetrics {
    /// Exports the identification, which does not change.
    pub(super) fn describe(&self, about: &About) {
        let About { version, group, instance, raw, clean, scope } = about;
        self.info.with_label_values(&[raw, clean, group, instance, scope, version]).set(1.0);
    }

    /// Reads what the system counts.
    pub(super) fn read(&self) {
        if let Some(bytes) =
            fs::read_to_string("/proc/self/status").ok().and_then(|text| resident_bytes(&text))
        {
            self.resident.set(bytes);
        }
        // Without the descriptor that lists them.
        if let Ok(files) = fs::read_dir("/proc/self/fd") {
            self.open_files.set(files.count().saturating_sub(1) as f64);
        }
        if let Some(most) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
            self.max_files.set(most as f64);
        }
        let Some(counted) =
            fs::read_to_string("/proc/self/stat").ok().and_then(|text| SystemFigures::read(&text))
        else {
            return;
        };
        self.virtual_memory.set(counted.virtual_bytes);
        self.threads.set(counted.threads);
        // It does not change, so it is read once.
        if self.started.get() <= 0.0
            && let Some(booted) = fs::read_to_string("/proc/stat").ok().and_then(|text| boot_time(&text))
        {
            self.started.set(booted + counted.started_after_boot);
        }
        if let Ok(_alone) = ADDING.lock() {
            self.cpu.inc_by((counted.cpu_seconds - self.cpu.get()).max(0.0));
        }
    }
}

/// What `/proc/self/stat` contains.
#[derive(Debug, PartialEq)]
struct SystemFigures {
    cpu_seconds: f64,
    threads: f64,
    started_after_boot: f64,
    virtual_bytes: f64,
}

impl SystemFigures {
    /// Fields 14, 15, 20, 22 and 23, counted after the name, which may contain blanks.
    fn read(stat: &str) -> Option<Self> {
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        Some(Self {
            cpu_seconds: (field(14)? + field(15)?) / TICKS,
            threads: field(20)?,
            started_after_boot: field(22)? / TICKS,
            virtual_bytes: field(23)?,
        })
    }
}

/// `VmRSS` of `/proc/self/status`, which is in kB whatever the page size.
fn resident_bytes(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024.0)
}

/// `btime` of `/proc/stat`, in seconds since 1970.
fn boot_time(stat: &str) -> Option<f64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_proc_are_parsed() {
        assert_eq!(resident_bytes("VmHWM:\t   20 kB\nVmRSS:\t   12 kB\n"), Some(12_288.0));
        assert_eq!(resident_bytes("VmHWM:\t 20 kB\n"), None);
        let stat = "42 (a) b) S 1 42 42 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 7 0 1200 4096 9";
        let counted =
            SystemFigures { cpu_seconds: 3.0, threads: 7.0, started_after_boot: 12.0, virtual_bytes: 4096.0 };
        assert_eq!(SystemFigures::read(stat), Some(counted));
        assert_eq!(SystemFigures::read("42 (x) S 1"), None);
        assert_eq!(boot_time("cpu 1 2\nbtime 1700000000\n"), Some(1_700_000_000.0));
    }
}
