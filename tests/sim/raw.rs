//! The raw topic: what producers wrote, with holes after compaction.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use dedupd::dedupe::identity::Fields;
use dedupd::dedupe::{Coordinates, Offset, PartitionId};
use dedupd::ports::Record;

use crate::sim::chance::{Chance, Fault};

/// A record as its producer wrote it. Its value is unique.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raw {
    /// Its coordinates, also after deletion.
    pub at: Coordinates,
    /// Its id, `None` when it has none.
    pub key: Option<String>,
    /// Its body.
    pub value: String,
    /// Its timestamp.
    pub timestamp_ms: Option<i64>,
    /// The broker of the clean topic rejects it.
    pub rejected: bool,
    /// Number of records written to the partition before it, including deleted ones.
    pub number: usize,
    /// The epoch of the leader that appended it.
    pub epoch: i32,
}

impl Raw {
    /// What the worker compares: few contents, so that some records with one id have the same one.
    pub fn content(&self) -> &'static [u8] {
        [&b"a"[..], b"b", b"c"][self.number % 3]
    }

    /// Its id, or its value if it has no id.
    pub fn name(&self) -> &str {
        self.key.as_deref().unwrap_or(&self.value)
    }
}

/// A record as a poll returns it.
pub struct SimRecord(pub Rc<Raw>);

impl Fields for SimRecord {
    fn key(&self) -> Option<&[u8]> {
        self.0.key.as_ref().map(String::as_bytes)
    }
    fn value(&self) -> Option<&[u8]> {
        Some(self.0.value.as_bytes())
    }
    /// The content; or the last digit of the id, so that all records with the id are of the same kind.
    fn header(&self, name: &str) -> Option<&[u8]> {
        if name == "content" {
            return Some(self.0.content());
        }
        let key = self.0.key.as_ref().filter(|_| name == "kind")?.as_bytes();
        key.last_chunk::<1>().map(<[u8; 1]>::as_slice)
    }
}

impl Record for SimRecord {
    fn coordinates(&self) -> Coordinates {
        self.0.at
    }
    fn timestamp_ms(&self) -> Option<i64> {
        self.0.timestamp_ms
    }
    fn leader_epoch(&self) -> Option<i32> {
        Some(self.0.epoch)
    }
    fn size(&self) -> usize {
        self.0.name().len() + self.0.value.len()
    }
    fn has_header(&self, _: &str) -> bool {
        false
    }
}

/// One partition of the raw topic.
pub struct RawLog {
    partition: PartitionId,
    /// The log start offset.
    low: Offset,
    /// By offset. `None` where compaction or retention removed the record, and for a marker.
    records: Vec<Option<Rc<Raw>>>,
    /// Records that were deleted after they were processed.
    deleted: Vec<Rc<Raw>>,
    /// Everything ever written, by value.
    pub history: HashMap<String, Rc<Raw>>,
    /// Records were removed before or after they were read.
    pub holed: bool,
    /// For each id, the number of its records that the log lost after they were processed.
    pub replaced: BTreeMap<String, usize>,
    /// The log was truncated, or unprocessed records were deleted.
    pub is_broken: bool,
    /// Offsets of damaged records, each a batch of its own.
    pub damaged: BTreeSet<Offset>,
    /// Each leader epoch with its first offset.
    epochs: Vec<(i32, Offset)>,
    ids: Ids,
}

/// Where the ids of records come from.
#[derive(Clone)]
pub struct Ids {
    /// What all these ids begin with.
    prefix: String,
    /// Number of ids used so far.
    used: Rc<Cell<u64>>,
}

impl Ids {
    /// Ids with this prefix.
    pub fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), used: Rc::default() }
    }
}

impl RawLog {
    /// An empty partition, from which everything before `low` was deleted.
    pub fn new(partition: PartitionId, low: Offset, ids: Ids) -> Self {
        let records = vec![None; usize::try_from(low).unwrap()];
        Self {
            partition,
            low,
            records,
            history: HashMap::new(),
            deleted: Vec::new(),
            holed: false,
            replaced: BTreeMap::new(),
            is_broken: false,
            damaged: BTreeSet::new(),
            epochs: vec![(0, 0)],
            ids,
        }
    }

    /// The log start offset.
    pub fn low(&self) -> Offset {
        self.low
    }

    /// Deletes everything before an offset.
    pub fn delete(&mut self, before: Offset) {
        let before = before.min(self.end());
        for slot in self.records.iter_mut().take(usize::try_from(before).unwrap()) {
            self.deleted.extend(slot.take());
        }
        self.low = self.low.max(before);
    }

    /// Deletes everything before an offset, including records that were not processed.
    pub fn delete_unread(&mut self, before: Offset) {
        self.records.iter_mut().take(usize::try_from(before).unwrap()).for_each(|slot| *slot = None);
        (self.low, self.holed, self.is_broken) = (self.low.max(before), true, true);
    }

    /// One past the last offset of a leader epoch, or of the latest epoch before it.
    pub fn end_of_epoch(&self, epoch: i32) -> Offset {
        self.epochs.iter().find(|(other, _)| *other > epoch).map_or(self.end(), |(_, first)| *first)
    }

