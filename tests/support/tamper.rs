//! Local state that is lost, or replaced by an older copy.

use std::path::Path;

/// Changes local state between two starts: usually not at all, sometimes it is deleted or replaced by an older copy.
pub fn tamper(random: &mut fastrand::Rng, dir: &Path) {
    let old = dir.with_extension("old");
    match random.u8(..10) {
        0 => drop(std::fs::remove_dir_all(dir)),
        1 => copy_dir(dir, &old),
        2 if old.exists() => {
            std::fs::remove_dir_all(dir).ok();
            copy_dir(&old, dir);
        }
        _ => {}
    }
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::remove_dir_all(to).ok();
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).into_iter().flatten().flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
