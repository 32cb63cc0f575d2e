//! The poll loop of one worker, and its reaction to errors.

pub mod chunk;
pub mod control;
mod ending;
mod exclusive;
mod late;
pub mod membership;
pub mod rejected;
pub mod remedy;
pub mod schemas;
pub(in crate::pipeline) mod sealing;
mod search;
mod skip;
pub mod stalled;
pub mod step;

use std::cell::LazyCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use crate::clock::Clock;
use crate::control::Request;
use crate::dedupe::Window;
use crate::dedupe::window::CHUNK;
use crate::pipeline::access::Access;
use crate::pipeline::commit::Committer;
use crate::pipeline::context::Context;
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::journal::{Journal, Phase};
use crate::pipeline::limits::shortened::ExpiryLag;
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::partition::Partition;
use crate::pipeline::ports::{Ports, WorkerPorts};
use crate::pipeline::progress::Progress;
use crate::pipeline::recovery::start::has_uncommitted_position;
use crate::pipeline::recovery::start_bounds::StartBounds;
use crate::pipeline::report::{Figures, SealedFigures, Shown, WorkerReport};
use crate::pipeline::safeguard::Safeguard;
use crate::pipeline::torn::producer::{PREPARE, ProducerState};
use crate::pipeline::worker::chunk::gather;
use crate::pipeline::worker::control::Admin;
use crate::pipeline::worker::membership::Membership;
use crate::pipeline::worker::schemas::SchemaWaits;
use crate::pipeline::worker::sealing::Sealer;
use crate::pipeline::worker::stalled::{StableEnds, StallCheck};
use crate::ports::{Remedy, Source};
use crate::schemas::SharedSchemas;

/// Longest poll when no transaction is open; also the longest delay until a stop is noticed.
const IDLE: Duration = Duration::from_millis(100);

/// Longest poll while a partition or the producer is not ready.
const BUSY: Duration = Duration::from_millis(1);

/// The parts of a worker, except the source: the records of a chunk borrow the source, so it is a field of its own.
///
/// Large because each task of the loop has a state of its own.
pub(crate) struct Parts<W: WorkerPorts> {
    pub(crate) ctx: Context<W>,
    pub(crate) committer: Committer<W>,
    /// The transactional producer, and what earlier producers left open.
    pub(crate) torn: ProducerState,
    pub(crate) start_bounds: StartBounds,
    pub(crate) membership: Membership,
    pub(crate) stalls: StallCheck,
    pub(crate) admin: Admin,
    pub(crate) schemas: SchemaWaits,
    pub(crate) sealer: Sealer,
    /// A call failed with [`Remedy::Retry`]. The process is not ready until a call succeeds again.
    pub(crate) unreachable: bool,
}

/// One worker: one member of the group, one transactional producer, and their partitions.
pub struct Worker<W: WorkerPorts> {
    source: W::Source,
    parts: Parts<W>,
    /// Called when the state of all partitions is complete.
    on_active: Option<Box<dyn FnOnce()>>,
    /// See [`Worker::leaving_after`].
    needless: Option<(Duration, Box<dyn FnMut() -> bool>)>,
}

impl<W: WorkerPorts> Worker<W> {
    /// A worker that has not started.
    pub fn new(
        Ports { source, sink, log, store, clock }: Ports<W>,
        options: WorkerOptions,
        mut report: WorkerReport,
    ) -> Self {
        report.set_warning(options.mode.warning());
        report.register_kinds(&options.kinds);
        let parts = Parts {
            committer: Committer::new(sink),
            torn: ProducerState::default(),
            start_bounds: StartBounds::default(),
            membership: Membership::new(options.is_topic_wide()),
            stalls: StallCheck::default(),
            admin: Admin::default(),
            schemas: SchemaWaits::default(),
            sealer: Sealer::default(),
            unreachable: false,
            ctx: Context::new(log, store, clock, options, report),
        };
        Self { source, parts, on_active: None, needless: None }
    }

    /// Calls this once, when the state of all partitions is complete for the first time.
    #[must_use]
    pub fn on_active(mut self, call: impl FnOnce() + 'static) -> Self {
        self.on_active = Some(Box::new(call));
        self
    }

