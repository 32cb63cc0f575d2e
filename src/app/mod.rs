//! Assembly: starts workers, status page and supervisor from a configuration, and ends with an exit code.
//!
//! tokio runs HTTP, signals and the wait for the end; all code that
//! processes records runs on plain threads.

mod allocator;
mod assembly;
mod connecting;
mod ended;
mod hanging;
mod log;
mod memory;
mod monitor;
mod obstacles;
mod ownership;
mod preparing;
mod readiness;
mod spare;
mod standby;
mod supervisor;
mod work;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Poll;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::Signal;
use tokio::sync::oneshot;

pub use assembly::settings;
pub(crate) use assembly::{bound_rules, hasher, kinds, rule, token, window_limits};
pub(crate) use connecting::await_broker;
pub(crate) use ended::ExitError;
pub(crate) use log::{Log, LogOrigin, begin as begin_log, begin_quietly as begin_log_quietly, log_end};
pub use memory::{window_memory, within_memory_limit};
pub use preparing::check;
pub(crate) use preparing::{Prepared, check_host, check_read, check_start, prepare, scope_advice};

use supervisor::FirstFailure;
pub(crate) use supervisor::OPEN_LIMIT;
pub(crate) use work::Work;

use crate::cli::Exit;
use crate::clock::{Clock, SystemClock, monotonic};
use crate::config::{Config, Scope};
use crate::http;
use crate::kafka::Topology;
use crate::metrics::{About, History, Metrics, Recent, Role, Snapshot, Status};

/// A second signal that arrives earlier is part of the first one: a service manager and the terminal can both send one.
const IMPATIENCE: Duration = Duration::from_secs(1);

/// A service that is ready to run: its configuration, metrics and status.
pub struct Service {
    /// The effective configuration; already validated.
    pub config: Config,
    /// The counters and gauges that the workers and monitors of this process set.
    pub metrics: Metrics,
    /// The status that the workers publish.
    pub status: Arc<Status>,
    /// The topics; given when they need no check because the caller created them.
    pub topology: Option<Topology>,
    /// Passes requests of the admin API to the workers; disabled without `http.token_file`.
    pub admin: http::AdminApi,
    /// The last warnings of the log.
    pub recent: Recent,
}

impl Service {
    /// A service that checks its topics at the start.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let about = About {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            group: config.group.id.clone(),
            instance: config.group.instance.clone(),
            raw: config.topics.raw.as_str().to_owned(),
            clean: config.topics.clean.as_str().to_owned(),
            scope: config.dedupe.scope.as_str().to_owned(),
        };
        let status = Arc::new(Status::new(about, config.group.workers));
        if config.dedupe.scope == Scope::Topic {
            status.update(|it| it.noted_role = Role::Joining);
        }
        let metrics = Metrics::new();
        let with_filters = assembly::windows(&config).filter(|window| assembly::filters(window).is_some());
        let highest = with_filters.map(|window| window.false_positive_rate).fold(0.0, f64::max);
        metrics.parts.state.window_configured.set(config.window.bloom.max(config.window.exact).as_secs_f64());
        metrics.parts.state.false_positive_rate_promised.set(highest);
        Self {
            config,
            metrics,
            status,
            topology: None,
            admin: http::AdminApi::default(),
            recent: Recent::default(),
        }
    }

    /// Runs until `shutdown` completes or a failure ends the service. The HTTP server runs for the same time.
    pub async fn run(
        self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), ExitError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (close_http, http_closes) = oneshot::channel::<()>();
        let endpoint = http::Endpoint {
            metrics: self.metrics.clone(),
            status: Arc::clone(&self.status),
            admin: self.admin.clone(),
            config: self.config.show().into(),
            history: History::default(),
            recent: self.recent.clone(),
            began: monotonic(),
        };
        let sampling = tokio::spawn(sample_counters(endpoint.clone()));
        let logging = tokio::spawn(readiness::log_readiness(Arc::clone(&self.status), self.metrics.clone()));
        let page =
            http::serve(http::ClientLimits::default(), listener, endpoint, async { drop(http_closes.await) });
        let page = tokio::spawn(page);
        let (status, supervised, first) =
            (Arc::clone(&self.status), Arc::clone(&stop), FirstFailure::default());
        let work = Work {
            name: "supervisor",
            stopping: "committing open transactions",
            late: ["the workers", "open transactions are aborted, and their records are read again"],
            first: Arc::clone(&first),
        };
        let supervise = move || supervisor::supervise(&self, &supervised, &first);
        let ended = work.run(&stop, shutdown, supervise).await;
        if let Err(ended) = &ended {
            status.fail(&ended.message);
        }
        // The HTTP server may have ended already.
        sampling.abort();
        logging.abort();
        close_http.send(()).ok();
        drop(tokio::time::timeout(Duration::from_millis(200), page).await);
        ended
    }
}

