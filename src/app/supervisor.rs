//! The supervisor: starts everything in order, then monitors the workers until one ends or a stop is requested.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use super::assembly::{binding, decides_with_schemas, hasher, joining, options, rule, settings};
use super::connecting::await_broker;
use super::monitor::start_monitor;
use super::obstacles::TakeoverNeeds;
use super::preparing::wanted;
use super::spare::Spare;
use super::standby::Follower;
use super::{ExitError, Service};
use crate::cli::Exit;
use crate::clock::SystemClock;
use crate::config::Scope;
use crate::control::Control;
use crate::kafka::{
    self, Closing, Create, GroupMonitor, KafkaSink, KafkaSource, KafkaStateLog, Settings, Topology,
};
use crate::metrics::{PartitionState, WorkerStatus};
use crate::pipeline::{
    LocalRead, PartitionCounts, Ports, Progress, StableEnds, Worker, WorkerOptions, WorkerPorts, WorkerReport,
};
use crate::ports::StoreError;
use crate::schemas::{self, Registry, SharedSchemas};
use crate::store::{self, Lock, SledStore, Takeover};

/// Opening the store counts as hung after this time without progress.
pub(crate) const OPEN_LIMIT: Duration = Duration::from_mins(1);
/// A worker that stays longer in one call does not count as ready.
const SLOW_CALL: Duration = Duration::from_secs(15);
/// A worker that stays longer in one call counts as hung.
const HUNG_CALL: Duration = Duration::from_mins(1);
/// Interval between checks of the workers.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Interval between measurements of the size on disk.
const MEASURE_INTERVAL: Duration = Duration::from_secs(10);

/// The ports of production.
pub(super) struct Production;

impl WorkerPorts for Production {
    type Source = KafkaSource;
    type Sink = KafkaSink;
    type Log = KafkaStateLog;
    type Store = SledStore;
    type Clock = SystemClock;

    fn read_local(
        store: &Self::Store,
        clock: &Self::Clock,
        reads: &mut [LocalRead<'_>],
    ) -> Result<(), StoreError> {
        let Some((own, others)) = reads.split_first_mut() else { return Ok(()) };
        std::thread::scope(|scope| {
            let start = others.iter_mut().map(|read| {
                let (store, clock) = (store.clone(), *clock);
                scope.spawn(move || read.run(&store, &clock))
            });
            let running: Vec<_> = start.collect();
            let mut result = own.run(store, clock);
            for thread in running {
                let read = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                result = result.and(read);
            }
            result
        })
    }
}

/// What the workers of a process share.
pub(super) struct ProcessParts<'a> {
    pub(super) service: &'a Service,
    lock: Arc<Lock>,
    store: SledStore,
    control: Control,
    pub(super) ends: StableEnds,
    pub(super) partition_counts: PartitionCounts,
    schemas: SharedSchemas,
    pub(super) stop: &'a Arc<AtomicBool>,
    pub(super) first: &'a FirstFailure,
}

/// Why the process ends, noted before what may hang: the other threads are awaited, and the local store is closed.
pub(crate) type FirstFailure = Arc<OnceLock<ExitError>>;

