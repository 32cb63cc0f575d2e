//! What a client says about its connections and its properties, in words that help. Also for `audit` and `generate`.
//!
//! Calls fail with "timed out" or "all brokers down" whatever the reason. The reason stands only in the
//! text of an error event, in OpenSSL's words or the client's own.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::Metadata;
use rdkafka::{ClientConfig, ClientContext};

use super::ends::Quiet;
use super::native;
use crate::clock;

/// For how long a complaint explains calls that fail. The client repeats the same one every 30 s.
const FRESH: Duration = Duration::from_secs(45);
/// How long a client's events are read for a reason.
const EVENTS: Duration = Duration::from_millis(300);
/// How long it may take to learn what is wrong with a certificate.
const CERTIFICATE: Duration = Duration::from_secs(3);

/// How long a command that is not the service tries to reach a broker.
const REACH: Duration = Duration::from_secs(15);
/// How long one question of it waits.
const ANSWER: Duration = Duration::from_secs(2);
/// For so long a refusal has to last: one broker of several may be wrong.
const REFUSED: Duration = Duration::from_secs(3);

/// Why a connection cannot be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    /// What happened, to which broker, and what to do.
    pub what: String,
    /// A broker was there and said no: waiting does not help, and no outage looks like this.
    pub refused: bool,
    /// It is about the broker's certificate.
    certificate: bool,
}

/// The latest complaint of a client.
#[derive(Debug, Default)]
pub struct Heard(Mutex<Option<(Instant, Complaint)>>);

impl Heard {
    /// Notes the reason of an error event or of a line of the client's log, if it is one that is understood.
    pub fn note(&self, reason: &str) {
        let Some(complaint) = complaint(reason) else { return };
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = said.as_ref().is_some_and(|(when, known)| known.refused && when.elapsed() < FRESH);
        if complaint.refused || !refused {
            *said = Some((clock::monotonic(), complaint));
        }
    }

    /// What was said lately.
    pub(super) fn latest(&self) -> Option<Complaint> {
        let said = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        said.filter(|(when, _)| when.elapsed() < FRESH).map(|(_, complaint)| complaint)
    }

    /// Forgets everything: a connection stands.
    pub(super) fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// The context of a client that is asked why it cannot connect.
#[derive(Debug, Default)]
pub struct Listening {
    heard: Heard,
    /// The last error that it told, in the client's own words.
    last: Mutex<Option<(KafkaError, String)>>,
}

impl Listening {
    /// A reader of this configuration that says why it cannot connect.
    pub fn reader(mut config: ClientConfig) -> Result<BaseConsumer<Self>, KafkaError> {
        // A broker that closes the connection without a word is not an error to the client, only a line.
        config.set("log.connection.close", "true");
        if (config.log_level as i32) < (RDKafkaLogLevel::Info as i32) {
            config.set_log_level(RDKafkaLogLevel::Info);
        }
        config.create_with_context(Self::default())
    }

    /// The last error that the client told, with its reason.
    pub fn last(&self) -> Option<(KafkaError, String)> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ClientContext for Listening {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        if facility == "FAIL" {
            self.heard.note(unthreaded(message));
        }
        Quiet.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.heard.note(reason);
        Quiet.error(error.clone(), reason);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::PartitionEOF) => {}
            // Comes after the reason and only repeats that there is one.
            Some(RDKafkaErrorCode::AllBrokersDown) if last.is_some() => {}
            _ => *last = Some((error, reason.to_owned())),
        }
    }
}

impl ConsumerContext for Listening {}

/// What a client says of an error, without the value of a property: a mistyped name may hold a secret, and so may
/// a value that is where another belongs.
pub fn said(error: &KafkaError) -> String {
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
            format!("the Kafka client cannot be made: {what}; correct what is set under [kafka.properties]")
        }
        other => other.to_string(),
    }
}

