//! Rows in the order they came in: appended at the end, read from anywhere.

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::unix::fs::FileExt;

use super::{Parts, Row, Scratch};

/// Rows in the order they came in. The last ones are in memory, the others in a file.
#[derive(Debug)]
pub struct Tape<R> {
    scratch: Scratch,
    file: Option<File>,
    /// Bytes in the file.
    flushed: u64,
    tail: Vec<u8>,
    rows: u64,
    kind: PhantomData<R>,
}

impl<R: Row> Tape<R> {
    /// Nothing yet.
    pub fn new(scratch: &Scratch) -> Self {
        let scratch = scratch.clone();
        Self { scratch, file: None, flushed: 0, tail: Vec::new(), rows: 0, kind: PhantomData }
    }

    /// How many rows there are.
    pub fn len(&self) -> u64 {
        self.rows
    }

    /// Appends a row.
    pub fn push(&mut self, row: &R) -> io::Result<()> {
        if self.tail.len() + R::BYTES > self.scratch.buffer() {
            self.flush()?;
        }
        if self.tail.capacity() == 0 {
            self.tail.reserve_exact(self.scratch.buffer().max(R::BYTES));
        }
        row.put(&mut self.tail);
        self.rows += 1;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(self.scratch.file()?),
        };
        file.write_all_at(&self.tail, self.flushed)?;
        self.flushed += self.tail.len() as u64;
        self.scratch.count(self.tail.len());
        self.tail.clear();
        Ok(())
    }

    /// Reads `count` rows from number `from` on, which must be there.
    fn read(&self, from: u64, count: u64, into: &mut Vec<u8>) -> io::Result<()> {
        let (start, end) = (from * R::BYTES as u64, (from + count) * R::BYTES as u64);
        let in_file = end.min(self.flushed).saturating_sub(start);
        into.clear();
        into.resize(small(in_file), 0);
        if let Some(file) = self.file.as_ref().filter(|_| in_file > 0) {
            file.read_exact_at(into, start)?;
        }
        let tail = small(start.max(self.flushed) - self.flushed)..small(end.max(self.flushed) - self.flushed);
        into.extend_from_slice(self.tail.get(tail).unwrap_or(&[]));
        Ok(())
    }

    /// A place to read from: at row `from`, up to row `end`.
    pub fn cursor(&self, from: u64, end: u64) -> Cursor<R> {
        Cursor::new(from, end.min(self.rows), self.scratch.buffer())
    }

    /// The same for reading here and there: little is read ahead.
    pub fn jumper(&self) -> Cursor<R> {
        Cursor::new(0, self.rows, self.scratch.buffer().min(4 << 10))
    }

    /// Reads from the last row to the first.
    pub fn backward(&self) -> Backward<R> {
        let cursor = Cursor::new(0, self.rows, self.scratch.buffer());
        Backward { cursor, left: self.rows }
    }
}

/// A place on a tape, with what was read ahead. The tape must be the one it came from.
#[derive(Debug)]
pub struct Cursor<R> {
    next: u64,
    end: u64,
    /// How many rows are read at once.
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
    pub fn next(&mut self, tape: &Tape<R>) -> io::Result<Option<R>> {
        let row = self.at(tape, self.next)?;
        self.next += u64::from(row.is_some());
        Ok(row)
    }

    /// Goes on reading at this row.
    pub fn seek(&mut self, row: u64) {
        self.next = row;
    }

    /// A row by its number; the ones behind it are read ahead.
    pub fn at(&mut self, tape: &Tape<R>, row: u64) -> io::Result<Option<R>> {
        if row >= self.end {
            return Ok(None);
        }
        if !self.holds(row) {
            self.load(tape, row, self.ahead.min(self.end - row))?;
        }
        Ok(self.held(row))
    }

    /// A row by its number; the ones before it are read ahead.
    fn at_backward(&mut self, tape: &Tape<R>, row: u64) -> io::Result<Option<R>> {
        if row >= self.end {
            return Ok(None);
        }
        if !self.holds(row) {
            let first = (row + 1).saturating_sub(self.ahead);
            self.load(tape, first, row + 1 - first)?;
        }
        Ok(self.held(row))
    }

    fn load(&mut self, tape: &Tape<R>, first: u64, count: u64) -> io::Result<()> {
        tape.read(first, count, &mut self.bytes)?;
        self.first = first;
        Ok(())
    }

    fn holds(&self, row: u64) -> bool {
        row >= self.first && row < self.first + (self.bytes.len() / R::BYTES) as u64
    }

    fn held(&self, row: u64) -> Option<R> {
        let start = small(row - self.first) * R::BYTES;
        self.bytes.get(start..start + R::BYTES).map(|bytes| R::get(&mut Parts(bytes)))
    }
}

/// Reads a tape from its end, or here and there with falling numbers.
#[derive(Debug)]
pub struct Backward<R> {
    cursor: Cursor<R>,
    left: u64,
}

impl<R: Row> Backward<R> {
    /// The row before the one read last.
    pub fn next(&mut self, tape: &Tape<R>) -> io::Result<Option<R>> {
        let Some(row) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = row;
        self.cursor.at_backward(tape, row)
    }

    /// A row by its number, cheap when numbers fall.
    pub fn at(&mut self, tape: &Tape<R>, row: u64) -> io::Result<Option<R>> {
        self.cursor.at_backward(tape, row)
    }
}

/// A number of bytes that are in memory.
fn small(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