/// Runs the service, from the lock on the state directory to the end of the last worker.
pub(super) fn supervise(
    service: &Service,
    stop: &Arc<AtomicBool>,
    first: &FirstFailure,
) -> Result<(), ExitError> {
    let config = &service.config;
    let lock = Arc::new(Lock::acquire(&config.state.dir)?);
    let hasher = hasher(&config.identity.hash)?;
    let ids = rule(config, hasher);
    service.status.update(|it| it.identity_rule = Some(ids.fingerprint().to_string()));
    let closing = Closing::default();
    let Some(topology) = topology(service, &closing, stop)? else { return Ok(()) };
    topology.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let opened =
        store::open(&config.state.dir, &binding(config, &hasher, &topology), config.state.cache, OPEN_LIMIT)?;
    let shared = ProcessParts {
        service,
        lock,
        store: opened.store.joining(joining(config)),
        control: Control::new(ids, config.group.workers),
        ends: StableEnds::default(),
        partition_counts: PartitionCounts::new(topology.partitions),
        schemas: schemas::start(&config.schemas, stop)
            .map_err(ExitError::usage)?
            .optional(!decides_with_schemas(config)),
        stop,
        first,
    };
    // Cannot be set already: the supervisor runs once.
    service.admin.control.set(shared.control.clone()).ok();
    let workers: Result<Vec<_>, ExitError> = (0..config.group.workers)
        .map(|number| {
            let options = options(config, hasher, &topology, &shared.partition_counts, number);
            let (largest_batch, partitions) = (topology.largest_batch, topology.partitions);
            let settings = Settings { largest_batch, partitions, ..settings(config, number) };
            spawn(&shared, number, settings, options)
        })
        .collect();
    let mut workers = workers?;
    if config.state.standby && config.dedupe.scope == Scope::Partition {
        let options = options(config, hasher, &topology, &shared.partition_counts, 0);
        workers.push(spawn_standby(&shared, settings(config, 0), options)?);
    }
    let monitor = start_monitor(&shared, &topology)?;
    measure_disk(service, stop);
    let ended = supervise_workers(workers, &monitor, service, stop);
    if let Err(failure) = &ended {
        first.get_or_init(|| failure.clone());
    }
    stop.store(true, Ordering::Release);
    if ended.is_err() {
        // Restarted, it lets the others go first.
        shared.lock.set_takeover(0, Takeover::Begun).ok();
    }
    let monitor_ended = monitor.join().unwrap_or_else(|_| {
        Err(ExitError::failed(
            "the topic monitor panicked; the log above has the place. Please report this bug".to_owned(),
        ))
    });
    if let Err(failure) = &monitor_ended {
        service.status.fail(&failure.message);
    }
    monitor_ended.and(ended)?;
    shared.store.close().map_err(|error| ExitError::new(Exit::State, error.to_string()))
}

/// Checks the topics; retries until a broker answers. `None` when a stop is requested meanwhile.
fn topology(service: &Service, closing: &Closing, stop: &AtomicBool) -> Result<Option<Topology>, ExitError> {
    if let Some(topology) = &service.topology {
        return Ok(Some(topology.clone()));
    }
    let wanted = wanted(&service.config, Create::Perform);
    let publish = |why: &str| {
        let not_ready = Some(why.to_owned());
        service.status.publish(0, WorkerStatus { not_ready, ..WorkerStatus::starting() });
    };
    let check = || Ok(kafka::check(&settings(&service.config, 0), wanted, closing)?.topology);
    await_broker(check, publish, stop)
}

/// Sleeps for `time`, or until a stop is requested.
pub(super) fn pause(time: Duration, stop: &AtomicBool) {
    let mut left = time;
    while !left.is_zero() && !stop.load(Ordering::Acquire) {
        std::thread::sleep(CHECK_INTERVAL.min(left));
        left = left.saturating_sub(CHECK_INTERVAL);
    }
}

/// The thread of a worker, or of the standby copies beside the workers, and its progress.
struct WorkerThread {
    /// The number of the worker; `None` for the standby thread.
    number: Option<usize>,
    thread: JoinHandle<Result<(), ExitError>>,
    progress: Progress,
    /// The last observed count, and the number of checks since it changed.
    last_seen: (u64, u32),
}

impl WorkerThread {
    fn start(
        number: Option<usize>,
        progress: Progress,
        first: &FirstFailure,
        work: impl FnOnce() -> Result<(), ExitError> + Send + 'static,
    ) -> Result<Self, ExitError> {
        let name = number.map_or("standby".to_owned(), |number| format!("worker-{number}"));
        let failed = format!("the thread {name} cannot be started");
        let first = Arc::clone(first);
        let work = move || work().inspect_err(|failure| drop(first.set(failure.clone())));
        let thread = std::thread::Builder::new().name(name).spawn(work);
        let thread =
            thread.map_err(|e| ExitError::failed(format!("{failed}: {e}; raise the limit on processes")))?;
        Ok(Self { number, thread, progress, last_seen: (0, 0) })
    }

