//! The audit of the dead-letter and the duplicates topic.

use std::collections::{BTreeMap, HashSet};

use super::sources::is_foreign;
use super::support::pipe::id;
use super::support::{Pipe, Record, Sidecar};

/// The dead-letter topic and the duplicates topic.
pub fn topics(pipe: &Pipe<'_>) -> Vec<String> {
    vec![dead_letter(pipe), duplicates(pipe)]
}

pub fn dead_letter(pipe: &Pipe<'_>) -> String {
    format!("{}.dead", pipe.raw)
}

pub fn duplicates(pipe: &Pipe<'_>) -> String {
    format!("{}.again", pipe.raw)
}

/// Creates both topics.
pub fn create(pipe: &Pipe<'_>, partitions: usize) {
    for topic in topics(pipe) {
        // Room for the headers of side records.
        pipe.kafka.create_topic(&topic, partitions, &[("max.message.bytes", "2000000")]);
    }
}

/// A sidecar that writes to both topics.
pub fn configured(pipe: &Pipe<'_>, sidecar: Sidecar) -> Sidecar {
    sidecar
        .with("DEDUPD_TOPICS__DEAD_LETTER", &dead_letter(pipe))
        .with("DEDUPD_IDENTITY__ON_MISSING", "dead_letter")
        .with("DEDUPD_TOPICS__DUPLICATES", &duplicates(pipe))
}

/// Raw partition and offset.
type Place = (i32, i64);

/// The raw records that have to be in the side topics.
#[derive(Debug, Default)]
pub struct Expected {
    dead_letters: HashSet<Place>,
    duplicates: HashSet<Place>,
}

/// The records of dedupd in a side topic for one raw record.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    in_transactions: usize,
    /// Written outside of transactions: an abort does not remove such a record, so it may be written again.
    outside: usize,
}

/// The result of the audit. All violations must be 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct SideFindings {
    pub lost: usize,
    /// Further records in transactions for the same raw record.
    pub twice: usize,
    pub unexpected: usize,
    /// Further records for the same raw record, of which at most one is in a transaction, and records outside of transactions that are not
    /// expected. They are allowed if an instance has logged that it writes outside of transactions.
    pub outside: usize,
    /// Number of records of dedupd.
    pub records: usize,
    /// Number of committed records of foreign programs.
    pub foreign: usize,
}

impl SideFindings {
    /// Whether nothing is wrong, when instances have logged this often that they write outside of transactions.
    pub fn is_clean(&self, rewrites: usize) -> bool {
        self.lost == 0 && self.unexpected == 0 && self.twice == 0 && (self.outside == 0 || rewrites > 0)
    }

    fn add(&mut self, expected: &HashSet<Place>, records: &[Record]) {
        let mut written: BTreeMap<Place, Times> = BTreeMap::new();
        for record in records {
            if is_foreign(record) {
                self.foreign += 1;
                continue;
            }
            self.records += 1;
            let times = written.entry(origin(record)).or_default();
            match header(record, "dedupd.outside") {
                Some(_) => times.outside += 1,
                None => times.in_transactions += 1,
            }
        }
        self.lost += expected.iter().filter(|place| !written.contains_key(place)).count();
        for (place, Times { in_transactions, outside }) in written {
            let is_expected = expected.contains(&place);
            self.unexpected += usize::from(!is_expected && in_transactions > 0);
            self.twice += in_transactions.saturating_sub(1);
            // In topic scope, a record whose transaction was aborted may be the first one of its id when it is read again.
            self.outside += (in_transactions.min(1) + outside)
                .saturating_sub(usize::from(is_expected || in_transactions > 0));
        }
    }
}

impl Expected {
    /// Adds the records of one raw partition, and the offsets of those that are forwarded.
    pub fn add(&mut self, raw: &[Record], forwarded: &HashSet<i64>) {
        for record in raw {
            let place = (record.partition, record.offset);
            match id(record) {
                None => drop(self.dead_letters.insert(place)),
                Some(_) if !forwarded.contains(&record.offset) => drop(self.duplicates.insert(place)),
                Some(_) => {}
            }
        }
    }

    /// Compares the records of both topics with the expected ones.
    pub fn compare(&self, pipe: &Pipe<'_>, partitions: usize) -> SideFindings {
        let all = |topic: &str| {
            let partitions = 0..i32::try_from(partitions).unwrap();
            partitions.flat_map(|partition| pipe.kafka.records_of(topic, partition)).collect::<Vec<_>>()
        };
        self.findings(&all(&dead_letter(pipe)), &all(&duplicates(pipe)))
    }

    /// Compares these records of the dead-letter and of the duplicates topic with the expected ones.
    pub fn findings(&self, dead_letters: &[Record], duplicates: &[Record]) -> SideFindings {
        let mut findings = SideFindings::default();
        findings.add(&self.dead_letters, dead_letters);
        findings.add(&self.duplicates, duplicates);
        findings
    }
}

/// The raw coordinates in the headers of a side record.
fn origin(record: &Record) -> Place {
    let number = |name: &str| header(record, name).and_then(|text| text.parse::<i64>().ok());
    let partition = number("dedupd.partition").and_then(|partition| i32::try_from(partition).ok());
    (partition.unwrap_or(-1), number("dedupd.offset").unwrap_or(-1))
}

/// The last value of a header.
fn header(record: &Record, name: &str) -> Option<String> {
    let (_, value) = record.headers.iter().rev().find(|(header, _)| header == name)?;
    Some(String::from_utf8_lossy(value.as_deref()?).into_owned())
}