/// Asks for a topic, until a broker answers, refuses for good, or it has taken too long. The error is the last one,
/// with the reason where that is known.
pub fn metadata(
    client: &BaseConsumer<Listening>,
    config: &ClientConfig,
    topic: &str,
) -> Result<Metadata, (KafkaError, Option<Complaint>)> {
    let began = clock::monotonic();
    let mut refused_since: Option<Instant> = None;
    loop {
        let error = match client.fetch_metadata(Some(topic), ANSWER) {
            Ok(metadata) => return Ok(metadata),
            Err(error) => error,
        };
        events(client);
        let refused = client.context().heard.latest().is_some_and(|it| it.refused);
        refused_since = refused.then(|| refused_since.unwrap_or_else(clock::monotonic));
        if refused_since.is_some_and(|since| since.elapsed() >= REFUSED) || began.elapsed() >= REACH {
            return Err((error, complaint_of(client, config)));
        }
    }
}

/// Why this client, for which a call has just failed, has no connection. Looks closer where a
/// certificate is the reason.
pub fn complaint_of(client: &BaseConsumer<Listening>, config: &ClientConfig) -> Option<Complaint> {
    events(client);
    let complaint = client.context().heard.latest()?;
    if !complaint.certificate {
        return Some(complaint);
    }
    match native::judged_certificate(config, CERTIFICATE) {
        Some(verdict) => {
            let verdict = unthreaded(&verdict);
            Some(Complaint {
                what: format!("the broker's certificate is not accepted: {verdict}"),
                ..complaint
            })
        }
        None => Some(complaint),
    }
}

/// Takes in what the client has to tell: events wait until somebody polls, errors among lines of the log.
fn events(client: &BaseConsumer<Listening>) {
    let deadline = clock::monotonic() + EVENTS;
    while clock::monotonic() < deadline && !client.context().heard.latest().is_some_and(|it| it.refused) {
        drop(client.poll(EVENTS / 10));
    }
}

/// A line of the client's log without the name of a thread in front.
fn unthreaded(line: &str) -> &str {
    line.split_once("]: ").map_or(line, |(_, said)| said)
}

/// A reason as it can be recognised.
struct Known {
    /// One of these is in it, in small letters.
    words: &'static [&'static str],
    /// The broker was there and said no.
    refused: bool,
    /// It is about the broker's certificate.
    certificate: bool,
    /// What it means, and what to do.
    what: &'static str,
}

const KNOWN: [Known; 6] = [
    Known {
        words: &["certificate verify failed", "failed to verify broker certificate"],
        refused: true,
        certificate: true,
        what: "the broker's certificate is not accepted; check ssl.ca.location, that it has not expired, and that it names \
               the host",
    },
    Known {
        words: &[
            "alert certificate",
            "alert bad certificate",
            "alert unknown ca",
            "alert unsupported certificate",
            "ssl authentication might be required",
        ],
        refused: true,
        certificate: false,
        what: "the broker does not accept this client's certificate; set ssl.certificate.location and ssl.key.location to \
               one that has not expired and is issued by an authority in the broker's truststore",
    },
    Known {
        words: &["sasl authentication error", "sasl authentication failure", "failed to initialize sasl"],
        refused: true,
        certificate: false,
        what: "the broker does not accept user or password; correct sasl.username and sasl.password (or the file of \
               sasl.password.file), or create the user for this mechanism on the broker",
    },
    Known {
        words: &["connecting to a plaintext broker listener", "wrong version number", "record layer failure"],
        refused: false,
        certificate: false,
        what: "security.protocol asks for TLS, and this port seems not to speak it; if the broker is up, correct the port \
               in kafka.bootstrap_servers, or security.protocol",
    },
    Known {
        words: &["connecting to a ssl listener", "invalid response size", "invalid frame size"],
        refused: false,
        certificate: false,
        what: WANTS_TLS,
    },
    Known {
        words: &["failed to resolve"],
        refused: false,
        certificate: false,
        what: "the name of the broker is not known here; correct kafka.bootstrap_servers, the broker's \
               advertised.listeners, or the name service",
    },
];
const WANTS_TLS: &str = "this port seems to want TLS, and security.protocol does not ask for it; if the broker is up, set \
    security.protocol to ssl or sasl_ssl, or correct the port in kafka.bootstrap_servers";
