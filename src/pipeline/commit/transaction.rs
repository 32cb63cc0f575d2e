//! The open transaction: its phase, its size and age, and what it counted.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use crate::dedupe::PartitionId;
use crate::pipeline::commit::size::{Done, SizeLimit, TransactionSize};
use crate::pipeline::partition::Uncommitted;
use crate::pipeline::report::Tally;
use crate::ports::{Failure, Remedy, Sink, Source};

/// The phase of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum TransactionPhase {
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

/// The transaction of a worker, if there is one.
#[derive(Debug, Default)]
pub struct Transaction {
    phase: TransactionPhase,
    /// Its size so far. Partitions without records do not count: how long they take shows nothing about records.
    pub size: TransactionSize,
    touched: BTreeSet<PartitionId>,
    /// The partitions whose logs it repairs, if it does: then it counts nothing.
    pub repairs: Vec<PartitionId>,
    /// The limit on its size, which outlives the transaction.
    limit: SizeLimit,
    /// Monotonic time since which the first records of the next transaction may have been waiting in the client: they arrived
    /// during the last commit. `None` when no record is waiting.
    pub waiting_since: Option<Duration>,
    /// Monotonic time at which it began, with its first record.
    begun_at: Option<Duration>,
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
            TransactionPhase::Open(_) => Ok(()),
            TransactionPhase::Committing(_) => Err(failed_before()),
            TransactionPhase::None => {
                sink.begin()?;
                self.open_at(now());
                Ok(())
            }
        }
    }

    fn open_at(&mut self, now: Duration) {
        self.begun_at = Some(now);
        self.phase = TransactionPhase::Open(self.waiting_since.take().unwrap_or(now));
    }

    /// What the open transaction did to a partition. The first call for a partition counts it as touched.
    pub fn touch<'a>(
        &mut self,
        partition: PartitionId,
        open: &'a mut Option<Uncommitted>,
    ) -> &'a mut Uncommitted {
        if open.is_none() {
            self.touched.insert(partition);
            self.size.partitions += 1;
        }
        open.get_or_insert_default()
    }

    /// Touches a partition without records that no call has touched.
    pub fn touch_idle<'a>(
        &mut self,
        partition: PartitionId,
        open: &'a mut Option<Uncommitted>,
    ) -> &'a mut Uncommitted {
        self.touched.insert(partition);
        open.get_or_insert_default()
    }

    /// Counts a record of `bytes`.
    pub fn add(&mut self, bytes: usize) {
        self.size.records += 1;
        self.size.bytes += bytes;
    }

    /// Its commit begins. Returns false when there is no transaction.
    pub fn begin_commit(&mut self) -> Result<bool, Failure> {
        match self.phase {
            TransactionPhase::None => Ok(false),
            TransactionPhase::Committing(_) => Err(failed_before()),
            TransactionPhase::Open(since) => {
                self.phase = TransactionPhase::Committing(since);
                Ok(true)
            }
        }
    }

    /// The partitions that the transaction touched, also those that were released meanwhile.
    pub fn touched(&self) -> Vec<PartitionId> {
        self.touched.iter().chain(&self.repairs).copied().collect()
    }

    /// Time since it began. Records that waited in the client do not make it older, unlike for [`Self::remaining`].
    pub fn age(&self, now: Duration) -> Duration {
        self.begun_at.map_or(Duration::ZERO, |began| now.saturating_sub(began))
    }

    /// Resets it after a commit, an abort or an unknown result.
    pub fn close(&mut self) {
        *self = Self { limit: self.limit, ..Self::default() };
    }

    /// Adapts the size of later transactions after a commit between these monotonic times.
    pub fn committed(&mut self, commit: Range<Duration>, timeout: Duration, configured: TransactionSize) {
        let took = commit.end.saturating_sub(commit.start);
        let done = Done { size: self.size, took, age: self.age(commit.end) };
        let change = self.limit.committed(&done, timeout, configured);
        self.limit.log(change, "commit took", took, timeout);
    }

    /// Adapts the size of later transactions when the open one failed.
    pub fn failed(&mut self, now: Duration, timeout: Duration) {
        if !self.is_open() {
            return;
        }
        let age = self.age(now);
        let change = self.limit.failed(self.size, age, timeout);
        self.limit.log(change, "transaction failed after", age, timeout);
    }

    /// The limit below the configured one that transactions have because commits were slow.
    pub fn limit(&self) -> &SizeLimit {
        &self.limit
    }

    /// Whether there is a transaction.
    pub fn is_open(&self) -> bool {
        self.phase != TransactionPhase::None
    }

    /// Whether the transaction has reached one of its limits.
    pub fn is_full(&self, configured: TransactionSize) -> bool {
        self.size.is_full(configured) || self.limit.reduced().is_some_and(|limit| self.size.is_full(limit))
    }

    /// Time left until the transaction has been open for `interval`; `None` when there is none.
    pub fn remaining(&self, now: Duration, interval: Duration) -> Option<Duration> {
        match self.phase {
            TransactionPhase::None => None,
            TransactionPhase::Open(since) | TransactionPhase::Committing(since) => {
                Some((since + interval).saturating_sub(now))
            }
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
        let phase = TransactionPhase::Open(Duration::ZERO);
        Transaction {
            phase,
            begun_at: Some(Duration::ZERO),
            size: TransactionSize { records, bytes, partitions: partitions as usize },
            touched: (0..partitions).collect(),
            ..Transaction::default()
        }
    }

    /// The most records of the next transaction, each of 100 bytes.
    fn records_to_full(transaction: &mut Transaction) -> usize {
        transaction.close();
        while !transaction.is_full(CONFIGURED) {
            transaction.add(100);
        }
        transaction.size.records
    }

    #[test]
    fn the_reduced_size_outlives_the_transaction_until_commits_are_fast() {
        let mut transaction = open(80_000, 8_000_000, 12);
        transaction.committed(Duration::ZERO..TIMEOUT / 2, TIMEOUT, CONFIGURED);
        assert_eq!(
            transaction.limit().records_left(transaction.size),
            Some(1),
            "of the one that has just been committed"
        );
        assert_eq!(records_to_full(&mut transaction), 40_000);
        transaction.close();
        assert_eq!(transaction.limit().records_left(transaction.size), Some(40_000));
        transaction.size.records = 40_000;
        transaction.committed(TIMEOUT * 3 / 4..TIMEOUT, TIMEOUT, CONFIGURED);
        assert_eq!(records_to_full(&mut transaction), 80_000);
    }

    #[test]
    fn partitions_without_records_do_not_show_that_larger_transactions_are_fast() {
        let mut transaction = open(80_000, 8_000_000, 100);
        transaction.committed(Duration::ZERO..TIMEOUT / 2, TIMEOUT, CONFIGURED);
        let reduced = transaction.limit().reduced();
        for _ in 0..100 {
            transaction = Transaction { limit: transaction.limit, ..open(5, 500, 1) };
            (1..100).for_each(|id| drop(transaction.touch_idle(id, &mut None).clone()));
            transaction.committed(TIMEOUT * 9 / 10..TIMEOUT, TIMEOUT, CONFIGURED);
        }
        assert_eq!(transaction.touched().len(), 100);
        assert_eq!(transaction.limit().reduced(), reduced);
    }

    #[test]
    fn the_first_record_after_a_commit_may_have_waited_since_its_start() {
        let [commit, now] = [5, 7].map(Duration::from_secs);
        let mut transaction = Transaction::default();
        let mut remaining = |waiting_since| {
            transaction.waiting_since = waiting_since;
            transaction.open_at(now);
            transaction.remaining(now, Duration::from_secs(10)).map(|left| left.as_secs())
        };
        assert_eq!(remaining(None), Some(10), "nothing was waiting");
        assert_eq!(remaining(Some(commit)), Some(8));
        assert_eq!(remaining(None), Some(10), "of the next transaction");
    }

    #[test]
    fn only_the_failure_of_an_open_transaction_lowers_the_limit() {
        let mut transaction = open(10_000, 1_000_000, 4);
        transaction.close();
        transaction.failed(TIMEOUT * 9, TIMEOUT);
        assert_eq!(transaction.limit().reduced(), None);
        let mut transaction = open(10_000, 1_000_000, 4);
        transaction.failed(TIMEOUT, TIMEOUT);
        assert_eq!(records_to_full(&mut transaction), 5_000);
    }
}
