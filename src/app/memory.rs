//! The memory limit of the container or service unit, or else half of the memory of the machine, from which `window.max_memory` follows if it is
//! not set. What happens to be free does not count: the window would depend on the moment of the start.

use std::fs;
use std::path::Path;

use super::assembly::limits;
use crate::config::{Config, duration_text, size_text};

const MIB: u64 = 1 << 20;
/// Memory of the process beside its windows, and of each worker for batches and client buffers.
const PROCESS: u64 = 256 * MIB;
const WORKER: u64 = 64 * MIB;
/// The smallest value of `window.max_memory`.
const LEAST: u64 = 16 * MIB;
/// The kernel reports a number near 2⁶³ where no limit is set (control groups of version 1).
const UNLIMITED: u64 = 1 << 60;

/// Sets `window.max_memory`, unless it is set, to what the memory limit of this process leaves: that of its control group, or half of the machine's
/// memory. Logs all limits on the windows, what fits into them, and limits that exceed the machine.
#[must_use]
pub fn within_memory_limit(mut config: Config) -> Config {
    let read = |path: &Path| fs::read_to_string(path).ok();
    let of_group = group_limit(&read(Path::new("/proc/self/cgroup")).unwrap_or_default(), read);
    let of_machine = machine_memory(&read(Path::new("/proc/meminfo")).unwrap_or_default());
    let mut source = "window.max_memory".to_owned();
    if config.window.max_memory.is_none() {
        let in_group = of_group.map(|limit| (limit, "the memory limit of the control group"));
        let found = in_group.or_else(|| Some((of_machine? / 2, "half of the memory of the machine")));
        config.window.max_memory = found.map(|(limit, _)| window_memory(limit, config.group.workers));
        let text = |(limit, what)| format!("{what}, {}", size_text(limit / MIB * MIB));
        source = found.map_or("unknown: no limit".to_owned(), text);
        if config.window.max_memory == Some(LEAST) {
            tracing::warn!(
                "the windows get {}, the least possible, from {source}; raise the limit, or they may be shorter than configured",
                size_text(LEAST)
            );
        }
    }
    let available = of_group.into_iter().chain(of_machine).min();
    for warning in exceeded(&config, available, volume_size(&config.state.dir)) {
        tracing::warn!("{warning}");
    }
    let size = |bytes: Option<u64>| bytes.map_or("none".to_owned(), size_text);
    let (window, ids) = (&config.window, limits(&config).fitting(1));
    let kept = window.exact.max(window.bloom);
    tracing::info!(
        max_memory = size(window.max_memory),
        memory_from = source,
        max_ids = window.max_ids.map_or("none".to_owned(), |ids| ids.to_string()),
        max_disk = size(config.state.max_disk),
        ids_that_fit = ids,
        window = duration_text(kept),
        new_ids_per_second = ids / kept.as_secs().max(1),
        "limits"
    );
    config
}

/// The limits that are larger than what they limit, as sentences.
fn exceeded(config: &Config, memory: Option<u64>, volume: Option<u64>) -> Vec<String> {
    let text = |bytes: u64| size_text(bytes / MIB * MIB);
    let (windows, cache) = (config.window.max_memory.unwrap_or(0), config.state.cache);
    let of_memory = memory.filter(|memory| windows.saturating_add(cache) > *memory).map(|memory| {
        format!(
            "window.max_memory = {} and state.cache = {} exceed the memory that this process can get, {}: the kernel may end it \
             before the limits apply; lower them",
            text(windows),
            text(cache),
            text(memory)
        )
    });
    let disk = config.state.max_disk.zip(volume).filter(|(disk, volume)| disk > volume);
    let of_disk = disk.map(|(disk, volume)| {
        format!(
            "state.max_disk = {} exceeds the size of the volume of state.dir, {}: the volume is full before the limit applies; \
             lower it",
            text(disk),
            text(volume)
        )
    });
    of_memory.into_iter().chain(of_disk).collect()
}

/// Bytes of the volume of a directory, which need not exist yet.
fn volume_size(dir: &Path) -> Option<u64> {
    let path = std::path::absolute(dir).ok()?;
    let volume = path.ancestors().find_map(|path| rustix::fs::statvfs(path).ok())?;
    volume.f_blocks.checked_mul(volume.f_frsize)
}

/// Bytes of memory of the machine, by `/proc/meminfo`.
fn machine_memory(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1_024)
}

/// Bytes for index and filters under a memory limit: four fifths of what it leaves beside the process, because the allocator keeps some
/// of the memory that was freed. In whole MiB; at least 16.
#[must_use]
pub fn window_memory(limit: u64, workers: usize) -> u64 {
    let rest = limit.saturating_sub(PROCESS + WORKER.saturating_mul(workers as u64));
    (rest / 5 * 4 / MIB * MIB).max(LEAST)
}

