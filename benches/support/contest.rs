//! What every contestant of `rivals` does, how it is filled and measured.

use dedupd::dedupe::Identity;

use super::allocated::allocated;
use super::spent::cpu_time;
use super::stream::{Repeats, Stream};

/// Records of a transaction.
pub const TRANSACTION: u64 = 50_000;
/// Of a hundred records so many are duplicates.
pub const DUPLICATES_PERCENT: u64 = 20;

/// Drops duplicates, transaction by transaction, and forgets what is older than its window.
pub trait Contestant {
    fn name(&self) -> &'static str;
    /// Identities that its window holds.
    fn ids(&self) -> u64;
    /// Decides about all records, remembers the new ones, commits. Gives how many were dropped.
    fn transaction(&mut self, records: &[Identity]) -> u64;
    /// What it takes up on disk, in bytes, where it has a disk.
    fn disk_bytes(&self) -> Option<u64>;
}

/// A contestant, its records and its figures.
pub struct Entry {
    pub contestant: Box<dyn Contestant>,
    stream: Stream,
    /// Records of one round.
    round: u64,
    pub rates: Vec<f64>,
    /// Bytes it has allocated and not freed.
    pub bytes: i64,
    /// Records dropped that were new.
    pub wrong: u64,
}

impl Entry {
    /// Makes a contestant and fills `windows` of its windows.
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

    /// One round; keeps decisions a second of processor time, of all threads of this process.
    pub fn measure(&mut self) {
        let mut records = Vec::with_capacity(TRANSACTION as usize);
        let pid = std::process::id();
        let (mut seconds, transactions) = (0.0, self.round / TRANSACTION);
        let mut batches = Vec::new();
        // Records are made before the clock starts, some transactions at a time: it ticks in hundredths.
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

    /// One transaction that is not measured, but for the memory it leaves behind.
    pub fn transaction(&mut self, records: &mut Vec<Identity>) {
        let expected = self.draw(records);
        let before = allocated();
        self.judge(records, expected);
        self.bytes += allocated() - before;
    }

    /// The records of the next transaction; gives how many of them are duplicates.
    pub fn draw(&mut self, records: &mut Vec<Identity>) -> u64 {
        records.clear();
        let mut repeated = 0;
        for _ in 0..TRANSACTION {
            let (identity, again) = self.stream.next();
            repeated += u64::from(again);
            records.push(identity);
        }
        repeated
    }

    /// Lets it decide; gives how many new records it dropped. One that forgets is no contestant.
    pub fn judge(&mut self, records: &[Identity], expected: u64) -> u64 {
        let dropped = self.contestant.transaction(records);
        let name = self.contestant.name();
        assert!(
            dropped >= expected,
            "{name}: {} duplicates were let through",
            expected - dropped.min(expected)
        );
        dropped - expected
    }
}

/// Transactions whose records are made before the clock starts.
const AHEAD: usize = 40;
