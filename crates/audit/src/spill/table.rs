//! Rows addressed by number. The pages read last are in memory, the others in a temporary file.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::{PAGE_BYTES, Row, Scratch};

/// A list of rows with append and update in place.
#[derive(Debug)]
pub struct Table<R> {
    scratch: Scratch,
    file: Option<File>,
    in_memory: HashMap<u64, Page<R>>,
    /// The numbers of the pages in memory, oldest load first.
    loaded: VecDeque<u64>,
    len: u64,
}

#[derive(Debug)]
struct Page<R> {
    rows: Vec<R>,
    changed: bool,
}

impl<R: Row> Table<R> {
    /// Number of rows in a page.
    const PAGE_ROWS: usize = PAGE_BYTES / size_of::<R>();

    /// An empty table, without a file until its pages exceed one unit of the memory.
    pub fn new(scratch: &Scratch) -> Self {
        let scratch = scratch.clone();
        Self { scratch, file: None, in_memory: HashMap::new(), loaded: VecDeque::new(), len: 0 }
    }

    /// Number of rows.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Appends a row.
    pub fn push(&mut self, row: R) -> io::Result<()> {
        self.set(self.len, row)
    }

    /// The row with this number; `None` past the end.
    pub fn get(&mut self, number: u64) -> io::Result<Option<R>> {
        if number >= self.len {
            return Ok(None);
        }
        let (page, slot) = Self::slot_of(number);
        Ok(self.page(page)?.rows.get(slot).copied())
    }

    /// Sets the row with this number, at most one past the end.
    pub fn set(&mut self, number: u64, row: R) -> io::Result<()> {
        let (page, slot) = Self::slot_of(number);
        let page = self.page(page)?;
        page.changed = true;
        match page.rows.get_mut(slot) {
            Some(old) => *old = row,
            None => page.rows.push(row),
        }
        self.len = self.len.max(number + 1);
        Ok(())
    }

    /// The first row in `range` that does not satisfy `condition`, which is true for all rows before it; the end
    /// of the range if all satisfy it.
    pub fn first_not(&mut self, range: Range<u64>, condition: impl Fn(&R) -> bool) -> io::Result<u64> {
        let Range { start: mut from, end: mut to } = range;
        while from < to {
            let middle = from + (to - from) / 2;
            if self.get(middle)?.as_ref().is_some_and(&condition) {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        Ok(from)
    }

    fn slot_of(number: u64) -> (u64, usize) {
        let rows = Self::PAGE_ROWS as u64;
        (number / rows, usize::try_from(number % rows).unwrap_or(0))
    }

    fn page(&mut self, number: u64) -> io::Result<&mut Page<R>> {
        if !self.in_memory.contains_key(&number) {
            if self.loaded.len() >= self.scratch.pages() {
                self.evict()?;
            }
            let page = self.load(number)?;
            self.in_memory.insert(number, page);
            self.loaded.push_back(number);
        }
        // The page is in memory now: the alternative is never used.
        Ok(self.in_memory.entry(number).or_insert_with(|| Page { rows: Vec::new(), changed: false }))
    }

    fn position(page: u64) -> u64 {
        page * (Self::PAGE_ROWS * R::BYTES) as u64
    }

    /// Reads a page from the file; past the end it is empty.
    fn load(&self, number: u64) -> io::Result<Page<R>> {
        let before = number * Self::PAGE_ROWS as u64;
        let stored = self.len.saturating_sub(before).min(Self::PAGE_ROWS as u64);
        let stored = usize::try_from(stored).unwrap_or(Self::PAGE_ROWS);
        let mut bytes = vec![0; stored * R::BYTES];
        if let Some(file) = self.file.as_ref().filter(|_| stored > 0) {
            file.read_exact_at(&mut bytes, Self::position(number))?;
        }
        let mut rows = Vec::with_capacity(Self::PAGE_ROWS);
        let mut bytes = bytes.as_slice();
        rows.extend((0..stored).map(|_| R::get(&mut bytes)));
        Ok(Page { rows, changed: false })
    }

    /// Removes the oldest page from memory, after writing it if it changed.
    fn evict(&mut self) -> io::Result<()> {
        let Some(number) = self.loaded.pop_front() else { return Ok(()) };
        let Some(page) = self.in_memory.remove(&number).filter(|page| page.changed) else { return Ok(()) };
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(self.scratch.file()?),
        };
        let mut bytes = Vec::with_capacity(page.rows.len() * R::BYTES);
        page.rows.iter().for_each(|row| row.put(&mut bytes));
        self.scratch.count(bytes.len());
        file.write_all_at(&bytes, Self::position(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_table_is_read_as_written(
            rows in prop::collection::vec(any::<u64>(), 1..6_000),
            updates in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>()), 0..200),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let mut table = Table::new(&Scratch::new(dir.path(), 0));
            let mut plain = rows;
            plain.iter().try_for_each(|row| table.push(*row)).unwrap();
            for (at, row) in updates {
                let at = at.index(plain.len());
                plain[at] = row;
                table.set(at as u64, row).unwrap();
            }
            prop_assert_eq!(table.len(), plain.len() as u64);
            for (at, row) in plain.iter().enumerate().chain(plain.iter().enumerate().rev()) {
                prop_assert_eq!(table.get(at as u64).unwrap(), Some(*row));
            }
            prop_assert_eq!(table.get(plain.len() as u64).unwrap(), None);
        }
    }
}
