//! The poll loop of one worker, and its reaction to errors.

pub mod chunk;
pub mod commit;
pub mod control;
pub mod membership;
pub mod order;
pub mod rejected;
pub mod remedy;
pub mod report;
mod search;
pub mod size;
pub mod stalled;
pub mod step;
pub mod time;
pub mod transaction;
pub mod undecided;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use crate::clock::Clock;
use crate::control::Request;
use crate::dedupe::Window;
use crate::dedupe::window::CHUNK;
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::limits::shortened::WindowLimiter;
use crate::pipeline::options::Options;
use crate::pipeline::partition::loading::LocalRead;
use crate::pipeline::partition::partitions::Partitions;
use crate::pipeline::partition::start_bounds::StartBounds;
use crate::pipeline::partition::{Partition, Phase};
use crate::pipeline::progress::Progress;
use crate::pipeline::torn::producer::Producer;
use crate::ports::{
    GroupMember, LogTails, ProducerLife, Remedy, Sink, Source, StateLog, Store, StoreError, WrittenEnds,
};
use chunk::gather;
use membership::Membership;
use report::Report;
use search::Search;
use stalled::{StableEnds, StallCheck};
use time::Time;
use transaction::Transaction;
use undecided::Ended;

/// Longest poll when no transaction is open; also the longest delay until a stop is noticed.
const IDLE: Duration = Duration::from_millis(100);
/// Longest time that a transaction stays open while more records are waiting.
const BACKLOG_INTERVAL: Duration = Duration::from_secs(1);
/// Duration of a commit that is slow because of the number of its partitions: with a few dozen it takes 10 to 40 ms, and a
/// short `batch.interval` applies as it is configured.
const SLOW_COMMIT: Duration = Duration::from_millis(100);
/// Longest poll while a partition or the producer is not ready.
const BUSY: Duration = Duration::from_millis(1);
/// Time limit of one call of `init_transactions`; the consumer is polled between two calls.
const PREPARE: Duration = Duration::from_millis(500);
/// Time limit for leaving the group.
const LEAVE: Duration = Duration::from_secs(3);

/// The ports of a worker, as one type parameter.
pub trait World {
    /// The raw topic, and the membership of the group.
    type Source: Source + GroupMember;
    /// The producer, and its transaction.
    type Sink: ProducerLife + Sink<Self::Source> + WrittenEnds;
    /// The reader of the state topic, and of the ends of all topics that transactions write to.
    type Log: StateLog + LogTails;
    /// The local store.
    type Store: Store;
    /// Time.
    type Clock: Clock;

