//! A member of the group: the whole pipeline on the mock, as a service or as a single worker, and a reader of
//! the clean topic.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use dedupd::app::{self, Service};
use dedupd::clock::{SystemClock, monotonic};
use dedupd::config::{AsTyped, Config, ConfigSources, FileText};
use dedupd::dedupe::{
    CompareRule, FilterPart, HashKind, Hasher, IdSource, IdentityRule, TimeSource, WindowLimits,
};
use dedupd::kafka::{KafkaSink, KafkaSource, KafkaStateLog, Settings, Topology};
use dedupd::metrics::{About, Metrics, PartitionState, Status};
use dedupd::pipeline::{
    Kinds, Limits, LoadPart, Mode, OnConflict, OnGap, OnMissing, OnPoison, OnProbable, OnRewind, OnStop,
    Overflow, PartitionCounts, Ports, Scope, StableEnds, Start, TransactionSize, Worker, WorkerOptions,
    WorkerPorts, WorkerReport,
};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::{ClientConfig, Offset as KafkaOffset, TopicPartitionList};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::memory_store::MemoryStore;
use crate::support::mock::{CLEAN, GROUP, RAW, STATE};
use crate::support::wait_until;
pub use crate::throttled::Pace;
use crate::throttled::Throttled;

/// Time limit of each step on a loaded machine.
pub const LIMIT: Duration = Duration::from_secs(40);

struct Mocked;

impl WorkerPorts for Mocked {
    type Source = KafkaSource;
    type Sink = KafkaSink;
    type Log = Throttled;
    type Store = MemoryStore;
    type Clock = SystemClock;
}

/// One running member. A drop requests the stop and does not wait for it.
pub struct Member {
    pub status: Arc<Status>,
    pub metrics: Metrics,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), String>>>,
}

impl Member {
    /// A single worker with its state in memory.
    pub fn worker(settings: Settings, partitions: usize, pace: Pace) -> Self {
        Self::sharing(settings, (PartitionCounts::new(partitions), StableEnds::default()), pace)
    }

    /// A single worker that commits at this interval.
    pub fn committing_every(interval: Duration, settings: Settings, partitions: usize) -> Self {
        let options = WorkerOptions { interval, ..options(&settings, PartitionCounts::new(partitions)) };
        Self::with_options(settings, options, StableEnds::default(), Pace::FULL)
    }

    /// A worker with a shared partition limit and shared log ends.
    pub fn sharing(settings: Settings, (limit, ends): (PartitionCounts, StableEnds), pace: Pace) -> Self {
        let options = options(&settings, limit);
        Self::with_options(settings, options, ends, pace)
    }

