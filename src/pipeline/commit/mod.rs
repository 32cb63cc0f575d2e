//! The end of a transaction. All its effects happen here, in this order.
//!
//! A crash loses nothing at any point. Before the commit, the transaction aborts and the committed offset has not
//! moved; the local store may then hold blocks that were never committed, which the next start recognises by their
//! owners. After the commit, the transaction contains everything that a restart needs.

mod entry;
pub mod markers;
pub mod pace;
pub mod size;
pub mod transaction;
pub mod undecided;

use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::coordinates::ranges;
use crate::dedupe::{Checkpoint, Offset, PartitionId};
use crate::metrics::TransactionResult;
use crate::pipeline::commit::entry::store_entries;
use crate::pipeline::commit::markers::await_markers;
use crate::pipeline::commit::pace::CommitPace;
use crate::pipeline::commit::transaction::Transaction;
use crate::pipeline::commit::undecided::{EndedTransaction, Undecided};
use crate::pipeline::context::Context;
use crate::pipeline::error::WorkerError;
use crate::pipeline::failpoint;
use crate::pipeline::journal::JournalEnd;
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::partition::state::DedupeState;
use crate::pipeline::partition::topic::TopicScope;
use crate::pipeline::partition::{Partition, Running};
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::safeguard::Safeguard;
use crate::pipeline::sizes::metadata_bytes;
use crate::pipeline::time::ahead_of_wall_ms;
use crate::ports::{
    CommitPosition, Failure, GroupMember, Remedy, Sink, Store, StoreError, ToForget, WrittenEnds,
};

/// Time limit of one blocking broker call.
const SLICE: Duration = Duration::from_secs(2);

/// The producer and its transaction.
pub(crate) struct Committer<W: WorkerPorts> {
    pub(crate) sink: W::Sink,
    pub(crate) transaction: Transaction,
    pub(crate) undecided: Undecided,
    pub(crate) pace: CommitPace,
}

/// What the parts that repair and start partitions use.
pub(crate) struct Access<'a, W: WorkerPorts> {
    pub(crate) ctx: &'a mut Context<W>,
    pub(crate) committer: &'a mut Committer<W>,
    pub(crate) source: &'a W::Source,
}

impl<W: WorkerPorts> Committer<W> {
    /// Without a transaction.
    pub fn new(sink: W::Sink) -> Self {
        Self {
            sink,
            transaction: Transaction::default(),
            undecided: Undecided::default(),
            pace: CommitPace::default(),
        }
    }

    /// Commits the open transaction: records, blocks and offsets together, or none of them. A transaction whose
    /// commit failed is never continued: its offsets would lack a partition that was released meanwhile.
    pub(crate) fn commit(&mut self, ctx: &mut Context<W>, source: &W::Source) -> Result<(), WorkerError> {
        if !self.transaction.begin_commit()? {
            return Ok(());
        }
        self.commit_open(ctx, source).map_err(WorkerError::rewinding)
    }

    fn commit_open(&mut self, ctx: &mut Context<W>, source: &W::Source) -> Result<(), WorkerError> {
        let started = ctx.clock.elapsed();
        add_idle(ctx, &mut self.transaction);
        failpoint::pass("before_store");
        // The local store is written first, while the broker is still acknowledging records. After a crash from here
        // on, the store holds owners at or beyond C, which the next start turns into claims.
        let entries = store_entries(ctx)?;
        failpoint::pass("after_store");
        self.drain(ctx)?;
        failpoint::pass("after_drain");
        for entry in &entries {
            self.put_entry(ctx, entry)?;
        }
        failpoint::pass("after_state_records");
        self.send_offsets(ctx, source)?;
        failpoint::pass("after_send_offsets");
        // Without this drain, the client's commit would flush the state records in steps of 100 ms.
        self.drain(ctx)?;
        failpoint::pass("before_commit");
        let touched = self.touched(&ctx.options);
        self.persistently(ctx, Sink::commit)?;
        failpoint::pass("after_commit");
        let (timeout, limit) = (ctx.options.transaction_timeout, ctx.options.transaction_limit);
        let now = ctx.clock.elapsed();
        self.transaction.committed((now, now.saturating_sub(started)), timeout, limit);
        ctx.progress.advance();
        let (counts, committed) = (EndedTransaction::take(ctx, &mut self.transaction), ctx.clock.elapsed());
        if let Err(failed) = self.apply(ctx).and_then(|()| await_markers(ctx, source, touched)) {
            // Without its markers, even a commit with a response may have had no effect.
            self.undecided.add(counts);
            return Err(failed);
        }
        settle(ctx);
        ctx.progress.advance();
        failpoint::pass("after_markers");
        let ended = ctx.clock.elapsed();
        let took = ended.saturating_sub(started);
        self.pace.note(took);
        if !self.pace.is_slow() {
            self.transaction.waiting_since = Some(ended.saturating_sub(took.min(ctx.options.interval / 2)));
        }
        counts.count_committed(ctx, ended.saturating_sub(committed));
        Ok(())
    }