const WANTS_SASL: &str = "this port seems to want SASL, and security.protocol does not ask for it; if the broker is up, set \
    security.protocol and sasl.mechanism, or correct the port in kafka.bootstrap_servers";

fn complaint(reason: &str) -> Option<Complaint> {
    let text = reason.to_lowercase();
    if let Some((_, offered)) = text.split_once("broker's supported mechanisms: ") {
        // Without a list it is a connection that ended meanwhile.
        let listed = offered.split('(').next().is_some_and(|list| !list.trim().is_empty());
        return listed.then(|| Complaint {
            what: format!(
                "the broker does not offer this SASL mechanism: {reason}; set sasl.mechanism to one that it supports, or \
                 enable this one on the broker"
            ),
            refused: true,
            certificate: false,
        });
    }
    // An answer that never came is no refusal, whatever was asked.
    if text.contains("saslauthenticaterequest failed") {
        return None;
    }
    if let Some(known) = KNOWN.iter().find(|known| known.words.iter().any(|word| text.contains(word))) {
        let Known { refused, certificate, what, .. } = known;
        let (refused, certificate) = (*refused, *certificate);
        return Some(Complaint { what: format!("{what} ({reason})"), refused, certificate });
    }
    closed(&text).map(|what| Complaint {
        what: format!("{what} ({reason})"),
        refused: false,
        certificate: false,
    })
}

/// What it may mean that a broker closes the connection without a word: it does that to the first thing it does
/// not expect. In front of the reason stands the protocol, unless it is the plain one.
fn closed(text: &str) -> Option<&'static str> {
    if !text.contains("disconnected") || text.contains("ssl://") {
        None
    } else if text.contains("in state apiversion_query") {
        Some(WANTS_TLS)
    } else if text.contains("in state up") && !text.contains("sasl_plaintext://") {
        Some(WANTS_SASL)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_from_a_connection_that_ended_in_the_middle() {
        for (reason, refused) in [
            ("SASL authentication error: Authentication failed: Invalid username or password", Some(true)),
            (
                "SASL authentication error: SaslAuthenticateRequest failed: Local: Broker transport failure",
                None,
            ),
            (
                "SASL PLAIN mechanism handshake failed: Local: Broker transport failure: broker's supported \
                 mechanisms:  (after 2ms in state AUTH_HANDSHAKE)",
                None,
            ),
            (
                "SASL X mechanism handshake failed: Broker: Unsupported SASL mechanism: broker's supported \
                 mechanisms: PLAIN (after 2ms in state AUTH_HANDSHAKE)",
                Some(true),
            ),
            (
                "ssl://b:1/1: SSL handshake failed: error:0A000086:SSL routines::certificate verify failed",
                Some(true),
            ),
            (
                "ssl://b:1/1: Receive failed: error:0A00045C:SSL routines::tlsv13 alert certificate required",
                Some(true),
            ),
            (
                "ssl://b:1/1: SSL handshake failed: Disconnected: connecting to a PLAINTEXT broker listener?",
                Some(false),
            ),
            (
                "b:1/1: Disconnected: connection closed by peer (after 0ms in state APIVERSION_QUERY)",
                Some(false),
            ),
            (
                "ssl://b:1/1: Disconnected: connection closed by peer (after 0ms in state APIVERSION_QUERY)",
                None,
            ),
            (
                "b:1/1: Connect to ipv4#127.0.0.1:1 failed: Connection refused (after 0ms in state CONNECT)",
                None,
            ),
        ] {
            assert_eq!(complaint(reason).map(|it| it.refused), refused, "{reason}");
        }
    }

    #[test]
    fn a_refusal_is_not_forgotten_for_what_follows_from_it() {
        let heard = Heard::default();
        heard.note("b:1/1: Disconnected: connection closed by peer (after 0ms in state APIVERSION_QUERY)");
        assert!(!heard.latest().unwrap().refused);
        heard.note("SASL authentication error: Authentication failed");
        heard.note("b:1/1: Disconnected: connection closed by peer (after 0ms in state UP)");
        assert!(heard.latest().unwrap().refused);
        heard.clear();
        assert_eq!(heard.latest(), None);
    }
}
