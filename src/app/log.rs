//! The log on standard error, and the list of the last warnings.

use std::io::{IsTerminal, Write as _};
use std::sync::OnceLock;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::Value;
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

/// The process that writes the log. Each JSON line names it.
#[derive(Debug)]
pub struct LogOrigin {
    /// The name of this instance.
    pub instance: String,
    /// The consumer group.
    pub group: String,
}

/// A process has one log. Until it has started, the origin is not known.
static ORIGIN: OnceLock<LogOrigin> = OnceLock::new();

/// The log of this process.
#[derive(Default)]
pub struct Log {
    /// Its last warnings.
    pub recent: Recent,
    /// Replaces its filter.
    pub filter: LogFilter,
}

/// Starts the log. A second call does not start another log.
pub fn begin(format: LogFormat, origin: LogOrigin) -> Log {
    ORIGIN.set(origin).ok();
    start(format, DEFAULT)
}

/// Starts the log for a command whose output is for people: errors only.
pub fn begin_quietly() {
    start(LogFormat::Text, "error,rdkafka=off,librdkafka=off");
}

fn start(format: LogFormat, default: &'static str) -> Log {
    let first = move || EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let (filter, handle) = reload::Layer::new(with_requests(first()));
    let replace = move |text: &str| {
        let filter = match text {
            "" => first(),
            text => EnvFilter::try_new(text).map_err(|error| error.to_string())?,
        };
        let shown = filter.to_string();
        handle.reload(with_requests(filter)).map_err(|error| error.to_string())?;
        Ok(shown)
    };
    let recent = Recent::default();
    let warnings = WarningLayer { recent: recent.clone() };
    drop(tracing_subscriber::registry().with(filter).with(lines(format)).with(warnings).try_init());
    Log { recent, filter: LogFilter::new(replace) }
}

/// The filter, with what requests of the admin API have changed at any level.
fn with_requests(filter: EnvFilter) -> EnvFilter {
    match "dedupd::control=info".parse() {
        Ok(directive) => filter.add_directive(directive),
        Err(_) => filter,
    }
}

/// The layer that writes the lines.
fn lines<S>(format: LogFormat) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    match format {
        LogFormat::Text => tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .with_target(false)
            .with_ansi(std::io::stderr().is_terminal())
            .boxed(),
        LogFormat::Json => JsonLayer.boxed(),
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
        let LogLine { message, fields } = LogLine::of(event);
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
        let fields: String =
            fields.iter().map(|(name, value)| [" ", name, "=", &text(value)].concat()).collect();
        self.recent.add(Warning { time_ms: clock::wall_ms(), text: format!("{message}{fields}") });
    }
}

/// Writes an event as one JSON object without nested ones, numbers as numbers.
struct JsonLayer;

impl<S: Subscriber> Layer<S> for JsonLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let LogLine { message, fields } = LogLine::of(event);
        let since = Duration::from_millis(u64::try_from(clock::wall_ms()).unwrap_or(0));
        let time = humantime::format_rfc3339_millis(UNIX_EPOCH + since).to_string();
        let level = event.metadata().level().as_str();
        let mut members: Vec<(_, Value)> =
            vec![("timestamp", time.into()), ("level", level.into()), ("message", message.into())];
        if let Some(LogOrigin { instance, group }) = ORIGIN.get() {
            members.extend([("instance", instance.as_str().into()), ("group", group.as_str().into())]);
        }
        let constants = members.len();
        for (name, value) in fields {
            if !members.iter().take(constants).any(|(known, _)| *known == name) {
                members.push((name, value));
            }
        }
        let members: Vec<_> =
            members.iter().map(|(name, value)| format!("{}:{value}", Value::from(*name))).collect();
        // Without a reader of standard error there is nobody to report a failure to.
        std::io::stderr().write_all(format!("{{{}}}\n", members.join(",")).as_bytes()).ok();
    }
}

/// The message of an event, and its other fields.
#[derive(Default)]
struct LogLine {
    message: String,
    fields: Vec<(&'static str, Value)>,
}

impl LogLine {
    fn of(event: &Event<'_>) -> Self {
        let mut line = Self::default();
        event.record(&mut line);
        line
    }

    fn add(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            (name, value) => self.fields.push((name, value)),
        }
    }
}

impl Visit for LogLine {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    /// Milliseconds of a duration have this type.
    fn record_u128(&mut self, field: &Field, value: u128) {
        self.add(field, u64::try_from(value).unwrap_or(u64::MAX).into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.add(field, format!("{value:?}").into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_filter_hides_what_an_operator_has_changed() {
        for text in ["off", "error", "info,dedupd=off", "dedupd::control=off"] {
            let recent = Recent::default();
            let layer = WarningLayer { recent: recent.clone() };
            let log = tracing_subscriber::registry().with(with_requests(EnvFilter::new(text))).with(layer);
            tracing::subscriber::with_default(log, || {
                tracing::warn!("hidden");
                drop(LogFilter::new(|text| Ok(text.to_owned())).replace(text));
            });
            let lines: Vec<_> = recent.list().into_iter().map(|it| it.text).collect();
            assert_eq!(lines, [format!("the filter of the log was replaced filter={text}")], "{text}");
        }
    }

    #[test]
    fn a_warning_has_its_fields_without_quotes() {
        let recent = Recent::default();
        let layer = tracing_subscriber::registry().with(WarningLayer { recent: recent.clone() });
        let took = Duration::from_millis(1_500);
        tracing::subscriber::with_default(layer, || {
            tracing::warn!(took_ms = took.as_millis(), topic = "raw", offset = 7_u64, "{} here", 1);
        });
        assert_eq!(recent.list()[0].text, "1 here took_ms=1500 topic=raw offset=7");
    }
}