    /// Whether the log has another record, or ends, at the offset of this one.
    pub fn has_replaced(&self, raw: &Raw) -> bool {
        let at = self.records.get(usize::try_from(raw.at.offset).unwrap());
        at.is_none_or(|slot| slot.as_ref().is_some_and(|current| current.number != raw.number))
    }

    /// One past the last offset.
    pub fn end(&self) -> Offset {
        self.records.len() as Offset
    }

    /// The first record at or beyond `from`.
    pub fn next(&self, from: Offset) -> Option<&Rc<Raw>> {
        self.records.get(usize::try_from(from).unwrap()..)?.iter().flatten().next()
    }

    /// The records that could be processed, in order: deleted ones first, then those still in the log.
    pub fn records(&self) -> impl Iterator<Item = &Rc<Raw>> {
        self.deleted.iter().chain(self.records.iter().flatten())
    }

    /// Appends the marker of a transaction, which no client returns.
    pub fn mark(&mut self) {
        self.records.push(None);
    }

    /// Appends a record with a new id, or with one that was used before.
    pub fn produce(&mut self, chance: &mut Chance, now_ms: i64) {
        let used = self.ids.used.get();
        let is_repeat = used > 0 && chance.rng.u8(0..10) < 4;
        let id = if is_repeat {
            let recent = if chance.coin() { used.saturating_sub(5) } else { 0 };
            chance.rng.u64(recent..used)
        } else {
            self.ids.used.set(used + 1);
            used
        };
        self.produce_id(id, chance, now_ms);
    }

    /// Appends a record with this id, which the broker of the clean topic rejects.
    pub fn produce_rejected(&mut self, id: u64, chance: &mut Chance, now_ms: i64) {
        self.produce_id(id, chance, now_ms);
        let slot = self.records.last_mut().expect("a record was appended");
        let appended = slot.take().expect("it was not removed");
        let kept = self.history.get_mut(&appended.value).expect("it is in the history");
        *kept = Rc::new(Raw { rejected: true, ..(**kept).clone() });
        *slot = Some(Rc::clone(kept));
    }

    /// Appends a record with this id.
    pub fn produce_id(&mut self, id: u64, chance: &mut Chance, now_ms: i64) {
        let at = Coordinates { partition: self.partition, offset: self.end() };
        let first = self.history.is_empty();
        // The first record sets stream time, so its timestamp is always a normal one.
        let strange = !first && chance.hit(Fault::StrangeTime);
        let stamps = [None, Some(0), Some(-1), Some(i64::MAX), Some(now_ms - 3_600_000), Some(i64::MIN)];
        let timestamp_ms = if strange { stamps[chance.rng.usize(0..stamps.len())] } else { Some(now_ms) };
        let raw = Rc::new(Raw {
            at,
            key: (!chance.hit(Fault::MissingId)).then(|| format!("{}-{id}", self.ids.prefix)),
            value: format!("{}/{}", self.partition, self.history.len()),
            timestamp_ms,
            rejected: !first && chance.hit(Fault::Rejected),
            number: self.history.len(),
            epoch: self.epochs.last().map_or(0, |(epoch, _)| *epoch),
        });
        self.history.insert(raw.value.clone(), Rc::clone(&raw));
        self.records.push(Some(raw));
    }

    /// Removes some records at or beyond `from`.
    pub fn compact(&mut self, from: Offset, chance: &mut Chance) {
        let from = usize::try_from(from.max(self.low + 1)).unwrap();
        let thorough = chance.rng.u8(2..10);
        for slot in self.records.iter_mut().skip(from) {
            if slot.is_some() && chance.rng.u8(0..10) < thorough {
                tracing::debug!(at = ?slot.as_ref().map(|raw| raw.at), "compacted");
                *slot = None;
                self.holed = true;
            }
        }
    }

    /// Replaces the records at or beyond `from` by others.
    pub fn rewrite(&mut self, from: Offset, chance: &mut Chance, now_ms: i64) {
        let from = usize::try_from(from.max(self.low + 1)).unwrap();
        let lost = self.records.len().saturating_sub(from);
        if lost > 0 {
            self.holed = true;
            tracing::debug!(partition = self.partition, from, lost, "rewritten");
            self.elect(from);
            (0..lost).for_each(|_| self.produce(chance, now_ms));
        }
    }

    /// Loses the processed records at or beyond `from`, and appends others there.
    pub fn truncate(&mut self, from: Offset, chance: &mut Chance, now_ms: i64) {
        let from = usize::try_from(from).unwrap();
        let lost = self.records.len() - from;
        for raw in self.history.values().filter(|raw| raw.at.offset >= from as Offset) {
            *self.replaced.entry(raw.name().to_owned()).or_default() += 1;
        }
        tracing::debug!(partition = self.partition, from, lost, "truncated");
        self.elect(from);
        let new = chance.rng.usize(0..=lost * 2);
        (0..new).for_each(|_| self.produce(chance, now_ms));
        self.holed = true;
        self.is_broken = true;
    }

    /// Elects a leader that has only the records before `from`.
    fn elect(&mut self, from: usize) {
        let epoch = self.epochs.last().map_or(0, |(epoch, _)| epoch + 1);
        self.records.truncate(from);
        self.damaged.retain(|at| *at < from as Offset);
        self.epochs.retain(|(_, first)| *first < from as Offset);
        self.epochs.push((epoch, from as Offset));
    }
}
