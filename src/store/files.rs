//! The block files of one window: which block is in which file, which file is written to, which one is compacted.

use std::collections::BTreeMap;

use super::entry::Entry;
use crate::dedupe::Offset;

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
    /// The settled blocks by first offset, like the index on disk. Looking up the index on disk for each owner took
    /// longer than reading the owner.
    blocks: BTreeMap<Offset, Entry>,
    live: u64,
    /// Number of the last file, if it must not be written to any more.
    closed: Option<u32>,
}

impl Files {
    /// The block that would contain an offset, with its first offset.
    pub(super) fn block_of(&self, offset: Offset) -> Option<(Offset, Entry)> {
        self.blocks.range(..=offset).next_back().map(|(first, entry)| (*first, *entry))
    }

    /// Adds a stored block.
    pub(super) fn add(&mut self, first: Offset, entry: &Entry) {
        self.blocks.insert(first, *entry);
        let bytes = u64::from(entry.bytes);
        let used = self.uses.entry(entry.file).or_default();
        used.live += bytes;
        used.bytes = used.bytes.max(entry.at + bytes);
        self.live += bytes;
    }

    /// Removes a block that was deleted or rewritten elsewhere. Returns whether its file has no block left.
    pub(super) fn remove(&mut self, first: Offset, entry: &Entry) -> bool {
        if self.blocks.get(&first) == Some(entry) {
            self.blocks.remove(&first);
        }
        let bytes = u64::from(entry.bytes);
        self.live = self.live.saturating_sub(bytes);
        let Some(used) = self.uses.get_mut(&entry.file) else { return false };
        used.live = used.live.saturating_sub(bytes);
        let empty = used.live == 0;
        if empty {
            self.uses.remove(&entry.file);
        }
        empty
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

    /// Sets the length of a file. A crash or a full disk may have left bytes that no entry refers to.
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

    fn entry(file: u32, at: u64, bytes: u32) -> Entry {
        Entry { file, at, bytes, crc: 0, next: 0, identities: 0 }
    }

    #[test]
    fn file_size_grows_with_live_bytes_within_limits() {
        let mut files = Files::default();
        assert_eq!(files.current(), None);
        files.add(0, &entry(1, 0, 12 << 10));
        assert_eq!(files.current(), Some((1, 12 << 10)));
        files.add(1, &entry(1, 12 << 10, 4 << 10));
        assert_eq!(files.current(), None, "full at the minimum size");
        (0..16).for_each(|at| files.add(2 + at, &entry(2, at << 20, 1 << 20)));
        files.add(20, &entry(3, 0, 1 << 20));
        assert_eq!(files.current(), Some((3, 1 << 20)), "an eighth of 17 MiB");
        (0..1_024).for_each(|at| files.add(30 + at, &entry(4, at << 20, 1 << 20)));
        files.add(2_000, &entry(5, 0, 31 << 20));
        assert_eq!(files.current(), Some((5, 31 << 20)));
        files.add(2_001, &entry(5, 31 << 20, 1 << 20));
        assert_eq!(files.current(), None, "full at the maximum size");
    }

    #[test]
    fn a_rewritten_block_is_found_at_its_new_position() {
        let mut files = Files::default();
        let (old, new, next) = (entry(1, 0, 100), entry(2, 0, 90), entry(1, 100, 100));
        files.add(10, &old);
        files.add(20, &next);
        assert_eq!(files.block_of(9), None);
        assert_eq!(files.block_of(19), Some((10, old)));
        // The new position is added before the old one is removed.
        files.add(10, &new);
        files.remove(10, &old);
        assert_eq!(files.block_of(19), Some((10, new)));
        files.remove(10, &new);
        assert_eq!((files.block_of(19), files.block_of(u64::MAX)), (None, Some((20, next))));
    }

    #[test]
    fn a_file_is_deleted_with_its_last_block_or_compacted_when_too_many_bytes_are_dead() {
        let mut files = Files::default();
        let all: Vec<_> = (0..8u32).map(|n| entry(n / 4, u64::from(n % 4) << 20, 1 << 20)).collect();
        for (first, entry) in (0..).zip(&all) {
            files.add(first, entry);
        }
        assert_eq!(files.to_compact(), None);
        let emptied = [files.remove(1, &all[1]), files.remove(2, &all[2])];
        assert_eq!((emptied, files.to_compact()), ([false, false], None), "2 of 8 MiB");
        assert!(!files.remove(4, &all[4]));
        assert_eq!(files.to_compact(), Some(0), "3 of 8 MiB, most of them in the first file");
        assert!(!files.remove(0, &all[0]) && files.remove(3, &all[3]), "the last of its blocks");
        assert_eq!((files.numbers(), files.to_compact()), (vec![1], None));
        files.set_size(1, 9 << 20);
        assert_eq!(files.to_compact(), Some(1), "bytes of no block");
    }
}