    /// Makes the worker leave the group, and return, when no record could be processed for this time because of a schema, and others do better without
    /// it. That is asked again after the same time.
    #[must_use]
    pub fn leaving_after(mut self, time: Duration, do_better: impl FnMut() -> bool + 'static) -> Self {
        self.needless = Some((time, Box::new(do_better)));
        self
    }

    /// Makes the worker answer the requests of this channel.
    #[must_use]
    pub fn answering(mut self, control: Receiver<Request>) -> Self {
        self.parts.admin = Admin::new(control);
        self
    }

    /// Makes the worker compare its partitions with the stable ends of their logs, to detect stalled fetches.
    #[must_use]
    pub fn comparing(mut self, ends: StableEnds) -> Self {
        self.parts.stalls = StallCheck::new(ends);
        self
    }

    /// Makes the worker read ids with these schemas, and request those that are missing.
    #[must_use]
    pub fn reading(mut self, schemas: SharedSchemas) -> Self {
        self.parts.ctx.schemas = schemas.known();
        self.parts.schemas = SchemaWaits::new(schemas);
        self
    }

    /// Makes the worker count its progress here.
    #[must_use]
    pub fn counting(mut self, progress: Progress) -> Self {
        self.parts.ctx.progress = progress;
        self
    }

    /// Runs until `stop` is set, in topic scope until another worker is the active one, or until it is to leave the group to the others. Then commits
    /// the open transaction, leaves the group unless it stops and `group.on_stop` is `remain`, and returns. In topic scope it also leaves the group before it fails, so that another
    /// instance becomes active at once, and not this one when it is restarted.
    pub fn run(mut self, stop: &AtomicBool) -> Result<(), Fatal> {
        while !stop.load(Ordering::Acquire) && !self.parts.gives_way() && !self.is_needless() {
            let iterated = catch_unwind(AssertUnwindSafe(|| self.iterate()));
            // What has replaced a fenced member is not affected, and has ended its transaction.
            if !matches!(iterated, Ok(Ok(()) | Err(Fatal::Fenced(_)))) {
                self.abandon();
                self.resign();
            }
            iterated.unwrap_or_else(|panic| resume_unwind(panic))?;
            if self.on_active.is_some() && self.parts.is_complete() {
                self.on_active.take().into_iter().for_each(|call| call());
            }
        }
        let stops = stop.load(Ordering::Acquire);
        if !stops && self.parts.gives_way() {
            tracing::info!("this instance is not the active one any more: leaving the group");
        }
        self.finish(stops)
    }

    /// Whether this worker is to leave the group to others, which can fetch the schemas that it needs.
    fn is_needless(&mut self) -> bool {
        let Self { parts, needless: Some((time, do_better)), .. } = self else { return false };
        let blocked = parts.schemas.blocked_for(parts.ctx.clock.elapsed());
        if blocked < *time || !parts.ctx.options.keeps(Safeguard::Resignation) {
            return false;
        }
        let is_needless = do_better();
        if is_needless {
            tracing::warn!(
                "no record could be processed for {} s: they need schemas, and the registry cannot be reached; leaving the \
                 group to the other instances",
                blocked.as_secs()
            );
        }
        parts.schemas.unblock();
        is_needless
    }

    /// Whether the worker has to leave the group, because another one is the active one. Only in topic scope.
    pub fn gives_way(&self) -> bool {
        self.parts.gives_way()
    }

    /// One iteration of the poll loop: serves group events, prepares producer and partitions, moves records.
    pub fn iterate(&mut self) -> Result<(), Fatal> {
        let Self { source, parts, .. } = self;
        parts.ctx.progress.advance();
        let result = match parts.iterate(source) {
            Ok(()) => Ok(()),
            Err(error) => parts.remedy(source, error),
        };
        // The status is published after a failed iteration too: while the broker is unreachable, every iteration
        // fails.
        let Parts { ctx, committer, stalls, .. } = parts;
        let is_settled = ctx.has_nothing_pending();
        let Context { partitions, journals, limits, store, clock, options, report, .. } = ctx;
        let lag = LazyCell::new(|| ExpiryLag::of(options, partitions, journals));
        let shown = Shown { partitions, journals, transaction: &committer.transaction, options };
        let figures = || Figures {
            sealed: SealedFigures::of(&options.kinds, journals, store),
            expiry_lag: (lag.behind(), lag.note(options)),
        };
        let now = clock.elapsed();
        let window = |window: &Window| limits.status(window, options, &lag);
        report.publish(shown, now, figures, |id| stalls.ends.readable(id, source.end(id)), window);
        if is_settled {
            limits.log(options, journals, &lag, now);
        }
        result
    }
}

