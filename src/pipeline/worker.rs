//! The loop of one worker, and what it does about trouble.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use super::batch::{Batch, Partitions};
use super::limits::Enforced;
use super::options::Options;
use super::partition::Partition;
use super::report::{Report, Tally};
use super::safeguard::Safeguard;
use super::shortened::{Told, window_status};
use super::side::Sides;
use super::stalled::StableEnds;
use super::step::gather;
use super::time::Time;
use super::trouble::{Fatal, Trouble};
use crate::clock::Clock;
use crate::control::Asked;
use crate::dedupe::{Offset, Window};
use crate::ports::{Failure, GroupEvent, LogId, Remedy, Sink, Source, StateLog, Store, StoreError};

/// Longest wait for records when nothing is open; also how late a stop is noticed.
const IDLE: Duration = Duration::from_millis(100);
/// Longest wait for records while state is being restored.
const BUSY: Duration = Duration::from_millis(1);
/// Slice of `init_transactions` between two polls.
const PREPARE: Duration = Duration::from_millis(500);
/// How long leaving the group may take.
const LEAVE: Duration = Duration::from_secs(3);

/// The ports of a worker, named together.
pub trait World {
    /// The raw topic.
    type Source: Source;
    /// The clean and state topics.
    type Sink: Sink<Self::Source>;
    /// The reader of the state topic.
    type Log: StateLog;
    /// The local store.
    type Store: Store;
    /// Time.
    type Clock: Clock;
}

/// Everything a step touches except the source, which its records borrow.
#[expect(clippy::struct_excessive_bools, reason = "each a fact of its own, none follows from another")]
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
    pub(super) told: Told,
    pub(super) time: Time,
    /// Failures in a row; the pause before the next attempt grows with them.
    pub(super) failures: u32,
    pub(super) prepared: bool,
    /// No producer before the present one has left anything open in the group's offsets.
    pub(super) offsets_cleared: bool,
    /// Where something was open when all logs were last looked at, and the monotonic time of that.
    pub(super) open_elsewhere: (Duration, BTreeMap<LogId, Offset>),
    /// Monotonic time since which clearing them is held back.
    pub(super) held_back_since: Option<Duration>,
    /// What an earlier producer left open in the side topics.
    pub(super) sides: Sides,
    /// Attempts to clear the group's offsets.
    pub(super) probed: usize,
    /// What the group said and we have not answered yet.
    pub(super) heard: VecDeque<GroupEvent>,
    /// A call failed for now; until one succeeds the process does not count as ready.
    doubtful: bool,
    /// The client of this member is dead and its successor has not been made yet.
    pub(super) rejoining: bool,
    pub(super) fenced: Vec<Duration>,
    pub(super) replaced: Vec<Duration>,
    /// Questions of an operator.
    pub(super) control: Option<Receiver<Asked>>,
    /// Where the logs end, and when the partitions were last compared with that.
    pub(super) stable_ends: StableEnds,
    pub(super) compared: Option<Duration>,
}

/// One worker: one member of the group, one transactional producer, and their partitions.
pub struct Worker<W: World> {
    source: W::Source,
    core: Core<W>,
}

