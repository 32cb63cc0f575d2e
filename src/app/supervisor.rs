//! Start-up in order, then the workers, until one ends or all are told to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::Duration;

use super::assembly::{binding, hasher, joining, options, rule, settings, window_of};
use super::watch::watch;
use super::{Ended, STOP, Service};
use crate::clock::{SystemClock, monotonic};
use crate::control::{Asked, Control};
use crate::kafka::{self, CheckError, KafkaSink, KafkaSource, KafkaStateLog, Settings, Topology, Wanted};
use crate::metrics::{PartitionState, WorkerStatus};
use crate::pipeline::{Options, Reach, Report, StableEnds, Worker, World};
use crate::store::{self, Held, Lock, SledStore};

/// Without a sign of life for so long, opening the store counts as hung.
pub(super) const OPEN: Duration = Duration::from_mins(1);
/// A worker that is longer in one call does not count as ready.
const LONG: Duration = Duration::from_secs(15);
/// No call of a worker may take longer, whatever it waits for.
const HANG: Duration = Duration::from_mins(1);
/// For how long a broker may refuse the connection at the start before that counts as final.
const REFUSED: Duration = Duration::from_secs(8);
/// How often the workers are looked after.
const LOOK: Duration = Duration::from_millis(50);
/// Every so many looks the size on disk is measured.
const MEASURE: u32 = 200;

/// The ports of production.
struct Production;

impl World for Production {
    type Source = KafkaSource;
    type Sink = KafkaSink;
    type Log = KafkaStateLog;
    type Store = Held<SledStore>;
    type Clock = SystemClock;
}

/// Everything from the lock on the state directory to the last worker's end.
pub(super) fn supervise(service: &Service, stop: &Arc<AtomicBool>) -> Result<(), Ended> {
    let config = &service.config;
    let _lock = Lock::acquire(&config.state.dir)?;
    let hasher = hasher(&config.identity.hash)?;
    let Some(topology) = topology(service, stop)? else { return Ok(()) };
    topology.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let opened =
        store::open(&config.state.dir, &binding(config, &hasher, &topology), config.state.cache, OPEN)?;
    let store = Held::new(opened.store.joining(joining(config)));
    let reach = Reach::new(topology.partitions);
    let ends = StableEnds::default();
    let (control, asked) = Control::new(rule(config, hasher), config.group.workers);
    let workers: Result<Vec<_>, Ended> = asked
        .into_iter()
        .enumerate()
        .map(|(number, asked)| {
            let options = options(config, hasher, (&topology, &reach), number);
            // The client knows one size for the batches of all topics.
            let largest_batch = [topology.largest_batch, topology.largest_state].into_iter().flatten().min();
            let settings = Settings { largest_batch, ..settings(config, number) };
            spawn(service, (number, asked, ends.clone()), (settings, options), &store, stop)
        })
        .collect();
    // The supervisor runs once.
    service.door.control.set(control).ok();
    let workers = workers?;
    let watch = watch(service, &topology, (&reach, &ends), stop)?;
    let ended = look_after(workers, &watch, service, &store, stop);
    stop.store(true, Ordering::Release);
    // Its clients must not live into the end of the process.
    let seen = watch.join().unwrap_or_else(|_| {
        Err(Ended::failed("the watch thread panicked; the log above says where. Please report it".to_owned()))
    });
    if let Err(seen) = &seen {
        service.status.fail(&seen.message);
    }
    seen.and(ended)?;
    store.into_store().close().map_err(|error| Ended::new(crate::cli::Exit::State, error.to_string()))
}

/// Checks the topics, for as long as nobody answers; `None` when told to stop meanwhile.
fn topology(service: &Service, stop: &AtomicBool) -> Result<Option<Topology>, Ended> {
    if let Some(topology) = &service.topology {
        return Ok(Some(topology.clone()));
    }
    let wanted = Wanted { create: service.config.topics.create, window: window_of(&service.config) };
    let mut refused_since = None;
    while !stop.load(Ordering::Acquire) {
        match kafka::check(&settings(&service.config, 0), wanted) {
            Ok(topology) => return Ok(Some(topology)),
            Err(CheckError::Unreachable(what)) => {
                refused_since = None;
                tracing::warn!("no broker answers: {what}");
                waits(service, format!("waits for a broker: {what}"), stop);
            }
            // One broker of several may be wrong, or has not heard of a new user yet.
            Err(CheckError::Rejected(what))
                if refused_since.get_or_insert_with(monotonic).elapsed() < REFUSED =>
            {
                tracing::warn!("the broker refuses the connection: {what}");
                waits(service, format!("is refused by the broker: {what}"), stop);
            }
            Err(refused) => return Err(refused.into()),
        }
    }
    Ok(None)
}

fn waits(service: &Service, why: String, stop: &AtomicBool) {
    service.status.publish(0, WorkerStatus { not_ready: Some(why), ..WorkerStatus::starting() });
    pause(Duration::from_secs(1), stop);
}

