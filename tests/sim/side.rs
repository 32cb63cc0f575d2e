//! The side topics: dead letters and kept duplicates.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use dedupd::dedupe::{Offset, PartitionId};
use dedupd::ports::{Failure, LogId, OutputTopic, SideRecord, SideRecords};

use crate::sim::audit::is_excused;
use crate::sim::chance::Fault;
use crate::sim::cluster::Cluster;
use crate::sim::raw::Raw;
use crate::sim::state_log::reported_end;
use crate::sim::tx_log::TxLog;
use crate::sim::universe::Sabotage;

/// A record in a side topic.
#[derive(Clone)]
pub struct Letter {
    /// Transactional id of its first writer.
    pub writer: String,
    /// The raw record that it is a copy of.
    pub raw: Rc<Raw>,
    /// Written outside of a transaction.
    pub is_outside: bool,
}

/// All partitions of the side topics, and the number of copies of each raw record written outside of a transaction.
#[derive(Default)]
pub struct Sides {
    partitions: u32,
    /// The log of each partition.
    pub logs: BTreeMap<LogId, TxLog<Letter>>,
    copied: HashMap<String, usize>,
}

impl Sides {
    /// Both topics, each with this number of empty partitions.
    pub fn new(partitions: u32) -> Self {
        let topics = [OutputTopic::DeadLetter, OutputTopic::Duplicates];
        let logs = topics.into_iter().flat_map(|topic| (0..partitions).map(move |id| (topic, id)));
        let logs = logs.map(|(topic, partition)| (LogId { topic, partition }, TxLog::new(0)));
        Self { partitions, logs: logs.collect(), copied: HashMap::new() }
    }

    /// The log for the copy of a record of this raw partition.
    pub fn log_of(&self, topic: OutputTopic, raw: PartitionId) -> LogId {
        LogId { topic, partition: raw % self.partitions }
    }

    /// The number of committed copies of each raw record in a topic, by its value.
    fn shown(&self, topic: OutputTopic) -> BTreeMap<&str, usize> {
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
    /// Copies records of a side partition outside of any transaction.
    pub fn copy_aside(&mut self, log: LogId, offsets: &[Offset]) {
        for offset in offsets {
            let Some(of) = self.sides.logs.get(&log) else { continue };
            let found = of.everything(*offset).next().filter(|(at, _)| at == offset);
            let Some(letter) = found.map(|(_, letter)| letter.clone()) else {
                self.violations.push(format!("copied from {log:?}: no record at {offset}"));
                continue;
            };
            *self.sides.copied.entry(letter.raw.value.clone()).or_default() += 1;
            if let Some(of) = self.sides.logs.get_mut(&log) {
                of.append_alone(self.now, Letter { is_outside: true, ..letter });
            }
        }
    }

    /// Reads ranges of side partitions. With a fault, the time of the read ends before a range does.
    pub fn side_records(
        &mut self,
        from_to: &BTreeMap<LogId, (Offset, Offset)>,
        sabotage: Sabotage,
    ) -> Result<SideRecords, Failure> {
        let (mut records, mut next) = (Vec::new(), BTreeMap::new());
        for (log, (from, to)) in from_to {
            let Some(high) = self.sides.logs.get(log).map(|of| of.bounds().high) else { continue };
            self.check_range(*log, *to, high);
            let to = if self.chance.hit(Fault::SlowRead) { self.chance.rng.u64(*from..=*to) } else { *to };
            let end = reported_end(self, sabotage, *from..to)?;
            let Some(of) = self.sides.logs.get(log) else { continue };
            let found = of.everything(*from).take_while(|(at, _)| *at < end);
            records.extend(found.map(|(offset, letter)| SideRecord {
                log: *log,
                offset,
                writer: Some(letter.writer.clone()),
                raw: Some(letter.raw.at),
                is_outside: letter.is_outside,
            }));
            next.insert(*log, to);
        }
        Ok((records, next))
    }

    /// Compares the side topics with raw and clean: every processed record is in one of them, and nothing else is.
    pub fn audit_sides(&self, keeps_letters: bool, keeps_duplicates: bool) -> Vec<String> {
        let letters = self.sides.shown(OutputTopic::DeadLetter);
        let duplicates = self.sides.shown(OutputTopic::Duplicates);
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
        let shown = |log: &'_ TxLog<Rc<Raw>>| -> (BTreeSet<String>, BTreeSet<String>) {
            log.ever_committed().map(|(_, raw)| (raw.value.clone(), raw.name().to_owned())).unzip()
        };
        let anywhere: BTreeSet<String> = self.clean.iter().flat_map(|log| shown(log).1).collect();
        for (partition, log) in self.raw.iter().enumerate() {
            let (values, names) = shown(&self.clean[partition]);
            let names = if self.topic_ids.is_some() { &anywhere } else { &names };
            for raw in log.records() {
                let value = raw.value.as_str();
                // Known duplicates are dropped before the record is written.
                let is_excused = self.topic_ids.is_some() && is_excused(self, raw.name());
                let is_known = !keeps_duplicates && names.contains(raw.name()) || is_excused;
                let is_dropped = is_known || (raw.rejected && !keeps_letters);
                let is_kept = [&letters, &duplicates].iter().any(|topic| topic.contains_key(value));
                if !is_kept && !is_dropped && !values.contains(value) && !self.is_disputed(raw) {
                    wrong.push(format!("in no topic: id {} of raw {}", raw.name(), raw.at));
                }
            }
        }
        wrong
    }

    /// Whether several workers tried to write the record to a side topic. A worker that lost the partition looks like a
    /// new owner.
    fn is_disputed(&self, raw: &Raw) -> bool {
        let letters = self.sides.logs.values().flat_map(|log| log.everything(0));
        let written = letters.filter(|(_, it)| it.raw.value == raw.value);
        // In topic scope all workers have one transactional id.
        let is_lost = |fault: Fault| self.chance.counts().contains_key(fault.name());
        if self.topic_ids.is_some() && (is_lost(Fault::Kick) || is_lost(Fault::Replaced)) {
            return written.count() > 1;
        }
        written.map(|(_, it)| it.writer.as_str()).collect::<BTreeSet<_>>().len() > 1
    }

    fn copies(&self, value: &str) -> usize {
        self.sides.copied.get(value).copied().unwrap_or(0)
    }

    /// Whether records may have been processed twice: after a repair, or because the group has lost its offsets and a
    /// transaction without clean records leaves nothing in the state topic.
    fn is_repeated(&self) -> bool {
        self.is_torn() || self.chance.counts().contains_key(Fault::OffsetsLost.name())
    }
}
