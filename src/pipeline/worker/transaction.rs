//! The open transaction: its phase, its size and age, and what it counted.

use std::collections::BTreeSet;
use std::time::Duration;

use super::report::Tally;
use crate::dedupe::PartitionId;
use crate::pipeline::partition::state::Open;
use crate::ports::{Failure, Remedy, Sink, Source};

/// A transaction may always touch this number of partitions.
const FEW_PARTITIONS: usize = 64;

/// The phase of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    /// No transaction.
    #[default]
    None,
    /// Records are added since this monotonic time. A transaction begins with its first record, so that idle time does not
    /// count against the transaction timeout.
    Open(Duration),
    /// Its commit has begun. Only a commit, an abort or a new producer ends it: a transaction whose commit failed is never
    /// continued, because its offsets would lack a partition that was released meanwhile.
    Committing(Duration),
}

/// The size of a transaction, or a limit on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactionSize {
    /// Number of records.
    pub records: usize,
    /// Bytes of their keys and values.
    pub bytes: usize,
    /// Number of partitions.
    pub partitions: usize,
}

impl TransactionSize {
    fn each(self, change: impl Fn(usize) -> usize) -> Self {
        let Self { records, bytes, partitions } = self;
        Self { records: change(records), bytes: change(bytes), partitions: change(partitions) }
    }

    fn reaches(self, limit: Self) -> [bool; 3] {
        [self.records >= limit.records, self.bytes >= limit.bytes, self.partitions >= limit.partitions]
    }
}

/// The transaction of a worker, if there is one.
#[derive(Debug, Default)]
pub struct Transaction {
    phase: Phase,
    records: usize,
    bytes: usize,
    touched: BTreeSet<PartitionId>,
    /// A limit below the configured one, which outlives the transaction.
    reduced: Option<TransactionSize>,
    /// Monotonic time since which the first records of the next transaction may have been waiting in the client: they arrived
    /// during the last commit. `None` when no record is waiting.
    pub waiting_since: Option<Duration>,
    /// Monotonic time at which it began, with its first record.
    began: Option<Duration>,
    /// Its counts, which become metrics when it is committed.
    pub tally: Tally,
}

impl Transaction {
    /// Begins a transaction if none is open. `now` returns monotonic time; it is called only when a transaction
    /// begins, because this function runs for every record. The age of a transaction is that of its first record, which may
    /// have been waiting since the last commit began.
    pub fn begin<S: Source, K: Sink<S>>(
        &mut self,
        sink: &mut K,
        now: impl FnOnce() -> Duration,
    ) -> Result<(), Failure> {
        match self.phase {
            Phase::Open(_) => Ok(()),
            Phase::Committing(_) => Err(failed_before()),
            Phase::None => {
                sink.begin()?;
                let now = now();
                self.began = Some(now);
                self.phase = Phase::Open(self.first_record_since(|| now));
                Ok(())
            }
        }
    }

    /// What the open transaction did to a partition. The first call for a partition counts it as touched.
    pub fn touch<'a>(&mut self, partition: PartitionId, open: &'a mut Option<Open>) -> &'a mut Open {
        if open.is_none() {
            self.touched.insert(partition);
        }
        open.get_or_insert_default()
    }

    /// Counts a record of `bytes`.
    pub fn add(&mut self, bytes: usize) {
        self.records += 1;
        self.bytes += bytes;
    }

    /// Its commit begins. Returns false when there is no transaction.
    pub fn begin_commit(&mut self) -> Result<bool, Failure> {
        match self.phase {
            Phase::None => Ok(false),
            Phase::Committing(_) => Err(failed_before()),
            Phase::Open(since) => {
                self.phase = Phase::Committing(since);
                Ok(true)
            }
        }
    }

    /// The partitions that the transaction touched, also those that were released meanwhile.
    #[must_use]
    pub fn touched(&self) -> Vec<PartitionId> {
        self.touched.iter().copied().collect()
    }

    /// Bytes of the keys and values in the transaction.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Time since it began. Records that waited in the client do not make it older, unlike for [`Self::remaining`].
    #[must_use]
    pub fn age(&self, now: Duration) -> Duration {
        self.began.map_or(Duration::ZERO, |began| now.saturating_sub(began))
    }

    /// Resets it after a commit, an abort or an unknown result.
    pub fn close(&mut self) {
        *self = Self { reduced: self.reduced, ..Self::default() };
    }

    fn first_record_since(&mut self, now: impl FnOnce() -> Duration) -> Duration {
        self.waiting_since.take().unwrap_or_else(now)
    }

    /// Adapts the size of later transactions after a commit that took `took`.
    ///
    /// A transaction that exceeds its timeout is aborted, and the same records would exceed it again: over a slow connection
    /// or with a quota of the broker, nothing would ever be committed. So the size is halved after a commit that took half
    /// of the timeout. It is doubled, up to the configured limits, when a commit takes less than an eighth.
    pub fn committed(&mut self, took: Duration, timeout: Duration, configured: TransactionSize) {
        if took >= timeout / 2 {
            self.reduce("commit took", took, timeout);
        } else if took < timeout / 8 {
            let doubled = self.reduced.map(|limit| limit.each(|it| it.saturating_mul(2)));
            self.reduced = doubled.filter(|limit| limit.reaches(configured).contains(&false));
        }
    }

    /// Halves the size of later transactions when the open one failed after more than half of its timeout.
    pub fn failed(&mut self, now: Duration, timeout: Duration) {
        if let Phase::Open(since) | Phase::Committing(since) = self.phase {
            let age = now.saturating_sub(since);
            if age >= timeout / 2 {
                self.reduce("transaction failed after", age, timeout);
            }
        }
    }

    fn reduce(&mut self, what: &str, time: Duration, timeout: Duration) {
        let half = self.size().each(|it| (it / 2).max(1));
        // Fewer partitions do not make a commit slow. They would make each transaction small, because the records of
        // different partitions alternate.
        let limit = TransactionSize { partitions: half.partitions.max(FEW_PARTITIONS), ..half };
        self.reduced = Some(limit);
        tracing::warn!(
            "a {what} {:.1} s, with a transaction timeout of {}: the next transactions have at most {} records, {} bytes and {} \
             partitions, until commits are faster",
            time.as_secs_f64(),
            humantime::format_duration(timeout),
            limit.records,
            limit.bytes,
            limit.partitions
        );
    }

    fn size(&self) -> TransactionSize {
        TransactionSize { records: self.records, bytes: self.bytes, partitions: self.touched.len() }
    }

    /// Whether there is a transaction.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.phase != Phase::None
    }

    /// Whether the transaction has reached one of its limits.
    #[must_use]
    pub fn is_full(&self, configured: TransactionSize) -> bool {
        let reaches = |limit| self.size().reaches(limit).contains(&true);
        reaches(configured) || self.reduced.is_some_and(reaches)
    }

    /// Time left until the transaction has been open for `interval`; `None` when there is none.
    #[must_use]
    pub fn remaining(&self, now: Duration, interval: Duration) -> Option<Duration> {
        match self.phase {
            Phase::None => None,
            Phase::Open(since) | Phase::Committing(since) => Some((since + interval).saturating_sub(now)),
        }
    }
}

