//! The block files of one window: how full each is, which one is written to, which one is compacted.

use std::collections::BTreeMap;

/// A file is full at `1 / FILE_SHARE` of the window's live bytes. The oldest file can be deleted only when all of its
/// blocks have expired, so this limit keeps the expired part of it small.
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
    /// Bytes of the blocks that have an entry.
    live: u64,
}

/// The files of one window, by number. The last one is written to.
#[derive(Debug, Default)]
pub(super) struct Files {
    uses: BTreeMap<u32, FileUsage>,
    live: u64,
    /// Number of the last file, if it must not be written to any more.
    closed: Option<u32>,
}

impl Files {
    pub(super) fn add(&mut self, file: u32, at: u64, bytes: u32) {
        let used = self.uses.entry(file).or_default();
        used.live += u64::from(bytes);
        used.bytes = used.bytes.max(at + u64::from(bytes));
        self.live += u64::from(bytes);
    }

    /// Removes a block that was deleted or rewritten elsewhere.
    pub(super) fn remove(&mut self, file: u32, bytes: u32) {
        if let Some(used) = self.uses.get_mut(&file) {
            used.live -= u64::from(bytes);
            self.live -= u64::from(bytes);
        }
    }

    /// Removes the files without live blocks and returns their numbers.
    pub(super) fn take_empty(&mut self) -> Vec<u32> {
        self.uses.extract_if(.., |_, used| used.live == 0).map(|(file, _)| file).collect()
    }

    /// The file to write to and its end. `None` if a new file is needed.
    pub(super) fn current(&self) -> Option<(u32, u64)> {
        let full = (self.live / FILE_SHARE).clamp(MIN_FILE_BYTES, MAX_FILE_BYTES);
        let (file, used) = self.uses.last_key_value()?;
        (used.bytes < full && self.closed != Some(*file)).then_some((*file, used.bytes))
    }

    /// Makes the next write go to a new file.
    pub(super) fn close_current(&mut self) {
        self.closed = self.uses.last_key_value().map(|(file, _)| *file);
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

    /// The file with the smallest live fraction, if all files together contain too many dead bytes. Forgotten owners
    /// and rewritten blocks leave holes, which are otherwise freed only when the window has moved on.
    pub(super) fn to_compact(&self) -> Option<u32> {
        let dead: u64 = self.uses.values().map(|used| used.bytes - used.live.min(used.bytes)).sum();
        if dead <= self.live / 2 + 2 * MIN_FILE_BYTES {
            return None;
        }
        let share = |used: &FileUsage| used.live * 1_000 / used.bytes.max(1);
        self.uses.iter().min_by_key(|(_, used)| share(used)).map(|(file, _)| *file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u32 = 1 << 20;

    #[test]
    fn file_size_grows_with_live_bytes_within_limits() {
        let mut files = Files::default();
        assert_eq!(files.current(), None);
        files.add(1, 0, 12 << 10);
        assert_eq!(files.current(), Some((1, 12 << 10)));
        files.add(1, 12 << 10, 4 << 10);
        assert_eq!(files.current(), None, "full at the minimum size");
        (0..16).for_each(|at| files.add(2, at << 20, MIB));
        files.add(3, 0, MIB);
        assert_eq!(files.current(), Some((3, 1 << 20)), "an eighth of 17 MiB");
        (0..1_024).for_each(|at| files.add(4, at << 20, MIB));
        files.add(5, 0, 31 * MIB);
        assert_eq!(files.current(), Some((5, 31 << 20)));
        files.add(5, 31 << 20, MIB);
        assert_eq!(files.current(), None, "full at the maximum size");
    }

    #[test]
    fn a_file_is_empty_without_its_last_block_or_compacted_when_too_many_bytes_are_dead() {
        let mut files = Files::default();
        (0..8u32).for_each(|n| files.add(n / 4, u64::from(n % 4) << 20, MIB));
        assert_eq!(files.to_compact(), None);
        (0..2).for_each(|_| files.remove(0, MIB));
        assert_eq!((files.take_empty(), files.to_compact()), (vec![], None), "2 of 8 MiB");
        files.remove(1, MIB);
        assert_eq!(files.to_compact(), Some(0), "3 of 8 MiB, most of them in the first file");
        files.remove(0, MIB);
        assert!(files.take_empty().is_empty());
        files.remove(0, MIB);
        assert_eq!(files.take_empty(), [0], "the last of its blocks");
        assert_eq!((files.numbers(), files.to_compact()), (vec![1], None));
        files.set_size(1, 9 << 20);
        assert_eq!(files.to_compact(), Some(1), "bytes of no block");
    }
}
