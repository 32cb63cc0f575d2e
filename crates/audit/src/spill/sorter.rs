//! External merge sort: sorted runs in a table, merged on reading.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::mem;
use std::vec::IntoIter;

use super::{Row, Scratch, Table};

/// What rows are sorted by. Rows of one sorter with equal keys are interchangeable.
pub type Key = (u128, u64, u64);

/// Collects rows in any order.
#[derive(Debug)]
pub struct Sorter<R> {
    scratch: Scratch,
    key: fn(&R) -> Key,
    rows: Vec<R>,
    /// Maximum number of rows in memory.
    max_rows: usize,
    spilled: Runs<R>,
}

/// Sorted runs, one after the other.
#[derive(Debug)]
struct Runs<R> {
    table: Table<R>,
    /// One past the last row of each run.
    ends: Vec<u64>,
}

impl<R: Row> Runs<R> {
    fn new(scratch: &Scratch) -> Self {
        Self { table: Table::new(scratch), ends: Vec::new() }
    }

    fn end_run(&mut self) {
        self.ends.push(self.table.len());
    }
}

impl<R: Row> Sorter<R> {
    /// An empty sorter that keeps as many rows in memory as fit into this number of units.
    pub fn new(scratch: &Scratch, units: usize, key: fn(&R) -> Key) -> Self {
        // While a vector grows, its old allocation of half the size exists beside the new one.
        let max_rows = (units * scratch.unit() * 2 / 3 / size_of::<R>()).max(16);
        Self { scratch: scratch.clone(), key, rows: Vec::new(), max_rows, spilled: Runs::new(scratch) }
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
        self.rows.sort_unstable_by_key(self.key);
        self.rows.drain(..).try_for_each(|row| self.spilled.table.push(row))?;
        self.spilled.end_run();
        Ok(())
    }

    /// All rows, in order.
    pub fn sorted(mut self) -> io::Result<Sorted<R>> {
        if self.spilled.ends.is_empty() {
            self.rows.sort_unstable_by_key(self.key);
        } else {
            self.spill()?;
            self.rows = Vec::new();
        }
        let mut runs = self.spilled;
        while runs.ends.len() > self.scratch.fan_in() {
            runs = merge_pass(&self.scratch, self.key, runs)?;
        }
        let bounds = bounds(&runs.ends);
        Sorted::new(self.key, self.rows, runs.table, &bounds)
    }
}

/// Replaces every group of `fan_in` runs by one run.
fn merge_pass<R: Row>(scratch: &Scratch, key: fn(&R) -> Key, runs: Runs<R>) -> io::Result<Runs<R>> {
    let mut merged = Runs::new(scratch);
    let bounds = bounds(&runs.ends);
    let mut from = runs.table;
    for group in bounds.chunks(scratch.fan_in()) {
        let mut sorted = Sorted::new(key, Vec::new(), from, group)?;
        while let Some(row) = sorted.next()? {
            merged.table.push(row)?;
        }
        merged.end_run();
        from = sorted.table;
    }
    Ok(merged)
}

/// The first row and one past the last row of each run.
fn bounds(ends: &[u64]) -> Vec<(u64, u64)> {
    std::iter::once(0).chain(ends.iter().copied()).zip(ends.iter().copied()).collect()
}

/// Rows in ascending order, read once.
#[derive(Debug)]
pub struct Sorted<R> {
    key: fn(&R) -> Key,
    /// The row that is returned next.
    head: Option<R>,
    /// The rows, if no run is spilled.
    in_memory: IntoIter<R>,
    table: Table<R>,
    runs: Vec<Run<R>>,
    /// The runs that have a head, by the key of that.
    order: BinaryHeap<Reverse<(Key, usize)>>,
}

/// The rest of a sorted run.
#[derive(Debug)]
struct Run<R> {
    head: Option<R>,
    next: u64,
    end: u64,
}

impl<R: Row> Sorted<R> {
    fn new(key: fn(&R) -> Key, rows: Vec<R>, table: Table<R>, runs: &[(u64, u64)]) -> io::Result<Self> {
        let runs: Vec<_> = runs.iter().map(|&(next, end)| Run { head: None, next, end }).collect();
        let count = runs.len();
        let in_memory = rows.into_iter();
        let mut sorted = Self { key, head: None, in_memory, table, runs, order: BinaryHeap::new() };
        for run in 0..count {
            sorted.advance(run)?;
        }
        sorted.next()?;
        Ok(sorted)
    }

    /// Removes and returns the head of a run.
    fn advance(&mut self, number: usize) -> io::Result<Option<R>> {
        let Some(run) = self.runs.get_mut(number) else { return Ok(None) };
        let following = if run.next < run.end { self.table.get(run.next)? } else { None };
        run.next += 1;
        if let Some(row) = &following {
            self.order.push(Reverse(((self.key)(row), number)));
        }
        Ok(mem::replace(&mut run.head, following))
    }

    /// The next row.
    pub fn peek(&self) -> Option<R> {
        self.head
    }

    /// Removes and returns the next row.
    pub fn next(&mut self) -> io::Result<Option<R>> {
        let following = match self.order.pop() {
            Some(Reverse((_, run))) => self.advance(run)?,
            None => self.in_memory.next(),
        };
        Ok(mem::replace(&mut self.head, following))
    }

    /// Removes and returns the next row if it satisfies `condition`.
    pub fn next_if(&mut self, condition: impl FnOnce(&R) -> bool) -> io::Result<Option<R>> {
        if self.head.as_ref().is_some_and(condition) { self.next() } else { Ok(None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(scratch: &Scratch) -> Sorter<u64> {
        Sorter::new(scratch, 1, |row| (0, *row, 0))
    }

    #[test]
    fn many_runs_are_merged_and_no_file_stays_in_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(dir.path(), 0);
        let mut sorter = numbers(&scratch);
        let mut random = fastrand::Rng::with_seed(1);
        let mut all: Vec<u64> = (0..50_000).map(|_| random.u64(..)).collect();
        all.iter().try_for_each(|row| sorter.push(*row)).unwrap();
        assert!(sorter.spilled.ends.len() > scratch.fan_in().pow(3), "merged in several passes");
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
        let mut sorter = numbers(&scratch);
        let failed = (0..100_000u64).try_for_each(|row| sorter.push(row));
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
