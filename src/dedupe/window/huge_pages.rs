//! Huge pages for large tables.
//!
//! A look-up reads a few cache lines of a large table, each in another page, so most of them miss in the processor's cache of page
//! addresses. With pages of 2 MiB most of them hit: an index of 20 million identities made a fifth more decisions (`rivals`).

/// Smaller tables have too few huge pages.
#[cfg(target_os = "linux")]
const LEAST_BYTES: usize = 4 << 20;

/// Asks the system for huge pages for memory that was not written yet. A hint without effect on results: a system that has none, or
/// whose administrator has disabled them, uses small pages.
#[cfg_attr(target_os = "linux", expect(unsafe_code, reason = "madvise is a function of the C library"))]
pub fn prefer_huge_pages<T>(memory: &[T]) {
    #[cfg(target_os = "linux")]
    {
        const PAGE_BYTES: usize = 4_096;
        let start = std::ptr::from_ref(memory).cast::<u8>();
        let before = start.align_offset(PAGE_BYTES);
        if size_of_val(memory) < LEAST_BYTES || before >= PAGE_BYTES {
            return;
        }
        // SAFETY: the range is a part of the slice, and the hint does not change its content.
        unsafe {
            let pages = start.add(before).cast_mut().cast();
            libc::madvise(pages, size_of_val(memory) - before, libc::MADV_HUGEPAGE);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// The flags of the mapping that has an address.
    fn flags(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_here = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let range = range.map(|(first, next)| [first, next].map(|it| usize::from_str_radix(it, 16)));
            if let Some([Ok(first), Ok(next)]) = range {
                is_here = (first..next).contains(&address);
            }
            if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| is_here) {
                return flags.to_owned();
            }
        }
        panic!("no mapping of {address:x}");
    }

    #[test]
    fn a_large_table_asks_for_huge_pages() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            println!("not tested: this kernel has no huge pages");
            return;
        }
        let table = vec![0u64; 1 << 20];
        prefer_huge_pages(&table);
        let middle = std::ptr::from_ref(&table[table.len() / 2]).addr();
        assert!(flags(middle).contains(" hg"), "{}", flags(middle));
        assert!(table.iter().all(|word| *word == 0));
    }
}
