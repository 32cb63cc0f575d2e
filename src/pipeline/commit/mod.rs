//! The end of a transaction. All its effects happen here, in this order. Only a repair writes an entry in another place (`torn/repair.rs`): it
//! contains no new records.
//!
//! A crash loses nothing at any point. Before the commit, the transaction aborts and the committed offset has not
//! moved; the local store may then hold an entry that was never committed, which the next start recognises by its
//! name. After the commit, the transaction contains everything that a restart needs.

mod entry;
pub mod markers;
pub mod pace;
pub mod size;
pub mod transaction;
pub mod undecided;

use std::collections::BTreeSet;
use std::mem;
use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::coordinates::ranges;
use crate::dedupe::{Checkpoint, Offset, PartitionId, Windows};
use crate::metrics::TransactionResult;
use crate::pipeline::commit::entry::{note_foreign, store_entries};
use crate::pipeline::commit::pace::CommitPace;
use crate::pipeline::commit::transaction::Transaction;
use crate::pipeline::commit::undecided::{EndedTransaction, Undecided};
use crate::pipeline::context::Context;
use crate::pipeline::error::WorkerError;
use crate::pipeline::failpoint;
use crate::pipeline::journal::restorer::forget_identities;
use crate::pipeline::journal::{Journal, JournalEnd, Journals, OpenEntry};
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::partition::Partition;
use crate::pipeline::partition::clock::{fastest_ms, slowest};
use crate::pipeline::partition::partitions::Partitions;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::safeguard::Safeguard;
use crate::pipeline::sizes::metadata_bytes;
use crate::pipeline::time::ahead_of_wall_ms;
use crate::ports::{
    CommitPosition, Covered, Failure, GroupMember, Remedy, Sink, Store, StoreError, WrittenEnds,
};

/// Time limit of one blocking broker call.
const ATTEMPT: Duration = Duration::from_secs(2);

/// The producer and its transaction.
pub(crate) struct Committer<W: WorkerPorts> {
    pub(crate) sink: W::Sink,
    pub(crate) transaction: Transaction,
    pub(crate) undecided: Undecided,
    pub(crate) pace: CommitPace,
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

