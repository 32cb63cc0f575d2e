//! Rows in insertion order: appended at the end, readable from any position.

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::unix::fs::FileExt;

use super::{Parts, Row, Scratch};

/// Rows in insertion order. The last ones are in memory, the others in a temporary file.
#[derive(Debug)]
pub struct SpillFile<R> {
    scratch: Scratch,
    file: Option<File>,
    /// Bytes in the file.
    flushed: u64,
    buffered: Vec<u8>,
    rows: u64,
    kind: PhantomData<R>,
}

impl<R: Row> SpillFile<R> {
    /// No rows, and no file until the buffer is full.
    pub fn new(scratch: &Scratch) -> Self {
        let scratch = scratch.clone();
        Self { scratch, file: None, flushed: 0, buffered: Vec::new(), rows: 0, kind: PhantomData }
    }

    /// Number of rows.
    pub fn len(&self) -> u64 {
        self.rows
    }

    /// Appends a row.
    pub fn push(&mut self, row: &R) -> io::Result<()> {
        if self.buffered.len() + R::BYTES > self.scratch.buffer() {
            self.flush()?;
        }
        if self.buffered.capacity() == 0 {
            self.buffered.reserve_exact(self.scratch.buffer().max(R::BYTES));
        }
        row.put(&mut self.buffered);
        self.rows += 1;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(self.scratch.file()?),
        };
        file.write_all_at(&self.buffered, self.flushed)?;
        self.flushed += self.buffered.len() as u64;
        self.scratch.count(self.buffered.len());
        self.buffered.clear();
        Ok(())
    }

    /// Reads `count` rows from row number `from` on; they must exist.
    fn read(&self, from: u64, count: u64, into: &mut Vec<u8>) -> io::Result<()> {
        let (start, end) = (from * R::BYTES as u64, (from + count) * R::BYTES as u64);
        let in_file = end.min(self.flushed).saturating_sub(start);
        into.clear();
        into.resize(to_usize(in_file), 0);
        if let Some(file) = self.file.as_ref().filter(|_| in_file > 0) {
            file.read_exact_at(into, start)?;
        }
        let buffered =
            to_usize(start.max(self.flushed) - self.flushed)..to_usize(end.max(self.flushed) - self.flushed);
        into.extend_from_slice(self.buffered.get(buffered).unwrap_or(&[]));
        Ok(())
    }

    /// A cursor from row `from` up to row `end`, exclusive.
    pub fn cursor(&self, from: u64, end: u64) -> Cursor<R> {
        Cursor::new(from, end.min(self.rows), self.scratch.buffer())
    }

    /// A cursor over all rows for random access: it reads little ahead.
    pub fn random_access(&self) -> Cursor<R> {
        Cursor::new(0, self.rows, self.scratch.buffer().min(4 << 10))
    }

    /// A cursor from the last row to the first.
    pub fn backward(&self) -> Backward<R> {
        let cursor = Cursor::new(0, self.rows, self.scratch.buffer());
        Backward { cursor, left: self.rows }
    }
}

/// A position in a spill file, with the rows read ahead. Use it only with the file that created it.
#[derive(Debug)]
pub struct Cursor<R> {
    next: u64,
    end: u64,
    /// Number of rows read at once.
    ahead: u64,
    /// Number of the first row in `bytes`.
    first: u64,
    bytes: Vec<u8>,
    kind: PhantomData<R>,
}

impl<R: Row> Cursor<R> {
    fn new(from: u64, end: u64, buffer: usize) -> Self {
        let ahead = (buffer / R::BYTES).max(1) as u64;
        Self { next: from, end, ahead, first: from, bytes: Vec::new(), kind: PhantomData }
    }

    /// The next row.
    pub fn next(&mut self, file: &SpillFile<R>) -> io::Result<Option<R>> {
        let row = self.at(file, self.next)?;
        self.next += u64::from(row.is_some());
        Ok(row)
    }

    /// Moves to this row.
    pub fn seek(&mut self, row: u64) {
        self.next = row;
    }

    /// The row with this number; the following rows are read ahead.
    pub fn at(&mut self, file: &SpillFile<R>, row: u64) -> io::Result<Option<R>> {
        if row >= self.end {
            return Ok(None);
        }
        if !self.has_buffered(row) {
            self.load(file, row, self.ahead.min(self.end - row))?;
        }
        Ok(self.buffered_row(row))
    }

    /// The row with this number; the preceding rows are read ahead.
    fn at_backward(&mut self, file: &SpillFile<R>, row: u64) -> io::Result<Option<R>> {
        if row >= self.end {
            return Ok(None);
        }
        if !self.has_buffered(row) {
            let first = (row + 1).saturating_sub(self.ahead);
            self.load(file, first, row + 1 - first)?;
        }
        Ok(self.buffered_row(row))
    }

    fn load(&mut self, file: &SpillFile<R>, first: u64, count: u64) -> io::Result<()> {
        file.read(first, count, &mut self.bytes)?;
        self.first = first;
        Ok(())
    }

    fn has_buffered(&self, row: u64) -> bool {
        row >= self.first && row < self.first + (self.bytes.len() / R::BYTES) as u64
    }

    fn buffered_row(&self, row: u64) -> Option<R> {
        let start = to_usize(row - self.first) * R::BYTES;
        self.bytes.get(start..start + R::BYTES).map(|bytes| R::get(&mut Parts(bytes)))
    }
}

/// Reads a spill file from its end, or at random with decreasing row numbers.
#[derive(Debug)]
pub struct Backward<R> {
    cursor: Cursor<R>,
    left: u64,
}

impl<R: Row> Backward<R> {
    /// The row before the last one returned.
    pub fn next(&mut self, file: &SpillFile<R>) -> io::Result<Option<R>> {
        let Some(row) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = row;
        self.cursor.at_backward(file, row)
    }

    /// The row with this number; cheap if numbers decrease.
    pub fn at(&mut self, file: &SpillFile<R>, row: u64) -> io::Result<Option<R>> {
        self.cursor.at_backward(file, row)
    }
}

/// A number of bytes in memory, so it always fits.
fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
