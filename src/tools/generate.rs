//! `dedupd generate`: load with real duplicates, from the crate `testkit`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::ProgressBar;
use rdkafka::consumer::Consumer;
use rdkafka::error::KafkaError;
use testkit::generate::{self, EventShape, GenerateError, Options, Summary};

use crate::app::{ExitError, runtime, signal};
use crate::cli::{Exit, GenerateArgs};
use crate::kafka::connection::{self, ProblemCapture, error_text};
use crate::tools::properties;

/// Runs until all records are written or a signal arrives.
pub fn command(args: &GenerateArgs) -> Result<Summary, ExitError> {
    let options = Options {
        bootstrap_servers: args.bootstrap_servers.clone(),
        properties: properties(&args.properties)?,
        topic: args.topic.clone(),
        partitions: args.partitions,
        shape: EventShape {
            seed: args.seed.unwrap_or_else(|| fastrand::u64(..)),
            size: args.size.0,
            duplicates: args.duplicates,
            keys: args.keys,
            repeatable: generate::REPEATABLE,
        },
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
    let rejected = |error: KafkaError| ExitError::new(Exit::Usage, error_text(&error));
    let config = options.client_config().map_err(ended)?;
    let client = ProblemCapture::reader(config.clone()).map_err(rejected)?;
    let unreachable = |error: &KafkaError, problem| {
        let last = client.context().last();
        let why = last.map_or_else(|| error.to_string(), |(_, reason)| reason);
        let servers = &options.bootstrap_servers;
        match problem {
            Some(problem) => ExitError::not_connected(servers, &problem),
            None => ExitError::new(
                Exit::Unreachable,
                format!(
                    "no broker of {servers} responds: {why}; check the address, the network and that Kafka runs"
                ),
            ),
        }
    };
    connection::metadata(&client, &config, &options.topic)
        .map_err(|(error, problem)| unreachable(&error, problem))?;
    generate::run(options, stop, |progress| bar.set_position(progress.delivered)).map_err(|error| match error
    {
        GenerateError::Settings(error) => rejected(error),
        GenerateError::Kafka(error) => unreachable(&error, connection::connection_problem(&client, &config)),
        other => ended(other),
    })
}
