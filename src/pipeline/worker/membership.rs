//! Group events of a worker: partitions are assigned, revoked or lost, and another process may use the same instance
//! name.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{JournalId, PartitionId, WindowId};
use crate::pipeline::commit::transaction::Transaction;
use crate::pipeline::context::Context;
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::failpoint;
use crate::pipeline::journal::Journal;
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::partition::Partition;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::rivals::{REPLACED_MAX, Rivals, second_process};
use crate::pipeline::worker::Parts;
use crate::pipeline::worker::exclusive::Exclusive;
use crate::ports::{Failure, GroupEvent, GroupMember, Remedy, StoreError};

/// A producer fenced more often than this within a minute competes with another process. The limit is higher
/// than [`REPLACED_MAX`]: two processes take the one static membership strictly in turns, so exactly one of them
/// exceeds that limit and ends. The order in which they fence each other's producers in between is random, and could
/// end both.
const FENCED_MAX: usize = 12;

/// The membership in the group.
#[derive(Debug, Default)]
pub(crate) struct Membership {
    /// Group events that are received but not answered yet.
    events: VecDeque<GroupEvent>,
    /// The client of this member is closed and its replacement is not created yet.
    rejoining: bool,
    /// Monotonic times at which another process may have replaced this member.
    replaced: Rivals,
    /// Monotonic times at which another process may have fenced the producer.
    fenced: Rivals,
    /// Whether this worker stays, when only one may be in the group; `None` when workers share the partitions.
    exclusive: Option<Exclusive>,
}

impl Membership {
    /// Of a worker that has not joined yet; `is_exclusive` is whether it leaves the group when another worker is the active one.
    pub(crate) fn new(is_exclusive: bool) -> Self {
        Self { exclusive: is_exclusive.then(Exclusive::default), ..Self::default() }
    }

    /// Whether only one worker may be in the group.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.exclusive.is_some()
    }

    /// Another process may have replaced this member. A single process is replaced once per outage, so a few times are
    /// tolerated.
    pub(crate) fn replaced(
        &mut self,
        options: &WorkerOptions,
        now: Duration,
        failed: &Failure,
    ) -> Result<(), Fatal> {
        let is_second = !self.rejoining && self.replaced.exceed(REPLACED_MAX, now);
        if is_second { Err(options.second_process(failed)) } else { Ok(()) }
    }

    /// Another process may have fenced the producer. A transaction timeout causes the same error, so a few times are
    /// tolerated.
    pub(crate) fn fenced(
        &mut self,
        options: &WorkerOptions,
        now: Duration,
        transaction: &Transaction,
        failed: &Failure,
    ) -> Result<(), Fatal> {
        let remaining = transaction.remaining(now, options.transaction_timeout);
        let within_timeout = remaining.is_none_or(|remaining| !remaining.is_zero());
        let is_second = self.fenced.exceed(FENCED_MAX, now) && within_timeout;
        if is_second { Err(options.second_process(failed)) } else { Ok(()) }
    }
}

impl WorkerOptions {
    fn second_process(&self, failed: &Failure) -> Fatal {
        second_process(&failed.what, &format!("group.instance and transactional id {}", self.writer))
    }
}

impl<W: WorkerPorts> Parts<W> {
    /// Answers the group events. An event that could not be answered is retried in a later iteration: the client
    /// reports it only once, and the group waits for the answer.
    pub(crate) fn serve(&mut self, source: &W::Source) -> Result<(), WorkerError> {
        for event in source.events() {
            self.ctx.report.rebalanced(&event);
            self.membership.events.push_back(event);
        }
        while let Some(event) = self.membership.events.front().cloned() {
            self.group_event(source, event)?;
        }
        Ok(())
    }

    fn group_event(&mut self, source: &W::Source, event: GroupEvent) -> Result<(), WorkerError> {
        match event {
            GroupEvent::Assigned(ids) => {
                if ids.iter().any(|id| self.ctx.partitions.get(*id).is_some()) {
                    // Given again without a revocation: what the open transaction has of it could not be committed with its
                    // offset.
                    self.committer.abort_open(&mut self.ctx, source)?;
                    self.ctx.relocate_all(source, Duration::ZERO)?;
                    self.ctx.journals.uncheck_all();
                }
                let starts: Vec<_> = ids.iter().map(|id| (*id, None)).collect();
                failpoint::pass("before_assign");
                source.assign(&starts)?;
                self.membership.events.pop_front();
                failpoint::pass("after_assign");
                let now = self.ctx.clock.elapsed();
                let time = self.ctx.options.kinds.time();
                for id in ids {
                    let journal = self.ctx.options.journal_of(id);
                    // Its clean log belongs to those that are compared.
                    self.ctx.journals.assigned(journal, now).is_checked = false;
                    self.ctx.partitions.insert(Partition::assigned(id, journal, time));
                }
                self.evaluate_assignment();
                Ok(())
            }
            GroupEvent::Revoked(ids) => {
                failpoint::pass("after_revoke");
                let committed = self.committer.commit(&mut self.ctx, source);
                let released = self.release(source, &ids);
                self.evaluate_assignment();
                committed.and(released)
            }
            GroupEvent::Lost(ids) => {
                if let Some(exclusive) = &mut self.membership.exclusive {
                    exclusive.lost();
                    // Without a subscription the client does not join again when the partitions are released.
                    source.leave();
                }
                let aborted = self.committer.abort_open(&mut self.ctx, source);
                let released = self.release(source, &ids);
                // The partitions that this member keeps were part of the aborted transaction too.
                self.ctx.relocate_all(source, Duration::ZERO)?;
                aborted.and(released)
            }
        }
    }

