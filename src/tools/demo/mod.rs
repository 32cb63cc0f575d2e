//! `dedupd demo`: broker, traffic, pipeline, status page and audit in one process.
//!
//! It shows how dedupd works. It cannot show exactly-once, because the embedded broker has no real
//! transactions. `dedupd try` shows that on a real Apache Kafka; the summary refers to it.

mod live;
mod summary;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dedupd_audit as audit;
use testkit::generate::{self, EventShape};
use testkit::mock::Broker;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::app::{self, ExitError, Service};
use crate::cli::{DemoArgs, Exit};
use crate::config::{AsTyped, Config, ConfigSources, Property};
use crate::kafka::Topology;
use crate::kafka::connection::attach_tokens;
use crate::metrics::{Metrics, Status, Totals};
use summary::DemoSummary;

const RAW: &str = "demo.raw";
const CLEAN: &str = "demo.clean";
const STATE: &str = "demo.clean.dedupd";
/// Where the id of a generated record is.
pub(super) const ID: &str = "json:/id";
/// What the attempts of a generated event have in common: a second one may have a field more.
pub(super) const COMPARED: [&str; 2] = ["json:/user", "json:/amount"];
/// Where the status page is unless an address is given.
const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);
/// Partitions of each topic.
const PARTITIONS: i32 = 12;
/// Maximum wait for the pipeline to become ready, and to process all generated records.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two checks of the pipeline.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How many of the last originals can be repeated: much fewer than the embedded broker keeps.
const REPEATABLE: usize = 10_000;
/// Maximum number of records that the pipeline has not processed. The embedded broker would delete more of them unread.
const WAITING_MAX: u64 = 30_000;

/// The latencies of the first records are not reported: the producer of the embedded broker's traffic connects meanwhile.
const WARM_UP: Duration = Duration::from_secs(2);

/// Runs the demo; the exit code is that of the audit.
pub fn run(args: &DemoArgs) -> Result<Exit, ExitError> {
    let broker = Broker::start(1, &[RAW, CLEAN, STATE], PARTITIONS)
        .map_err(|e| ExitError::failed(format!("embedded broker: {e}")))?;
    let dir = std::env::temp_dir().join(format!("dedupd-demo-{}", std::process::id()));
    let config = config(broker.bootstrap_servers(), &dir)?;
    let mut service = Service::new(config);
    service.topology = Some(Topology {
        partitions: PARTITIONS as usize,
        cluster_id: None,
        topic_ids: Default::default(),
        largest_batch: None,
        largest_state: None,
        state_retention: None,
        warnings: Vec::new(),
    });
    let metrics = service.metrics.clone();
    let ended = drive(args, &broker, service);
    std::fs::remove_dir_all(&dir).ok();
    let driven = ended?;
    println!("auditing in partition scope what the embedded broker still has: 5 MiB of each partition");
    let options = audit_options(&broker, driven.longest_repeat(args.duplicates));
    let report =
        audit::run(&options, &audit::progress_bar()).map_err(|e| ExitError::failed(format!("audit: {e}")))?;
    println!("{}", DemoSummary::new(&driven, &metrics, &report));
    Ok(if report.is_clean() { Exit::Done } else { Exit::No })
}

