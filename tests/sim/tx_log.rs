//! A partition that transactions write to: clean and state topic.
//!
//! As in Kafka, a record belongs to a producer, not to a transaction: the next marker of its producer decides
//! about every record of that producer which is still open here. A marker that a broker failed to write
//! therefore leaves records to the outcome of a later transaction.

use dedupd::dedupe::Offset;
use dedupd::ports::Bounds;

/// A transactional id of the cluster, by number.
pub type Producer = usize;

/// What became of a record.
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
    fate: Fate,
    /// `None` for a marker, and for a record whose only purpose is its marker.
    content: Option<T>,
}

/// Records and markers; each takes an offset.
pub struct TxLog<T> {
    entries: Vec<Entry<T>>,
}

impl<T> Default for TxLog<T> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

impl<T> TxLog<T> {
    /// Writes a record of a producer's open transaction and returns its offset.
    pub fn append(&mut self, producer: Producer, content: Option<T>) -> Offset {
        self.entries.push(Entry { producer, fate: Fate::Open, content });
        self.entries.len() as Offset - 1
    }

    /// Writes the marker that decides about everything of a producer that is open here.
    pub fn mark(&mut self, producer: Producer, fate: Fate) {
        for entry in &mut self.entries {
            if entry.producer == producer && entry.fate == Fate::Open {
                entry.fate = fate;
            }
        }
        self.entries.push(Entry { producer, fate, content: None });
    }

    /// The ends of the log.
    pub fn bounds(&self) -> Bounds {
        let open = self.entries.iter().position(|entry| entry.fate == Fate::Open);
        let high = self.entries.len();
        Bounds { low: 0, stable: open.unwrap_or(high) as Offset, high: high as Offset }
    }

    /// What `read_committed` sees from `from` on.
    pub fn committed(&self, from: Offset) -> impl Iterator<Item = (Offset, &T)> {
        let stable = self.bounds().stable;
        self.records(from)
            .take_while(move |(at, ..)| *at < stable)
            .filter(|(_, fate, _)| *fate == Fate::Committed)
            .map(|(at, _, content)| (at, content))
    }

    /// All records from `from` on, whatever became of them.
    pub fn everything(&self, from: Offset) -> impl Iterator<Item = (Offset, &T)> {
        self.records(from).map(|(at, _, content)| (at, content))
    }

    fn records(&self, from: Offset) -> impl Iterator<Item = (Offset, Fate, &T)> {
        let entries = self.entries.iter().enumerate().skip(usize::try_from(from).unwrap());
        entries.filter_map(|(at, entry)| Some((at as Offset, entry.fate, entry.content.as_ref()?)))
    }
}