impl<W: World> Worker<W> {
    /// A worker that has not begun.
    pub fn new(
        (source, sink, log, store): (W::Source, W::Sink, W::Log, W::Store),
        clock: W::Clock,
        options: Options,
        mut report: Report,
    ) -> Self {
        report.warn_always(options.mode.warning());
        report.know(&options.kinds);
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
            told: Told::default(),
            time: Time::start(&clock),
            failures: 0,
            prepared: false,
            offsets_cleared: false,
            open_elsewhere: Default::default(),
            held_back_since: None,
            sides: Sides::default(),
            probed: 0,
            heard: VecDeque::new(),
            doubtful: false,
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

    /// Lets the worker answer what it is asked through this channel.
    #[must_use]
    pub fn answering(mut self, control: Receiver<Asked>) -> Self {
        self.core.control = Some(control);
        self
    }

    /// Lets the worker compare its partitions with where their logs end, to notice those that have stopped coming.
    #[must_use]
    pub fn comparing(mut self, ends: StableEnds) -> Self {
        self.core.stable_ends = ends;
        self
    }

    /// Works until `stop` is set, then commits what is open, leaves the group and returns. `beat`
    /// counts turns: a worker whose count stands still hangs in a call that never returns.
    pub fn run(mut self, stop: &AtomicBool, beat: &AtomicU64) -> Result<(), Fatal> {
        while !stop.load(Ordering::Acquire) {
            self.turn()?;
            beat.fetch_add(1, Ordering::Relaxed);
        }
        self.finish()
    }

    /// One turn: serve the group, make ready what is not, move records.
    pub fn turn(&mut self) -> Result<(), Fatal> {
        let Self { source, core } = self;
        let turned = match core.turn(source) {
            Ok(()) => Ok(()),
            Err(trouble) => core.remedy(source, trouble),
        };
        // After a failed turn above all: while nobody answers, every turn fails.
        let window = |window: &Window| window_status(window, &core.enforced, &core.options);
        let shown = (&core.partitions, &core.batch, &core.options.reach);
        core.report.publish(shown, core.clock.elapsed(), |id| source.end(id), window);
        turned
    }

    /// Commits what is open and leaves; a restart then reprocesses nothing.
    fn finish(mut self) -> Result<(), Fatal> {
        let Self { source, core } = &mut self;
        if let Err(trouble) = core.commit(source) {
            tracing::warn!(%trouble, "the last transaction could not be committed; its records will be read again");
            core.sink.discard();
        }
        source.leave();
        let deadline = core.clock.elapsed() + LEAVE;
        while core.partitions.iter().next().is_some() && core.clock.elapsed() < deadline {
            // Records that still arrive belong to the next owner.
            drop(source.poll(BUSY));
            if let Err(trouble) = core.serve(source) {
                tracing::warn!(%trouble, "leaving the group");
            }
        }
        core.store.sync().map_err(|error| Fatal::State(error.to_string()))
    }
}

impl<W: World> Core<W> {
    fn turn(&mut self, source: &W::Source) -> Result<(), Trouble> {
        self.serve(source)?;
        self.answer(source)?;
        self.wake_stalled(source)?;
        // However recovery fares, the client is polled in every turn: it answers the group from there.
        let recovered = self.make_ready(source);
        if recovered.as_ref().is_err_and(Trouble::is_grave) {
            // No record may follow: the transaction may be half a repair, or the producer one that has to be replaced. What
            // the client hands over now comes again, because the remedy goes back to the committed offsets.
            let (_, polled) = gather(source, Duration::ZERO);
            // A member that the group has gone on without can repair nothing: aborting alone would fail in every turn.
            let is_out = polled.as_ref().is_err_and(|failed| failed.remedy == Remedy::Rejoin);
            let aborts = matches!(&recovered, Err(Trouble::Kafka(failed)) if failed.remedy == Remedy::Abort);
            return if is_out && aborts { polled.map_err(Trouble::from) } else { recovered };
        }
        if self.goes_back() {
            self.commit(source)?;
        }
        let mut asked = Ok(());
        if self.doubtful && self.prepared && !self.batch.is_open() {
            asked = self.ask(source);
        }
        let wait = self.wait();
        let (chunk, gathered) = gather(source, wait);
        self.process(source, &chunk)?;
        drop(chunk);
        // The way out of damage begins behind what came before it.
        if gathered.as_ref().is_err_and(|failed| failed.remedy == Remedy::Stop) {
            self.commit(source)?;
        }
        // Due is due, also while polling fails.
        let due = self.batch.remaining(self.clock.elapsed(), self.options.interval);
        if due.is_some_and(|left| left.is_zero()) {
            self.commit(source)?;
        }
        // One failure is remedied in a turn. The gravest: what is merely tried again may fail in every
        // turn, and would hide for ever that the producer has to be replaced.
        let mut failed: Vec<Trouble> =
            [recovered.err(), gathered.err().map(Trouble::from), asked.err()].into_iter().flatten().collect();
        let gravest = failed.iter().position(Trouble::is_grave).unwrap_or(0);
        if failed.is_empty() { Ok(()) } else { Err(failed.swap_remove(gravest)) }
    }

    /// Asks the cheapest question there is, to know whether the broker answers again.
    fn ask(&mut self, source: &W::Source) -> Result<(), Trouble> {
        // Of any partition: a member to spare has none of its own.
        let id = self.partitions.iter().next().map_or(0, |partition| partition.id);
        source.bounds(id, PREPARE)?;
        self.report.reachable();
        self.doubtful = false;
        Ok(())
    }

