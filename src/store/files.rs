//! The files of the runs of one window: how full each is, and which one is written to.

use std::collections::BTreeMap;

use super::run::Run;

/// A file is full at `1 / FILE_SHARE` of the window's live bytes. The oldest file can be deleted only when all of its
/// runs have expired, so this limit keeps the expired part of it small.
const FILE_SHARE: u64 = 8;
/// A file below this size is never full.
const MIN_FILE_BYTES: u64 = 16 << 10;
/// A file of this size is always full: disk space is freed by deleting whole files.
const MAX_FILE_BYTES: u64 = 32 << 20;

/// Size of one file.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct FileUsage {
    /// Length of the file.
    bytes: u64,
    /// Bytes of the runs that have an entry.
    live: u64,
}

/// The files of one window, by number. The last one is written to.
#[derive(Debug, Default)]
pub(super) struct Files {
    uses: BTreeMap<u32, FileUsage>,
    live: u64,
}

impl Files {
    /// Adds a run.
    pub(super) fn add(&mut self, run: &Run) {
        let used = self.uses.entry(run.file).or_default();
        used.live += run.bytes() as u64;
        used.bytes = used.bytes.max(run.file_end());
        self.live += run.bytes() as u64;
    }

    /// Removes a run that was deleted, or written elsewhere.
    pub(super) fn remove(&mut self, run: &Run) {
        if let Some(used) = self.uses.get_mut(&run.file) {
            used.live -= run.bytes() as u64;
            self.live -= run.bytes() as u64;
        }
    }

    /// Removes the files without live owners and returns their numbers.
    pub(super) fn take_empty(&mut self) -> Vec<u32> {
        self.uses.extract_if(.., |_, used| used.live == 0).map(|(file, _)| file).collect()
    }

    /// The file to write to and its end. `None` if a new file is needed.
    pub(super) fn current(&self) -> Option<(u32, u64)> {
        let full = (self.live / FILE_SHARE).clamp(MIN_FILE_BYTES, MAX_FILE_BYTES);
        let (file, used) = self.uses.last_key_value()?;
        (used.bytes < full).then_some((*file, used.bytes))
    }

    /// The numbers of the files.
    pub(super) fn numbers(&self) -> Vec<u32> {
        self.uses.keys().copied().collect()
    }

    /// Sets the length of a file.
    pub(super) fn set_size(&mut self, file: u32, bytes: u64) {
        if let Some(used) = self.uses.get_mut(&file) {
            used.bytes = bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::Head;
    use crate::store::run::OWNER_BYTES;

    fn run(file: u32, at: u64, kib: u32) -> Run {
        let owners = (kib << 10) / u32::try_from(OWNER_BYTES).unwrap_or(1);
        Run {
            number: 0,
            owners,
            forgotten: 0,
            times_ms: (0, 0),
            file,
            at: at << 10,
            crc: 0,
            base: Head::default(),
            rule: 0,
        }
    }

    #[test]
    fn file_size_grows_with_live_bytes_within_limits() {
        let mut files = Files::default();
        assert_eq!(files.current(), None);
        files.add(&run(1, 0, 10));
        assert_eq!(files.current(), Some((1, 10 << 10)));
        files.add(&run(1, 10, 10));
        assert_eq!(files.current(), None, "full at the minimum size");
        (0..16).for_each(|at| files.add(&run(2, at * 765, 765)));
        files.add(&run(3, 0, 765));
        assert_eq!(files.current(), Some((3, 765 << 10)), "an eighth of 12 MiB");
        (0..1_024).for_each(|at| files.add(&run(4, at * 765, 765)));
        files.add(&run(5, 31 << 10, 765));
        assert_eq!(files.current(), Some((5, (31 << 20) + (765 << 10))));
        files.add(&run(5, 32 << 10, 10));
        assert_eq!(files.current(), None, "full at the maximum size");
    }

    #[test]
    fn a_file_is_empty_without_its_last_run() {
        let mut files = Files::default();
        let runs = [run(0, 0, 9), run(0, 9, 9), run(1, 0, 9)];
        for run in &runs {
            files.add(run);
        }
        files.remove(&runs[0]);
        assert!(files.take_empty().is_empty());
        files.remove(&runs[1]);
        assert_eq!(files.take_empty(), [0], "the last of its runs");
        assert_eq!(files.numbers(), [1]);
        files.set_size(1, 9 << 20);
        assert_eq!(files.current(), None, "bytes of no run");
    }
}
