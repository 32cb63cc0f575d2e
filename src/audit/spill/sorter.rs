//! External merge sort: sorted runs in a spill file, merged on reading.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;

use super::{Cursor, Row, Scratch, SpillFile};

/// Collects rows in any order.
#[derive(Debug)]
pub struct Sorter<R> {
    scratch: Scratch,
    rows: Vec<R>,
    /// Maximum number of rows in memory.
    max_rows: usize,
    spilled: Option<Runs<R>>,
}

/// Sorted runs in a spill file, each from its first row to one past its last row.
#[derive(Debug)]
struct Runs<R> {
    file: SpillFile<R>,
    ends: Vec<(u64, u64)>,
}

impl<R: Row> Runs<R> {
    fn new(scratch: &Scratch) -> Self {
        Self { file: SpillFile::new(scratch), ends: Vec::new() }
    }
}

impl<R: Row> Sorter<R> {
    /// An empty sorter that keeps as many rows in memory as fit into `bytes`.
    pub fn new(scratch: &Scratch, bytes: usize) -> Self {
        // While a vector grows, its old allocation of half the size exists beside the new one.
        let max_rows = (bytes * 2 / 3 / size_of::<R>()).max(16);
        Self { scratch: scratch.clone(), rows: Vec::new(), max_rows, spilled: None }
    }

    /// Adds a row.
    pub fn push(&mut self, row: R) -> io::Result<()> {
        if self.rows.len() == self.max_rows {
            self.spill()?;
        }
        if self.rows.len() == self.rows.capacity() {
            let more = self.rows.len().max(16).min(self.max_rows - self.rows.len());
            self.rows.reserve_exact(more);
        }
        self.rows.push(row);
        Ok(())
    }

    fn spill(&mut self) -> io::Result<()> {
        self.rows.sort_unstable();
        let runs = match &mut self.spilled {
            Some(runs) => runs,
            none => none.insert(Runs::new(&self.scratch)),
        };
        let start = runs.file.len();
        self.rows.iter().try_for_each(|row| runs.file.push(row))?;
        runs.ends.push((start, runs.file.len()));
        self.rows.clear();
        Ok(())
    }

    /// All rows, in order.
    pub fn sorted(mut self) -> io::Result<Sorted<R>> {
        if self.spilled.is_some() {
            self.spill()?;
            self.rows = Vec::new();
        }
        let source = match self.spilled {
            None => {
                self.rows.sort_unstable();
                Source::Memory(self.rows.into_iter())
            }
            Some(mut runs) => {
                while runs.ends.len() > self.scratch.fan_in() {
                    runs = merge_runs(&self.scratch, &runs)?;
                }
                let ends = std::mem::take(&mut runs.ends);
                Source::Runs(Merge::new(runs.file, &ends)?)
            }
        };
        let mut sorted = Sorted { head: None, from: source };
        sorted.next()?;
        Ok(sorted)
    }
}

/// One pass of the merge: replaces every group of `fan_in` runs by one run.
fn merge_runs<R: Row>(scratch: &Scratch, runs: &Runs<R>) -> io::Result<Runs<R>> {
    let mut merged = Runs::new(scratch);
    for ends in runs.ends.chunks(scratch.fan_in()) {
        let start = merged.file.len();
        let mut heads = Heads::new(&runs.file, ends)?;
        while let Some(row) = heads.next(&runs.file)? {
            merged.file.push(&row)?;
        }
        merged.ends.push((start, merged.file.len()));
    }
    Ok(merged)
}

/// The next row of each of several runs.
#[derive(Debug)]
struct Heads<R> {
    cursors: Vec<Cursor<R>>,
    heap: BinaryHeap<Reverse<(R, usize)>>,
}

impl<R: Row> Heads<R> {
    fn new(file: &SpillFile<R>, ends: &[(u64, u64)]) -> io::Result<Self> {
        let cursors = ends.iter().map(|(start, end)| file.cursor(*start, *end)).collect();
        let mut heads = Self { cursors, heap: BinaryHeap::new() };
        (0..ends.len()).try_for_each(|run| heads.refill(file, run))?;
        Ok(heads)
    }