    /// Runs these reads of local state. They are independent of each other: an implementation can use a thread for each.
    fn read_local(
        store: &Self::Store,
        clock: &Self::Clock,
        reads: &mut [LocalRead<'_>],
    ) -> Result<(), StoreError> {
        reads.iter_mut().try_for_each(|read| read.run(store, clock))
    }
}

/// The state of a worker, except the source: the records of a chunk borrow the source, so it is a field of its own.
pub struct Core<W: World> {
    pub(crate) sink: W::Sink,
    pub(crate) log: W::Log,
    pub(crate) store: W::Store,
    pub(crate) clock: W::Clock,
    pub(crate) options: Options,
    pub(crate) partitions: Partitions,
    pub(crate) transaction: Transaction,
    /// Earlier transactions whose outcome is not known yet.
    pub(crate) undecided: Vec<Ended>,
    pub(crate) report: Report,
    pub(crate) limits: WindowLimiter,
    pub(crate) time: Time,
    /// Consecutive failures; the backoff before the next attempt grows with them.
    pub(crate) failures: u32,
    /// A call failed with [`Remedy::Retry`]. The process is not ready until a call succeeds again.
    pub(crate) unreachable: bool,
    /// The transactional producer, and what earlier producers left open.
    pub(crate) producer: Producer,
    /// The membership in the group.
    pub(crate) membership: Membership,
    /// Requests of the admin API.
    pub(crate) control: Option<Receiver<Request>>,
    /// The request whose blocks are being searched.
    pub(crate) search: Option<Search>,
    pub(crate) stalls: StallCheck,
    pub(crate) start_bounds: StartBounds,
    /// Its progress, for the supervisor.
    pub(crate) progress: Progress,
    /// Durations of the last two commits.
    pub(crate) commits: [Duration; 2],
}

/// One worker: one member of the group, one transactional producer, and their partitions.
pub struct Worker<W: World> {
    source: W::Source,
    core: Core<W>,
}

impl<W: World> Worker<W> {
    /// A worker that has not started.
    pub fn new(
        (source, sink, log, store): (W::Source, W::Sink, W::Log, W::Store),
        clock: W::Clock,
        options: Options,
        mut report: Report,
    ) -> Self {
        report.set_warning(options.mode.warning());
        report.register_kinds(&options.kinds);
        let core = Core {
            sink,
            log,
            store,
            options,
            partitions: Partitions::default(),
            transaction: Transaction::default(),
            undecided: Vec::new(),
            report,
            limits: WindowLimiter::default(),
            time: Time::start(&clock),
            failures: 0,
            unreachable: false,
            producer: Producer::default(),
            membership: Membership::default(),
            control: None,
            search: None,
            stalls: StallCheck::default(),
            start_bounds: StartBounds::default(),
            progress: Progress::default(),
            commits: [Duration::ZERO; 2],
            clock,
        };
        Self { source, core }
    }

    /// Makes the worker answer the requests of this channel.
    #[must_use]
    pub fn answering(mut self, control: Receiver<Request>) -> Self {
        self.core.control = Some(control);
        self
    }

    /// Makes the worker compare its partitions with the stable ends of their logs, to detect stalled fetches.
    #[must_use]
    pub fn comparing(mut self, ends: StableEnds) -> Self {
        self.core.stalls = StallCheck::new(ends);
        self
    }

    /// Makes the worker count its progress here.
    #[must_use]
    pub fn counting(mut self, progress: Progress) -> Self {
        self.core.progress = progress;
        self
    }

    /// Runs until `stop` is set, then commits the open transaction, leaves the group and returns.
    pub fn run(mut self, stop: &AtomicBool) -> Result<(), Fatal> {
        while !stop.load(Ordering::Acquire) {
            self.iterate()?;
        }
        self.finish()
    }

    /// One iteration of the poll loop: serves group events, prepares producer and partitions, moves records.
    pub fn iterate(&mut self) -> Result<(), Fatal> {
        let Self { source, core } = self;
        core.progress.advance();
        let result = match core.iterate(source) {
            Ok(()) => Ok(()),
            Err(error) => core.remedy(source, error),
        };
        // The status is published after a failed iteration too: while the broker is unreachable, every iteration
        // fails.
        let window = |window: &Window| core.limits.status(window, &core.options);
        let shown = (&core.partitions, &core.transaction, &core.options.partition_limit);
        core.report.publish(shown, core.clock.elapsed(), |id| source.end(id), window);
        result
    }