    /// Its name in messages.
    fn name(&self) -> String {
        self.number.map_or("the standby thread".to_owned(), |number| format!("worker {number}"))
    }

    fn check(&mut self) {
        let count = self.progress.steps();
        let (last, unchanged) = self.last_seen;
        self.last_seen = if count == last { (count, unchanged + 1) } else { (count, 0) };
    }

    /// How long the worker has been in the same call, measured in checks.
    fn stuck_for(&self) -> Duration {
        CHECK_INTERVAL * self.last_seen.1
    }
}

fn spawn(
    shared: &ProcessParts<'_>,
    number: usize,
    settings: Settings,
    options: WorkerOptions,
) -> Result<WorkerThread, ExitError> {
    let ProcessParts { service, control, ends, schemas, .. } = shared;
    let (metrics, status) = (service.metrics.clone(), Arc::clone(&service.status));
    let (control, ends, schemas) = (control.clone(), ends.clone(), schemas.clone());
    let (lock, store, stop) = (Arc::clone(&shared.lock), shared.store.another(), Arc::clone(shared.stop));
    let progress = Progress::default();
    let counted = progress.clone();
    // In partition scope the state topic is followed beside the workers.
    let follows = service.config.state.standby && service.config.dedupe.scope == Scope::Topic;
    let schemas_config = service.config.schemas.clone();
    let work = move || -> Result<(), ExitError> {
        let needs = Arc::new(TakeoverNeeds {
            options: options.clone(),
            lock: Arc::clone(&lock),
            registry: Registry::open(&schemas_config).map_err(ExitError::usage)?,
            group: GroupMonitor::new(&settings).map_err(ExitError::operator)?,
            worker: number,
        });
        let run = |patience: Duration| -> Result<(), ExitError> {
            let log = KafkaStateLog::new(&settings).map_err(ExitError::operator)?;
            let source = KafkaSource::subscribe(&settings).map_err(ExitError::operator)?;
            let (sink, store) = (KafkaSink::new(settings.clone()), store.another());
            let ports = Ports { source, sink, log, store, clock: SystemClock::start() };
            let report = WorkerReport::new(metrics.clone(), Arc::clone(&status), number);
            let worker = Worker::<Production>::new(ports, options.clone(), report);
            let lock = Arc::clone(&lock);
            let worker = worker
                .reading(schemas.clone())
                .on_active(move || drop(lock.set_takeover(number, Takeover::Complete)))
                .leaving_after(patience, needs.better_without());
            let requests = control.connect(number);
            Ok(worker.answering(requests).comparing(ends.clone()).counting(counted.clone()).run(&stop)?)
        };
        let follower = || {
            let (store, metrics, status) = (store.another(), metrics.clone(), Arc::clone(&status));
            Follower::new(&settings, options.clone(), store, metrics, status, counted.clone())
        };
        let follower = follows.then(follower).transpose()?;
        let mut spare =
            Spare::new(&settings, Arc::clone(&status), counted.clone(), Arc::clone(&needs), follower);
        loop {
            let joins = spare.wait(&stop)?;
            if joins {
                run(spare.patience())?;
            }
            // What has ended here has not failed. The line of an active instance stays: its member may stay in the group.
            if lock.takeover() == Takeover::Begun {
                lock.set_takeover(number, Takeover::None).ok();
            }
            if !joins {
                return Ok(());
            }
        }
    };
    WorkerThread::start(Some(number), progress, shared.first, work)
}

