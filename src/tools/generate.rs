//! `dedupd generate`: load with real duplicates, from the crate `testkit`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::ProgressBar;
use testkit::generate::{self, EventShape, GenerateError, Options, Summary};

use crate::app::{ExitError, runtime, signal};
use crate::cli::{Exit, GenerateArgs};
use crate::kafka::connection::{NoConnection, Probe, error_text};
use crate::tools::properties;

/// Runs until all records are written or a signal arrives.
pub fn command(args: &GenerateArgs) -> Result<Summary, ExitError> {
    let shape = EventShape {
        seed: args.seed.unwrap_or_else(|| fastrand::u64(..)),
        size: args.size,
        duplicates: args.duplicates,
        keys: args.keys,
        repeatable: generate::REPEATABLE,
    };
    let least = shape.least_size();
    if shape.size < least {
        return Err(ExitError::usage(format!(
            "--size {}: the fields of a value take up to {least} bytes; give at least --size {least}",
            shape.size
        )));
    }
    let options = Options {
        bootstrap_servers: args.bootstrap_servers.clone(),
        properties: properties(&args.properties)?,
        topic: args.topic.clone(),
        partitions: args.partitions,
        shape,
        records: args.records,
        rate: args.rate,
        cut_acks: args.cut_acks,
    };
    let stop = Arc::new(AtomicBool::new(false));
    let stop_requested = Arc::clone(&stop);
    runtime()?.block_on(async {
        tokio::spawn(async move {
            signal().await;
            stop_requested.store(true, Ordering::Release);
        });
        let bar = args.records.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
        let done = tokio::task::spawn_blocking(move || {
            let summary = write(&options, &stop, &bar);
            bar.finish_and_clear();
            summary
        });
        done.await.map_err(|e| ExitError::failed(format!("the generator panicked: {e}")))?
    })
}

/// Connects first, with a client that collects the reasons when that fails.
fn write(options: &Options, stop: &AtomicBool, bar: &ProgressBar) -> Result<Summary, ExitError> {
    let ended = |error: GenerateError| ExitError::new(Exit::StartUp, error.to_string());
    let config = options.client_config().map_err(ended)?;
    let probe = Probe::connect(config, &options.bootstrap_servers, &options.topic, "WRITE")?;
    generate::run(options, stop, |progress| bar.set_position(progress.delivered))
        .map_err(|error| failure(error, &probe))
}

/// Why no load could be written.
pub(super) fn failure(error: GenerateError, probe: &Probe<'_>) -> ExitError {
    match error {
        GenerateError::Settings(error) => NoConnection::Settings(error_text(&error)).into(),
        GenerateError::Kafka(error) => probe.failed(&error).into(),
        other => ExitError::new(Exit::StartUp, other.to_string()),
    }
}