impl<W: WorkerPorts> Parts<W> {
    fn iterate(&mut self, source: &W::Source) -> Result<(), WorkerError> {
        let until = self.ctx.clock.elapsed() + self.ctx.options.iteration_time;
        self.serve(source)?;
        let mut access = Access {
            ctx: &mut self.ctx,
            committer: &mut self.committer,
            torn: &mut self.torn,
            start_bounds: &mut self.start_bounds,
            source,
        };
        self.admin.answer_request(&mut access)?;
        self.stalls.compare(&mut access)?;
        self.schemas.resume(access.ctx, source)?;
        self.sealer.advance(access.ctx)?;
        // The client is polled in every iteration, also when recovery fails: the client serves the group protocol in
        // `poll`.
        let recovered = access.make_ready();
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
        if has_uncommitted_position(&self.ctx) {
            self.committer.commit(&mut self.ctx, source)?;
        }
        let mut check = Ok(());
        if self.unreachable && self.torn.is_prepared && !self.committer.transaction.is_open() {
            check = self.check_broker(source);
        }
        let wait = self.wait();
        // While transactions are reduced, one iteration reads no more than one of them: commits take long then.
        let transaction = &self.committer.transaction;
        let left = transaction.limit().records_left(transaction.size);
        let most = left.map_or(CHUNK, |left| left.min(CHUNK));
        let (mut chunk, gathered) = gather(source, most, wait);
        let has_more = chunk.len() == most;
        self.ctx.progress.advance();
        if chunk.is_empty() {
            self.committer.transaction.waiting_since = None;
        }
        let damaged = gathered.as_ref().err().and_then(|failed| failed.damaged);
        let is_next = self.process(source, &mut chunk, damaged, until)?;
        drop(chunk);
        let gathered = match gathered {
            Err(failed) if failed.remedy == Remedy::Stop && is_next => {
                // The records before a damaged batch are committed first: the operator then skips only the damaged batch.
                self.committer.commit(&mut self.ctx, source)?;
                Err(failed)
            }
            Err(failed) if failed.remedy == Remedy::Stop => Ok(()),
            other => other,
        };
        // The transaction is committed at its deadline, also while polling fails.
        let due = self
            .committer
            .transaction
            .remaining(self.ctx.clock.elapsed(), self.committer.pace.interval(&self.ctx.options, has_more));
        if due.is_some_and(|left| left.is_zero()) {
            self.committer.commit(&mut self.ctx, source)?;
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
        let id = self.ctx.partitions.iter().next().map_or(0, |partition| partition.id);
        source.bounds(&[id], PREPARE)?;
        self.ctx.report.reachable();
        self.unreachable = false;
        Ok(())
    }

    fn wait(&mut self) -> Duration {
        let now = self.ctx.clock.elapsed();
        if !self.torn.is_prepared {
            return if self.ctx.awaits_partitions() { IDLE } else { BUSY };
        }
        if self.admin.is_searching() {
            return Duration::ZERO;
        }
        if !self.ctx.has_nothing_pending() {
            let is_starting = |it: &Partition| !it.is_started && !it.rejections.waits(now);
            let mut phases = self.ctx.journals.iter().map(Journal::phase);
            if phases
                .any(|phase| matches!(phase, Phase::Loading(_) | Phase::Restoring(_) | Phase::Undoing(_)))
            {
                // The next part waits for the state topic where necessary.
                return Duration::ZERO;
            }
            if self.ctx.partitions.iter().any(is_starting) {
                return BUSY;
            }
        }
        let idle = if self.committer.transaction.waiting_since.is_some() { Duration::ZERO } else { IDLE };
        self.committer
            .transaction
            .remaining(now, self.committer.pace.interval(&self.ctx.options, false))
            .map_or(idle, |left| left.min(IDLE))
    }
}