fn failed_before() -> Failure {
    Failure::new(Remedy::Abort, "the commit of the open transaction has failed; aborting it".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(8);
    const CONFIGURED: TransactionSize =
        TransactionSize { records: 100_000, bytes: 64 << 20, partitions: 1_000 };

    fn open(records: usize, bytes: usize, partitions: u32) -> Transaction {
        let phase = Phase::Open(Duration::ZERO);
        Transaction { phase, records, bytes, touched: (0..partitions).collect(), ..Transaction::default() }
    }

    /// The most records of the next transaction, each of 100 bytes.
    fn records_to_full(transaction: &mut Transaction) -> usize {
        transaction.close();
        while !transaction.is_full(CONFIGURED) {
            transaction.add(100);
        }
        transaction.records
    }

    #[test]
    fn a_slow_commit_halves_the_next_transactions_and_fast_ones_double_them() {
        let seconds = Duration::from_secs;
        let mut transaction = open(80_000, 8_000_000, 12);
        assert_eq!(records_to_full(&mut transaction), 100_000);
        // (duration of the commit in s, records in the next transaction)
        for (took, expected) in [(3, 100_000), (4, 50_000), (9, 25_000), (2, 25_000), (1, 25_000)] {
            transaction.committed(seconds(took), TIMEOUT, CONFIGURED);
            assert_eq!(records_to_full(&mut transaction), expected, "after {took} s");
        }
        for expected in [50_000, 100_000, 100_000] {
            transaction.committed(Duration::from_millis(900), TIMEOUT, CONFIGURED);
            assert_eq!(records_to_full(&mut transaction), expected);
        }
        for _ in 0..10 {
            transaction.committed(Duration::ZERO, TIMEOUT, CONFIGURED);
        }
        assert_eq!(transaction.reduced, None);
    }

    #[test]
    fn the_first_record_after_a_commit_may_have_waited_since_its_start() {
        let [commit, now] = [5, 7].map(Duration::from_secs);
        let mut transaction = Transaction { waiting_since: None, ..Transaction::default() };
        assert_eq!(transaction.first_record_since(|| now), now, "nothing was waiting");
        transaction.waiting_since = Some(commit);
        assert_eq!(transaction.first_record_since(|| now), commit);
        assert_eq!(transaction.first_record_since(|| now), now, "of the next transaction");
    }

    #[test]
    fn only_a_late_failure_halves_the_next_transactions() {
        let mut transaction = open(10_000, 1_000_000, 4);
        transaction.failed(TIMEOUT / 4, TIMEOUT);
        assert_eq!(transaction.reduced, None);
        transaction.failed(TIMEOUT, TIMEOUT);
        assert_eq!(records_to_full(&mut transaction), 5_000);
        transaction.close();
        transaction.failed(TIMEOUT * 9, TIMEOUT);
        assert_eq!(records_to_full(&mut transaction), 5_000, "no transaction was open");
    }

    #[test]
    fn a_limit_is_never_zero_and_allows_a_few_partitions() {
        let mut transaction = open(1, 1, 2);
        transaction.failed(TIMEOUT, TIMEOUT);
        let least = TransactionSize { records: 1, bytes: 1, partitions: FEW_PARTITIONS };
        assert_eq!(transaction.reduced, Some(least));
        let mut transaction = open(1_000, 100, 300);
        transaction.failed(TIMEOUT, TIMEOUT);
        assert_eq!(transaction.reduced.unwrap().partitions, 150);
    }
}
