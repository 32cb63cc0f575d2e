//! The log: one line for each thing an operator may have to know, on standard error.

use std::fmt::Write as _;
use std::io::IsTerminal;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::cli::LogFormat;
use crate::clock;
use crate::metrics::{Recent, Warning};

/// What is logged unless `RUST_LOG` says otherwise. Failures of the client reach the log through the
/// worker that has to do something about them; its own lines repeat each a dozen times.
const DEFAULT: &str = "info,rdkafka=off,librdkafka=off,sled=warn";

/// Starts the log, and gives the list in which it keeps its last warnings. A second call starts nothing.
pub fn begin(format: LogFormat) -> Recent {
    start(format, DEFAULT)
}

/// Starts the log for a command whose output is for people: warnings and worse.
pub fn begin_quietly() {
    start(LogFormat::Text, "error,rdkafka=off,librdkafka=off");
}

fn start(format: LogFormat, default: &str) -> Recent {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal());
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    let recent = Recent::default();
    let kept = Keeping { recent: recent.clone() };
    drop(tracing_subscriber::registry().with(filter).with(lines).with(kept).try_init());
    recent
}

/// Keeps warnings and worse for the status page.
struct Keeping {
    recent: Recent,
}

impl<S: Subscriber> Layer<S> for Keeping {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() > Level::WARN {
            return;
        }
        let mut line = Line::default();
        event.record(&mut line);
        let text = format!("{}{}", line.message, line.fields);
        self.recent.add(Warning { time_ms: clock::wall_ms(), text });
    }
}

/// An event as one line.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing into a text cannot fail.
        let written = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
        written.ok();
    }
}
