//! Assembly: a configuration becomes running workers, a status page and an exit code.
//!
//! The only module that knows every other. tokio serves HTTP, signals and the wait for the end;
//! everything that touches records runs on plain threads.

mod assembly;
mod audit;
mod commands;
mod ended;
mod hanging;
mod log;
mod ownership;
mod state;
mod supervisor;
mod watch;

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::oneshot;

pub use assembly::{settings, window_of};
pub use commands::command;
pub use ended::Ended;
pub use log::{begin as begin_log, begin_quietly as begin_log_quietly};

use crate::cli::Exit;
use crate::clock::{Clock, SystemClock};
use crate::config::Config;
use crate::http;
use crate::kafka::{self, CheckError, Topology, Wanted};
use crate::metrics::{About, Metrics, Recent, Status};

/// How long the workers have to commit and leave after a signal.
const STOP: Duration = Duration::from_secs(9);

/// A service about to run: the configuration and what it will be watched by.
pub struct Service {
    /// What is in force.
    pub config: Config,
    /// What is counted.
    pub metrics: Metrics,
    /// What the workers say.
    pub status: Arc<Status>,
    /// The topics, when they need no check because the caller made them.
    pub topology: Option<Topology>,
    /// The operator's way to the workers.
    pub door: http::Door,
    /// The last warnings of the log.
    pub recent: Recent,
}

impl Service {
    /// A service that checks its topics first.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let about = About {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            group: config.group.id.clone(),
            instance: config.group.instance.clone(),
            raw: config.topics.raw.as_str().to_owned(),
            clean: config.topics.clean.as_str().to_owned(),
        };
        let status = Arc::new(Status::new(about, config.group.workers));
        let metrics = Metrics::new();
        let with_filters = assembly::windows(&config).filter(|window| assembly::filters(window).is_some());
        let highest = with_filters.map(|window| window.false_positive_rate).fold(0.0, f64::max);
        metrics.asked(config.window.bloom.max(config.window.exact), highest);
        Self {
            config,
            metrics,
            status,
            topology: None,
            door: http::Door::default(),
            recent: Recent::default(),
        }
    }

    /// Runs until `shutdown` ends or something ends the service; the HTTP endpoint lives as long.
    pub async fn run(self, listener: TcpListener, shutdown: impl Future<Output = ()>) -> Result<(), Ended> {
        let stop = Arc::new(AtomicBool::new(false));
        let (close_http, http_closes) = oneshot::channel::<()>();
        let endpoint = http::Endpoint {
            metrics: self.metrics.clone(),
            status: Arc::clone(&self.status),
            door: self.door.clone(),
            config: self.config.show().into(),
            history: Arc::default(),
            recent: self.recent.clone(),
        };
        let watching = tokio::spawn(watch(endpoint.clone()));
        let page = http::serve(listener, endpoint, async { drop(http_closes.await) });
        let page = tokio::spawn(page);
        let (tell, mut told) = oneshot::channel();
        let status = Arc::clone(&self.status);
        let told_to_stop = Arc::clone(&stop);
        std::thread::Builder::new()
            .name("supervisor".to_owned())
            .spawn(move || drop(tell.send(supervisor::supervise(&self, &told_to_stop))))
            .map_err(|e| {
                Ended::failed(format!("cannot start a thread: {e}; raise the limit on processes"))
            })?;
        let ended = tokio::select! {
            ended = &mut told => ended,
            () = shutdown => {
                tracing::info!("stopping: committing what is open and leaving the group");
                stop.store(true, Ordering::Release);
                match tokio::time::timeout(STOP, told).await {
                    Ok(ended) => ended,
                    Err(_) => Ok(Err(Ended::failed(format!(
                        "the workers did not stop within {} s; what was open is aborted and will be read again",
                        STOP.as_secs()
                    )))),
                }
            }
        };
        let ended = ended.unwrap_or_else(|_| Err(Ended::failed("the supervisor thread panicked".to_owned())));
        if let Err(ended) = &ended {
            status.fail(&ended.message);
        }
        // The page may have ended by itself.
        watching.abort();
        close_http.send(()).ok();
        drop(tokio::time::timeout(Duration::from_millis(200), page).await);
        ended
    }
}

/// Notes the counters every five seconds, for the charts.
async fn watch(endpoint: http::Endpoint) {
    let clock = SystemClock::start();
    let mut ticks = tokio::time::interval(Duration::from_secs(5));
    loop {
        ticks.tick().await;
        let totals = endpoint.metrics.totals(&endpoint.status);
        endpoint.history.lock().unwrap_or_else(PoisonError::into_inner).note(clock.elapsed(), totals);
    }
}

/// `dedupd run`: until SIGTERM or SIGINT.
pub fn run(config: Config, recent: Recent) -> Result<(), Ended> {
    let listen = config.http.listen;
    let door = http::Door { token: assembly::token(&config)?, ..http::Door::default() };
    runtime()?.block_on(async {
        let stop = signal();
        let listener = TcpListener::bind(listen).await.map_err(|e| {
            Ended::new(
                Exit::Usage,
                format!("cannot listen on http.listen = {listen}: {e}; choose a free address"),
            )
        })?;
        if let Ok(address) = listener.local_addr() {
            tracing::info!("status page and metrics at http://{address}/");
            if !address.ip().is_loopback() {
                tracing::warn!(
                    "http.listen = {address} can be reached from other machines, and whoever reaches it can read \
                     topics, offsets and figures without a password; let it listen on 127.0.0.1, or put a firewall \
                     or a proxy with a password before it"
                );
            }
        }
        Service { door, recent, ..Service::new(config) }.run(listener, stop).await
    })
}

/// `dedupd check`: the topics as they are, changing nothing.
pub fn check(config: &Config) -> Result<Topology, Ended> {
    let settings = settings(config, 0);
    let wanted = Wanted { create: false, window: window_of(config) };
    kafka::check(&settings, wanted).map_err(|error| match error {
        CheckError::Unreachable(what) => Ended::new(Exit::StartUp, format!("no broker answers: {what}")),
        other => Ended::from(other),
    })
}

/// The runtime of everything that waits for sockets and signals.
pub fn runtime() -> Result<tokio::runtime::Runtime, Ended> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Ended::failed(format!("cannot start the runtime: {e}")))
}

/// Ends at SIGTERM or SIGINT. Listens from the call on, not only when it is waited for: a signal that
/// comes in between must not end the process in its own way. Only inside a runtime.
pub fn signal() -> impl Future<Output = ()> {
    use tokio::signal::unix::{SignalKind, signal};
    let listening = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    async {
        let (Ok(mut term), Ok(mut int)) = listening else {
            tracing::error!("cannot listen for SIGTERM; stop this process with SIGKILL, which is safe");
            return std::future::pending().await;
        };
        tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
    }
}
