//! Group events of a worker: partitions are assigned, revoked or lost, and another process may use the same instance
//! name.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::coordinates::ranges;
use crate::dedupe::{PartitionId, WindowId};
use crate::pipeline::commit::Committer;
use crate::pipeline::commit::transaction::Transaction;
use crate::pipeline::context::Context;
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::failpoint;
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::partition::Partition;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::worker::Parts;
use crate::pipeline::worker::exclusive::Exclusive;
use crate::ports::{Failure, GroupEvent, GroupMember, Head, Remedy, Store, StoreError};

/// A member replaced more often than this within [`FENCE_PERIOD`] competes with another process. A single process can
/// replace itself: after an outage longer than its session timeout it rejoins, and the broker takes its own late
/// heartbeat for that of another process.
const REPLACED_MAX: usize = 4;
/// A producer fenced more often than this within [`FENCE_PERIOD`] competes with another process. The limit is higher
/// than [`REPLACED_MAX`]: two processes take the one static membership strictly in turns, so exactly one of them
/// exceeds that limit and ends. The order in which they fence each other's producers in between is random, and could
/// end both.
const FENCED_MAX: usize = 12;
/// Fencings older than this are not counted.
const FENCE_PERIOD: Duration = Duration::from_mins(1);

/// The membership in the group.
#[derive(Debug, Default)]
pub(crate) struct Membership {
    /// Group events that are received but not answered yet.
    events: VecDeque<GroupEvent>,
    /// The client of this member is closed and its replacement is not created yet.
    rejoining: bool,
    /// Monotonic times at which another process may have replaced this member.
    replaced: Vec<Duration>,
    /// Monotonic times at which another process may have fenced the producer.
    fenced: Vec<Duration>,
    /// Whether this worker stays, when only one may be in the group; `None` when workers share the partitions.
    exclusive: Option<Exclusive>,
}

impl Membership {
    /// Of a worker that has not joined yet; `is_exclusive` is whether it leaves the group when another worker is the active one.
    pub(crate) fn new(is_exclusive: bool) -> Self {
        Self { exclusive: is_exclusive.then(Exclusive::default), ..Self::default() }
    }

    /// Another process may have replaced this member. A single process is replaced once per outage, so a few times are
    /// tolerated.
    pub(crate) fn replaced(
        &mut self,
        options: &WorkerOptions,
        now: Duration,
        failed: &Failure,
    ) -> Result<(), Fatal> {
        if self.rejoining {
            return Ok(());
        }
        let times = count_recent(&mut self.replaced, now);
        if times > REPLACED_MAX { Err(second_process(options, failed)) } else { Ok(()) }
    }

    /// Another process may have fenced the producer. A transaction timeout causes the same error, so a few times are
    /// tolerated.
    pub(crate) fn fenced(
        &mut self,
        options: &WorkerOptions,
        (now, transaction): (Duration, &Transaction),
        failed: &Failure,
    ) -> Result<(), Fatal> {
        let remaining = transaction.remaining(now, options.transaction_timeout);
        let within_timeout = remaining.is_none_or(|remaining| !remaining.is_zero());
        let times = count_recent(&mut self.fenced, now);
        if within_timeout && times > FENCED_MAX { Err(second_process(options, failed)) } else { Ok(()) }
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
                    abort_open(&mut self.committer, &mut self.ctx, source)?;
                    self.ctx.relocate(source, Duration::ZERO)?;
                    self.ctx.journals.uncheck_all();
                }
                let starts: Vec<_> = ids.iter().map(|id| (*id, None)).collect();
                failpoint::pass("before_assign");
                source.assign(&starts)?;
                self.membership.events.pop_front();
                failpoint::pass("after_assign");
                let now = self.ctx.clock.elapsed();
                if self.ctx.partitions.iter().next().is_none() {
                    self.ctx.empty_topic_filter();
                }
                for id in ids {
                    self.ctx.partitions.insert(Partition::assigned(id, now));
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
                let aborted = abort_open(&mut self.committer, &mut self.ctx, source);
                let released = self.release(source, &ids);
                // The partitions that this member keeps were part of the aborted transaction too.
                self.ctx.relocate(source, Duration::ZERO)?;
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
        let closed: Vec<_> = ids.iter().map(|id| close(&mut self.ctx, *id)).collect();
        failpoint::pass("before_unassign");
        source.unassign(ids)?;
        self.membership.events.pop_front();
        failpoint::pass("after_unassign");
        closed.into_iter().collect()
    }

