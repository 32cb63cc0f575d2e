//! The audit of topic scope: each id once in the whole clean topic. Shares no code with dedupd.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::str::FromStr;

use super::pipe::{compare_partition, firsts, id};
use super::{Findings, Record};

/// Where an id counts once (`dedupe.scope`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Topic,
    Partition,
}

impl Scope {
    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Scope::Topic => "topic",
            Scope::Partition => "partition",
        }
    }
}

impl FromStr for Scope {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        [Scope::Topic, Scope::Partition].into_iter().find(|scope| scope.name() == text).ok_or(())
    }
}

/// The comparison of raw and clean over all partitions. They are added one after the other, because all records together do
/// not fit into memory after a long run.
#[derive(Debug, Default)]
pub struct TopicAudit {
    findings: Findings,
    /// The hash of each id, and one of its raw records.
    ids: HashMap<u64, (i32, i64)>,
    forwarded: HashSet<u64>,
}

impl TopicAudit {
    /// Adds all records of one partition. Returns the offsets of the raw records that are in clean.
    ///
    /// dedupd forwards no later copy than the first one of a partition: when it drops the first one for a copy elsewhere, it
    /// drops the later ones too.
    pub fn add(&mut self, raw: &[Record], clean: &[Record]) -> HashSet<i64> {
        let expected = firsts(raw);
        let findings = &mut self.findings;
        findings.raw += raw.len();
        findings.repeats += raw.len() - expected.len();
        for record in &expected {
            let Some(id) = id(record) else { continue };
            if self.ids.insert(hash(&id), (record.partition, record.offset)).is_some() {
                findings.repeats += 1;
                findings.elsewhere += 1;
            }
        }
        let mut offsets = HashSet::new();
        for at in compare_partition(&expected, clean, findings) {
            let record = expected[at];
            offsets.insert(record.offset);
            if id(record).is_some_and(|id| !self.forwarded.insert(hash(&id))) {
                findings.duplicated += 1;
                findings.first.get_or_insert_with(|| {
                    format!("in clean of two partitions: raw {}@{}", record.partition, record.offset)
                });
            }
        }
        offsets
    }

    /// The result, when all partitions are added.
    pub fn finish(mut self) -> Findings {
        let lost = self.ids.iter().filter(|(id, _)| !self.forwarded.contains(id)).map(|(_, place)| *place);
        let lost: Vec<(i32, i64)> = lost.collect();
        self.findings.lost = lost.len();
        if let Some((partition, offset)) = lost.iter().min() {
            self.findings
                .first
                .get_or_insert_with(|| format!("lost: raw {partition}@{offset} and its copies"));
        }
        self.findings
    }
}

fn hash(id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}