    fn refill(&mut self, file: &SpillFile<R>, run: usize) -> io::Result<()> {
        let Some(cursor) = self.cursors.get_mut(run) else { return Ok(()) };
        if let Some(row) = cursor.next(file)? {
            self.heap.push(Reverse((row, run)));
        }
        Ok(())
    }

    fn next(&mut self, file: &SpillFile<R>) -> io::Result<Option<R>> {
        let Some(Reverse((row, run))) = self.heap.pop() else { return Ok(None) };
        self.refill(file, run)?;
        Ok(Some(row))
    }
}

#[derive(Debug)]
struct Merge<R> {
    file: SpillFile<R>,
    heads: Heads<R>,
}

impl<R: Row> Merge<R> {
    fn new(file: SpillFile<R>, ends: &[(u64, u64)]) -> io::Result<Self> {
        let heads = Heads::new(&file, ends)?;
        Ok(Self { file, heads })
    }
}

#[derive(Debug)]
enum Source<R> {
    Memory(std::vec::IntoIter<R>),
    Runs(Merge<R>),
}

/// Rows in ascending order, read once.
#[derive(Debug)]
pub struct Sorted<R> {
    head: Option<R>,
    from: Source<R>,
}

impl<R: Row> Sorted<R> {
    /// The next row.
    pub fn peek(&self) -> Option<R> {
        self.head
    }

    /// Removes and returns the next row.
    pub fn next(&mut self) -> io::Result<Option<R>> {
        let following = match &mut self.from {
            Source::Memory(rows) => rows.next(),
            Source::Runs(merge) => merge.heads.next(&merge.file)?,
        };
        Ok(std::mem::replace(&mut self.head, following))
    }

    /// Removes and returns the next row if it satisfies `condition`.
    pub fn next_if(&mut self, condition: impl FnOnce(&R) -> bool) -> io::Result<Option<R>> {
        if self.head.as_ref().is_some_and(condition) { self.next() } else { Ok(None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn many_runs_are_merged_and_no_file_stays_in_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(dir.path(), 0);
        let mut sorter = Sorter::new(&scratch, 1 << 10);
        let mut random = fastrand::Rng::with_seed(1);
        let mut all: Vec<u64> = (0..50_000).map(|_| random.u64(..)).collect();
        all.iter().try_for_each(|row| sorter.push(*row)).unwrap();
        assert!(
            sorter.spilled.as_ref().unwrap().ends.len() > scratch.fan_in().pow(3),
            "merged in several passes"
        );
        let mut merged = sorter.sorted().unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "also while the files are in use");
        all.sort_unstable();
        for row in all {
            assert_eq!(merged.next().unwrap(), Some(row));
        }
        assert_eq!(merged.next().unwrap(), None);
        assert!(scratch.written() > 4 * 50_000 * 8);
    }

    #[test]
    fn a_directory_that_cannot_be_written_fails() {
        let scratch = Scratch::new(std::path::Path::new("/nowhere/at/all"), 0);
        let mut sorter = Sorter::new(&scratch, 1 << 10);
        let failed = (0..100_000u64).try_for_each(|row| sorter.push(row));
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    proptest! {
        #[test]
        fn a_spill_file_is_read_as_written_from_both_ends(rows in prop::collection::vec(any::<u64>(), 0..1_000), at: u64) {
            let dir = tempfile::tempdir().unwrap();
            let scratch = Scratch::new(dir.path(), 0);
            let mut file = SpillFile::new(&scratch);
            rows.iter().try_for_each(|row| file.push(row)).unwrap();
            let (mut forward, mut backward) = (file.cursor(0, u64::MAX), file.backward());
            for (row, last) in rows.iter().zip(rows.iter().rev()) {
                prop_assert_eq!(forward.next(&file).unwrap(), Some(*row));
                prop_assert_eq!(backward.next(&file).unwrap(), Some(*last));
            }
            prop_assert_eq!((forward.next(&file).unwrap(), backward.next(&file).unwrap()), (None, None));
            let at = at % 1_001;
            let found = file.random_access().at(&file, at).unwrap();
            prop_assert_eq!(found, rows.get(usize::try_from(at).unwrap()).copied());
        }
    }
}