    /// Whether another worker is the active one, so that this one has to leave the group.
    pub(crate) fn gives_way(&self) -> bool {
        let now = self.ctx.clock.elapsed();
        self.membership.exclusive.as_ref().is_some_and(|exclusive| exclusive.gives_way(now))
    }

    /// Whether the state of all partitions is complete. Without a partition nothing shows that it can be.
    pub(crate) fn is_complete(&mut self) -> bool {
        match &self.ctx.topic {
            Some(topic) => topic.is_open,
            None => self.ctx.partitions.iter().next().is_some() && self.ctx.partitions.has_nothing_pending(),
        }
    }

    /// The group has removed this member. A new member replaces it and starts without any assignment.
    pub(crate) fn rejoin(&mut self, source: &mut W::Source) -> Result<(), WorkerError> {
        self.membership.rejoining = true;
        self.membership.events.clear();
        self.membership.exclusive.iter_mut().for_each(Exclusive::rejoins);
        let ended = abort_open(&mut self.committer, &mut self.ctx, source);
        self.ctx.partitions.ids(|_| true).into_iter().for_each(|id| self.ctx.release_leases(id));
        for id in self.ctx.partitions.ids(|_| true) {
            self.ctx.removed(id);
        }
        self.ctx.partitions.remove_all();
        let closed = self.ctx.open_journals();
        source.rejoin()?;
        self.membership.rejoining = false;
        closed?;
        ended
    }
}

/// Aborts the open transaction, if there is one.
pub(crate) fn abort_open<W: WorkerPorts>(
    committer: &mut Committer<W>,
    ctx: &mut Context<W>,
    source: &W::Source,
) -> Result<(), WorkerError> {
    if committer.transaction.is_open() { committer.abort(ctx, source) } else { Ok(()) }
}

/// Releases all partitions of a member that stays in the group: the restarted instance gets the same ones.
pub(crate) fn close_all<W: WorkerPorts>(ctx: &mut Context<W>) -> Result<(), WorkerError> {
    ctx.partitions.ids(|_| true).into_iter().try_for_each(|id| close(ctx, id))
}

/// Marks the committed state of a partition as confirmed in the local store, and removes the partition.
fn close<W: WorkerPorts>(ctx: &mut Context<W>, id: PartitionId) -> Result<(), WorkerError> {
    let Some(partition) = ctx.partitions.remove(id) else { return Ok(()) };
    ctx.removed(id);
    // Its state has everything up to the end of the journal, also where the last entries are of other partitions.
    let end = ctx.journals.end(ctx.options.journal_of(id)).next;
    let confirmed = match partition.running().filter(|running| running.state.open.is_none()) {
        Some(running) => {
            let head = running.state.head();
            let head = Head { state_next: head.state_next.max(end), ..head };
            StoreError::unless_lease_lost(ctx.store.set_head(id.into(), head))
        }
        None => Ok(None),
    };
    ctx.release_leases(id);
    confirmed?;
    // The journal of a restore that has ended is closed.
    ctx.open_journals().map(drop)
}

/// Another worker of this process holds the partition's local state. This worker will receive a revocation, or
/// has to take the state back and load it again.
pub(crate) fn lease_lost<W: WorkerPorts>(
    ctx: &mut Context<W>,
    source: &W::Source,
    window: WindowId,
) -> Failure {
    drop_states(ctx, source, &[window.partition()]);
    Failure::new(Remedy::Abort, StoreError::LeaseLost(window).to_string())
}

/// Drops the state of these partitions in memory, and ends their restores.
pub(crate) fn drop_states<W: WorkerPorts>(ctx: &mut Context<W>, source: &W::Source, ids: &[PartitionId]) {
    let unloaded = ctx.unload(source, ids);
    let closed = ctx.open_journals().map(drop);
    for failed in [unloaded, closed].into_iter().filter_map(Result::err) {
        tracing::debug!(%failed, partitions = %ranges(ids.iter().copied()), "failed to pause partitions or to close a restore");
    }
}

fn second_process(options: &WorkerOptions, failed: &Failure) -> Fatal {
    Fatal::Fenced(format!(
        "{}; this recurred several times within a minute: another process runs with the same group.instance and \
         transactional id {}; give each process its own group.instance",
        failed.what, options.writer
    ))
}

/// Adds `now` to the earlier times, and returns how many lie within [`FENCE_PERIOD`].
fn count_recent(earlier: &mut Vec<Duration>, now: Duration) -> usize {
    earlier.retain(|before| now.saturating_sub(*before) < FENCE_PERIOD);
    earlier.push(now);
    earlier.len()
}
