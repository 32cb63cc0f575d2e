//! The log on standard error, and the list of the last warnings.

use std::fmt::Write as _;
use std::io::IsTerminal;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, reload};

use super::ExitError;
use crate::cli::LogFormat;
use crate::clock;
use crate::control::LogFilter;
use crate::metrics::{Recent, Warning};

/// The default filter, replaced by `RUST_LOG`. Failures of the Kafka client are logged by the worker that handles
/// them, and outages of a broker by `kafka::outages`; the client's own lines repeat each a dozen times.
const DEFAULT: &str = "info,rdkafka=off,librdkafka=off,sled=warn";

/// The log of this process.
#[derive(Default)]
pub struct Log {
    /// Its last warnings.
    pub recent: Recent,
    /// Replaces its filter.
    pub filter: LogFilter,
}

/// Starts the log. A second call does not start another log.
pub fn begin(format: LogFormat) -> Log {
    start(format, DEFAULT)
}

/// Starts the log for a command whose output is for people: errors only.
pub fn begin_quietly() {
    start(LogFormat::Text, "error,rdkafka=off,librdkafka=off");
}

fn start(format: LogFormat, default: &'static str) -> Log {
    let first = move || EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let (filter, handle) = reload::Layer::new(first());
    let replace = move |text: &str| {
        let filter = match text {
            "" => first(),
            text => EnvFilter::try_new(text).map_err(|error| error.to_string())?,
        };
        let shown = filter.to_string();
        handle.reload(filter).map_err(|error| error.to_string())?;
        Ok(shown)
    };
    let recent = Recent::default();
    let warnings = WarningLayer { recent: recent.clone() };
    drop(tracing_subscriber::registry().with(filter).with(lines(format)).with(warnings).try_init());
    Log { recent, filter: LogFilter::new(replace) }
}

/// The layer that writes the lines.
fn lines<S>(format: LogFormat) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal());
    match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().boxed(),
    }
}

/// Writes why the process ends: in JSON an event with the exit code. No filter applies, and the log need not have started: an
/// invalid configuration ends the process before that.
pub fn log_end(ended: &ExitError, format: LogFormat) {
    match format {
        LogFormat::Text => eprintln!("dedupd: {ended}"),
        LogFormat::Json => {
            tracing::subscriber::with_default(tracing_subscriber::registry().with(lines(format)), || {
                tracing::error!(exit_code = ended.exit.code(), "{ended}");
            });
        }
    }
}

/// Adds warnings and errors to the list of the status page.
struct WarningLayer {
    recent: Recent,
}

impl<S: Subscriber> Layer<S> for WarningLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() > Level::WARN {
            return;
        }
        let mut line = LogLine::default();
        event.record(&mut line);
        let text = format!("{}{}", line.message, line.fields);
        self.recent.add(Warning { time_ms: clock::wall_ms(), text });
    }
}

/// An event formatted as one line.
#[derive(Default)]
struct LogLine {
    message: String,
    fields: String,
}

impl Visit for LogLine {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing into a String cannot fail.
        let written = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
        written.ok();
    }
}