    fn wait(&self) -> Duration {
        let now = self.clock.elapsed();
        if !self.prepared || self.partitions.iter().any(|p| !p.is_running() && !p.rests(now)) {
            return BUSY;
        }
        self.batch.remaining(now, self.options.interval).unwrap_or(IDLE).min(IDLE)
    }

    /// Fences a predecessor with our transactional id. Comes before the first question for C, whose
    /// answer would otherwise wait for the predecessor's transaction.
    fn make_ready(&mut self, source: &W::Source) -> Result<(), Trouble> {
        if !self.prepared {
            return self.prepare();
        }
        if !self.offsets_cleared && !self.clear_own_offsets(source)? {
            return Ok(());
        }
        self.offsets_cleared = true;
        self.clear_elsewhere(source)?;
        let settled = self.settle_sides(source);
        if settled.as_ref().is_err_and(Trouble::is_grave) {
            return settled;
        }
        // A failure for now holds back no repair, which the next look may wait for.
        self.recover(source)?;
        settled
    }

    fn prepare(&mut self) -> Result<(), Trouble> {
        self.sink.prepare(PREPARE)?;
        self.prepared = true;
        self.report.reachable();
        Ok(())
    }

    /// Does what the trouble's remedy says; returns only what ends the process.
    fn remedy(&mut self, source: &mut W::Source, trouble: Trouble) -> Result<(), Fatal> {
        let failed = match trouble {
            Trouble::Fatal(fatal) => return Err(fatal),
            Trouble::Store(StoreError::Taken(id)) => self.taken(id),
            Trouble::Store(error) => {
                return Err(Fatal::State(format!(
                    "{error}; start again: damaged state is set aside and rebuilt from topic {}",
                    self.options.state
                )));
            }
            Trouble::Kafka(failed) => source.explained(failed),
        };
        self.report.failed(&failed, self.clock.elapsed());
        let again = match failed.remedy {
            Remedy::Stop => return Err(Fatal::Operator(failed.what)),
            Remedy::Retry => {
                self.doubtful = true;
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
        match again {
            Ok(()) => Ok(()),
            Err(Trouble::Kafka(second)) if second.remedy != Remedy::Stop => {
                self.report.failed(&second, self.clock.elapsed());
                self.renew(source).or_else(Self::give_up)
            }
            Err(other) => Self::give_up(other),
        }
    }

    fn give_up(trouble: Trouble) -> Result<(), Fatal> {
        match trouble {
            Trouble::Fatal(fatal) => Err(fatal),
            // The next turn takes the partition back.
            Trouble::Store(StoreError::Taken(_)) => Ok(()),
            Trouble::Store(error) => Err(Fatal::State(error.to_string())),
            // Nothing could be moved; the next turn tries again from the committed offsets.
            Trouble::Kafka(failed) if failed.remedy != Remedy::Stop => {
                tracing::warn!(%failed, "recovering");
                Ok(())
            }
            Trouble::Kafka(failed) => Err(Fatal::Operator(failed.what)),
        }
    }

    fn abort_and_rewind(&mut self, source: &W::Source, failed: &Failure) -> Result<(), Trouble> {
        if let Some(refused) = failed.refused {
            self.narrow(refused, &failed.what);
        }
        if self.batch.is_open() {
            self.abort(source)?;
            self.report.aborted();
        }
        let pause = if failed.refused.is_some() { Duration::ZERO } else { self.backoff() };
        self.relocate(source, pause)
    }

    /// The outcome is unknown: a new producer settles it, and C tells which way.
    fn renew(&mut self, source: &W::Source) -> Result<(), Trouble> {
        self.sink.discard();
        self.prepared = false;
        self.offsets_cleared = false;
        self.forget_sides();
        self.partitions.iter_mut().for_each(|p| p.untorn = false);
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

    /// Stops every partition and asks the group anew where it stands.
    pub(super) fn relocate(&mut self, source: &W::Source, pause: Duration) -> Result<(), Trouble> {
        let not_before = self.clock.elapsed() + pause;
        let running = self.partitions.ids(Partition::is_running);
        self.partitions.iter_mut().filter(|p| p.is_running()).for_each(|p| p.relocate(not_before));
        if !running.is_empty() {
            source.pause(&running)?;
        }
        Ok(())
    }
}
