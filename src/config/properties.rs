//! librdkafka properties: those that are rejected, and those whose values may be printed.

mod security;

use std::collections::BTreeMap;
use std::fmt;

use super::problem::ValueFault;

/// One librdkafka property. `Debug` hides the value unless the property is known to be harmless.
#[derive(Clone, PartialEq, Eq)]
pub struct Property {
    /// The name, as in `security.protocol`.
    pub name: String,
    /// The value as text; librdkafka parses it. It may be a secret.
    pub value: String,
}

impl Property {
    /// Parses `name=value`. The error does not contain the value.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, value)) if !name.trim().is_empty() => {
                Ok(Self { name: name.trim().to_owned(), value: value.to_owned() })
            }
            _ => Err("expected NAME=VALUE, as in security.protocol=sasl_ssl".to_owned()),
        }
    }
}

impl fmt::Debug for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, shown(&self.name, &self.value))
    }
}

/// librdkafka properties for every client, by name. `Debug` hides the values of properties that are not known to be
/// harmless.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Properties(pub(super) BTreeMap<String, String>);

impl Properties {
    /// All names and values, ordered by name. The values include secrets.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The value of a property. It may be a secret.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// All names with printable values, ordered by name: secrets are replaced.
    pub fn shown(&self) -> impl Iterator<Item = (&str, &str)> {
        self.iter().map(|(name, value)| (name, shown(name, value)))
    }
}

impl FromIterator<Property> for Properties {
    fn from_iter<I: IntoIterator<Item = Property>>(properties: I) -> Self {
        Self(properties.into_iter().map(|property| (property.name, property.value)).collect())
    }
}

impl fmt::Debug for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.shown()).finish()
    }
}

/// Replaces a value that may be a secret.
const HIDDEN: &str = "***";

/// The value if the property is known to be harmless, otherwise [`HIDDEN`].
fn shown<'a>(name: &str, value: &'a str) -> &'a str {
    if HARMLESS.contains(&name) { value } else { HIDDEN }
}

/// Properties whose values are never secret. All others are hidden, because a list of secret properties would miss
/// new ones.
const HARMLESS: &[&str] = &[
    "api.version.request.timeout.ms",
    "broker.address.family",
    "broker.address.ttl",
    "client.dns.lookup",
    "client.id",
    "client.rack",
    "compression.codec",
    "compression.level",
    "compression.type",
    "connections.max.idle.ms",
    "debug",
    "enable.metrics.push",
    "enable.ssl.certificate.verification",
    "fetch.error.backoff.ms",
    "fetch.max.bytes",
    "fetch.message.max.bytes",
    "fetch.min.bytes",
    "fetch.wait.max.ms",
    "linger.ms",
    "log_level",
    "max.partition.fetch.bytes",
    "max.poll.interval.ms",
    "metadata.max.age.ms",
    "queue.buffering.max.kbytes",
    "queue.buffering.max.messages",
    "queue.buffering.max.ms",
    "queued.max.messages.kbytes",
    "queued.min.messages",
    "receive.message.max.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "retries",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "sasl.kerberos.keytab",
    "sasl.kerberos.min.time.before.relogin",
    "sasl.kerberos.principal",
    "sasl.kerberos.service.name",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.grant.type",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.scope",
    "security.protocol",
    "socket.connection.setup.timeout.ms",
    "socket.keepalive.enable",
    "socket.nagle.disable",
    "socket.receive.buffer.bytes",
    "socket.send.buffer.bytes",
    "socket.timeout.ms",
    "ssl.endpoint.identification.algorithm",
    "statistics.interval.ms",
    "sticky.partitioning.linger.ms",
    "topic.metadata.refresh.interval.ms",
];

/// The names of the properties that are known to be harmless.
#[cfg(test)]
pub(crate) fn harmless() -> impl Iterator<Item = &'static str> {
    HARMLESS.iter().copied()
}

/// Properties that let a client wait, and their maxima in milliseconds. A client that waits for minutes reads nothing, and looks as if
/// it had nothing to read. The client itself accepts up to an hour.
const WAITS: [(&str, f64); 8] = [
    ("fetch.error.backoff.ms", 10_000.0),
    ("fetch.wait.max.ms", 10_000.0),
    ("linger.ms", 10_000.0),
    ("queue.buffering.max.ms", 10_000.0),
    ("reconnect.backoff.max.ms", 60_000.0),
    ("reconnect.backoff.ms", 60_000.0),
    ("retry.backoff.max.ms", 60_000.0),
    ("retry.backoff.ms", 60_000.0),
];

