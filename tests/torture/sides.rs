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
        pipe.kafka.create_topic(&topic, partitions, &[]);
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

/// The result of the audit. All violations must be 0, except that each copied record may appear twice.
#[derive(Clone, Copy, Debug, Default)]
pub struct SideFindings {
    pub lost: usize,
    pub twice: usize,
    pub unexpected: usize,
    /// Number of records of dedupd.
    pub records: usize,
    /// Number of committed records of foreign programs.
    pub foreign: usize,
}

impl SideFindings {
    /// Whether nothing is wrong, when this number of records was copied.
    pub fn is_clean(&self, copies: usize) -> bool {
        self.lost == 0 && self.unexpected == 0 && self.twice <= copies
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
        let mut findings = SideFindings::default();
        let both = [(dead_letter(pipe), &self.dead_letters), (duplicates(pipe), &self.duplicates)];
        for (topic, expected) in both {
            let mut times: BTreeMap<Place, usize> = BTreeMap::new();
            for partition in 0..i32::try_from(partitions).unwrap() {
                for record in pipe.kafka.records_of(&topic, partition) {
                    if is_foreign(&record) {
                        findings.foreign += 1;
                    } else {
                        *times.entry(origin(&record)).or_default() += 1;
                    }
                }
            }
            findings.records += times.values().sum::<usize>();
            findings.lost += expected.iter().filter(|place| !times.contains_key(place)).count();
            findings.twice += times.values().map(|times| times - 1).sum::<usize>();
            findings.unexpected += times.keys().filter(|place| !expected.contains(place)).count();
        }
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
