//! The arenas of the C library's allocator.
//!
//! By default glibc makes up to eight arenas for each core, and memory that is freed in one is not used by another. The client has a
//! thread for each broker, and each slice is written in a thread of its own. So a process whose window was filled with 40 million ids took
//! 848 MiB, and 483 MiB with two arenas, at a rate that was not lower (docs/benches.md).

/// Limits the number of arenas to one more than the workers. Must be called before other threads are started. Returns false where
/// the allocator has no such limit.
#[cfg_attr(
    all(target_os = "linux", target_env = "gnu"),
    expect(unsafe_code, reason = "mallopt is a function of the C library")
)]
pub(super) fn limit(workers: usize) -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let arenas = i32::try_from(workers).unwrap_or(i32::MAX).saturating_add(1);
        // SAFETY: it sets a number of the allocator, under a lock of its own.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, arenas) == 1 }
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
    fn the_allocator_accepts_the_limit() {
        assert!(super::limit(8));
    }
}
