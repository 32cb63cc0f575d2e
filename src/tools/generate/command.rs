//! The command `generate`: runs until all records are written or a signal arrives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::ProgressBar;

use super::{EventShape, GenerateError, Options, Summary};
use crate::app::{Ended, runtime, signal};
use crate::cli::{Exit, GenerateArgs};
use crate::tools::properties;

/// Runs until all records are written or a signal arrives.
pub fn command(args: &GenerateArgs) -> Result<Summary, Ended> {
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
            let summary = super::run(&options, &stop, |progress| bar.set_position(progress.delivered));
            bar.finish_and_clear();
            summary
        });
        let summary = done.await.map_err(|e| Ended::failed(format!("the generator panicked: {e}")))?;
        summary.map_err(|error| {
            let is_usage = matches!(error, GenerateError::Settings(_));
            Ended::new(if is_usage { Exit::Usage } else { Exit::Operator }, error.to_string())
        })
    })
}
