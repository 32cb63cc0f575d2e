//! The interface of the contestants of `rivals`, and how they are filled and measured.

use dedupd::dedupe::Identity;

use super::allocated::allocated;
use super::spent::cpu_time;
use super::stream::{Repeats, Stream};

/// Records per transaction.
pub const TRANSACTION: u64 = 50_000;
/// Percentage of records that are duplicates.
pub const DUPLICATES_PERCENT: u64 = 20;

/// Drops duplicates, transaction by transaction, and removes ids that are older than its window.
pub trait Contestant {
    fn name(&self) -> &'static str;
    /// Number of identities in its full window.
    fn ids(&self) -> u64;
    /// Decides about all records, stores the new ones, commits. Returns the number of records dropped.
    fn transaction(&mut self, records: &[Identity]) -> u64;
    /// Bytes on disk; `None` for a contestant that works in memory only.
    fn disk_bytes(&self) -> Option<u64>;
}

/// A contestant, its records and its results.
pub struct Entry {
    pub contestant: Box<dyn Contestant>,
    stream: Stream,
    /// Records per round.
    round: u64,
    /// Decisions per second of CPU time, one value per round.
    pub rates: Vec<f64>,
    /// Bytes that it has allocated and not freed.
    pub bytes: i64,
    /// New records that were wrongly dropped.
    pub wrong: u64,
}

impl Entry {
    /// Creates a contestant and fills `windows` of its windows.
    pub fn filled(make: impl FnOnce() -> Box<dyn Contestant>, round: u64, windows: u64) -> Self {
        let before = allocated();
        let contestant = make();
        let bytes = allocated() - before;
        let ids = contestant.ids();
        let stream = Stream::new(ids, Repeats::Soon { percent: DUPLICATES_PERCENT });
        let mut entry = Self { contestant, stream, round, rates: Vec::new(), bytes, wrong: 0 };
        let mut records = Vec::with_capacity(TRANSACTION as usize);
        while entry.stream.made < ids * windows {
            entry.transaction(&mut records);
        }
        entry
    }

    /// Runs one round; stores its decisions per second of CPU time of all threads of this process.
    pub fn measure(&mut self) {
        let mut records = Vec::with_capacity(TRANSACTION as usize);
        let pid = std::process::id();
        let (mut seconds, transactions) = (0.0, self.round / TRANSACTION);
        let mut batches = Vec::new();
        // Records are created before the clock starts, for several transactions at a time, because the resolution of
        // the clock is 10 ms.
        for first in (0..transactions).step_by(AHEAD) {
            batches.clear();
            for _ in first..(first + AHEAD as u64).min(transactions) {
                let expected = self.draw(&mut records);
                batches.push((records.clone(), expected));
            }
            let (began, before) = (cpu_time(pid), allocated());
            for (records, expected) in &batches {
                self.wrong += self.judge(records, *expected);
            }
            self.bytes += allocated() - before;
            seconds += cpu_time(pid).as_secs_f64() - began.as_secs_f64();
        }
        self.rates.push((transactions * TRANSACTION) as f64 / seconds);
    }

    /// Runs one transaction without measuring its time. The memory that it allocates counts.
    pub fn transaction(&mut self, records: &mut Vec<Identity>) {
        let expected = self.draw(records);
        let before = allocated();
        self.judge(records, expected);
        self.bytes += allocated() - before;
    }

    /// Draws the records of the next transaction; returns how many of them are duplicates.
    pub fn draw(&mut self, records: &mut Vec<Identity>) -> u64 {
        records.clear();
        let mut repeated = 0;
        for _ in 0..TRANSACTION {
            let (identity, is_repeat) = self.stream.next();
            repeated += u64::from(is_repeat);
            records.push(identity);
        }
        repeated
    }

    /// Runs the decisions; returns the number of new records that were dropped. Panics when a duplicate was not dropped.
    pub fn judge(&mut self, records: &[Identity], expected: u64) -> u64 {
        let dropped = self.contestant.transaction(records);
        let name = self.contestant.name();
        assert!(
            dropped >= expected,
            "{name}: {} duplicates were not dropped",
            expected - dropped.min(expected)
        );
        dropped - expected
    }
}

/// Number of transactions whose records are created before the clock starts.
const AHEAD: usize = 40;
