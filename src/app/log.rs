//! The log: one line for each thing an operator may have to know, on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::cli::LogFormat;

/// What is logged unless `RUST_LOG` says otherwise. Failures of the client reach the log through the
/// worker that has to do something about them; its own lines repeat each a dozen times.
const DEFAULT: &str = "info,rdkafka=off,librdkafka=off,sled=warn";

/// Starts the log. A second call does nothing.
pub fn begin(format: LogFormat) {
    start(format, DEFAULT);
}

/// Starts the log for a command whose output is for people: warnings and worse.
pub fn begin_quietly() {
    start(LogFormat::Text, "error,rdkafka=off,librdkafka=off");
}

fn start(format: LogFormat, default: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    let log = log.with_ansi(std::io::stderr().is_terminal());
    let begun = match format {
        LogFormat::Text => log.try_init(),
        LogFormat::Json => log.json().try_init(),
    };
    drop(begun);
}
