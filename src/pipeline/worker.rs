//! The poll loop of one worker, and its reaction to errors.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use super::batch::{Batch, Partitions};
use super::error::{Fatal, WorkerError};
use super::limits::Enforced;
use super::options::Options;
use super::partition::Partition;
use super::report::{Report, Tally};
use super::safeguard::Safeguard;
use super::shortened::{LimitLog, window_status};
use super::side::Sides;
use super::stalled::StableEnds;
use super::step::gather;
use super::time::Time;
use crate::clock::Clock;
use crate::control::Request;
use crate::dedupe::{Offset, Window};
use crate::ports::{Failure, GroupEvent, LogId, Remedy, StoreError};
use crate::ports::{GroupMember, LogTails, ProducerLife, Sink, Source, StateLog, Store, WrittenEnds};

/// Longest poll when no transaction is open; also the longest delay until a stop is noticed.
const IDLE: Duration = Duration::from_millis(100);
/// Longest poll while state is being restored.
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
}

/// The state of a worker, except the source: the records of a chunk borrow the source, so it is a field of its own.
#[expect(clippy::struct_excessive_bools, reason = "independent facts, none follows from another")]
pub struct Core<W: World> {
    pub(super) sink: W::Sink,
    pub(super) log: W::Log,
    pub(super) store: W::Store,
    pub(super) clock: W::Clock,
    pub(super) options: Options,
    pub(super) partitions: Partitions,
    pub(super) batch: Batch,
    pub(super) tally: Tally,
    pub(super) report: Report,
    pub(super) enforced: Enforced,
    pub(super) limit_log: LimitLog,
    pub(super) time: Time,
    /// Consecutive failures; the backoff before the next attempt grows with them.
    pub(super) failures: u32,
    pub(super) prepared: bool,
    /// No transaction of an earlier producer is pending on the group's offsets.
    pub(super) offsets_cleared: bool,
    /// First open offset of each log with an open transaction, and the monotonic time of that check of all logs.
    pub(super) open_elsewhere: (Duration, BTreeMap<LogId, Offset>),
    /// Monotonic time since which clearing the open logs is postponed.
    pub(super) held_back_since: Option<Duration>,
    /// Open transactions that an earlier producer left in the side topics.
    pub(super) sides: Sides,
    /// Number of attempts to clear the pending transactions on the group's offsets.
    pub(super) probed: usize,
    /// Group events that are received but not answered yet.
    pub(super) group_events: VecDeque<GroupEvent>,
    /// A call failed with [`Remedy::Retry`]. The process is not ready until a call succeeds again.
    unreachable: bool,
    /// The client of this member is closed and its replacement is not created yet.
    pub(super) rejoining: bool,
    pub(super) fenced: Vec<Duration>,
    pub(super) replaced: Vec<Duration>,
    /// Requests of the admin API.
    pub(super) control: Option<Receiver<Request>>,
    /// The stable ends of the raw logs, and the monotonic time of the last comparison with them.
    pub(super) stable_ends: StableEnds,
    pub(super) compared: Option<Duration>,
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
            batch: Batch::default(),
            tally: Tally::default(),
            report,
            enforced: Enforced::default(),
            limit_log: LimitLog::default(),
            time: Time::start(&clock),
            failures: 0,
            prepared: false,
            offsets_cleared: false,
            open_elsewhere: Default::default(),
            held_back_since: None,
            sides: Sides::default(),
            probed: 0,
            group_events: VecDeque::new(),
            unreachable: false,
            rejoining: false,
            fenced: Vec::new(),
            replaced: Vec::new(),
            control: None,
            clock,
            stable_ends: StableEnds::default(),
            compared: None,
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
        self.core.stable_ends = ends;
        self
    }

    /// Runs until `stop` is set, then commits the open transaction, leaves the group and returns. `beat` counts
    /// iterations: if the count stops growing, the worker hangs in a call that never returns.
    pub fn run(mut self, stop: &AtomicBool, beat: &AtomicU64) -> Result<(), Fatal> {
        while !stop.load(Ordering::Acquire) {
            self.iterate()?;
            beat.fetch_add(1, Ordering::Relaxed);
        }
        self.finish()
    }

    /// One iteration of the poll loop: serves group events, prepares producer and partitions, moves records.
    pub fn iterate(&mut self) -> Result<(), Fatal> {
        let Self { source, core } = self;
        let result = match core.iterate(source) {
            Ok(()) => Ok(()),
            Err(error) => core.remedy(source, error),
        };
        // The status is published after a failed iteration too: while the broker is unreachable, each one fails.
        let window = |window: &Window| window_status(window, &core.enforced, &core.options);
        let shown = (&core.partitions, &core.batch, &core.options.partition_limit);
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
            drop(source.poll(BUSY));
            if let Err(error) = core.serve(source) {
                tracing::warn!(%error, "failed to answer a group event while leaving the group");
            }
        }
        core.store.sync().map_err(|error| Fatal::State(error.to_string()))
    }
}

