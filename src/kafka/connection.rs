//! Why a client has no connection or does not accept its properties, with the action to take. `generate` uses the clients and
//! the texts, the command `audit` only the texts.
//!
//! Calls fail with "timed out" or "all brokers down" whatever the reason. The reason is only in the text of an error event
//! or log line, written by OpenSSL or by the client.

mod known;
mod probe;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use dedupd_tokens::{self as tokens, Authenticated};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::Metadata;
use rdkafka::types::RDKafka;
use rdkafka::{ClientConfig, ClientContext};

use super::features::ApiVersions;
use super::log_context::LogContext;
use super::native;
use crate::clock;
use crate::locked::Locked;
use known::{KNOWN, KnownProblem, NO_SASL, ProblemDetail, UNSUPPORTED_MECHANISM, closed_without_error};
pub(crate) use probe::{NoConnection, Probe};

/// Maximum age of a problem that is used to explain a failed call. The client repeats the same one every 30 s.
const MAX_AGE: Duration = Duration::from_secs(45);
/// How long the events of a client are read to find a reason.
const EVENT_WAIT: Duration = Duration::from_millis(300);
/// Time limit for the extra connection that finds out why a certificate is not accepted.
const CERTIFICATE_WAIT: Duration = Duration::from_secs(3);

/// How long a command other than `run` tries to reach a broker.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Time limit of one request of such a command.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a rejection must last before it is final: one of several brokers may be misconfigured.
const REJECTION_TIME: Duration = Duration::from_secs(3);
/// The property with the URL of the OIDC provider.
const TOKEN_ENDPOINT: &str = "sasl.oauthbearer.token.endpoint.url";

/// Why a connection fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionProblem {
    /// What happened, to which broker, and what to do.
    pub what: String,
    /// A broker was reached and rejected the connection: waiting does not help, and an outage does not look like this.
    pub refused: bool,
    detail: ProblemDetail,
}

/// The last connection problem that a client reported.
#[derive(Debug, Default)]
pub struct LastProblem(Mutex<Option<(Instant, ConnectionProblem)>>);

impl LastProblem {
    /// Stores the problem behind an error event or a line of the client's log, when the text is recognised. A recent
    /// rejection is not replaced by a problem that is no rejection, which is often only its consequence.
    pub fn record(&self, reason: &str) {
        let Some(problem) = classify(reason) else { return };
        let mut last = self.0.locked();
        let rejected = last.as_ref().is_some_and(|(at, known)| known.refused && at.elapsed() < MAX_AGE);
        if problem.refused || !rejected {
            *last = Some((clock::monotonic(), problem));
        }
    }

    /// The last problem, unless it is too old to explain a call that fails now.
    pub(super) fn latest(&self) -> Option<ConnectionProblem> {
        let last = self.0.locked().clone();
        last.filter(|(at, _)| at.elapsed() < MAX_AGE).map(|(_, problem)| problem)
    }

    /// Removes the stored problem, because a connection works.
    pub(super) fn clear(&self) {
        *self.0.locked() = None;
    }
}

/// An error with the text of its event.
pub type ErrorEvent = (KafkaError, String);

/// The context of a client whose connection problems are reported to the user by its owner.
#[derive(Debug, Default)]
pub struct ProblemCapture {
    problem: LastProblem,
    /// The versions of the brokers' APIs, when the client logs them.
    pub(super) versions: ApiVersions,
    /// The last error event with its text.
    last: Mutex<Option<ErrorEvent>>,
}

impl ProblemCapture {
    /// A reader with this configuration whose context collects connection problems.
    pub fn reader(mut config: ClientConfig) -> Result<Authenticated<BaseConsumer<Self>>, KafkaError> {
        // When a broker closes the connection without an error, the client raises no error event, only a log line.
        config.set("log.connection.close", "true");
        if (config.log_level as i32) < (RDKafkaLogLevel::Info as i32) {
            config.set_log_level(RDKafkaLogLevel::Info);
        }
        tokens::create(&config, Self::default())
    }

    /// The last error event of the client, with its text.
    pub fn last(&self) -> Option<ErrorEvent> {
        self.last.locked().clone()
    }
}

impl ClientContext for ProblemCapture {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        if facility == "FAIL" {
            self.problem.record(without_thread(message));
        }
        if facility == ApiVersions::FACILITY {
            self.versions.record(message);
        }
        LogContext.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.problem.record(reason);
        LogContext::debug(&error, reason);
        let last = &mut *self.last.locked();
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::PartitionEOF) => {}
            // It follows the actual error and adds nothing to it.
            Some(RDKafkaErrorCode::AllBrokersDown) if last.is_some() => {}
            _ => *last = Some((error, reason.to_owned())),
        }
    }
}

impl ConsumerContext for ProblemCapture {}

/// Gives tokens to a client that another package creates. The result must be dropped before the client.
pub fn attach_tokens(config: &ClientConfig, client: *mut RDKafka) -> Result<Box<dyn Send>, KafkaError> {
    Ok(Box::new(tokens::attach(config, client)?))
}

/// The text of a client error without the value of a property. The value may hold a secret: under a mistyped name, or
/// when it was set for the wrong property.
pub fn error_text(error: &KafkaError) -> String {
    match error {
        KafkaError::ClientConfig(_, what, name, value) => {
            let what = if !value.is_empty() && what.contains(value.as_str()) {
                "its value is not accepted"
            } else {
                what
            };
            format!("kafka.properties.{name}: {what}; correct it, or leave it out")
        }
        KafkaError::ClientCreation(what) => {
            format!(
                "the Kafka client cannot be created: {what}; correct the properties under [kafka.properties]"
            )
        }
        // The client writes so that a topic has no id.
        other => other.to_string().replace("((null))[", "["),
    }
}

