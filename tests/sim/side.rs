//! The side topics: what was neither forwarded nor dropped in silence.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use dedupd::dedupe::{Offset, PartitionId};
use dedupd::ports::{LogId, SideRecord, SideRecords, Written};

use crate::sim::chance::Fault;
use crate::sim::cluster::Cluster;
use crate::sim::raw::Raw;
use crate::sim::tx_log::TxLog;

/// A record in a side topic.
#[derive(Clone)]
pub struct Letter {
    /// Transactional id of its first writer.
    pub writer: String,
    /// What it is a copy of.
    pub raw: Rc<Raw>,
}

/// All partitions of the side topics, and how often each raw record was copied there outside of a transaction.
#[derive(Default)]
pub struct Sides {
    partitions: u32,
    /// The partitions.
    pub logs: BTreeMap<LogId, TxLog<Letter>>,
    copied: HashMap<String, usize>,
}

impl Sides {
    /// Both topics, with so many empty partitions each.
    pub fn new(partitions: u32) -> Self {
        let topics = [Written::DeadLetter, Written::Duplicates];
        let logs = topics.into_iter().flat_map(|topic| (0..partitions).map(move |id| (topic, id)));
        let logs = logs.map(|(topic, partition)| (LogId { topic, partition }, TxLog::new(0)));
        Self { partitions, logs: logs.collect(), copied: HashMap::new() }
    }

    /// Where the copy of a raw record goes.
    pub fn log_of(&self, topic: Written, raw: PartitionId) -> LogId {
        LogId { topic, partition: raw % self.partitions }
    }

    /// How often each raw record is seen in a topic, by its value.
    fn shown(&self, topic: Written) -> BTreeMap<&str, usize> {
        let mut shown: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, log) in self.logs.iter().filter(|(log, _)| log.topic == topic) {
            for (_, letter) in log.ever_committed() {
                *shown.entry(&letter.raw.value).or_default() += 1;
            }
        }
        shown
    }
}

impl Cluster {
    /// Writes records of a side partition once more, outside of any transaction.
    pub fn copy_aside(&mut self, log: LogId, offsets: &[Offset]) {
        let now = self.now;
        for offset in offsets {
            let Some(of) = self.sides.logs.get_mut(&log) else { continue };
            let found = of.everything(*offset).next().filter(|(at, _)| at == offset);
            let Some(letter) = found.map(|(_, letter)| letter.clone()) else {
                self.violations.push(format!("copied from {log:?}: nothing is at {offset}"));
                continue;
            };
            *self.sides.copied.entry(letter.raw.value.clone()).or_default() += 1;
            of.append_alone(now, letter);
        }
    }

    /// A look at side partitions, which may end before their ends.
    pub fn side_records(&mut self, from_to: &BTreeMap<LogId, (Offset, Offset)>) -> SideRecords {
        let (mut records, mut next) = (Vec::new(), BTreeMap::new());
        for (log, (from, to)) in from_to {
            let to = if self.chance.hit(Fault::EarlyEnd) { self.chance.rng.u64(*from..=*to) } else { *to };
            let Some(of) = self.sides.logs.get(log) else { continue };
            let found = of.everything(*from).take_while(|(at, _)| *at < to);
            records.extend(found.map(|(offset, letter)| SideRecord {
                log: *log,
                offset,
                writer: Some(letter.writer.clone()),
                raw: Some(letter.raw.at),
            }));
            next.insert(*log, to);
        }
        (records, next)
    }

    /// Compares the side topics with raw and clean: every record that was processed is somewhere, and nothing else is.
    pub fn audit_sides(&self, keeps_letters: bool, keeps_duplicates: bool) -> Vec<String> {
        let letters = self.sides.shown(Written::DeadLetter);
        let duplicates = self.sides.shown(Written::Duplicates);
        let mut wrong = Vec::new();
        let raw = self.raw.iter().flat_map(|log| log.history.values());
        for (raw, rejected) in raw.map(|raw| (raw, raw.rejected)) {
            let value = raw.value.as_str();
            if letters.contains_key(value) && !(rejected && keeps_letters) {
                wrong.push(format!("wrongly a dead letter: id {} of raw {}", raw.name(), raw.at));
            }
            if duplicates.contains_key(value) && !keeps_duplicates {
                wrong.push(format!("wrongly a duplicate: id {} of raw {}", raw.name(), raw.at));
            }
            for (topic, seen) in [("dead letters", &letters), ("duplicates", &duplicates)] {
                let (times, copies) = (seen.get(value).copied().unwrap_or(0), self.copies(value));
                if times > copies.max(1) && !self.is_repeated() && !self.is_disputed(raw) {
                    wrong.push(format!("{times} times in the {topic}: id {} of raw {}", raw.name(), raw.at));
                }
            }
        }
        for (partition, log) in self.raw.iter().enumerate() {
            let clean = || self.clean[partition].ever_committed().map(|(_, raw)| raw);
            let (values, names): (BTreeSet<&str>, BTreeSet<&str>) =
                clean().map(|raw| (raw.value.as_str(), raw.name())).unzip();
            for raw in log.records() {
                let value = raw.value.as_str();
                // Known ids are left out before anybody tries to write the record.
                let is_left_out = !keeps_duplicates && names.contains(raw.name());
                let is_dropped = is_left_out || (raw.rejected && !keeps_letters);
                let is_there = [&letters, &duplicates].iter().any(|topic| topic.contains_key(value));
                if !is_there && !is_dropped && !values.contains(value) && !self.is_disputed(raw) {
                    wrong.push(format!("in no topic: id {} of raw {}", raw.name(), raw.at));
                }
            }
        }
        wrong
    }

    /// Whether several workers have tried to write a record aside: one that had lost its partition looks like a successor.
    fn is_disputed(&self, raw: &Raw) -> bool {
        let letters = self.sides.logs.values().flat_map(|log| log.everything(0));
        let writers = letters.filter(|(_, it)| it.raw.value == raw.value).map(|(_, it)| it.writer.as_str());
        writers.collect::<BTreeSet<_>>().len() > 1
    }

    fn copies(&self, value: &str) -> usize {
        self.sides.copied.get(value).copied().unwrap_or(0)
    }

    /// Whether processed records may have been processed once more: after a repair, or because the group has lost its offsets
    /// and a transaction without records for clean leaves nothing in the state topic.
    fn is_repeated(&self) -> bool {
        self.is_torn() || self.chance.counts().contains_key(Fault::OffsetsLost.name())
    }
}
