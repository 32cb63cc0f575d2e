//! Settings of the C library's allocator.
//!
//! By default glibc makes up to eight arenas for each core, and memory that is freed in one is not used by another. The client has a
//! thread for each broker, and each slice is written in a thread of its own. And it returns a large block to the system when it is freed, but
//! the first time makes a limit of its size: smaller ones then come from the arenas, where a block that lives long keeps others below it.
//! So a process whose window was filled with 40 million ids took 848 MiB, and 483 MiB with two arenas; with 60 million it took 639 MiB, and
//! 553 MiB with a fixed limit.
//!
//! With two arenas the threads wait for each other: worker, client and sealing allocate at the same time. A block of the state topic, of which
//! each transaction sends one per partition, has 200 to 900 KiB: below the limit, so that its pages are not requested and returned each time.
//! With both, a record takes about a seventh less CPU time, and the process 6 % more memory with 40 million ids (docs/benches.md).

/// Arenas beside one for each worker. The threads of a process share them.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OTHER_ARENAS: i32 = 3;
/// Blocks of at least this many bytes are returned to the system when they are freed. A shard of a filter is larger, a record of the state
/// topic smaller.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE_BYTES: i32 = 1 << 20;
/// Free bytes at the end of an arena that are kept. Without this, a fixed limit of large blocks makes it 128 KiB, and small buffers would be
/// returned and requested again all the time.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT_BYTES: i32 = 16 << 20;

/// Limits the number of arenas, and returns large blocks. Must be called before other threads are started.
/// Returns false where the allocator has no such settings.
#[cfg_attr(
    all(target_os = "linux", target_env = "gnu"),
    expect(unsafe_code, reason = "mallopt is a function of the C library")
)]
pub(super) fn set_up(workers: usize) -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let arenas = i32::try_from(workers).unwrap_or(i32::MAX).saturating_add(OTHER_ARENAS);
        let settings = [
            (libc::M_ARENA_MAX, arenas),
            (libc::M_MMAP_THRESHOLD, LARGE_BYTES),
            (libc::M_TRIM_THRESHOLD, KEPT_BYTES),
        ];
        // SAFETY: it sets a number of the allocator, under a lock of its own.
        settings.into_iter().all(|(setting, value)| unsafe { libc::mallopt(setting, value) == 1 })
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    {
        let _ = workers;
        false
    }
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    #[test]
    fn the_allocator_accepts_the_settings() {
        assert!(super::set_up(8));
    }
}
