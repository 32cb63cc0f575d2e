//! The link of `rekey` to the command line, the signals and the HTTP endpoint.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::stage::{RekeyLoop, RekeyRule};
use crate::app::{ExitError, LogOrigin, Work, await_broker, begin_log, listen, runtime, signal};
use crate::cli::RekeyArgs;
use crate::clock::monotonic;
use crate::config::{Rekeying, load_rekeying};
use crate::dedupe::{Hasher, IdentityRule};
use crate::http::{self, ClientLimits, RekeyEndpoint};
use crate::kafka::{Closing, Create, Settings, SourceReader, check_rekey};
use crate::metrics::{About, RekeyMetrics};
use crate::pipeline::{Fatal, REPLACED_MAX, Rivals, second_process};
use crate::ports::Remedy;
use crate::schemas;

/// Runs until SIGTERM, SIGINT or SIGHUP.
pub fn command(args: &RekeyArgs) -> Result<(), ExitError> {
    let config = load_rekeying(args.config.as_deref(), args.overrides())?;
    let (instance, group) = (config.instance.clone(), config.rekey.group.clone());
    begin_log(args.log_format, LogOrigin { instance, group });
    runtime()?.block_on(serve(config))
}

/// Runs the loop beside the HTTP endpoint.
async fn serve(config: Rekeying) -> Result<(), ExitError> {
    let shutdown = signal();
    let listener = listen(config.listen, "status", "/status.json").await?;
    let (metrics, stop) = (RekeyMetrics::new(about(&config)), Arc::new(AtomicBool::new(false)));
    let endpoint =
        RekeyEndpoint { metrics: metrics.clone(), config: config.show().into(), began: monotonic() };
    let page = tokio::spawn(http::serve(ClientLimits::default(), listener, endpoint, std::future::pending()));
    let work = Work {
        name: "rekey",
        stopping: "waiting for acknowledgements",
        late: ["rekey", "its last records are written again at the next start"],
        first: Arc::default(),
    };
    let stopped = Arc::clone(&stop);
    let ended = work.run(&stop, shutdown, move || run(&config, &metrics, &stopped)).await;
    page.abort();
    ended
}

fn run(config: &Rekeying, metrics: &RekeyMetrics, stop: &Arc<AtomicBool>) -> Result<(), ExitError> {
    let (settings, closing, from) = (settings(config), Closing::default(), &config.rekey.from);
    let create = if config.create { Create::Perform } else { Create::Never };
    let check = || check_rekey(&settings, from, create, &closing);
    let Some(checks) = await_broker(check, |why| metrics.not_ready(why), stop)? else { return Ok(()) };
    checks.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let settings = Settings { largest_batch: checks.largest_batch, ..settings };
    // The hash has no effect on the bytes of an id.
    let id = IdentityRule::new(config.id.clone(), Hasher::Xxh3);
    let schemas = schemas::start(&config.schemas, stop).map_err(ExitError::usage)?;
    let (by, on_gap) = (config.rekey.partitioner, config.on_gap);
    let rule = RekeyRule { id, schemas, by, on_gap, topic_ids: RefCell::default() };
    let (began, mut replaced) = (monotonic(), Rivals::default());
    let join = || SourceReader::subscribe(&settings, from, &config.hidden);
    // Only the configuration can make this fail: it sends nothing.
    let mut first = Some(join().map_err(|failed| ExitError::usage(failed.what))?);
    loop {
        let joined = first.take().map_or_else(join, Ok);
        let ran = joined.and_then(|reader| RekeyLoop::new(&rule, &settings, metrics, &reader)?.run(stop));
        let Err(failure) = ran else { return Ok(()) };
        let is_rival = failure.remedy == Remedy::Rejoin && replaced.exceed(REPLACED_MAX, began.elapsed());
        if failure.remedy == Remedy::Stop || is_rival {
            metrics.fail(&failure.what);
            return Err(ended(failure.what, is_rival).into());
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

fn ended(what: String, is_rival: bool) -> Fatal {
    if is_rival { second_process(&what, "rekey.group and group.instance") } else { Fatal::Operator(what) }
}

/// The identification of this process; its target is the raw topic of `run`.
fn about(config: &Rekeying) -> About {
    About {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        group: config.rekey.group.clone(),
        instance: config.instance.clone(),
        raw: config.rekey.from.join(","),
        clean: config.rekey.to.as_str().to_owned(),
        scope: "rekey".to_owned(),
    }
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
