//! Disk usage and page cache of directories.
#![allow(dead_code, reason = "each bench uses its own part")]

/// Total size in bytes of the files below a directory for which `wanted` returns true.
pub fn size_of_files(dir: &std::path::Path, wanted: &dyn Fn(&std::path::Path) -> bool) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(about) if about.is_dir() => size_of_files(&entry.path(), wanted),
        Ok(about) if wanted(&entry.path()) => about.len(),
        _ => 0,
    });
    sizes.sum()
}

/// Drops the files below a directory from the page cache, as after a restart of the machine.
pub fn drop_cached(dir: &std::path::Path) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        if entry.metadata().unwrap().is_dir() {
            drop_cached(&entry.path());
            continue;
        }
        let file = std::fs::File::open(entry.path()).unwrap();
        // A page that is not written yet cannot be dropped.
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
}
