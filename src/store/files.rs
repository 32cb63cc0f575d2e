//! One partition's files: which block lies where, which file to write to, which to give up.

use std::collections::BTreeMap;

use super::entry::Entry;
use crate::dedupe::Offset;

/// A file is full at this share of the partition's live bytes, so that what has expired in the oldest
/// file, and cannot go before the rest of it, stays a small part.
const SHARE: u64 = 8;
/// But no file is called full below this.
const LEAST_BYTES: u64 = 16 << 10;
/// Nor not full above this: a file is the unit of giving space back.
const MOST_BYTES: u64 = 32 << 20;

/// What one file holds.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Use {
    /// Its length.
    bytes: u64,
    /// Bytes of the blocks that have an entry.
    live: u64,
}

/// The files of one partition, by number: the last one is written to.
#[derive(Debug, Default)]
pub(super) struct Files {
    uses: BTreeMap<u32, Use>,
    /// The blocks by first offset, as the index on disk has them: asking that for each owner took longer than
    /// reading the owner.
    blocks: BTreeMap<Offset, Entry>,
    live: u64,
    /// The last file is not written to any more.
    done: Option<u32>,
}

impl Files {
    /// The block that an offset would be in, and its own first offset.
    pub(super) fn block_of(&self, offset: Offset) -> Option<(Offset, Entry)> {
        self.blocks.range(..=offset).next_back().map(|(first, entry)| (*first, *entry))
    }

    /// Counts a block that is there.
    pub(super) fn count(&mut self, first: Offset, entry: &Entry) {
        self.blocks.insert(first, *entry);
        let bytes = u64::from(entry.bytes);
        let used = self.uses.entry(entry.file).or_default();
        used.live += bytes;
        used.bytes = used.bytes.max(entry.at + bytes);
        self.live += bytes;
    }

    /// Discounts a block that is gone, or stands elsewhere by now; says whether its file has none left.
    pub(super) fn discount(&mut self, first: Offset, entry: &Entry) -> bool {
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

    /// The file to write to and where it ends; `None` when it is time for a new one.
    pub(super) fn current(&self) -> Option<(u32, u64)> {
        let full = (self.live / SHARE).clamp(LEAST_BYTES, MOST_BYTES);
        let (file, used) = self.uses.last_key_value()?;
        (used.bytes < full && self.done != Some(*file)).then_some((*file, used.bytes))
    }

    /// What is written next goes into a new file.
    pub(super) fn begin_another(&mut self) {
        self.done = self.uses.last_key_value().map(|(file, _)| *file);
    }

    /// The numbers of the files.
    pub(super) fn numbers(&self) -> Vec<u32> {
        self.uses.keys().copied().collect()
    }

    /// A file is as long as this: a crash or a full disk left bytes that no entry names.
    pub(super) fn measured(&mut self, file: u32, bytes: u64) {
        if let Some(used) = self.uses.get_mut(&file) {
            used.bytes = bytes;
        }
    }

    /// The file with the least alive, when all together hold too much that is not: owners that were
    /// taken back and blocks that were written anew leave holes, which nothing else closes before the
    /// window has rolled on.
    pub(super) fn wasteful(&self) -> Option<u32> {
        let dead: u64 = self.uses.values().map(|used| used.bytes - used.live.min(used.bytes)).sum();
        if dead <= self.live / 2 + 2 * LEAST_BYTES {
            return None;
        }
        let share = |used: &Use| used.live * 1_000 / used.bytes.max(1);
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
    fn files_grow_with_what_is_alive_within_bounds() {
        let mut files = Files::default();
        assert_eq!(files.current(), None);
        files.count(0, &entry(1, 0, 12 << 10));
        assert_eq!(files.current(), Some((1, 12 << 10)));
        files.count(1, &entry(1, 12 << 10, 4 << 10));
        assert_eq!(files.current(), None, "full at the least size");
        (0..16).for_each(|at| files.count(2 + at, &entry(2, at << 20, 1 << 20)));
        files.count(20, &entry(3, 0, 1 << 20));
        assert_eq!(files.current(), Some((3, 1 << 20)), "an eighth of 17 MiB");
        (0..1_024).for_each(|at| files.count(30 + at, &entry(4, at << 20, 1 << 20)));
        files.count(2_000, &entry(5, 0, 31 << 20));
        assert_eq!(files.current(), Some((5, 31 << 20)));
        files.count(2_001, &entry(5, 31 << 20, 1 << 20));
        assert_eq!(files.current(), None, "full at the greatest size");
    }

    #[test]
    fn a_block_that_was_written_anew_is_found_where_it_is_now() {
        let mut files = Files::default();
        let (old, new, next) = (entry(1, 0, 100), entry(2, 0, 90), entry(1, 100, 100));
        files.count(10, &old);
        files.count(20, &next);
        assert_eq!(files.block_of(9), None);
        assert_eq!(files.block_of(19), Some((10, old)));
        // What came is counted before what goes.
        files.count(10, &new);
        files.discount(10, &old);
        assert_eq!(files.block_of(19), Some((10, new)));
        files.discount(10, &new);
        assert_eq!((files.block_of(19), files.block_of(u64::MAX)), (None, Some((20, next))));
    }

    #[test]
    fn a_file_is_given_up_with_its_last_block_or_when_too_much_is_dead() {
        let mut files = Files::default();
        let all: Vec<_> = (0..8u32).map(|n| entry(n / 4, u64::from(n % 4) << 20, 1 << 20)).collect();
        for (first, entry) in (0..).zip(&all) {
            files.count(first, entry);
        }
        assert_eq!(files.wasteful(), None);
        let gone = [files.discount(1, &all[1]), files.discount(2, &all[2])];
        assert_eq!((gone, files.wasteful()), ([false, false], None), "2 of 8 MiB");
        assert!(!files.discount(4, &all[4]));
        assert_eq!(files.wasteful(), Some(0), "3 of 8 MiB, most of them in the first file");
        assert!(!files.discount(0, &all[0]) && files.discount(3, &all[3]), "the last of its blocks");
        assert_eq!((files.numbers(), files.wasteful()), (vec![1], None));
        files.measured(1, 9 << 20);
        assert_eq!(files.wasteful(), Some(1), "bytes of no block");
    }
}