/// Starts the thread that follows the state topic beside the workers, in partition scope.
fn spawn_standby(
    shared: &ProcessParts<'_>,
    settings: Settings,
    options: WorkerOptions,
) -> Result<WorkerThread, ExitError> {
    let (metrics, status) = (shared.service.metrics.clone(), Arc::clone(&shared.service.status));
    let (store, stop, progress) = (shared.store.another(), Arc::clone(shared.stop), Progress::default());
    let counted = progress.clone();
    let work = move || Follower::new(&settings, options, store, metrics, status, counted)?.run(&stop);
    WorkerThread::start(None, progress, shared.first, work)
}

/// Waits for the workers. When one worker ends, all are stopped: a process with half of its workers would look
/// healthy. They are also stopped when the topic monitor ends.
fn supervise_workers(
    mut workers: Vec<WorkerThread>,
    monitor: &JoinHandle<Result<(), ExitError>>,
    service: &Service,
    stop: &AtomicBool,
) -> Result<(), ExitError> {
    let limit = HUNG_CALL.max(service.config.batch.transaction_timeout * 8);
    while workers.iter().all(|worker| !worker.thread.is_finished()) && !monitor.is_finished() {
        workers.iter_mut().for_each(WorkerThread::check);
        if let Some(worker) = workers.iter().find(|worker| worker.stuck_for() > limit) {
            return Err(ExitError::failed(format!(
                "{} hangs: it has been in one call for more than {} s; the process ends, because only a \
                 restart helps. The open transaction is aborted, and its records are read again",
                worker.name(),
                limit.as_secs()
            )));
        }
        let slow = workers.iter().filter(|worker| worker.stuck_for() > SLOW_CALL);
        for worker in slow {
            let what = format!("has been in one call for {} s", worker.stuck_for().as_secs());
            match worker.number {
                Some(number) => publish_not_ready(service, number, &what, None),
                // Readiness is not affected. What the thread publishes next replaces it.
                None => service.status.update(|it| it.standby.get_or_insert_default().slow = Some(what)),
            }
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
    stop.store(true, Ordering::Release);
    let mut ended = Ok(());
    for worker in workers {
        let (name, number) = (worker.name(), worker.number);
        let one = worker.thread.join().unwrap_or_else(|_| {
            Err(ExitError::failed(format!(
                "{name} panicked; the log above has the place. Please report this bug"
            )))
        });
        if let (Err(error), Some(number)) = (&one, number) {
            publish_not_ready(service, number, &error.message, Some(PartitionState::Stopped));
        }
        ended = ended.and(one);
    }
    ended
}

/// Publishes the size of the directory, and deletes quarantined state that the limit leaves no space for: at half of it, before the
/// workers make windows shorter. In a thread of its own, which nobody waits for: a call of the file system may hang.
fn measure_disk(service: &Service, stop: &Arc<AtomicBool>) {
    let (state, metrics, stop) = (service.config.state.clone(), service.metrics.clone(), Arc::clone(stop));
    let work = move || {
        while !stop.load(Ordering::Acquire) {
            match store::limit_quarantined(&state.dir, state.max_disk.map_or(u64::MAX, |most| most / 2)) {
                Ok(bytes) => metrics.parts.state.disk.set(bytes as f64),
                Err(error) => tracing::debug!(%error, "measuring the local state failed"),
            }
            pause(MEASURE_INTERVAL, &stop);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("disk".to_owned()).spawn(work) {
        tracing::warn!(%error, "the size of the local state is not measured; raise the limit on processes");
    }
}

/// Publishes that a worker is not ready, for a worker that cannot do it itself.
fn publish_not_ready(service: &Service, number: usize, why: &str, state: Option<PartitionState>) {
    service.status.update(|it| {
        let Some(status) = it.workers.get_mut(number) else { return };
        status.not_ready = Some(why.to_owned());
        for partition in &mut status.partitions {
            partition.state = state.unwrap_or(partition.state);
        }
    });
}
