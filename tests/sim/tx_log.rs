//! A partition that transactions write to: clean and state topic.

use dedupd::dedupe::Offset;
use dedupd::ports::Bounds;

/// A transaction of the cluster, by number.
pub type Tx = usize;

/// What became of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Not decided.
    Open,
    /// Visible to `read_committed`.
    Committed,
    /// Never visible.
    Aborted,
}

/// Entries and markers; each takes an offset.
pub struct TxLog<T> {
    entries: Vec<(Tx, Option<T>)>,
}

impl<T> Default for TxLog<T> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

impl<T> TxLog<T> {
    /// Writes an entry of a transaction and returns its offset.
    pub fn append(&mut self, tx: Tx, entry: T) -> Offset {
        self.entries.push((tx, Some(entry)));
        self.entries.len() as Offset - 1
    }

    /// Writes the marker that ends a transaction here.
    pub fn mark(&mut self, tx: Tx) {
        self.entries.push((tx, None));
    }

    /// The ends of the log.
    pub fn bounds(&self, fates: &[Fate]) -> Bounds {
        let open = self.entries.iter().position(|(tx, _)| fates[*tx] == Fate::Open);
        let high = self.entries.len();
        Bounds { low: 0, stable: open.unwrap_or(high) as Offset, high: high as Offset }
    }

    /// What `read_committed` sees from `from` on.
    pub fn committed<'a>(
        &'a self,
        from: Offset,
        fates: &'a [Fate],
    ) -> impl Iterator<Item = (Offset, &'a T)> + 'a {
        let stable = usize::try_from(self.bounds(fates).stable).unwrap();
        self.everything(from)
            .take_while(move |(at, ..)| *at < stable as Offset)
            .filter(|(_, tx, _)| fates[*tx] == Fate::Committed)
            .map(|(at, _, entry)| (at, entry))
    }

    /// All entries from `from` on, whatever became of them.
    pub fn everything(&self, from: Offset) -> impl Iterator<Item = (Offset, Tx, &T)> {
        let entries = self.entries.iter().enumerate().skip(usize::try_from(from).unwrap());
        entries.filter_map(|(at, (tx, entry))| Some((at as Offset, *tx, entry.as_ref()?)))
    }
}
