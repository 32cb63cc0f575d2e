//! Transactions whose outcome is not known yet. What they counted becomes metrics when it is known, once.
//!
//! A commit without a response, and one whose markers are missing, may have happened or not. The group's offsets are one
//! log, so the first partition whose committed offset shows the outcome decides for the whole transaction. When every
//! partition has an offset of another transaction, or belongs to another worker, the outcome stays unknown.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::coordinates::ranges;
use crate::dedupe::{Offset, PartitionId};
use crate::metrics::TransactionResult;
use crate::pipeline::commit::transaction::Transaction;
use crate::pipeline::context::Context;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::report::Tally;
use crate::ports::Committed;

/// Logged when the outcome is known, or will never be.
const FOUND: &str = "result of a transaction whose outcome was unknown";

/// A transaction that ended, as far as this worker knows.
#[derive(Debug)]
pub(crate) struct EndedTransaction {
    tally: Tally,
    /// From its first record to its end.
    took: Duration,
    /// Monotonic time of its end.
    at: Duration,
    /// Wall clock at its end, in epoch milliseconds.
    at_ms: i64,
    /// What shows the outcome, in each partition that this worker still owns.
    positions: BTreeMap<PartitionId, SentPosition>,
}

/// The offset that a transaction commits in a partition.
#[derive(Debug)]
struct SentPosition {
    before: Offset,
    next: Offset,
    metadata: String,
}

impl SentPosition {
    fn is_in(&self, answer: &Committed) -> bool {
        answer.offset == Some(self.next) && answer.metadata == self.metadata
    }

    /// Whether the committed offset is still the one before the transaction.
    fn is_not_in(&self, answer: &Committed) -> bool {
        !self.is_in(answer) && answer.offset.is_none_or(|offset| offset == self.before)
    }
}

impl EndedTransaction {
    /// Takes the counts of the open transaction.
    pub(crate) fn take<W: WorkerPorts>(ctx: &mut Context<W>, transaction: &mut Transaction) -> Self {
        let Context { partitions, journals, .. } = ctx;
        let forgets = |journal| journals.get(journal).is_some_and(|it| it.open.forgotten.is_some());
        let sent = partitions.open_mut().filter_map(|partition| {
            let (next, metadata) = partition.open.as_ref()?.sent.clone()?;
            // Without records, the position before the transaction can be equal.
            if next == partition.committed && !forgets(partition.journal) && !partition.uncommitted_position {
                return None;
            }
            Some((partition.id, SentPosition { before: partition.committed, next, metadata }))
        });
        let positions = sent.collect();
        let at = ctx.clock.elapsed();
        let took = transaction.age(at);
        let tally = std::mem::take(&mut transaction.tally);
        Self { tally, took, at, at_ms: ctx.clock.wall_ms(), positions }
    }

    /// Counts it as committed: its markers are written, `waited` after its commit.
    pub(crate) fn count_committed<W: WorkerPorts>(&self, ctx: &mut Context<W>, waited: Duration) {
        ctx.report.committed(&self.tally, self.took + waited, self.at + waited, ctx.clock.wall_ms());
    }
}

/// Earlier transactions whose outcome is not known yet.
#[derive(Debug, Default)]
pub(crate) struct Undecided(Vec<EndedTransaction>);

impl Undecided {
    /// Counts the open transaction, which a new producer ends.
    pub(crate) fn count_ended<W: WorkerPorts>(
        &mut self,
        ctx: &mut Context<W>,
        transaction: &mut Transaction,
    ) {
        let is_repair = !transaction.repairs.is_empty();
        let ended = EndedTransaction::take(ctx, transaction);
        match ended.positions.is_empty() {
            true if is_repair => ctx.report.metrics.transaction(TransactionResult::Unknown, ended.took),
            // Without offsets it was never committed.
            true => ctx.report.metrics.transaction(TransactionResult::Aborted, ended.took),
            false => self.add(ended),
        }
    }

    /// Only the committed offsets will show what became of this transaction.
    pub(crate) fn add(&mut self, ended: EndedTransaction) {
        let partitions = ranges(ended.positions.keys().copied());
        tracing::info!(%partitions, records = ended.tally.records(), "the outcome of a transaction is unknown");
        self.0.push(ended);
    }

    /// Counts what these committed offsets show as committed. They are those before a repair, which changes the metadata.
    pub(crate) fn count_if_committed<W: WorkerPorts>(&mut self, ctx: &mut Context<W>, answers: &[Committed]) {
        let report = &mut ctx.report;
        self.0.retain(|ended| {
            let shows = |answer: &Committed| {
                ended.positions.get(&answer.partition).is_some_and(|sent| sent.is_in(answer))
            };
            let is_committed = answers.iter().any(shows);
            if is_committed {
                tracing::info!(result = %TransactionResult::Committed.as_str(), "{FOUND}");
                report.committed(&ended.tally, ended.took, ended.at, ended.at_ms);
            }
            !is_committed
        });
    }

    /// Counts what the committed offsets of these partitions show as aborted. Their logs agree: a transaction of which only
    /// the offsets lack a marker has been repaired.
    pub(crate) fn count_if_aborted<W: WorkerPorts>(
        &mut self,
        ctx: &mut Context<W>,
        answers: &[Committed],
        checked: &[PartitionId],
    ) {
        let (report, partitions) = (&mut ctx.report, &ctx.partitions);
        self.0.retain_mut(|ended| {
            let mut result = None;
            for answer in answers.iter().filter(|answer| checked.contains(&answer.partition)) {
                if let Some(sent) = ended.positions.remove(&answer.partition)
                    && sent.is_not_in(answer)
                {
                    result = Some(TransactionResult::Aborted);
                }
            }
            ended.positions.retain(|id, _| partitions.get(*id).is_some());
            let result = result.or(ended.positions.is_empty().then_some(TransactionResult::Unknown));
            if let Some(result) = result {
                tracing::info!(result = %result.as_str(), "{FOUND}");
                report.metrics.transaction(result, ended.took);
            }
            result.is_none()
        });
    }
}