    fn drain(&mut self, ctx: &mut Context<W>) -> Result<(), WorkerError> {
        ctx.progress.advance();
        self.sink.drain(ctx.options.transaction_timeout)?;
        ctx.progress.advance();
        Ok(())
    }

    fn send_offsets(&mut self, ctx: &mut Context<W>, source: &W::Source) -> Result<(), WorkerError> {
        let mut positions = Vec::new();
        let most = metadata_bytes(ctx.partitions.open_mut().count());
        let time_ahead_ms = ctx.time.ahead_ms(&ctx.clock);
        let horizon_ms = ctx.topic.as_ref().map(TopicScope::horizon_ms);
        let is_first = has_positions_to_follow(ctx);
        for state in ctx.partitions.open_mut() {
            let journal_end = ctx.journals.end(ctx.options.journal_of(state.id));
            let ahead_of_wall = ahead_of_wall_ms(ctx.options.kinds.time(), (time_ahead_ms, state.ahead_ms));
            let checkpoint = Checkpoint {
                state_next: journal_end.next.max(state.state_next),
                ahead_of_wall_ms: ahead_of_wall,
                horizon_ms,
                ..checkpoint_of(state, &ctx.options)
            };
            let metadata =
                if is_first { String::new() } else { ctx.options.signed(checkpoint).render_within(most) };
            let position = CommitPosition { partition: state.id, next: state.next, metadata };
            if let Some(open) = state.open.as_mut() {
                open.sent = Some((position.next, position.metadata.clone()));
            }
            positions.push(position);
        }
        self.send_positions(ctx, source, &positions)
    }

    /// Adds offsets to the transaction, if this member currently owns all these partitions.
    pub(crate) fn send_positions(
        &mut self,
        ctx: &mut Context<W>,
        source: &W::Source,
        positions: &[CommitPosition],
    ) -> Result<(), WorkerError> {
        let ids: Vec<PartitionId> = positions.iter().map(|p| p.partition).collect();
        // The broker does not check all of this. It validates the member only when the request has a member id or a generation
        // (KIP-447), so it accepts the offsets of one that never joined; and it never verifies the ownership of a partition.
        if !source.may_commit(&ids) {
            return Err(Failure::new(
                Remedy::Abort,
                format!(
                    "this process no longer owns all of partitions {} of topic {}; aborting",
                    ranges(ids),
                    ctx.options.raw
                ),
            )
            .into());
        }
        self.persistently(ctx, |sink, wait| sink.send_offsets(source, positions, wait))
    }

    /// Retries a resumable call until the transaction timeout has passed; then its outcome counts as unknown.
    pub(crate) fn persistently(
        &mut self,
        ctx: &mut Context<W>,
        mut call: impl FnMut(&mut W::Sink, Duration) -> Result<(), Failure>,
    ) -> Result<(), WorkerError> {
        let deadline = ctx.clock.elapsed() + ctx.options.transaction_timeout;
        loop {
            ctx.progress.advance();
            match call(&mut self.sink, SLICE) {
                Ok(()) => return Ok(()),
                Err(failed) if failed.remedy == Remedy::Retry && ctx.clock.elapsed() < deadline => {
                    ctx.clock.rest(Duration::from_millis(50));
                }
                Err(failed) => return Err(WorkerError::exhausted(failed).into()),
            }
        }
    }

    /// The transaction is committed, and so is everything that was pending. Nothing may expire before this point.
    fn apply(&mut self, ctx: &mut Context<W>) -> Result<(), WorkerError> {
        let (sink, store) = (&self.sink, &mut ctx.store);
        for partition in ctx.partitions.iter_mut() {
            let id = partition.id;
            let Some((running, rejections)) = partition.record_mut() else { continue };
            if let Some(open) = &running.state.open {
                let has_records = open.records > 0;
                commit_state(&mut running.state, sink.state_end(ctx.options.journal_of(id)), store)?;
                // A partition that only drops owners does not show that a record is accepted.
                if has_records {
                    rejections.committed(id, running.state.committed);
                }
            }
        }
        for (number, journal) in ctx.journals.ends_mut() {
            // Only an entry makes it longer.
            if let Some(next) = sink.state_end(number) {
                *journal = JournalEnd { last: journal.last + 1, next };
            }
        }
        let is_first = has_positions_to_follow(ctx);
        if let Some(topic) = &mut ctx.topic {
            topic.has_checkpoint |= !is_first;
        }
        self.transaction.close();
        self.pace.reset_backoff();
        ctx.enforce_limits()?;
        failpoint::pass("after_apply");
        Ok(())
    }

    /// Aborts the open transaction. The outcome is definite: C has not moved.
    pub(crate) fn abort(&mut self, ctx: &mut Context<W>, source: &W::Source) -> Result<(), WorkerError> {
        let side = self.sink.side_starts();
        self.persistently(ctx, Sink::abort).map_err(WorkerError::renewing)?;
        let touched = self.touched_by_abort(ctx, side).map_err(WorkerError::renewing)?;
        ctx.report.not_committed(TransactionResult::Aborted, self.transaction.age(ctx.clock.elapsed()));
        self.transaction.close();
        let mut unloaded = Vec::new();
        for state in ctx.partitions.open_mut() {
            let undone = state.undo_stored(&mut ctx.store, &ctx.options.kinds);
            match StoreError::unless_lease_lost(undone)? {
                Some(()) => state.abort(),
                None => unloaded.push(state.id),
            }
        }
        let paused = ctx.unload(source, &unloaded);
        await_markers(ctx, source, touched)?;
        paused
    }
}

