//! A list of number pairs with updates in place, which may exceed the memory.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::{Parts, Scratch};

/// A raw offset and a row number.
pub type Pair = (u64, u64);

const PAGE_PAIRS: usize = 256;
const PAGE_BYTES: usize = PAGE_PAIRS * 16;

/// A list with append and update in place; the pages loaded last are in memory.
#[derive(Debug)]
pub struct Pages {
    scratch: Scratch,
    file: Option<File>,
    in_memory: HashMap<u64, Page>,
    /// The numbers of the pages in memory, oldest load first.
    loaded: VecDeque<u64>,
    /// Maximum number of pages in memory.
    capacity: usize,
    len: u64,
}

#[derive(Debug, Default)]
struct Page {
    pairs: Vec<Pair>,
    changed: bool,
}

impl Pages {
    /// An empty list.
    pub fn new(scratch: &Scratch) -> Self {
        let capacity = (scratch.unit() / PAGE_BYTES).max(4);
        let scratch = scratch.clone();
        Self { scratch, file: None, in_memory: HashMap::new(), loaded: VecDeque::new(), capacity, len: 0 }
    }

    /// Number of pairs.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The pair at index `number`.
    pub fn at(&mut self, number: u64) -> io::Result<Option<Pair>> {
        if number >= self.len {
            return Ok(None);
        }
        let (page, slot) = slot_of(number);
        Ok(self.page(page)?.pairs.get(slot).copied())
    }

    /// Sets the pair at index `number`, at most one past the end.
    pub fn set(&mut self, number: u64, pair: Pair) -> io::Result<()> {
        let (page, slot) = slot_of(number);
        let page = self.page(page)?;
        page.changed = true;
        match page.pairs.get_mut(slot) {
            Some(old) => *old = pair,
            None => page.pairs.push(pair),
        }
        self.len = self.len.max(number + 1);
        Ok(())
    }

    fn page(&mut self, number: u64) -> io::Result<&mut Page> {
        if !self.in_memory.contains_key(&number) {
            if self.loaded.len() >= self.capacity {
                self.evict()?;
            }
            let page = self.load(number)?;
            self.in_memory.insert(number, page);
            self.loaded.push_back(number);
        }
        Ok(self.in_memory.entry(number).or_default())
    }

    /// Reads a page from the file; past the end it is empty.
    fn load(&self, number: u64) -> io::Result<Page> {
        let stored = self.len.saturating_sub(number * PAGE_PAIRS as u64).min(PAGE_PAIRS as u64);
        let mut bytes = vec![0; usize::try_from(stored).unwrap_or(PAGE_PAIRS) * 16];
        if let Some(file) = self.file.as_ref().filter(|_| stored > 0) {
            file.read_exact_at(&mut bytes, number * PAGE_BYTES as u64)?;
        }
        let mut parts = Parts(&bytes);
        let mut pairs = Vec::with_capacity(PAGE_PAIRS);
        pairs.extend((0..stored).map(|_| (parts.u64(), parts.u64())));
        Ok(Page { pairs, changed: false })
    }

    fn evict(&mut self) -> io::Result<()> {
        let Some(number) = self.loaded.pop_front() else { return Ok(()) };
        let Some(page) = self.in_memory.remove(&number).filter(|page| page.changed) else { return Ok(()) };
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(self.scratch.file()?),
        };
        let bytes: Vec<u8> =
            page.pairs.iter().flat_map(|(a, b)| [a.to_le_bytes(), b.to_le_bytes()]).flatten().collect();
        self.scratch.count(bytes.len());
        file.write_all_at(&bytes, number * PAGE_BYTES as u64)
    }
}

fn slot_of(number: u64) -> (u64, usize) {
    let pairs = PAGE_PAIRS as u64;
    (number / pairs, usize::try_from(number % pairs).unwrap_or(0))
}
