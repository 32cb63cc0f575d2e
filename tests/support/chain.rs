//! The audit of `rekey` and `run` together: each id of all source topics once in the clean topic. Shares no code with dedupd.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::pipe::id;
use super::{Findings, Kafka, Record};

/// The header in which `rekey` stores where a record comes from.
pub const SOURCE: &str = "dedupd.source";

/// Compares all records of the source topics with those of the clean topic.
pub fn compare_chain(kafka: &Kafka, sources: &[impl AsRef<str>], clean: &str) -> Findings {
    let mut audit = ChainAudit::default();
    let partitions = |topic: &str| 0..i32::try_from(kafka.partitions(topic)).unwrap();
    for topic in sources.iter().map(AsRef::as_ref) {
        for partition in partitions(topic) {
            audit.add_source(topic, &kafka.records_of(topic, partition));
        }
    }
    for partition in partitions(clean) {
        audit.add_clean(&kafka.records_of(clean, partition));
    }
    audit.finish()
}

/// The value of the last source header. `rekey` adds it behind all other headers.
pub fn source_of(record: &Record) -> Option<String> {
    let (name, value) = record.headers.last()?;
    (name == SOURCE).then(|| String::from_utf8_lossy(value.as_deref().unwrap_or_default()).into_owned())
}

/// The comparison of source partitions with clean partitions. They are added one after the other, the source partitions first,
/// because all records together do not fit into memory after a long run.
#[derive(Debug, Default)]
pub struct ChainAudit {
    findings: Findings,
    /// Topic and partition, and its records in the order of offsets.
    logs: HashMap<String, Vec<SourceRecord>>,
    /// The hash of each id.
    ids: HashSet<u64>,
    forwarded: HashSet<u64>,
}

#[derive(Debug)]
struct SourceRecord {
    offset: i64,
    /// The hash of its id, of its position if it has none.
    id: u64,
    content: u64,
    /// Whether no earlier record of its partition has the id. `rekey` keeps the order of such records, so only the first one can
    /// be in clean.
    is_first: bool,
}

impl ChainAudit {
    /// Adds all records of one source partition.
    pub fn add_source(&mut self, topic: &str, records: &[Record]) {
        let Some(first) = records.first() else { return };
        let log = format!("{topic}/{}", first.partition);
        let mut here = HashSet::new();
        let mut added = Vec::with_capacity(records.len());
        for record in records {
            let id = hash(&id(record).unwrap_or_else(|| format!("{log}@{}", record.offset)));
            let (is_first, is_new) = (here.insert(id), self.ids.insert(id));
            self.findings.repeats += usize::from(!is_new);
            self.findings.elsewhere += usize::from(is_first && !is_new);
            added.push(SourceRecord { offset: record.offset, id, content: content(record, 0), is_first });
        }
        self.findings.raw += records.len();
        self.logs.insert(log, added);
    }

    /// Adds all records of one clean partition.
    pub fn add_clean(&mut self, records: &[Record]) {
        for record in records {
            let source = source_of(record).unwrap_or_default();
            let Some(original) = find(&self.logs, &source) else {
                self.findings.phantom += 1;
                self.findings.note("phantom", record, &source);
                continue;
            };
            if !self.forwarded.insert(original.id) {
                self.findings.duplicated += 1;
                self.findings.note("duplicated", record, &source);
            } else if original.content != content(record, 1) {
                self.findings.altered += 1;
                self.findings.note("altered", record, &source);
            } else if !original.is_first {
                self.findings.out_of_order += 1;
                self.findings.note("not the first record of its partition with its id", record, &source);
            }
        }
    }

    /// The result, when all partitions are added.
    pub fn finish(mut self) -> Findings {
        let is_lost = |record: &&SourceRecord| record.is_first && !self.forwarded.contains(&record.id);
        self.findings.lost = self.ids.iter().filter(|id| !self.forwarded.contains(id)).count();
        let mut lost: Vec<String> = self
            .logs
            .iter()
            .filter_map(|(log, records)| Some(format!("{log}@{}", records.iter().find(is_lost)?.offset)))
            .collect();
        lost.sort_unstable();
        if !lost.is_empty() {
            let text = format!("lost, the first of each source partition: {lost:?}");
            self.findings.first.get_or_insert(text);
        }
        self.findings
    }
}

/// The source record at `topic/partition@offset`, before what identifies its log.
fn find<'a>(logs: &'a HashMap<String, Vec<SourceRecord>>, source: &str) -> Option<&'a SourceRecord> {
    let (log, offset) = source.split_once('#')?.0.rsplit_once('@')?;
    let (records, offset) = (logs.get(log)?, offset.parse::<i64>().ok()?);
    let at = records.binary_search_by_key(&offset, |record| record.offset).ok()?;
    records.get(at)
}

/// The hash of key, value, timestamp and headers, without this number of headers at the end.
fn content(record: &Record, without: usize) -> u64 {
    let headers = &record.headers[..record.headers.len().saturating_sub(without)];
    hash(&(&record.key, &record.value, record.timestamp_ms, headers))
}

fn hash(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}