/// Why a property must not have a value: it would break the exactly-once guarantee, dedupd sets it itself, or clients would wait
/// too long. Also what to do instead.
pub(super) fn rejection(name: &str, value: &str) -> Option<ValueFault> {
    if let Some((_, most)) = WAITS.iter().find(|(it, _)| *it == name) {
        let is_long = value.trim().parse().is_ok_and(|wait: f64| wait > *most);
        let what = "is too long: meanwhile no records would be processed";
        return is_long.then(|| ValueFault::new(what, format!("give at most {most}")));
    }

    let (what, remedy) = match name {
        "bootstrap.servers" | "metadata.broker.list" => {
            ("is set by dedupd for all clients", "set kafka.bootstrap_servers")
        }
        "group.id" => ("is set by dedupd", "set group.id"),
        "group.instance.id" => {
            ("is set by dedupd for each worker", "set group.instance and group.static_membership")
        }
        "session.timeout.ms" => ("must stay above the transaction timeout", "set group.session_timeout"),
        "transaction.timeout.ms" => ("must stay below the session timeout", "set batch.transaction_timeout"),
        "message.timeout.ms" | "delivery.timeout.ms" => {
            ("follows the transaction timeout", "set batch.transaction_timeout")
        }
        "heartbeat.interval.ms" => {
            ("follows the session timeout: members detect a rebalance by it", "set group.session_timeout")
        }
        "message.max.bytes" => (
            "is for the topics to decide: a limit of the client would reject records that they allow",
            "set max.message.bytes of the topic",
        ),
        "auto.offset.reset" => {
            ("would silently skip or repeat records when an offset is out of range", "set group.start")
        }
        _ => (rejected_without_key(name)?, "leave it out"),
    };
    Some(ValueFault::new(what, remedy))
}

/// The reason for the rejection of a property that dedupd fixes and that no configuration key replaces.
fn rejected_without_key(name: &str) -> Option<&'static str> {
    Some(match name {
        "enable.auto.commit" | "auto.commit.enable" | "auto.commit.interval.ms" | "offset.store.method" => {
            "would commit offsets outside the transaction"
        }
        "enable.auto.offset.store" => "would store offsets of records that are not forwarded yet",
        "check.crcs" => "is always true: damaged records must not be forwarded",
        "isolation.level" => "is always read_committed: takeover and restore rely on it",
        "allow.auto.create.topics" => "would create topics with a wrong partition count",
        "transactional.id" => "consists of the group, the instance and the worker: it fences a predecessor",
        "enable.idempotence" | "enable.gapless.guarantee" => "is part of every transaction",
        "acks" | "request.required.acks" => "is always all: a lower value could lose committed records",
        "max.in.flight" | "max.in.flight.requests.per.connection" => {
            "is set by the idempotent producer to keep the order"
        }
        "group.protocol" | "group.remote.assignor" => {
            "is always classic: with the consumer protocol a restarted instance is rejected until its old session has ended"
        }
        "partition.assignment.strategy" => {
            "is always cooperative-sticky: a group cannot mix it with an eager strategy"
        }
        "fetch.queue.backoff.ms" => "is always 20: a longer pause stalls a reader whose queue was full",
        "enable.partition.eof" => "would mix end-of-partition events with the records",
        "delivery.report.only.error" => "would hide the deliveries that a commit waits for",
        "partitioner" => "is not used: every record keeps its partition",
        "queuing.strategy" => "would reorder records",
        "plugin.library.paths" => "would load foreign code into the process",
        "test.mock.num.brokers" | "test.mock.broker.rtt" => "would replace the brokers by simulated ones",
        callback if callback.ends_with("_cb") => "is a callback, and dedupd sets all callbacks",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_property_is_both_printable_and_rejected() {
        for name in HARMLESS {
            assert!(rejection(name, "1").is_none(), "{name}");
        }
    }

    #[test]
    fn debug_hides_values_not_known_to_be_harmless() {
        let properties: Properties = ["client.id=x", "sasl.password=hunter2"]
            .iter()
            .map(|text| Property::parse(text).unwrap())
            .collect();
        assert_eq!(format!("{properties:?}"), r#"{"client.id": "x", "sasl.password": "***"}"#);
        let one = Property::parse("sasl.password=a=b").unwrap();
        assert_eq!(one.value, "a=b");
        assert_eq!(format!("{one:?}"), "sasl.password=***");
    }
}