/// Whether a group without checkpoints, which has lost its offsets, gets positions of other partitions by a later transaction. Until then it has no checkpoint: a
/// partition without an offset would count as new.
fn has_positions_to_follow<W: WorkerPorts>(ctx: &Context<W>) -> bool {
    let follows = |running: &Running| running.state.uncommitted_position && running.state.open.is_none();
    let is_without = ctx.topic.as_ref().is_some_and(|topic| !topic.has_checkpoint);
    is_without && ctx.partitions.iter().filter_map(Partition::running).any(follows)
}

/// Lets all windows expire by the horizon, and adds partitions without records whose windows have owners to drop, or whose lateness is not saved. Both
/// have to be in their checkpoints, so they are committed like a partition with duplicates only.
fn add_idle<W: WorkerPorts>(ctx: &mut Context<W>, transaction: &mut Transaction) {
    let mut horizon_ms = ctx.horizon_ms();
    if !ctx.options.keeps(Safeguard::SettledClock) {
        horizon_ms = horizon_ms.max(ctx.partitions.slowest().map(|(reached_ms, _)| reached_ms));
    }
    // The offsets of a transaction have to fit into one batch.
    let limit = transaction.limit().reduced().unwrap_or(ctx.options.transaction_limit);
    let mut left = limit.partitions.saturating_sub(transaction.size.partitions);
    let longest_ms = ctx.options.kinds.longest_ms();
    for (id, running) in ctx.partitions.running_mut() {
        let state = &mut running.state;
        // In partition scope by their own clocks, after the bound of a restore.
        state.windows.set_horizon(horizon_ms.unwrap_or(i64::MAX));
        let is_idle = state.open.is_none() && !running.held;
        let drops = || state.windows.iter().any(|(_, window)| window.drops_without_records());
        if is_idle && left > 0 && (drops() || state.has_unsaved_lateness(longest_ms)) {
            transaction.touch_idle(id, &mut state.open);
            left -= 1;
        }
    }
}

/// Applies the committed transaction to the state of a partition, in memory and in the local store.
pub(crate) fn commit_state(
    state: &mut DedupeState,
    state_end: Option<Offset>,
    store: &mut impl Store,
) -> Result<(), StoreError> {
    let forgotten = state.open.as_ref().and_then(|open| open.forgotten.clone());
    if let Some(forgotten) = &forgotten {
        StoreError::unless_lease_lost(state.forget(forgotten, store, false))?;
    }
    for (kind, first) in state.commit(state_end) {
        let window = kind.window(state.id);
        if let Some(forgotten) = &forgotten {
            let (owners, identities) = (forgotten.offsets(), forgotten.identities());
            let forgotten = ToForget { owners: &owners, identities: &identities, before: forgotten.at };
            StoreError::unless_lease_lost(store.forget(window, forgotten, state.head()))?;
        }
        let missing_ms = state.windows.of_kind(kind).map_or(0, |window| window.missing_ms());
        StoreError::unless_lease_lost(store.expire(window, first, missing_ms))?;
    }
    Ok(())
}

/// What the checkpoint of a partition states about it, after the open transaction.
fn checkpoint_of(state: &DedupeState, options: &WorkerOptions) -> Checkpoint {
    let open_tail = state.open.as_ref().and_then(|open| open.tail);
    Checkpoint {
        stream_time_ms: state.windows.stream_time_ms(),
        rules: options.rules(),
        tail: open_tail.or(state.tail),
        windows: state.windows.checkpoints(),
        late_ms: state.late_ms().or(options.unknown_lateness()),
        settled_ms: Some(state.settled_ms),
        first_raw_partitions: state.first_raw_partitions.or(Some(options.raw_partitions)),
        epoch: state.epoch,
        empty_until: state.epoch.filter(|epoch| !epoch.covers(state.next)).map(|_| state.next),
        ..Checkpoint::default()
    }
}

/// The markers of a transaction are there, so no repair undoes it. Lets windows, and standby copies, expire by the clocks that it has advanced, from
/// the next commit on: neither the horizon nor a settled time goes back.
fn settle<W: WorkerPorts>(ctx: &mut Context<W>) {
    for (_, running) in ctx.partitions.running_mut() {
        running.state.settled_ms = running.state.windows.stream_time_ms();
    }
    let Some(topic) = &mut ctx.topic else { return };
    topic.committed(if ctx.options.keeps(Safeguard::SlowestClock) {
        ctx.partitions.slowest().map(|(reached_ms, _)| reached_ms)
    } else {
        Some(ctx.partitions.fastest_ms())
    });
}