    /// Commits the open transaction and leaves the group, so that a restart reprocesses nothing.
    fn finish(mut self) -> Result<(), Fatal> {
        let Self { source, core } = &mut self;
        if let Err(error) = core.commit(source) {
            tracing::warn!(%error, "failed to commit the last transaction; its records will be processed again");
            core.sink.discard();
        }
        source.leave();
        let deadline = core.clock.elapsed() + LEAVE;
        while core.partitions.iter().next().is_some() && core.clock.elapsed() < deadline {
            // Records that still arrive are processed by the next owner of the partition.
            drop(gather(source, CHUNK, BUSY));
            if let Err(error) = core.serve(source) {
                tracing::warn!(%error, "failed to answer a group event while leaving the group");
            }
        }
        core.store.sync().map_err(|error| Fatal::State(error.to_string()))
    }
}

impl<W: World> Core<W> {
    fn iterate(&mut self, source: &W::Source) -> Result<(), WorkerError> {
        let until = self.clock.elapsed() + self.options.iteration_time;
        self.serve(source)?;
        self.answer_request(source)?;
        self.wake_stalled(source)?;
        // The client is polled in every iteration, also when recovery fails: the client serves the group protocol in
        // `poll`.
        let recovered = self.make_ready(source);
        if recovered.as_ref().is_err_and(WorkerError::is_grave) {
            // No record may be processed: the open transaction may be a repair that is only half written, or the
            // producer may have to be replaced. The records that the client returns now are read again, because the
            // remedy seeks to the committed offsets.
            let (_, polled) = gather(source, CHUNK, Duration::ZERO);
            // A member that is no longer in the group cannot repair anything: an abort alone would fail in every
            // iteration.
            let has_lost_membership = polled.as_ref().is_err_and(|failed| failed.remedy == Remedy::Rejoin);
            let aborts =
                matches!(&recovered, Err(WorkerError::Kafka(failed)) if failed.remedy == Remedy::Abort);
            return if has_lost_membership && aborts { polled.map_err(WorkerError::from) } else { recovered };
        }
        if !self.partitions.is_settled() && self.has_uncommitted_position() {
            self.commit(source)?;
        }
        let mut check = Ok(());
        if self.unreachable && self.producer.is_prepared && !self.transaction.is_open() {
            check = self.check_broker(source);
        }
        let wait = self.wait();
        // While transactions are reduced, one iteration reads no more than one of them: commits take long then.
        let most = self.transaction.records_left().map_or(CHUNK, |left| left.min(CHUNK));
        let (mut chunk, gathered) = gather(source, most, wait);
        let has_more = chunk.len() == most;
        self.progress.advance();
        if chunk.is_empty() {
            self.transaction.waiting_since = None;
        }
        let damaged = gathered.as_ref().err().and_then(|failed| failed.damaged);
        let is_next = self.process(source, &mut chunk, damaged, until)?;
        drop(chunk);
        let gathered = match gathered {
            Err(failed) if failed.remedy == Remedy::Stop && is_next => {
                // The records before a damaged batch are committed first: the operator then skips only the damaged batch.
                self.commit(source)?;
                Err(failed)
            }
            Err(failed) if failed.remedy == Remedy::Stop => Ok(()),
            other => other,
        };
        // The transaction is committed at its deadline, also while polling fails.
        let due = self.transaction.remaining(self.clock.elapsed(), self.interval(has_more));
        if due.is_some_and(|left| left.is_zero()) {
            self.commit(source)?;
        }
        // Only one failure is handled per iteration: the most severe one. A failure with `Remedy::Retry` may recur in
        // every iteration, and would otherwise hide forever that the producer has to be replaced.
        let mut failed: Vec<WorkerError> =
            [recovered.err(), gathered.err().map(WorkerError::from), check.err()]
                .into_iter()
                .flatten()
                .collect();
        let most_severe = failed.iter().position(WorkerError::is_grave).unwrap_or(0);
        if failed.is_empty() { Ok(()) } else { Err(failed.swap_remove(most_severe)) }
    }

    /// Sends the cheapest request, to find out whether the broker responds again.
    fn check_broker(&mut self, source: &W::Source) -> Result<(), WorkerError> {
        // Any partition will do: a member without an assignment has none of its own.
        let id = self.partitions.iter().next().map_or(0, |partition| partition.id);
        source.bounds(&[id], PREPARE)?;
        self.report.reachable();
        self.unreachable = false;
        Ok(())
    }

    /// Longest time that the transaction stays open.
    fn interval(&self, has_more: bool) -> Duration {
        let longest = BACKLOG_INTERVAL.min(self.options.transaction_timeout / 4);
        open_for(self.options.interval, longest, self.commit_took(), has_more)
    }

