//! What is counted in an open transaction.

use std::time::Duration;

use super::counted_by::CountedBy;
use super::duplicates::FoundOwners;
use crate::dedupe::{Content, Coordinates, KnownOwner, RecordTime, Schemas};
use crate::metrics::Outcome;
use crate::ports::Record;

/// In a large transaction, the times of every n-th record are observed.
const SAMPLE: u64 = 16;

/// Counts of the open transaction; they become metrics when it has committed.
#[derive(Debug, Default)]
pub struct Tally {
    /// By kind; the first entry is the unnamed kind.
    pub(super) outcomes: Vec<[u64; Outcome::ALL.len()]>,
    pub(super) records: u64,
    pub(super) found: FoundOwners,
    /// Why the first record without an id has none.
    pub(super) why_missing: Option<String>,
    pub(super) bytes: TopicBytes,
    forwarded: u64,
    pub(super) times: Vec<RecordTimes>,
}

/// Bytes read from, or written to, each of the topics.
#[derive(Debug, Default)]
pub(super) struct TopicBytes {
    pub(super) raw: u64,
    pub(super) clean: u64,
    pub(super) state: u64,
}

/// When a forwarded record arrived, in monotonic time, and its own timestamp.
#[derive(Debug)]
pub(super) struct RecordTimes {
    pub(super) fetched: Duration,
    pub(super) timestamp_ms: Option<i64>,
}

/// Whether the times of the record after this many are observed.
fn is_observed(counted: u64) -> bool {
    counted < 1024 || counted.is_multiple_of(SAMPLE)
}

impl Tally {
    /// Counts the outcome of one record of this kind.
    pub fn count(&mut self, kind: usize, outcome: Outcome) {
        if self.outcomes.len() <= kind {
            self.outcomes.resize(kind + 1, [0; Outcome::ALL.len()]);
        }
        if let Some(slot) = self.outcomes.get_mut(kind).and_then(|counts| counts.get_mut(outcome as usize)) {
            *slot += 1;
        }
    }

    /// Counts a record read, with `bytes` of key and value.
    pub fn seen(&mut self, bytes: usize) {
        self.records += 1;
        self.bytes.raw += bytes as u64;
    }

    /// Counts a record whose id has an owner.
    pub fn found(&mut self, at: Coordinates, owner: KnownOwner, content: Content, time: RecordTime) {
        self.found.add(at, owner, content, time);
    }

    /// Counts such a record by the values of these sources.
    pub fn found_by<R: Record>(&mut self, by: &[CountedBy], record: &R, schemas: &Schemas, content: Content) {
        self.found.sources.add(by, record, schemas, content);
    }

    /// Keeps why a record has no id, of the first one.
    pub fn without_id(&mut self, why: impl FnOnce() -> String) {
        self.why_missing.get_or_insert_with(why);
    }

    /// Number of records read.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Counts a record written to the clean topic, which arrived at this monotonic time.
    pub fn forwarded(&mut self, bytes: usize, fetched: Duration, timestamp_ms: Option<i64>) {
        if is_observed(self.forwarded) {
            self.times.push(RecordTimes { fetched, timestamp_ms });
        }
        self.forwarded += 1;
        self.bytes.clean += bytes as u64;
    }

    /// Counts a record written to the state topic, with `bytes` of key and value.
    pub fn state(&mut self, bytes: usize) {
        self.bytes.state += bytes as u64;
    }
}