/// The lowest memory limit of the control groups in `/proc/self/cgroup` and of their parents, in bytes. A container sees its own
/// group as the root, although the path may be that of the host.
fn group_limit(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let limits = groups.lines().flat_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        };
        let has_memory = controllers.is_empty() || controllers.split(',').any(|name| name == "memory");
        let parents = Path::new(path).ancestors().filter(move |_| has_memory);
        parents.map(move |group| {
            Path::new(root).join(group.strip_prefix("/").unwrap_or(Path::new(""))).join(file)
        })
    });
    let limits = limits.filter_map(|path| read(&path)?.trim().parse().ok());
    limits.filter(|limit| *limit < UNLIMITED).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{AsTyped, ConfigSources};

    fn limit(groups: &str, files: &[(&str, &str)]) -> Option<u64> {
        group_limit(groups, |path| {
            files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| format!("{text}\n"))
        })
    }

    #[test]
    fn the_lowest_limit_of_the_group_and_its_parents_counts() {
        let unit = "0::/system.slice/dedupd.service";
        let files = [
            ("/sys/fs/cgroup/system.slice/dedupd.service/memory.max", "max"),
            ("/sys/fs/cgroup/system.slice/memory.max", "3000000000"),
            ("/sys/fs/cgroup/system.slice/memory.high", "1"),
        ];
        assert_eq!(limit(unit, &files), Some(3_000_000_000));
        assert_eq!(limit("0::/", &[("/sys/fs/cgroup/memory.max", "536870912")]), Some(512 * MIB));
        assert_eq!(limit("0::/", &[("/sys/fs/cgroup/memory.max", "max")]), None);
        assert_eq!(limit("0::/", &[]), None);
        assert_eq!(limit("", &files), None);
        assert_eq!(limit("nonsense", &files), None);
    }

    #[test]
    fn control_groups_of_version_1_count_by_their_memory_controller() {
        let groups = "5:cpu,cpuacct:/kubepods/pod1/abc\n4:hugetlb,memory:/kubepods/pod1/abc\n0::/";
        let of_container = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824");
        assert_eq!(limit(groups, &[of_container]), Some(1 << 30), "the host's path is not visible");
        let none = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
        assert_eq!(limit(groups, &[none]), None);
        assert_eq!(limit("5:cpu:/abc", &[of_container]), None);
    }

    #[test]
    fn the_memory_of_a_machine_is_all_of_it_and_not_what_is_free() {
        let text = "MemTotal:        8039872 kB\nMemFree:          200000 kB\nMemAvailable:    3000000 kB\n";
        assert_eq!(machine_memory(text), Some(8_039_872 << 10));
        assert_eq!(["", "MemTotal: many kB", "MemFree: 7 kB"].map(machine_memory), [None; 3]);
    }

    #[test]
    fn limits_above_the_machine_are_reported() {
        let sources = ConfigSources {
            flags: AsTyped::default()
                .with("kafka.bootstrap_servers", ["b:1"])
                .with("topics.raw", ["r"])
                .with("topics.clean", ["c"])
                .with("identity.from", ["key"])
                .with("window.max_memory", ["3GiB"])
                .with("state.cache", ["2GiB"])
                .with("state.max_disk", ["5GiB"]),
            host: "h".to_owned(),
            ..ConfigSources::default()
        };
        let config = Config::from_sources(&sources).unwrap();
        assert_eq!(exceeded(&config, Some(5 << 30), Some(5 << 30)), Vec::<String>::new());
        assert_eq!(exceeded(&config, None, None), Vec::<String>::new());
        let [memory, disk] = exceeded(&config, Some(4 << 30), Some(4 << 30)).try_into().unwrap();
        assert!(memory.starts_with("window.max_memory = 3GiB and state.cache = 2GiB exceed"), "{memory}");
        assert!(disk.starts_with("state.max_disk = 5GiB exceeds") && disk.contains(", 4GiB: "), "{disk}");
        let dir = tempfile::tempdir().unwrap();
        assert!(volume_size(&dir.path().join("not/yet")).is_some_and(|size| size > 0));
    }

    #[test]
    fn the_documented_share_is_that_of_the_code() {
        assert_eq!(window_memory(PROCESS + WORKER + 1_000 * MIB, 1), 800 * MIB);
        for text in [
            include_str!("../../config/dedupd.toml"),
            include_str!("../../docs/kubernetes.md"),
            include_str!("../../deploy/helm/dedupd/values.yaml"),
        ] {
            let words: Vec<&str> = text.split_whitespace().filter(|word| *word != "#").collect();
            assert!(words.join(" ").contains("four fifths of what"), "{text}");
        }
    }

    #[test]
    fn the_windows_and_their_growth_fit_beside_the_process() {
        assert_eq!(window_memory(2 << 30, 1), 1_382 * MIB);
        assert_eq!(window_memory(512 * MIB, 1), 153 * MIB);
        assert_eq!(window_memory(512 * MIB, 2), 102 * MIB);
        assert_eq!(window_memory(256 * MIB, 1), LEAST);
        assert_eq!(window_memory(0, 8), LEAST);
    }
}