impl<W: World> Core<W> {
    fn iterate(&mut self, source: &W::Source) -> Result<(), WorkerError> {
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
            let (_, polled) = gather(source, Duration::ZERO);
            // A member that is no longer in the group cannot repair anything: an abort alone would fail in every
            // iteration.
            let has_lost_membership = polled.as_ref().is_err_and(|failed| failed.remedy == Remedy::Rejoin);
            let aborts =
                matches!(&recovered, Err(WorkerError::Kafka(failed)) if failed.remedy == Remedy::Abort);
            return if has_lost_membership && aborts { polled.map_err(WorkerError::from) } else { recovered };
        }
        if self.has_uncommitted_position() {
            self.commit(source)?;
        }
        let mut check = Ok(());
        if self.unreachable && self.prepared && !self.batch.is_open() {
            check = self.check_broker(source);
        }
        let wait = self.wait();
        let (chunk, gathered) = gather(source, wait);
        self.process(source, &chunk)?;
        drop(chunk);
        // The records before the damaged batch are committed first: the operator then skips only the damaged batch.
        if gathered.as_ref().is_err_and(|failed| failed.remedy == Remedy::Stop) {
            self.commit(source)?;
        }
        // The transaction is committed at its deadline, also while polling fails.
        let due = self.batch.remaining(self.clock.elapsed(), self.options.interval);
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
        source.bounds(id, PREPARE)?;
        self.report.reachable();
        self.unreachable = false;
        Ok(())
    }

    fn wait(&self) -> Duration {
        let now = self.clock.elapsed();
        if !self.prepared || self.partitions.iter().any(|p| !p.is_running() && !p.rests(now)) {
            return BUSY;
        }
        self.batch.remaining(now, self.options.interval).unwrap_or(IDLE).min(IDLE)
    }

    /// Creates the producer, which fences a predecessor with the same transactional id, and ends open transactions.
    /// This comes before the first request for C, which would otherwise wait for the predecessor's transaction.
    fn make_ready(&mut self, source: &W::Source) -> Result<(), WorkerError> {
        if !self.prepared {
            return self.prepare();
        }
        if !self.offsets_cleared && !self.clear_own_offsets(source)? {
            return Ok(());
        }
        self.offsets_cleared = true;
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
        self.prepared = true;
        self.report.reachable();
        Ok(())
    }

    /// Applies the remedy of an error. Returns an error only when the process has to end.
    fn remedy(&mut self, source: &mut W::Source, error: WorkerError) -> Result<(), Fatal> {
        let failed = match error {
            WorkerError::Fatal(fatal) => return Err(fatal),
            WorkerError::Store(StoreError::LeaseLost(window)) => self.lease_lost(window),
            WorkerError::Store(error) => {
                return Err(Fatal::State(format!(
                    "{error}; restart: damaged state is quarantined and rebuilt from topic {}",
                    self.options.state
                )));
            }
            WorkerError::Kafka(failed) => source.explained(failed),
        };
        self.report.failed(&failed, self.clock.elapsed());
        let applied = match failed.remedy {
            Remedy::Stop => return Err(Fatal::Operator(failed.what)),
            Remedy::Retry => {
                self.unreachable = true;
                self.clock.rest(Duration::from_millis(20));
                Ok(())
            }
            Remedy::Abort => self.abort_and_rewind(source, &failed),
            Remedy::Renew if !self.options.keeps(Safeguard::Renewal) => {
                self.abort_and_rewind(source, &failed)
            }
            Remedy::Renew => self.renew(source),
            Remedy::Rejoin => {
                self.replaced(&failed)?;
                self.rejoin(source)
            }
            Remedy::Fenced => {
                self.fenced(&failed)?;
                self.renew(source)
            }
        };
        match applied {
            Ok(()) => Ok(()),
            Err(WorkerError::Kafka(second)) if second.remedy != Remedy::Stop => {
                self.report.failed(&second, self.clock.elapsed());
                self.renew(source).or_else(Self::fatal_only)
            }
            Err(other) => Self::fatal_only(other),
        }
    }

    /// Returns what ends the process; logs any other error.
    fn fatal_only(error: WorkerError) -> Result<(), Fatal> {
        match error {
            WorkerError::Fatal(fatal) => Err(fatal),
            // The next iteration takes the partition again.
            WorkerError::Store(StoreError::LeaseLost(_)) => Ok(()),
            WorkerError::Store(error) => Err(Fatal::State(error.to_string())),
            // No record was processed; the next iteration retries from the committed offsets.
            WorkerError::Kafka(failed) if failed.remedy != Remedy::Stop => {
                tracing::warn!(%failed, "recovery failed; retrying from the committed offsets");
                Ok(())
            }
            WorkerError::Kafka(failed) => Err(Fatal::Operator(failed.what)),
        }
    }

    fn abort_and_rewind(&mut self, source: &W::Source, failed: &Failure) -> Result<(), WorkerError> {
        if let Some(rejected) = failed.rejected {
            self.isolate_rejected(rejected, &failed.what);
        }
        if self.batch.is_open() {
            self.abort(source)?;
            self.report.aborted();
        }
        let pause = if failed.rejected.is_some() { Duration::ZERO } else { self.backoff() };
        self.relocate(source, pause)
    }

    /// The outcome of the transaction is unknown. A new producer settles it, and C then shows whether it was
    /// committed.
    fn renew(&mut self, source: &W::Source) -> Result<(), WorkerError> {
        self.sink.discard();
        self.prepared = false;
        self.offsets_cleared = false;
        self.forget_sides();
        self.partitions.iter_mut().for_each(|p| p.agreed = None);
        if self.batch.is_open() {
            self.report.unknown();
        }
        self.batch.close();
        self.tally.clear();
        let pause = self.backoff();
        self.relocate(source, pause)
    }

    fn backoff(&mut self) -> Duration {
        let pause = Duration::from_millis(50 << self.failures.min(6));
        self.failures += 1;
        pause
    }

    /// Pauses every running partition; each continues after its committed offset is read again.
    pub(super) fn relocate(&mut self, source: &W::Source, pause: Duration) -> Result<(), WorkerError> {
        let not_before = self.clock.elapsed() + pause;
        let running = self.partitions.ids(Partition::is_running);
        self.partitions.iter_mut().filter(|p| p.is_running()).for_each(|p| p.relocate(not_before));
        if !running.is_empty() {
            source.pause(&running)?;
        }
        Ok(())
    }
}
