//! A partition of the clean topic, the state topic or a side topic, with transactions.
//!
//! As in Kafka, a record belongs to a producer, not to a transaction: the next marker of its producer decides
//! about every record of that producer which is still open in the log. If a broker fails to write a marker,
//! the next transaction therefore decides about the records.

use std::time::Duration;

use dedupd::dedupe::Offset;
use dedupd::ports::LogBounds;

/// The number of a transactional id.
pub type Producer = usize;

/// The state of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Not decided.
    Open,
    /// Visible to `read_committed`.
    Committed,
    /// Never visible.
    Aborted,
}

struct Entry<T> {
    producer: Producer,
    at: Duration,
    fate: Fate,
    /// `None` for a marker, and for a record whose only purpose is its marker.
    content: Option<T>,
    /// Compaction has removed it. Readers do not find it any more.
    is_compacted: bool,
}

/// Records and markers. Each has an offset.
pub struct TxLog<T> {
    /// Everything ever written, including what retention has deleted.
    entries: Vec<Entry<T>>,
    /// The offset of the first entry.
    base: Offset,
    /// The log start offset.
    low: Offset,
}

impl<T> TxLog<T> {
    /// An empty log, from which everything before `base` was deleted.
    pub fn new(base: Offset) -> Self {
        Self { entries: Vec::new(), base, low: base }
    }

    /// Writes a record of a producer's open transaction and returns its offset.
    pub fn append(&mut self, producer: Producer, at: Duration, content: Option<T>) -> Offset {
        self.entries.push(Entry { producer, at, fate: Fate::Open, content, is_compacted: false });
        self.end() - 1
    }

    /// Writes a record outside of any transaction.
    pub fn append_alone(&mut self, at: Duration, content: T) {
        self.entries.push(Entry {
            producer: Producer::MAX,
            at,
            fate: Fate::Committed,
            content: Some(content),
            is_compacted: false,
        });
    }

    /// Writes a marker, which decides about all open records of the producer.
    pub fn mark(&mut self, producer: Producer, at: Duration, fate: Fate) {
        for entry in &mut self.entries {
            if entry.producer == producer && entry.fate == Fate::Open {
                entry.fate = fate;
            }
        }
        self.entries.push(Entry { producer, at, fate, content: None, is_compacted: false });
    }

    /// Deletes what was written before a time and is below an offset. Returns whether that includes a committed record.
    pub fn delete(&mut self, before: Duration, below: Offset) -> bool {
        let old = self.entries.iter().take_while(|entry| entry.at < before && entry.fate != Fate::Open);
        let low = (self.base + old.count() as Offset).min(below);
        let seen = self.committed(0).next().is_some_and(|(first, _)| first < low);
        self.low = self.low.max(low);
        seen
    }

    /// Removes a record that is not open and is below an offset. Returns whether there is one.
    pub fn compact(&mut self, at: Offset, below: Offset) -> bool {
        let entry = self.entries.get_mut(usize::try_from(at - self.base).unwrap());
        let entry = entry.filter(|it| at < below && it.fate != Fate::Open && it.content.is_some());
        let Some(entry) = entry.filter(|it| !it.is_compacted) else { return false };
        entry.is_compacted = true;
        true
    }

    fn end(&self) -> Offset {
        self.base + self.entries.len() as Offset
    }

    /// The ends of the log.
    pub fn bounds(&self) -> LogBounds {
        let open = self.entries.iter().position(|entry| entry.fate == Fate::Open);
        let stable = open.map_or(self.end(), |open| self.base + open as Offset);
        LogBounds { low: self.low, stable, high: self.end() }
    }

    /// The committed records from `from` on, as `read_committed` returns them.
    pub fn committed(&self, from: Offset) -> impl Iterator<Item = (Offset, &T)> {
        let stable = self.bounds().stable;
        let committed = self.left(from).take_while(move |(at, ..)| *at < stable);
        committed.filter(|(_, fate, _)| *fate == Fate::Committed).map(|(at, _, content)| (at, content))
    }

    /// The committed records, including those that were deleted or compacted since.
    pub fn ever_committed(&self) -> impl Iterator<Item = (Offset, &T)> {
        let stable = self.bounds().stable;
        self.records()
            .take_while(move |(at, ..)| *at < stable)
            .filter(|(_, fate, _)| *fate == Fate::Committed)
            .map(|(at, _, content)| (at, content))
    }

    /// All records from `from` on, in any state.
    pub fn everything(&self, from: Offset) -> impl Iterator<Item = (Offset, &T)> {
        self.left(from).map(|(at, _, content)| (at, content))
    }

    /// The records from `from` on that readers still find.
    fn left(&self, from: Offset) -> impl Iterator<Item = (Offset, Fate, &T)> {
        let (from, base) = (from.max(self.low), self.base);
        let is_compacted = move |at: Offset| self.entries[usize::try_from(at - base).unwrap()].is_compacted;
        self.records().skip_while(move |(at, ..)| *at < from).filter(move |(at, ..)| !is_compacted(*at))
    }

    fn records(&self) -> impl Iterator<Item = (Offset, Fate, &T)> {
        let entries = (self.base..).zip(&self.entries);
        entries.filter_map(|(at, entry)| Some((at, entry.fate, entry.content.as_ref()?)))
    }
}