    /// Commits the open transaction: records, entries and offsets together, or none of them. A transaction whose
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
        // on, the store holds owners of an entry that was not committed, which the next start turns into claims.
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
        self.transaction.committed(started..ctx.clock.elapsed(), timeout, limit);
        ctx.progress.advance();
        let (counts, committed) = (EndedTransaction::take(ctx, &mut self.transaction), ctx.clock.elapsed());
        if let Err(failed) = self.apply(ctx).and_then(|()| ctx.await_markers(source, touched)) {
            // Without its markers, even a commit with a response may have had no effect. What was applied does not matter then: the remedy reads the
            // committed offsets and the windows again.
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
        let Context { partitions, journals, options, .. } = ctx;
        let followed = followed_journals(partitions, journals);
        for partition in partitions.open_mut() {
            let Some(journal) = journals.get(partition.journal) else { continue };
            let ahead_ms = time_ahead_ms.saturating_add(partition.ahead_ms);
            let checkpoint = Checkpoint {
                ahead_of_wall_ms: ahead_of_wall_ms(options.kinds.time(), ahead_ms),
                others_follow: followed.contains(&journal.id),
                ..checkpoint_of(partition, journal, options)
            };
            let metadata = options.signed(checkpoint).render_within(most);
            let position = CommitPosition { partition: partition.id, next: partition.next, metadata };
            if let Some(open) = partition.open.as_mut() {
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
            match call(&mut self.sink, ATTEMPT) {
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
        for id in ctx.journals.ids(Journal::is_running) {
            let end = self.sink.state_end(id);
            if let Some(end) = end {
                note_foreign(ctx, id, end);
            }
            ctx.commit_journal(id, end)?;
        }
        self.transaction.close();
        self.pace.failures = 0;
        ctx.enforce_limits()?;
        failpoint::pass("after_apply");
        Ok(())
    }

    /// Aborts the open transaction, if there is one.
    pub(crate) fn abort_open(&mut self, ctx: &mut Context<W>, source: &W::Source) -> Result<(), WorkerError> {
        if self.transaction.is_open() { self.abort(ctx, source) } else { Ok(()) }
    }

    /// Aborts the open transaction. The outcome is definite: C has not moved.
    pub(crate) fn abort(&mut self, ctx: &mut Context<W>, source: &W::Source) -> Result<(), WorkerError> {
        let side = self.sink.side_starts();
        self.persistently(ctx, Sink::abort).map_err(WorkerError::renewing)?;
        let touched = self.touched_by_abort(ctx, side).map_err(WorkerError::renewing)?;
        let took = self.transaction.age(ctx.clock.elapsed());
        ctx.report.metrics.transaction(TransactionResult::Aborted, took);
        self.transaction.close();
        let mut unloaded = Vec::new();
        for journal in ctx.journals.iter_mut().filter(|journal| journal.is_running()) {
            let undone = journal.undo_stored(&mut ctx.store);
            match StoreError::unless_lease_lost(undone)? {
                Some(()) => journal.abort(),
                None => unloaded.push(journal.id),
            }
        }
        ctx.partitions.open_mut().for_each(Partition::abort);
        let paused = ctx.unload(source, &unloaded);
        ctx.await_markers(source, touched)?;
        paused
    }
}

/// The journals of which the group gets positions of other partitions by a later transaction: it has lost its offsets. Until they are committed, a
/// partition without an offset is not new.
fn followed_journals(partitions: &Partitions, journals: &Journals) -> BTreeSet<PartitionId> {
    let lost =
        partitions.iter().filter(|it| !it.is_in_group() && it.uncommitted_position && it.open.is_none());
    let follows = |it: &&Partition| {
        journals.get(it.journal).is_some_and(|journal| journal.covered.contains_key(&it.id))
    };
    lost.filter(follows).map(|partition| partition.journal).collect()
}

/// How often the position of a partition without new records is stated in its journal: it has to be there when retention has deleted its last section.
const STATED_EVERY: Duration = Duration::from_hours(1);

/// Adds partitions without records whose windows have owners to drop, whose lateness is not saved, or whose position was not stated for long. All of
/// that has to be in their checkpoints or sections, so they are committed like a partition with duplicates only.
fn add_idle<W: WorkerPorts>(ctx: &mut Context<W>, transaction: &mut Transaction) {
    let Context { partitions, journals, options, clock, .. } = ctx;
    if !options.keeps(Safeguard::SettledClock) {
        journals.iter_mut().for_each(|journal| advance_clock(journal, partitions, options));
    }
    // The offsets of a transaction have to fit into one batch.
    let limit = transaction.limit().reduced().unwrap_or(options.transaction_limit);
    let mut left = limit.partitions.saturating_sub(transaction.size.partitions);
    let (now, longest_ms) = (clock.elapsed(), options.kinds.longest_ms());
    let drops = |journal: &Journal| {
        let windows = journal.running();
        windows.is_some_and(|it| it.iter().any(|(_, window)| window.drops_without_records()))
    };
    let mut dropping: BTreeSet<PartitionId> = journals.ids(drops).into_iter().collect();
    for partition in partitions.open_mut() {
        dropping.remove(&partition.journal);
    }
    for partition in partitions.started_mut().filter(|partition| partition.open.is_none()) {
        let is_old = now.saturating_sub(partition.stated) >= STATED_EVERY;
        let is_stated = partition.is_in_group() && is_old;
        let has_news = is_stated || partition.has_unsaved_lateness(longest_ms);
        if left > 0 && (dropping.remove(&partition.journal) || has_news) {
            transaction.touch_idle(partition.id, &mut partition.open).is_stated = is_stated;
            left -= 1;
        }
    }
}

impl<W: WorkerPorts> Context<W> {
    /// Applies the committed transaction to a journal and its partitions, in memory and in the local store. `end` is that of the journal, if an entry was
    /// written.
    pub(crate) fn commit_journal(&mut self, id: PartitionId, end: Option<Offset>) -> Result<(), WorkerError> {
        let Context { partitions, journals, store, clock, .. } = self;
        let Some(journal) = journals.get_mut(id) else { return Ok(()) };
        let (open, mut is_touched) = (mem::take(&mut journal.open), false);
        for partition in partitions.of_mut(id).filter(|partition| partition.open.is_some()) {
            is_touched = true;
            if partition.adds_section() {
                partition.stated = clock.elapsed();
                let covered = Covered { next: partition.next, time_ms: partition.time.ms() };
                journal.covered.insert(partition.id, covered);
            }
            // A partition that only drops owners does not show that a record is accepted.
            let has_records = partition.open.as_ref().is_some_and(|open| open.records > 0);
            partition.commit();
            if has_records {
                partition.rejections.committed(partition.id, partition.committed);
            }
            journal
                .windows
                .iter_mut()
                .for_each(|it| it.clear_claims_below(partition.id, partition.committed));
        }
        if !is_touched {
            return Ok(());
        }
        if let Some((last_entry, next)) = open.last_entry.zip(end) {
            // Only an entry makes it longer.
            (journal.end, journal.last_entry) =
                (JournalEnd { last: Some(last_entry), next }, Some(last_entry));
            journal.reset_kinds.clear();
            journal.is_undone = false;
        }
        let needed = journal.windows.as_mut().map(Windows::commit).unwrap_or_default();
        if open.forgotten.is_some() {
            forget(journal, store, open)?;
        }
        let Some(windows) = &mut journal.windows else { return Ok(()) };
        for (kind, first) in needed {
            let missing_ms = windows.of_kind(kind).map_or(0, |window| window.missing_ms());
            StoreError::unless_lease_lost(store.expire(kind.window(id), first, missing_ms))?;
        }
        Ok(())
    }
}

/// Forgets identities in the windows of a journal and in the store, where each of them gets the head after that.
fn forget(journal: &mut Journal, store: &mut impl Store, mut open: OpenEntry) -> Result<(), WorkerError> {
    let heads = journal.heads();
    let identities = open.forgotten.map(|forgotten| forgotten.identities).unwrap_or_default();
    let Some(windows) = &mut journal.windows else { return Ok(()) };
    // The head of the unnamed kind comes last: it names the entry for all kinds.
    for (kind, head) in heads.into_iter().rev() {
        let (id, Some(window)) = (kind.window(journal.id), windows.of_kind(kind)) else { continue };
        let found = open.found.remove(&id).unwrap_or_default();
        match forget_identities(store, id, window, &identities, found, &head) {
            Err(WorkerError::Store(StoreError::LeaseLost(_))) => {}
            other => other?,
        }
    }
    Ok(())
}

/// What the checkpoint of a partition states about it, after the open transaction.
fn checkpoint_of(partition: &Partition, journal: &Journal, options: &WorkerOptions) -> Checkpoint {
    let covered = journal.covered.get(&partition.id).map(|covered| covered.next);
    let windows = journal.windows.as_ref();
    Checkpoint {
        state_next: journal.end.next,
        stream_time_ms: partition.time.ms(),
        rules: options.rules(),
        last_entry: journal.open.last_entry.or(journal.last_entry),
        section_next: if partition.adds_section() { Some(partition.next) } else { covered },
        windows: windows.map(Windows::checkpoints).unwrap_or_default(),
        horizon_ms: windows.map_or(0, Windows::horizon_ms),
        late_ms: partition.late_ms().or(options.unknown_lateness()),
        first_raw_partitions: partition.first_raw_partitions.or(Some(options.raw_partitions)),
        epoch: partition.epoch,
        empty_until: partition.epoch.filter(|epoch| !epoch.covers(partition.next)).map(|_| partition.next),
        ..Checkpoint::default()
    }
}

/// Lets the windows of a journal expire by the clocks of its partitions.
fn advance_clock(journal: &mut Journal, partitions: &Partitions, options: &WorkerOptions) {
    let of_journal = || partitions.of(journal.id);
    let reached_ms = if options.keeps(Safeguard::SlowestClock) {
        slowest(of_journal()).map_or(0, |(reached_ms, _)| reached_ms)
    } else {
        fastest_ms(of_journal())
    };
    journal.windows.iter_mut().for_each(|windows| windows.set_horizon(reached_ms));
}

/// The markers of a transaction are there, so no repair undoes it. Lets windows, and standby copies, expire by the clocks that it has advanced, from
/// the next commit on: they never go back.
fn settle<W: WorkerPorts>(ctx: &mut Context<W>) {
    let Context { partitions, journals, options, .. } = ctx;
    for journal in journals.iter_mut().filter(|journal| journal.is_running()) {
        advance_clock(journal, partitions, options);
    }
}
