//! Kinds of records. Each kind has its own window, and stores its identities in its own blocks.

use std::fmt;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::{Fields, Fingerprint, IdSource, MissingSchema, Schemas};
use crate::dedupe::coordinates::JournalId;

/// Low bits of a window id, for the journal. The remaining 15 bits are the kind.
const PARTITION_BITS: u32 = 17;
/// Most partitions of a topic; the limit leaves room for the kind in a window id.
pub const MOST_PARTITIONS: u32 = 1 << PARTITION_BITS;

/// Identifies a kind in blocks and checkpoints. It is derived from the name alone, so that kinds can be added, removed
/// and reordered. It has 15 bits: two names can collide, which the configuration check rejects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct KindId(u16);

impl KindId {
    /// The kind of records that belong to no named kind.
    pub const UNNAMED: Self = Self(0);

    /// The id of the kind with this name.
    pub fn named(name: &str) -> Self {
        const NAMES: u64 = (1 << (u32::BITS - PARTITION_BITS)) - 1;
        Self(u16::try_from(xxh3_64(name.as_bytes()) % NAMES + 1).unwrap_or(1))
    }

    /// Its number, 0 to 32,767; 0 is the unnamed kind.
    pub fn number(self) -> u16 {
        self.0
    }

    /// The id with this number.
    pub fn numbered(number: u16) -> Self {
        Self(number)
    }

    /// The window of this kind and a journal.
    pub fn window(self, journal: JournalId) -> WindowId {
        WindowId((u32::from(self.0) << PARTITION_BITS) | (journal % MOST_PARTITIONS))
    }
}

/// Identifies the window of one kind and one journal, in the local store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WindowId(u32);

impl WindowId {
    /// The id with this number, as stored.
    pub fn numbered(number: u32) -> Self {
        Self(number)
    }

    /// Its number, as stored. For the unnamed kind it is the number of the journal.
    pub fn number(self) -> u32 {
        self.0
    }

    /// The kind whose ids the window stores.
    pub fn kind(self) -> KindId {
        KindId(u16::try_from(self.0 >> PARTITION_BITS).unwrap_or(0))
    }

    /// The journal: a partition of the state topic.
    pub fn journal(self) -> JournalId {
        self.0 % MOST_PARTITIONS
    }
}

/// The window of the unnamed kind.
impl From<JournalId> for WindowId {
    fn from(journal: JournalId) -> Self {
        KindId::UNNAMED.window(journal)
    }
}

/// The journal, and the number of a named kind: `3`, or `3 (kind 25378)`.
impl fmt::Display for WindowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.journal())?;
        if self.kind() == KindId::UNNAMED { Ok(()) } else { write!(f, " (kind {})", self.kind().number()) }
    }
}

/// Selects the records of a kind: those with one of these values at this source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindRule {
    source: IdSource,
    values: Vec<Vec<u8>>,
}

impl KindRule {
    /// A JSON string is compared by its bytes, a number or boolean by its text.
    pub fn new(source: IdSource, values: impl IntoIterator<Item = String>) -> Self {
        Self { source, values: values.into_iter().map(String::into_bytes).collect() }
    }

    /// Fingerprint of this kind with the identity rule `of`. It distinguishes the kind's identities from those of
    /// another rule.
    pub fn fingerprint(&self, of: Fingerprint) -> Fingerprint {
        let mut values = self.values.clone();
        values.sort_unstable();
        values.dedup();
        let rule = [of.to_string(), self.source.to_string()].map(String::into_bytes);
        Fingerprint::of(rule.into_iter().chain(values))
    }

    /// Whether the record belongs to this kind. Fails when that cannot be read without a schema that is not known.
    pub fn takes<F: Fields>(&self, record: &F, schemas: &Schemas) -> Result<bool, MissingSchema> {
        let found = self.source.bytes(record, schemas)?;
        Ok(found.is_some_and(|found| self.values.iter().any(|value| value.as_slice() == found.as_ref())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_id_contains_kind_and_journal() {
        for (kind, partition) in
            [(KindId::UNNAMED, 0), (KindId::UNNAMED, 131_071), (KindId::named("payments"), 40)]
        {
            let window = kind.window(partition);
            assert_eq!((window.kind(), window.journal()), (kind, partition));
            assert_eq!(WindowId::numbered(window.number()), window);
        }
        assert_eq!((WindowId::from(17).number(), WindowId::from(17).to_string()), (17, "17".to_owned()));
        assert_eq!(KindId::named("payments").window(40).to_string(), "40 (kind 25378)");
        // Part of the persistent format of blocks: must never change.
        assert_eq!(KindId::named("payments").number(), 25_378);
        assert!((0..40_000).all(|number| KindId::named(&number.to_string()) != KindId::UNNAMED));
    }
}