    /// How long commits take at present. One that took longer than the one before it, for another reason than the number of
    /// its partitions, does not count.
    pub(crate) fn commit_took(&self) -> Duration {
        let [last, before] = self.commits;
        last.min(before)
    }

    fn wait(&mut self) -> Duration {
        let now = self.clock.elapsed();
        if !self.producer.is_prepared {
            return BUSY;
        }
        if self.search.is_some() {
            return Duration::ZERO;
        }
        if !self.partitions.is_settled() {
            let is_reading = |p: &Partition| matches!(p.phase, Phase::Loading(_) | Phase::Restoring(_));
            let is_starting = |p: &Partition| !p.is_running() && !p.rejections.waits(now);
            if self.partitions.iter().any(is_reading) {
                // The next slice waits for the state topic where necessary.
                return Duration::ZERO;
            }
            if self.partitions.iter().any(is_starting) {
                return BUSY;
            }
        }
        let idle = if self.transaction.waiting_since.is_some() { Duration::ZERO } else { IDLE };
        self.transaction.remaining(now, self.interval(false)).map_or(idle, |left| left.min(IDLE))
    }

    /// Creates the producer, which fences a predecessor with the same transactional id, and ends open transactions.
    /// This comes before the first request for C, which would otherwise wait for the predecessor's transaction.
    fn make_ready(&mut self, source: &W::Source) -> Result<(), WorkerError> {
        if !self.producer.is_prepared {
            return self.prepare();
        }
        if !self.producer.offsets_cleared && !self.clear_own_offsets(source)? {
            return Ok(());
        }
        self.producer.offsets_cleared = true;
        self.clear_elsewhere(source)?;
        let settled = self.settle_sides(source);
        if settled.as_ref().is_err_and(WorkerError::is_grave) {
            return settled;
        }
        // A retriable failure does not delay repairs: the next check of the side topics may depend on them.
        self.recover(source)?;
        settled
    }

    fn prepare(&mut self) -> Result<(), WorkerError> {
        self.sink.prepare(PREPARE)?;
        self.producer.is_prepared = true;
        self.report.reachable();
        Ok(())
    }
}

/// How long a transaction stays open: `interval`, and up to `longest` where a longer one costs the broker less.
///
/// - While more records are waiting in the client, the transaction is filled up: it costs the same few requests and markers,
///   whatever its size.
/// - While commits are slow it stays open for at least as long as one takes. Each partition in a transaction costs two
///   requests and three markers, so with hundreds of partitions a commit takes hundreds of milliseconds. A longer transaction
///   touches fewer partitions per second, and the broker has half of the time for its other work.
fn open_for(interval: Duration, longest: Duration, commit_took: Duration, has_more: bool) -> Duration {
    if has_more {
        return interval.max(longest);
    }
    if commit_took < SLOW_COMMIT { interval } else { interval.max(commit_took.min(longest)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_stays_open_as_long_as_a_commit_takes_and_longer_at_a_backlog() {
        let [interval, longest] = [100, 1_000].map(Duration::from_millis);
        let open_ms = |commit_ms, has_more| {
            open_for(interval, longest, Duration::from_millis(commit_ms), has_more).as_millis()
        };
        assert_eq!([0, 40, 100, 300, 5_000].map(|ms| open_ms(ms, false)), [100, 100, 100, 300, 1_000]);
        assert_eq!([0, 5_000].map(|ms| open_ms(ms, true)), [1_000; 2]);
        let short = Duration::from_millis(10);
        let open_ms =
            |commit_ms| open_for(short, longest, Duration::from_millis(commit_ms), false).as_millis();
        assert_eq!([40, 300].map(open_ms), [10, 300], "a short interval");
        // A configured interval beyond the limit applies.
        let configured = Duration::from_secs(3);
        assert_eq!(open_for(configured, longest, longest, true), configured);
    }
}
