//! Rows brought into order: sorted runs in a file, merged as they are read.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;

use super::{Cursor, Row, Scratch, Tape};

/// Takes rows in any order.
#[derive(Debug)]
pub struct Sorter<R> {
    scratch: Scratch,
    rows: Vec<R>,
    /// How many rows are kept in memory.
    most: usize,
    spilled: Option<Runs<R>>,
}

/// Sorted stretches of a tape, each by its first row and the one past its last.
#[derive(Debug)]
struct Runs<R> {
    tape: Tape<R>,
    ends: Vec<(u64, u64)>,
}

impl<R: Row> Runs<R> {
    fn new(scratch: &Scratch) -> Self {
        Self { tape: Tape::new(scratch), ends: Vec::new() }
    }
}

impl<R: Row> Sorter<R> {
    /// Nothing yet; keeps as many rows in memory as fit into `bytes`.
    pub fn new(scratch: &Scratch, bytes: usize) -> Self {
        // A vector that grows is there twice for a moment, once with half its size.
        let most = (bytes * 2 / 3 / size_of::<R>()).max(16);
        Self { scratch: scratch.clone(), rows: Vec::new(), most, spilled: None }
    }

    /// Takes a row.
    pub fn push(&mut self, row: R) -> io::Result<()> {
        if self.rows.len() == self.most {
            self.spill()?;
        }
        if self.rows.len() == self.rows.capacity() {
            let more = self.rows.len().max(16).min(self.most - self.rows.len());
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
        let start = runs.tape.len();
        self.rows.iter().try_for_each(|row| runs.tape.push(row))?;
        runs.ends.push((start, runs.tape.len()));
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
                    runs = fewer(&self.scratch, &runs)?;
                }
                let ends = std::mem::take(&mut runs.ends);
                Source::Runs(Merge::new(runs.tape, &ends)?)
            }
        };
        let mut sorted = Sorted { head: None, from: source };
        sorted.next()?;
        Ok(sorted)
    }
}

/// Merges as many runs as can be read together into one, all along the tape.
fn fewer<R: Row>(scratch: &Scratch, runs: &Runs<R>) -> io::Result<Runs<R>> {
    let mut merged = Runs::new(scratch);
    for ends in runs.ends.chunks(scratch.fan_in()) {
        let start = merged.tape.len();
        let mut heads = Heads::new(&runs.tape, ends)?;
        while let Some(row) = heads.next(&runs.tape)? {
            merged.tape.push(&row)?;
        }
        merged.ends.push((start, merged.tape.len()));
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
    fn new(tape: &Tape<R>, ends: &[(u64, u64)]) -> io::Result<Self> {
        let cursors = ends.iter().map(|(start, end)| tape.cursor(*start, *end)).collect();
        let mut heads = Self { cursors, heap: BinaryHeap::new() };
        (0..ends.len()).try_for_each(|run| heads.refill(tape, run))?;
        Ok(heads)
    }

    fn refill(&mut self, tape: &Tape<R>, run: usize) -> io::Result<()> {
        let Some(cursor) = self.cursors.get_mut(run) else { return Ok(()) };
        if let Some(row) = cursor.next(tape)? {
            self.heap.push(Reverse((row, run)));
        }
        Ok(())
    }

    fn next(&mut self, tape: &Tape<R>) -> io::Result<Option<R>> {
        let Some(Reverse((row, run))) = self.heap.pop() else { return Ok(None) };
        self.refill(tape, run)?;
        Ok(Some(row))
    }
}

#[derive(Debug)]
struct Merge<R> {
    tape: Tape<R>,
    heads: Heads<R>,
}

impl<R: Row> Merge<R> {
    fn new(tape: Tape<R>, ends: &[(u64, u64)]) -> io::Result<Self> {
        let heads = Heads::new(&tape, ends)?;
        Ok(Self { tape, heads })
    }
}

#[derive(Debug)]
enum Source<R> {
    Memory(std::vec::IntoIter<R>),
    Runs(Merge<R>),
}

/// Rows in order, read once.
#[derive(Debug)]
pub struct Sorted<R> {
    head: Option<R>,
    from: Source<R>,
}

impl<R: Row> Sorted<R> {
    /// The row that comes next.
    pub fn peek(&self) -> Option<R> {
        self.head
    }

    /// Takes the next row.
    pub fn next(&mut self) -> io::Result<Option<R>> {
        let behind = match &mut self.from {
            Source::Memory(rows) => rows.next(),
            Source::Runs(merge) => merge.heads.next(&merge.tape)?,
        };
        Ok(std::mem::replace(&mut self.head, behind))
    }

    /// Takes the next row if it is wanted.
    pub fn next_if(&mut self, wanted: impl FnOnce(&R) -> bool) -> io::Result<Option<R>> {
        if self.head.as_ref().is_some_and(wanted) { self.next() } else { Ok(None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn many_runs_are_merged_and_nothing_is_left_in_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(dir.path(), 0);
        let mut sorter = Sorter::new(&scratch, 1 << 10);
        let mut random = fastrand::Rng::with_seed(1);
        let mut all: Vec<u64> = (0..50_000).map(|_| random.u64(..)).collect();
        all.iter().try_for_each(|row| sorter.push(*row)).unwrap();
        assert!(sorter.spilled.as_ref().unwrap().ends.len() > scratch.fan_in().pow(3), "merged in levels");
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
    fn a_folder_that_cannot_be_written_fails() {
        let scratch = Scratch::new(std::path::Path::new("/nowhere/at/all"), 0);
        let mut sorter = Sorter::new(&scratch, 1 << 10);
        let failed = (0..100_000u64).try_for_each(|row| sorter.push(row));
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    proptest! {
        #[test]
        fn a_tape_is_read_as_written_from_both_ends(rows in prop::collection::vec(any::<u64>(), 0..1_000), at: u64) {
            let dir = tempfile::tempdir().unwrap();
            let scratch = Scratch::new(dir.path(), 0);
            let mut tape = Tape::new(&scratch);
            rows.iter().try_for_each(|row| tape.push(row)).unwrap();
            let (mut forward, mut backward) = (tape.cursor(0, u64::MAX), tape.backward());
            for (row, last) in rows.iter().zip(rows.iter().rev()) {
                prop_assert_eq!(forward.next(&tape).unwrap(), Some(*row));
                prop_assert_eq!(backward.next(&tape).unwrap(), Some(*last));
            }
            prop_assert_eq!((forward.next(&tape).unwrap(), backward.next(&tape).unwrap()), (None, None));
            let at = at % 1_001;
            let found = tape.jumper().at(&tape, at).unwrap();
            prop_assert_eq!(found, rows.get(usize::try_from(at).unwrap()).copied());
        }
    }
}