    fn with_options(settings: Settings, options: WorkerOptions, ends: StableEnds, pace: Pace) -> Self {
        let about = About {
            version: String::new(),
            group: settings.group.clone(),
            instance: settings.transactional_id.clone(),
            raw: settings.raw.clone(),
            clean: settings.clean.clone(),
            scope: String::new(),
        };
        let (status, metrics) = (Arc::new(Status::new(about, 1)), Metrics::new());
        let report = WorkerReport::new(metrics.clone(), Arc::clone(&status), 0);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let inner = KafkaStateLog::new(&settings).map_err(|e| e.to_string())?;
            let source = KafkaSource::subscribe(&settings).map_err(|e| e.to_string())?;
            let sink = KafkaSink::new(settings);
            let log = Throttled { inner, pace, buffer: VecDeque::new() };
            let (store, clock) = (MemoryStore::new(), SystemClock::start());
            Worker::<Mocked>::new(Ports { source, sink, log, store, clock }, options, report)
                .comparing(ends)
                .run(&stopped)
                .map_err(|fatal| format!("{fatal:?}"))
        });
        Self { status, metrics, stop, thread: Some(thread) }
    }

    /// The service as `dedupd run` starts it, with its state in a directory. The topics are not checked, because
    /// the mock does not support all of these requests.
    pub fn service(config: Config, partitions: usize) -> Self {
        let topology = Topology {
            partitions,
            cluster_id: None,
            topic_ids: [None, None, None],
            largest_batch: None,
            largest_state: None,
            state_retention: None,
            warnings: Vec::new(),
        };
        let service = Service { topology: Some(topology), ..Service::new(config) };
        let (status, metrics) = (Arc::clone(&service.status), service.metrics.clone());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let (stop_sender, stop_receiver) = oneshot::channel::<()>();
            let watch = thread::spawn(move || {
                wait_until("the stop", Duration::from_mins(10), || {
                    stopped.load(Ordering::Acquire).then_some(())
                });
                drop(stop_sender);
            });
            let ended = app::runtime().map_err(|e| e.to_string())?.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
                service.run(listener, async { drop(stop_receiver.await) }).await
            });
            drop(watch);
            ended.map_err(|ended| format!("{:?}: {ended}", ended.exit))
        });
        Self { status, metrics, stop, thread: Some(thread) }
    }

    /// Its partitions that are running.
    pub fn running(&self) -> BTreeSet<u32> {
        self.in_state(PartitionState::Running)
    }

    pub fn in_state(&self, state: PartitionState) -> BTreeSet<u32> {
        let workers = self.status.snapshot().workers;
        let all = workers.iter().flat_map(|worker| &worker.partitions);
        all.filter(|partition| partition.state == state).map(|partition| partition.partition).collect()
    }

    /// Waits until exactly these partitions run in this member.
    pub fn runs(&self, wanted: impl IntoIterator<Item = u32>) {
        let wanted: BTreeSet<u32> = wanted.into_iter().collect();
        wait_until(&format!("partitions {wanted:?} to run"), LIMIT, || {
            self.assert_alive();
            (self.running() == wanted).then_some(())
        });
    }

    pub fn assert_alive(&self) {
        let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        assert!(!ended, "the member ended unexpectedly: {:?}", self.status.snapshot().workers);
    }

    /// Waits until it ends by itself, and returns its result.
    pub fn end(mut self) -> Result<(), String> {
        wait_until("the member to end", LIMIT, || {
            self.thread.as_ref().is_none_or(JoinHandle::is_finished).then_some(())
        });
        self.thread.take().expect("not taken before").join().expect("no panic in the member")
    }

    /// Stops it and waits for its end.
    pub fn stop(self) {
        self.stop.store(true, Ordering::Release);
        let began = monotonic();
        assert_eq!(self.end(), Ok(()));
        assert!(began.elapsed() < Duration::from_secs(9), "stopping took {:?}", began.elapsed());
    }

    /// Number of transactions that did not commit. On the mock, their records stay visible.
    pub fn uncommitted(&self) -> f64 {
        let text = self.metrics.render();
        let results = ["aborted", "unknown"];
        let lines = text.lines().filter(|line| line.starts_with("dedupd_transactions_total{"));
        let wanted = lines.filter(|line| results.iter().any(|result| line.contains(result)));
        wanted.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

/// The configuration of a service named `instance`, which shares the partitions. In topic scope it would describe the group,
/// which the embedded broker cannot.
pub fn config(bootstrap: &str, instance: &str, dir: &std::path::Path) -> Config {
    let text = format!(
        "kafka.bootstrap_servers = \"{bootstrap}\"\ntopics.raw = \"{RAW}\"\ntopics.clean = \"{CLEAN}\"\n\
         topics.state = \"{STATE}\"\ngroup.id = \"{GROUP}\"\ngroup.instance = \"{instance}\"\n\
         group.static_membership = false\ngroup.session_timeout = \"3s\"\nidentity.from = \"key\"\n\
         window.exact = \"1h\"\nbatch.interval = \"50ms\"\nbatch.transaction_timeout = \"2s\"\n\
         state.dir = \"{}\"\ndedupe.scope = \"partition\"\n",
        dir.join(instance).display()
    );
    Config::from_sources(&ConfigSources {
        file: Some(FileText { path: PathBuf::from("mock.toml"), text }),
        environment: Vec::new(),
        flags: AsTyped::default(),
        host: "host".to_owned(),
    })
    .unwrap_or_else(|problems| panic!("{problems}"))
}

/// The identity rule: the key of the record.
pub fn rule() -> IdentityRule {
    IdentityRule::new(vec![IdSource::Key.into()], Hasher::Xxh3)
}

fn options(settings: &Settings, partition_counts: PartitionCounts) -> WorkerOptions {
    WorkerOptions {
        raw: settings.raw.clone(),
        raw_id: None,
        state_id: None,
        state: settings.state.clone(),
        partition_counts,
        state_retention: None,
        raw_partitions: 12,
        group: settings.group.clone(),
        writer: settings.transactional_id.clone(),
        rule: rule(),
        accept_change: None,
        hash: HashKind::Xxh3,
        kinds: Kinds::new(
            WindowLimits {
                exact: Duration::from_hours(1),
                max_ids: 1_000_000,
                time: TimeSource::Record,
                bloom: None,
            },
            OnProbable::Drop,
            [],
        ),
        limits: Limits {
            workers: 1,
            max_ids: 1_000_000,
            when_full: Overflow::Shrink,
            max_memory: None,
            max_disk: None,
            smallest_slice: Some(dedupd::dedupe::SMALLEST_SLICE),
            filtered: FilterPart::NONE,
        },
        mode: Mode::Drop,
        scope: Scope::Partition,
        keep_duplicates: false,
        force_header: None,
        on_missing: OnMissing::Forward,
        on_poison: OnPoison::Stop,
        poison_retry: Duration::ZERO,
        start: Start::Earliest,
        on_rewind: OnRewind::Stop,
        on_gap: OnGap::Stop,
        on_stop: OnStop::Leave,
        #[cfg(feature = "failpoints")]
        disabled: None,
        transaction_limit: TransactionSize { records: 1_000, bytes: 1 << 20, partitions: usize::MAX },
        interval: Duration::from_millis(50),
        transaction_timeout: settings.transaction_timeout,
        block_ids: 30_000,
        evidence_records: 100,
        load_part: LoadPart::default(),
        iteration_time: Duration::from_secs(2),
        compare: CompareRule::new(vec![IdSource::Value.into()]),
        is_compare_set: false,
        counted_by: Vec::new(),
        on_conflict: OnConflict::Drop,
    }
}

/// Reads the clean topic continuously: the keys of each partition, in order.
pub struct Clean {
    consumer: BaseConsumer,
    pub keys: BTreeMap<u32, Vec<String>>,
}

impl Clean {
    pub fn of(client: &ClientConfig, partitions: i32) -> Self {
        let mut config = client.clone();
        config
            .set("group.id", "clean-reader")
            .set("enable.auto.commit", "false")
            .set("fetch.wait.max.ms", "50");
        let consumer: BaseConsumer = config.create().expect("a consumer");
        let mut all = TopicPartitionList::new();
        for partition in 0..partitions {
            all.add_partition_offset(CLEAN, partition, KafkaOffset::Beginning).unwrap();
        }
        consumer.assign(&all).expect("an assignment");
        Self { consumer, keys: BTreeMap::new() }
    }

    /// Reads the available records.
    pub fn read(&mut self) {
        let mut wait = Duration::from_millis(10);
        // An error means that the mock is unavailable. Callers that wait have a time limit.
        while let Some(polled) = self.consumer.poll(wait) {
            if let Ok(message) = polled {
                let key = String::from_utf8(message.key().expect("keys are kept").to_vec()).unwrap();
                self.keys.entry(u32::try_from(message.partition()).unwrap()).or_default().push(key);
            }
            wait = Duration::ZERO;
        }
    }

    fn missing(&self, wanted: &BTreeMap<u32, Vec<String>>) -> Vec<String> {
        let mut missing = Vec::new();
        for (partition, keys) in wanted {
            let present: BTreeSet<&String> = self.keys.get(partition).into_iter().flatten().collect();
            missing.extend(keys.iter().filter(|key| !present.contains(key)).cloned());
        }
        missing
    }

    /// Waits until every key is in its partition.
    pub fn wait_for(&mut self, wanted: &BTreeMap<u32, Vec<String>>, meanwhile: impl Fn()) {
        let began = monotonic();
        loop {
            self.read();
            meanwhile();
            let missing = self.missing(wanted);
            if missing.is_empty() {
                return;
            }
            assert!(
                began.elapsed() < LIMIT,
                "{} keys did not arrive within {LIMIT:?}: {:?}",
                missing.len(),
                &missing[..missing.len().min(20)]
            );
        }
    }
}

/// The first occurrence of each key, in order.
pub fn first_of_each(keys: &[String]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    keys.iter().filter(|key| seen.insert((*key).clone())).cloned().collect()
}
