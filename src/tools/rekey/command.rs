//! The link of `rekey` to the command line, the signals and the HTTP endpoint.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::stage::{RekeyLoop, RekeyRule};
use crate::app::{ExitError, LogOrigin, await_broker, begin_log, listen, runtime, signal};
use crate::cli::{Exit, RekeyArgs};
use crate::clock;
use crate::config::{Rekeying, load_rekeying};
use crate::dedupe::{Hasher, IdentityRule};
use crate::http::{RekeyEndpoint, serve_rekey};
use crate::kafka::{Closing, RekeyChecks, RekeyTopics, Settings, SourceReader, check_rekey};
use crate::metrics::RekeyMetrics;
use crate::ports::{Failure, Remedy};
use crate::schemas;

/// Time limit of a stop: waiting for acknowledgements, committing offsets, leaving the group.
const STOP: Duration = Duration::from_secs(9);
/// A member replaced more often than this within [`REPLACED_PERIOD`] competes with another process. A single process can
/// replace itself: after an outage the broker takes its own late heartbeat for that of another process.
const REPLACED_MAX: usize = 4;
const REPLACED_PERIOD: Duration = Duration::from_mins(1);

/// Runs until SIGTERM, SIGINT or SIGHUP.
pub fn command(args: &RekeyArgs) -> Result<(), ExitError> {
    let config = load_rekeying(args.config.as_deref(), args.overrides())
        .map_err(|error| ExitError::new(Exit::Usage, error.to_string()))?;
    let (instance, group) = (config.instance.clone(), config.rekey.group.clone());
    begin_log(args.log_format, LogOrigin { instance, group });
    runtime()?.block_on(serve(config))
}

/// Runs the loop in a thread of its own, beside the HTTP endpoint.
async fn serve(config: Rekeying) -> Result<(), ExitError> {
    let shutdown = signal();
    let listener = listen(config.listen, "status", "/status.json").await?;
    let (metrics, stop) = (RekeyMetrics::default(), Arc::new(AtomicBool::new(false)));
    let endpoint = RekeyEndpoint { metrics: metrics.clone(), config: config.show().into() };
    let page = tokio::spawn(serve_rekey(listener, endpoint, std::future::pending()));
    let (sender, mut result) = oneshot::channel();
    let work = {
        let (metrics, stop) = (metrics.clone(), Arc::clone(&stop));
        move || drop(sender.send(run(&config, &metrics, &stop)))
    };
    let thread = std::thread::Builder::new().name("rekey".to_owned()).spawn(work);
    thread.map_err(|e| ExitError::failed(format!("the thread of rekey cannot be started: {e}")))?;
    let mut stopping: Option<Instant> = None;
    let ended = tokio::select! {
        ended = &mut result => ended,
        () = shutdown => {
            tracing::info!("stopping: waiting for acknowledgements and leaving the group");
            stop.store(true, Ordering::Release);
            stopping = Some(clock::monotonic());
            tokio::time::timeout(STOP, result).await.unwrap_or_else(|_| {
                let seconds = STOP.as_secs();
                let what = format!("rekey did not stop within {seconds} s; its last records are written again at the next start");
                Ok(Err(ExitError::failed(what)))
            })
        }
    };
    let panicked = "rekey panicked; the log above has the place. Please report this bug";
    let ended = ended.unwrap_or_else(|_| Err(ExitError::failed(panicked.to_owned())));
    page.abort();
    if let (Ok(()), Some(since)) = (&ended, stopping) {
        tracing::info!(took_ms = since.elapsed().as_millis(), "stopped");
    }
    ended
}

fn run(config: &Rekeying, metrics: &RekeyMetrics, stop: &Arc<AtomicBool>) -> Result<(), ExitError> {
    let settings = settings(config);
    let Some(RekeyChecks { warnings, largest_batch }) = await_topics(config, &settings, metrics, stop)?
    else {
        return Ok(());
    };
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let settings = Settings { largest_batch, ..settings };
    // The hash has no effect on the bytes of an id.
    let id = IdentityRule::new(config.id.clone(), Hasher::Xxh3);
    let schemas = schemas::start(&config.schemas, stop).map_err(|why| ExitError::new(Exit::Usage, why))?;
    let (by, on_gap) = (config.rekey.partitioner, config.on_gap);
    let rule = RekeyRule { id, schemas, by, on_gap, topic_ids: RefCell::default() };
    let mut replaced: Vec<Instant> = Vec::new();
    let join = || SourceReader::subscribe(&settings, &config.rekey.from, &config.hidden);
    // Only the configuration can make this fail: it sends nothing.
    let mut first = Some(join().map_err(|failed| ExitError::new(Exit::Usage, failed.what))?);
    loop {
        let joined = first.take().map_or_else(join, Ok);
        let ran = joined.and_then(|reader| RekeyLoop::new(&rule, &settings, metrics, &reader)?.run(stop));
        let failure = match ran {
            Ok(()) => return Ok(()),
            Err(failure) => failure,
        };
        if failure.remedy == Remedy::Rejoin {
            replaced.retain(|at| at.elapsed() < REPLACED_PERIOD);
            replaced.push(clock::monotonic());
        }
        if failure.remedy == Remedy::Stop || replaced.len() > REPLACED_MAX {
            metrics.fail(&failure.what);
            return Err(ended(failure));
        }
        // What was not acknowledged is read again from the committed offsets, by new clients: the old ones may have fetched or
        // queued records that were not processed.
        tracing::warn!("{failure}; reading again from the committed offsets");
        metrics.parts.failures.inc();
        metrics.not_ready(&failure.what);
        std::thread::sleep(Duration::from_secs(1));
        if stop.load(Ordering::Acquire) {
            return Ok(());
        }
    }
}

fn ended(failure: Failure) -> ExitError {
    if failure.remedy != Remedy::Rejoin {
        return ExitError::new(Exit::Operator, failure.what);
    }
    let what = "this recurred several times within a minute: another process runs with the same rekey.group and \
                group.instance; give each process its own group.instance";
    ExitError::new(Exit::Fenced, format!("{}; {what}", failure.what))
}

/// Checks the topics; retries until a broker answers. `None` when a stop is requested meanwhile.
fn await_topics(
    config: &Rekeying,
    settings: &Settings,
    metrics: &RekeyMetrics,
    stop: &AtomicBool,
) -> Result<Option<RekeyChecks>, ExitError> {
    let closing = Closing::default();
    let topics = RekeyTopics { from: &config.rekey.from, to: config.rekey.to.as_str() };
    await_broker(|| check_rekey(settings, &topics, &closing), |why| metrics.not_ready(why), stop)
}

/// The settings of the clients: those of `run`, with the target in the place of the clean topic.
fn settings(config: &Rekeying) -> Settings {
    let (to, group) = (config.rekey.to.as_str(), &config.rekey.group);
    Settings {
        bootstrap_servers: config.kafka.bootstrap_servers.clone(),
        properties: config.kafka.properties.iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect(),
        raw: config.rekey.from.join(","),
        clean: to.to_owned(),
        state: to.to_owned(),
        dead_letter: None,
        duplicates: None,
        group: group.clone(),
        transactional_id: String::new(),
        client_id: format!("{group}.{}", config.instance),
        instance: config.static_membership.then(|| config.instance.clone()),
        session_timeout: config.session_timeout,
        // Without transactions it has no effect.
        transaction_timeout: config.session_timeout,
        // A tenth of it is `linger.ms`.
        interval: Duration::from_millis(50),
        largest_batch: None,
        partitions: 0,
    }
}