/// Samples the counters every 5 s, for the charts.
async fn sample_counters(endpoint: http::Endpoint) {
    let clock = SystemClock::start();
    let mut ticks = tokio::time::interval(Duration::from_secs(5));
    loop {
        ticks.tick().await;
        let totals = endpoint.metrics.totals(endpoint.status.read(Snapshot::lag));
        endpoint.history.note(clock.elapsed(), totals);
    }
}

/// `dedupd run`: runs the service until SIGTERM, SIGINT or SIGHUP.
pub fn run(config: Config, log: Log) -> Result<(), ExitError> {
    if !allocator::set_up(config.group.workers) {
        tracing::debug!("the allocator has no limit on its arenas and no fixed size of large blocks");
    }
    let config = within_memory_limit(config);
    let listen = config.http.listen;
    let token = prepare(&config)?.token;
    let admin = http::AdminApi { token, log: log.filter, ..http::AdminApi::default() };
    let runtime = runtime()?;
    let ended = runtime.block_on(async {
        let stop = signal();
        let listener = self::listen(listen, "status page and metrics", "/").await?;
        Service { admin, recent: log.recent, ..Service::new(config) }.run(listener, stop).await
    });
    // A request to a worker that hangs must not delay the end.
    runtime.shutdown_background();
    ended
}

/// Binds the address of the HTTP endpoint, and logs what is at a path of it.
pub async fn listen(address: SocketAddr, what: &str, path: &str) -> Result<TcpListener, ExitError> {
    let listener = TcpListener::bind(address).await.map_err(|e| preparing::cannot_bind(address, &e))?;
    if let Ok(address) = listener.local_addr() {
        tracing::info!("{what} at http://{address}{path}");
        if !address.ip().is_loopback() {
            tracing::warn!(
                "http.listen = {address} is reachable from other machines, and exposes topics, offsets and metrics \
                 without authentication; set http.listen to 127.0.0.1, or put a firewall or an authenticating \
                 proxy in front of it"
            );
        }
    }
    Ok(listener)
}

/// The tokio runtime for sockets and signals.
pub fn runtime() -> Result<tokio::runtime::Runtime, ExitError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| ExitError::failed(format!("the tokio runtime cannot be started: {e}")))
}

/// Completes at SIGTERM, SIGINT or SIGHUP (the terminal was closed). A further one that is not part of the same key press ends the process. The
/// signal handlers are installed by the call, not by the first poll: a signal in between must not end the process with the default action. Requires a
/// tokio runtime.
pub fn signal() -> impl Future<Output = ()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut kinds = vec![SignalKind::terminate(), SignalKind::interrupt()];
    // nohup lets a process ignore it.
    kinds.extend((!is_hangup_ignored()).then(SignalKind::hangup));
    let streams: Result<Vec<_>, _> = kinds.into_iter().map(signal).collect();
    async {
        let Ok(mut streams) = streams else {
            tracing::error!(
                "signal handlers cannot be installed; stop this process with SIGKILL, which is safe"
            );
            return std::future::pending().await;
        };
        any(&mut streams).await;
        let since = monotonic();
        tokio::spawn(async move {
            loop {
                any(&mut streams).await;
                if since.elapsed() >= IMPATIENCE {
                    tracing::warn!("ending at once: what was not committed is read again at the next start");
                    Exit::Done.end();
                }
            }
        });
    }
}

/// Completes at the next signal of any of these streams.
async fn any(streams: &mut [Signal]) {
    std::future::poll_fn(|context| {
        let is_received = streams.iter_mut().any(|stream| stream.poll_recv(context).is_ready());
        if is_received { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Whether the process was started with SIGHUP ignored.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}