pub(super) fn pause(time: Duration, stop: &AtomicBool) {
    let mut left = time;
    while !left.is_zero() && !stop.load(Ordering::Acquire) {
        std::thread::sleep(LOOK.min(left));
        left = left.saturating_sub(LOOK);
    }
}

/// A worker's thread and its heart.
struct Running {
    thread: JoinHandle<Result<(), Ended>>,
    beat: Arc<AtomicU64>,
    /// The count at the last look that saw a new one, and how many looks ago that was.
    seen: (u64, u32),
}

impl Running {
    fn look(&mut self) {
        let beat = self.beat.load(Ordering::Relaxed);
        self.seen = if beat == self.seen.0 { (beat, self.seen.1 + 1) } else { (beat, 0) };
    }

    /// How long the worker has been in the same turn, as far as was looked.
    fn stands_for(&self) -> Duration {
        LOOK * self.seen.1
    }
}

fn spawn(
    service: &Service,
    (number, asked, ends): (usize, Receiver<Asked>, StableEnds),
    (settings, options): (Settings, Options),
    store: &Held<SledStore>,
    stop: &Arc<AtomicBool>,
) -> Result<Running, Ended> {
    let report = Report::new(service.metrics.clone(), Arc::clone(&service.status), number);
    let (store, stop) = (store.another(), Arc::clone(stop));
    let beat = Arc::new(AtomicU64::new(0));
    let heart = Arc::clone(&beat);
    let work = move || -> Result<(), Ended> {
        let operator = |failed: crate::ports::Failure| Ended::new(crate::cli::Exit::Operator, failed.what);
        let log = KafkaStateLog::new(&settings).map_err(operator)?;
        let source = KafkaSource::subscribe(&settings).map_err(operator)?;
        let sink = KafkaSink::new(settings);
        let ports = (source, sink, log, store);
        let worker = Worker::<Production>::new(ports, SystemClock::start(), options, report);
        Ok(worker.answering(asked).comparing(ends).run(&stop, &heart)?)
    };
    let thread = std::thread::Builder::new().name(format!("worker-{number}")).spawn(work).map_err(|e| {
        Ended::failed(format!("cannot start worker {number}: {e}; raise the limit on processes"))
    })?;
    Ok(Running { thread, beat, seen: (0, 0) })
}

/// Waits for the workers. When one ends, all do: a process with half its workers would look healthy. What
/// the watch ends for ends them too.
fn look_after(
    mut workers: Vec<Running>,
    watch: &JoinHandle<Result<(), Ended>>,
    service: &Service,
    store: &Held<SledStore>,
    stop: &AtomicBool,
) -> Result<(), Ended> {
    let mut looks = 0u32;
    let patience = HANG.max(service.config.batch.transaction_timeout * 8);
    while workers.iter().all(|worker| !worker.thread.is_finished()) && !watch.is_finished() {
        workers.iter_mut().for_each(Running::look);
        if let Some(number) = workers.iter().position(|worker| worker.stands_for() > patience) {
            return Err(Ended::failed(format!(
                "worker {number} has been in one call for {} s, longer than any may take; ending the process, because \
                 only a restart helps. Its open transaction is aborted and read again",
                patience.as_secs()
            )));
        }
        for (number, worker) in workers.iter().enumerate().filter(|(_, worker)| worker.stands_for() > LONG) {
            let seconds = worker.stands_for().as_secs();
            not_ready(service, number, &format!("has been in one call for {seconds} s"), None);
        }
        if looks.is_multiple_of(MEASURE)
            && let Ok(bytes) = store.store().disk_bytes()
        {
            service.metrics.state_disk_bytes().set(bytes as f64);
        }
        looks = looks.wrapping_add(1);
        std::thread::sleep(LOOK);
    }
    let told = stop.swap(true, Ordering::AcqRel);
    if watch.is_finished() && !told && !finish_in_time(&workers) {
        // With topics that are not what they were, calls may hang; whatever is open is aborted.
        return Ok(());
    }
    let mut ended = Ok(());
    for (number, worker) in workers.into_iter().enumerate() {
        let one = worker.thread.join().unwrap_or_else(|_| {
            Err(Ended::failed(format!(
                "worker {number} panicked; the log above says where. Please report it"
            )))
        });
        if let Err(error) = &one {
            not_ready(service, number, &error.message, Some(PartitionState::Stopped));
        }
        ended = ended.and(one);
    }
    ended
}

/// Whether all of them end within the time that a stop may take.
fn finish_in_time(workers: &[Running]) -> bool {
    let told = monotonic();
    while workers.iter().any(|worker| !worker.thread.is_finished()) {
        if told.elapsed() >= STOP {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}

/// Says of a worker what it cannot say itself.
fn not_ready(service: &Service, number: usize, why: &str, state: Option<PartitionState>) {
    let mut workers = service.status.workers();
    let Some(status) = workers.get_mut(number) else { return };
    for partition in &mut status.partitions {
        partition.state = state.unwrap_or(partition.state);
    }
    service.status.publish(number, WorkerStatus { not_ready: Some(why.to_owned()), ..status.clone() });
}
