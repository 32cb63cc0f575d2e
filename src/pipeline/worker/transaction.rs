//! The open transaction: its phase, its size and age, and what it counted.

use std::collections::BTreeSet;
use std::time::Duration;

use super::report::Tally;
use crate::dedupe::PartitionId;
use crate::pipeline::options::Options;
use crate::pipeline::partition::state::Open;
use crate::ports::{Failure, Remedy, Sink, Source};

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

/// The transaction of a worker, if there is one.
#[derive(Debug, Default)]
pub struct Transaction {
    phase: Phase,
    records: usize,
    bytes: usize,
    touched: BTreeSet<PartitionId>,
    /// Its counts, which become metrics when it is committed.
    pub tally: Tally,
}

impl Transaction {
    /// Begins a transaction if none is open. `now` returns monotonic time; it is called only when a transaction
    /// begins, because this function runs for every record.
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
                self.phase = Phase::Open(now());
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

    /// Resets it after a commit, an abort or an unknown result. Returns its counts.
    pub fn close(&mut self) -> Tally {
        std::mem::take(self).tally
    }

    /// Whether there is a transaction.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.phase != Phase::None
    }

    /// Whether the transaction has reached one of its limits.
    #[must_use]
    pub fn is_full(&self, options: &Options) -> bool {
        self.records >= options.max_records
            || self.bytes >= options.max_bytes
            || self.touched.len() >= options.most_partitions
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