    fn evaluate_assignment(&mut self) {
        let (owns_first, now) = (self.ctx.partitions.get(0).is_some(), self.ctx.clock.elapsed());
        self.membership.exclusive.iter_mut().for_each(|it| it.assigned(owns_first, now));
    }

    /// Releases partitions. Their committed state is marked as confirmed in the local store, so that they load
    /// quickly when they return.
    fn release(&mut self, source: &W::Source, ids: &[PartitionId]) -> Result<(), WorkerError> {
        // A failure must not prevent the answer: the group waits for it without a time limit.
        let closed = self.ctx.close(source, ids);
        failpoint::pass("before_unassign");
        source.unassign(ids)?;
        self.membership.events.pop_front();
        failpoint::pass("after_unassign");
        closed
    }

    /// Whether another worker is the active one, so that this one has to leave the group.
    pub(crate) fn gives_way(&self) -> bool {
        let now = self.ctx.clock.elapsed();
        self.membership.exclusive.as_ref().is_some_and(|exclusive| exclusive.gives_way(now))
    }

    /// Whether the state of all partitions is complete. Without a partition nothing shows that it can be.
    pub(crate) fn is_complete(&mut self) -> bool {
        let has_any = self.ctx.partitions.iter().next().is_some();
        has_any && self.ctx.journals.are_running()
    }

    /// The group has removed this member. A new member replaces it and starts without any assignment.
    pub(crate) fn rejoin(&mut self, source: &mut W::Source) -> Result<(), WorkerError> {
        self.membership.rejoining = true;
        self.membership.events.clear();
        self.membership.exclusive.iter_mut().for_each(Exclusive::rejoins);
        let ended = self.committer.abort_open(&mut self.ctx, source);
        let closed = self.ctx.remove_all();
        source.rejoin()?;
        self.membership.rejoining = false;
        closed?;
        ended
    }
}

impl<W: WorkerPorts> Context<W> {
    /// Releases all partitions of a member that stays in the group: the restarted instance gets the same ones.
    pub(crate) fn close_all(&mut self, source: &W::Source) -> Result<(), WorkerError> {
        let all = self.partitions.ids(|_| true);
        self.close(source, &all)
    }

    /// Records in the local store that the windows of these partitions are committed, and removes the partitions. Where others of a journal stay, its windows
    /// are read again: another worker may write to it.
    fn close(&mut self, source: &W::Source, ids: &[PartitionId]) -> Result<(), WorkerError> {
        let mut outcome = Ok(());
        for id in self.options.journals_of(ids.iter().copied()) {
            outcome = outcome.and(self.confirm_settled(id));
            outcome = outcome.and(self.unload(source, &[id]));
            if let Some(journal) = self.journals.get_mut(id) {
                (journal.is_checked, journal.has_run) = (false, false);
            }
        }
        for id in ids {
            self.partitions.remove(*id);
        }
        outcome.and(self.remove_unused())
    }

    fn confirm_settled(&mut self, id: PartitionId) -> Result<(), WorkerError> {
        // What is undone, or open, is not that of an entry.
        let is_settled = self.partitions.of(id).all(|it| it.open.is_none() && !it.rewound);
        let journal = self.journals.get(id).filter(|journal| journal.is_running() && is_settled);
        let confirmed = journal.map_or(Ok(()), |journal| journal.confirm(&mut self.store));
        StoreError::unless_lease_lost(confirmed)?;
        Ok(())
    }

    /// Removes all partitions and journals.
    pub(crate) fn remove_all(&mut self) -> Result<(), WorkerError> {
        self.partitions.remove_all();
        self.remove_unused()
    }

    /// Removes the journals that no partition belongs to.
    fn remove_unused(&mut self) -> Result<(), WorkerError> {
        let mut outcome = Ok(());
        let is_used = |journal: &Journal| self.partitions.of(journal.id).next().is_some();
        for id in self.journals.ids(|journal| !is_used(journal)) {
            outcome = outcome.and(self.close_journal(id));
            self.release_leases(id);
            self.journals.remove(id);
        }
        outcome
    }

    /// Another worker of this process holds the local state of a journal. This worker will receive a revocation, or
    /// has to take the state back and load it again.
    pub(crate) fn lease_lost(&mut self, source: &W::Source, window: WindowId) -> Failure {
        self.drop_windows(source, window.journal());
        Failure::new(Remedy::Abort, StoreError::LeaseLost(window).to_string())
    }

    /// Drops the windows of a journal in memory, and ends its restore.
    pub(crate) fn drop_windows(&mut self, source: &W::Source, journal: JournalId) {
        let unloaded = self.unload(source, &[journal]);
        let closed = self.open_journals().map(drop);
        for failed in [unloaded, closed].into_iter().filter_map(Result::err) {
            tracing::debug!(%failed, journal, "failed to pause partitions or to close a restore");
        }
    }
}
