//! Pairs of numbers that change in place, more of them than fit into memory.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::{Parts, Scratch};

/// A place and a row number.
pub type Pair = (u64, u64);

const PAIRS: usize = 256;
const PAGE: usize = PAIRS * 16;

/// A list that grows at its end and changes in place; the pages used last are in memory.
#[derive(Debug)]
pub struct Pages {
    scratch: Scratch,
    file: Option<File>,
    held: HashMap<u64, Page>,
    /// The pages in memory, the one loaded first in front.
    loaded: VecDeque<u64>,
    most: usize,
    len: u64,
}

#[derive(Debug, Default)]
struct Page {
    pairs: Vec<Pair>,
    changed: bool,
}

impl Pages {
    /// Nothing yet.
    pub fn new(scratch: &Scratch) -> Self {
        let most = (scratch.unit() / PAGE).max(4);
        let scratch = scratch.clone();
        Self { scratch, file: None, held: HashMap::new(), loaded: VecDeque::new(), most, len: 0 }
    }

    /// How many pairs there are.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// A pair by its number.
    pub fn at(&mut self, number: u64) -> io::Result<Option<Pair>> {
        if number >= self.len {
            return Ok(None);
        }
        let (page, slot) = place(number);
        Ok(self.page(page)?.pairs.get(slot).copied())
    }

    /// Sets a pair, at most one behind the end.
    pub fn set(&mut self, number: u64, pair: Pair) -> io::Result<()> {
        let (page, slot) = place(number);
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
        if !self.held.contains_key(&number) {
            if self.loaded.len() >= self.most {
                self.evict()?;
            }
            let page = self.load(number)?;
            self.held.insert(number, page);
            self.loaded.push_back(number);
        }
        Ok(self.held.entry(number).or_default())
    }

    /// A page as the file has it; an empty one behind the end.
    fn load(&self, number: u64) -> io::Result<Page> {
        let there = self.len.saturating_sub(number * PAIRS as u64).min(PAIRS as u64);
        let mut bytes = vec![0; usize::try_from(there).unwrap_or(PAIRS) * 16];
        if let Some(file) = self.file.as_ref().filter(|_| there > 0) {
            file.read_exact_at(&mut bytes, number * PAGE as u64)?;
        }
        let mut parts = Parts(&bytes);
        let mut pairs = Vec::with_capacity(PAIRS);
        pairs.extend((0..there).map(|_| (parts.u64(), parts.u64())));
        Ok(Page { pairs, changed: false })
    }

    fn evict(&mut self) -> io::Result<()> {
        let Some(number) = self.loaded.pop_front() else { return Ok(()) };
        let Some(page) = self.held.remove(&number).filter(|page| page.changed) else { return Ok(()) };
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(self.scratch.file()?),
        };
        let bytes: Vec<u8> =
            page.pairs.iter().flat_map(|(a, b)| [a.to_le_bytes(), b.to_le_bytes()]).flatten().collect();
        self.scratch.count(bytes.len());
        file.write_all_at(&bytes, number * PAGE as u64)
    }
}

fn place(number: u64) -> (u64, usize) {
    let pairs = PAIRS as u64;
    (number / pairs, usize::try_from(number % pairs).unwrap_or(0))
}