/// Runs service and traffic in parallel until the time is over or a signal arrives.
fn drive(args: &DemoArgs, broker: &Broker, service: Service) -> Result<Driven, ExitError> {
    let runtime = app::runtime()?;
    runtime.block_on(async {
        let listener = listen(args).await?;
        if let Ok(address) = listener.local_addr() {
            println!("status page  http://{address}/   metrics  http://{address}/metrics");
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (finish, finished) = oneshot::channel::<()>();
        let traffic = Traffic {
            options: options(args, broker),
            seconds: (!args.forever).then_some(args.seconds),
            metrics: service.metrics.clone(),
            status: Arc::clone(&service.status),
            stop: Arc::clone(&stop),
        };
        let traffic = tokio::task::spawn_blocking(move || {
            let summary = traffic.run();
            finish.send(()).ok();
            summary
        });
        let signalled = Arc::clone(&stop);
        tokio::spawn(async move {
            app::signal().await;
            signalled.store(true, Ordering::Release);
        });
        let served = service.run(listener, async { finished.await.unwrap_or_default() }).await;
        stop.store(true, Ordering::Release);
        let summary = traffic.await.map_err(|e| ExitError::failed(format!("traffic: {e}")))?;
        served?;
        summary
    })
}

/// Binds the given address; without one [`LISTEN`], or any free port if it is in use: a demo must not fail on that.
async fn listen(args: &DemoArgs) -> Result<TcpListener, ExitError> {
    let address = args.listen.unwrap_or(LISTEN);
    let bound = match TcpListener::bind(address).await {
        Err(_) if args.listen.is_none() => TcpListener::bind((address.ip(), 0)).await,
        bound => bound,
    };
    bound.map_err(|e| ExitError::failed(format!("cannot listen on {address}: {e}; choose another --listen")))
}

/// What the traffic left behind.
struct Driven {
    traffic: generate::Summary,
    /// The counters after [`WARM_UP`]; 0 when the traffic was shorter.
    start: Totals,
}

impl Driven {
    /// The longest time between two records of an id: the rate varies, so three times that of the average rate.
    fn longest_repeat(&self, duplicates: f64) -> Duration {
        let records = REPEATABLE as f64 / (1.0 - duplicates);
        let seconds = records * self.traffic.elapsed.as_secs_f64() / self.traffic.records.max(1) as f64;
        Duration::try_from_secs_f64(3.0 * seconds + 1.0).unwrap_or(Duration::MAX)
    }
}

/// Runs the generator, then waits until the pipeline has processed all records.
struct Traffic {
    options: generate::Options,
    seconds: Option<u64>,
    metrics: Metrics,
    status: Arc<Status>,
    stop: Arc<AtomicBool>,
}

impl Traffic {
    fn run(self) -> Result<Driven, ExitError> {
        let mut live = live::LiveLine::new(self.seconds);
        // The group of the embedded broker takes a few seconds to form.
        let is_ready = || self.status.read(|it| it.readiness().ready);
        wait(TIMEOUT, || self.stop.load(Ordering::Acquire) || is_ready());
        let stop = AtomicBool::new(false);
        let mut start = None;
        let summary = generate::run(&self.options, &stop, |progress| {
            let time_over = self.seconds.is_some_and(|seconds| progress.elapsed.as_secs() >= seconds);
            let is_over = time_over || self.stop.load(Ordering::Acquire);
            if stop.fetch_or(is_over, Ordering::AcqRel) {
                return;
            }
            if is_over {
                live.end();
                println!("stopping: waiting until the last records are processed; Ctrl-C again ends at once");
                return;
            }
            let is_near = || progress.sent.saturating_sub(self.processed()) <= WAITING_MAX;
            wait(Duration::MAX, || self.stop.load(Ordering::Acquire) || is_near());
            if start.is_none() && progress.elapsed >= WARM_UP {
                start = Some(self.metrics.totals(None));
            }
            live.show(progress.elapsed, &self.metrics);
        })
        .map_err(|e| ExitError::failed(format!("traffic: {e}")))?;
        live.end();
        wait(TIMEOUT, || self.processed() >= summary.records + summary.real_repeats);
        Ok(Driven { traffic: summary, start: start.unwrap_or_default() })
    }

    /// Records that the pipeline has processed.
    fn processed(&self) -> u64 {
        self.metrics.outcomes().map(|(_, count)| count).sum()
    }
}

/// Waits until this is so, for `most` at the longest.
fn wait(most: Duration, is_so: impl Fn() -> bool) {
    let mut left = most;
    while !left.is_zero() && !is_so() {
        std::thread::sleep(POLL_INTERVAL);
        left = left.saturating_sub(POLL_INTERVAL);
    }
}

fn options(args: &DemoArgs, broker: &Broker) -> generate::Options {
    generate::Options {
        bootstrap_servers: broker.bootstrap_servers().to_owned(),
        properties: Vec::new(),
        topic: RAW.to_owned(),
        partitions: None,
        shape: EventShape {
            seed: fastrand::u64(..),
            size: 200,
            duplicates: args.duplicates,
            keys: 10_000,
            repeatable: REPEATABLE,
        },
        records: None,
        rate: Some(args.rate),
        cut_acks: false,
    }
}

fn audit_options(broker: &Broker, longest_repeat: Duration) -> audit::Options {
    audit::Options {
        compare: COMPARED.map(str::to_owned).to_vec(),
        scope: audit::Scope::Partition,
        // The embedded broker keeps 5 MiB per partition: a long demo deletes its first records. Only a record that soon follows
        // them may be a copy of one of them.
        longest_window: Some(longest_repeat),
        allow_gone: true,
        ..audit::Options::new(broker.bootstrap_servers(), RAW, CLEAN, ID, attach_tokens)
    }
}

fn config(servers: &str, dir: &std::path::Path) -> Result<Config, ExitError> {
    // The embedded broker does not end a waiting fetch when a record arrives.
    let properties: Vec<Property> = Property::parse("fetch.wait.max.ms=20").into_iter().collect();
    let flags = AsTyped::default()
        .with_properties(&properties)
        .with("kafka.bootstrap_servers", [servers])
        .with("topics.raw", [RAW])
        .with("topics.clean", [CLEAN])
        .with("topics.state", [STATE])
        .with("group.instance", ["demo"])
        .with("group.static_membership", ["false"])
        // In the embedded broker a rebalance takes a whole session timeout.
        .with("group.session_timeout", ["4s"])
        .with("batch.transaction_timeout", ["3s"])
        // The embedded broker cannot describe a group, which an instance in topic scope does before it joins.
        .with("dedupe.scope", ["partition"])
        .with("identity.from", [ID])
        .with("identity.compare", COMPARED)
        .with("state.dir", [dir.to_string_lossy()]);
    let sources = ConfigSources { flags, host: "demo".to_owned(), ..ConfigSources::default() };
    Ok(Config::from_sources(&sources)?)
}