/// Requests the metadata of a topic until a broker responds, a rejection has lasted for `REJECTION_TIME`, or
/// `CONNECT_TIMEOUT` has passed. The error is the last one, with the reason when it is known.
pub fn metadata(
    client: &BaseConsumer<ProblemCapture>,
    config: &ClientConfig,
    topic: &str,
) -> Result<Metadata, (KafkaError, Option<ConnectionProblem>)> {
    let start = clock::monotonic();
    let mut rejected_since: Option<Instant> = None;
    loop {
        let error = match client.fetch_metadata(Some(topic), REQUEST_TIMEOUT) {
            Ok(metadata) => return Ok(metadata),
            Err(error) => error,
        };
        serve_events(client);
        let rejected = client.context().problem.latest().is_some_and(|it| it.refused);
        rejected_since = rejected.then(|| rejected_since.unwrap_or_else(clock::monotonic));
        if rejected_since.is_some_and(|since| since.elapsed() >= REJECTION_TIME)
            || start.elapsed() >= CONNECT_TIMEOUT
        {
            return Err((error, connection_problem(client, config)));
        }
    }
}

/// Why this client has no connection; for use after a failed call. `None` when the client reports no reason that is recognised.
pub fn connection_problem(
    client: &BaseConsumer<ProblemCapture>,
    config: &ClientConfig,
) -> Option<ConnectionProblem> {
    serve_events(client);
    Some(with_detail(client.context().problem.latest()?, config))
}

/// The explanation of a failed connection, from the texts of error events and log lines of a client with these properties, the
/// last text at the end; `None` when none is recognised.
pub fn explanation(
    texts: &[String],
    servers: &str,
    properties: &[(String, String)],
) -> Option<ConnectionProblem> {
    let problem = LastProblem::default();
    for text in texts {
        problem.record(text);
    }
    let mut config: ClientConfig = properties.iter().cloned().collect();
    config.set("bootstrap.servers", servers);
    Some(with_detail(problem.latest()?, &config))
}

/// The problem with what its text does not contain. An extra connection finds out what is wrong with the broker's certificate.
fn with_detail(problem: ConnectionProblem, config: &ClientConfig) -> ConnectionProblem {
    let what = match problem.detail {
        ProblemDetail::Nothing => None,
        ProblemDetail::BrokerCertificate => native::certificate_rejection(config, CERTIFICATE_WAIT)
            .map(|reason| format!("the broker's certificate is not accepted: {}", without_thread(&reason))),
        ProblemDetail::TokenEndpoint => {
            config.get(TOKEN_ENDPOINT).map(|endpoint| format!("{endpoint}: {}", problem.what))
        }
    };
    ConnectionProblem { what: what.unwrap_or(problem.what), ..problem }
}

/// Serves the client's events, so that its context receives errors and log lines: they are queued until the next poll.
/// Stops at the first rejection.
fn serve_events(client: &BaseConsumer<ProblemCapture>) {
    let deadline = clock::monotonic() + EVENT_WAIT;
    while clock::monotonic() < deadline && !client.context().problem.latest().is_some_and(|it| it.refused) {
        drop(client.poll(EVENT_WAIT / 10));
    }
}

/// A line of the client's log without the leading thread name.
fn without_thread(line: &str) -> &str {
    line.split_once("]: ").map_or(line, |(_, text)| text)
}

/// The problem behind the text of an error event or log line; `None` when it is not recognised.
fn classify(reason: &str) -> Option<ConnectionProblem> {
    let text = reason.to_lowercase();
    if let Some(is_listed) = offers_other_mechanisms(&text) {
        return is_listed.then(|| ConnectionProblem {
            what: format!("the broker does not offer this SASL mechanism: {reason}; {UNSUPPORTED_MECHANISM}"),
            refused: true,
            detail: ProblemDetail::Nothing,
        });
    }
    // A missing response is not a rejection.
    if text.contains("saslauthenticaterequest failed") {
        return None;
    }
    // What differs from one attempt to the next would be logged each time.
    let reason = reason.split(" (after ").next().unwrap_or(reason);
    if let Some(known) = KNOWN.iter().find(|known| known.is_in(&text)) {
        let KnownProblem { refused, detail, what, .. } = *known;
        return Some(ConnectionProblem { what: format!("{what} ({reason})"), refused, detail });
    }
    closed_without_error(&text).map(|what| ConnectionProblem {
        what: format!("{what} ({reason})"),
        refused: false,
        detail: ProblemDetail::Nothing,
    })
}

/// Whether the text of a failed SASL handshake lists the mechanisms of the broker; `None` when it is another text. An empty list
/// means that the connection was closed during the handshake, or that the broker expected another request.
fn offers_other_mechanisms(lower_case: &str) -> Option<bool> {
    let text = Some(lower_case).filter(|text| !text.contains(NO_SASL))?;
    let (_, offered) = text.split_once("broker's supported mechanisms: ")?;
    Some(offered.split('(').next().is_some_and(|list| !list.trim().is_empty()))
}

/// Meaning and action for the text of a connection error; `None` when it is not recognised.
pub(super) fn advice(reason: &str) -> Option<&'static str> {
    let text = reason.to_lowercase();
    if let Some(is_listed) = offers_other_mechanisms(&text) {
        return is_listed.then_some(UNSUPPORTED_MECHANISM);
    }
    KNOWN.iter().find(|known| known.is_in(&text)).map(|known| known.what)
}

#[cfg(test)]
mod tests;
