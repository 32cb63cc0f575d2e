//! A client of one topic, and why it has no connection.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::metadata::Metadata;

use super::OnClient;
use super::clock;
use super::error::AuditError;
use super::events::Events;

/// How long a topic is looked up before the audit fails.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a rejected connection is retried: one of several brokers may be misconfigured.
const REJECTION_TIME: Duration = Duration::from_secs(3);
/// Time limit of one attempt.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the events of a client are awaited after a failed call.
const EVENT_WAIT: Duration = Duration::from_millis(300);
/// Default of `max.partition.fetch.bytes`: what a leader sends of one partition, bytes.
const RESPONSE_MIN: u64 = 1 << 20;

/// How to connect to the brokers.
pub(super) struct Access<'a> {
    /// `host:port` list.
    pub servers: &'a str,
    /// librdkafka properties.
    pub properties: &'a [(String, String)],
    /// How much the client prefetches, bytes.
    pub prefetch: u64,
    pub on_client: OnClient,
}

impl Access<'_> {
    /// The configuration of a reader. The properties that determine what is read cannot be overridden.
    fn reader(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("client.id", "dedupd.audit")
            .set("reconnect.backoff.max.ms", "1000")
            .set("fetch.wait.max.ms", "50")
            .set("fetch.queue.backoff.ms", "20")
            .set("queued.max.messages.kbytes", (self.prefetch >> 10).clamp(1, 2_097_151).to_string())
            .set("fetch.max.bytes", self.response().to_string());
        for (name, value) in self.properties {
            config.set(name, value);
        }
        config
            .set("bootstrap.servers", self.servers)
            // The client requires a group id to assign partitions; the group is never joined.
            .set("group.id", "dedupd.audit")
            .set("check.crcs", "true")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("enable.partition.eof", "true")
            .set("auto.offset.reset", "error")
            .set("allow.auto.create.topics", "false")
            // A broker that closes a connection without an error causes only a line of the log.
            .set("log.connection.close", "true");
        if (config.log_level as i32) < (RDKafkaLogLevel::Info as i32) {
            config.set_log_level(RDKafkaLogLevel::Info);
        }
        config
    }

    /// Maximum size of a response of a leader, bytes. Its records, uncompressed, exceed the limit of the queue. The default, as
    /// much as the whole queue, is used for many partitions at once. The client rejects less than `message.max.bytes`.
    fn response(&self) -> u64 {
        let least = self.properties.iter().filter(|(name, _)| name == "message.max.bytes");
        let least = least.filter_map(|(_, value)| value.parse().ok()).max().unwrap_or(0);
        (self.prefetch / 16).max(RESPONSE_MIN).max(least)
    }
}

/// A client that reads one topic.
pub(super) struct Connection {
    /// Declared first because it must be dropped before the client.
    _attached: Box<dyn Send>,
    pub consumer: BaseConsumer<Events>,
    pub topic: String,
    /// `host:port` list.
    pub servers: String,
    config: ClientConfig,
    on_client: OnClient,
}

impl Connection {
    /// A client. It connects in the background. Only records read with `read_committed` are audited.
    pub fn new(access: &Access<'_>, topic: &str, isolation: &str) -> Result<Self, AuditError> {
        let mut config = access.reader();
        config.set("isolation.level", isolation);
        Self::create(config, access.servers.to_owned(), topic.to_owned(), access.on_client)
    }

    /// Another client with the same settings.
    pub fn again(&self) -> Result<Self, AuditError> {
        Self::create(self.config.clone(), self.servers.clone(), self.topic.clone(), self.on_client)
    }

    fn create(
        config: ClientConfig,
        servers: String,
        topic: String,
        on_client: OnClient,
    ) -> Result<Self, AuditError> {
        let failed = |error: KafkaError| AuditError::settings(&error);
        let consumer: BaseConsumer<Events> = config.create_with_context(Events::default()).map_err(failed)?;
        let attached = on_client(&config, consumer.client().native_ptr()).map_err(failed)?;
        Ok(Self { _attached: attached, consumer, topic, servers, config, on_client })
    }

    /// Requests the metadata of the topic until a broker responds, a rejection has lasted for [`REJECTION_TIME`], or
    /// [`CONNECT_TIMEOUT`] has passed.
    pub fn metadata(&self) -> Result<Metadata, AuditError> {
        self.retried(CONNECT_TIMEOUT, || self.consumer.fetch_metadata(Some(&self.topic), REQUEST_TIMEOUT))
    }

    /// Asks again while brokers restart or elect leaders, until `limit` has passed. A rejection of a request is final at once.
    pub fn retried<T>(
        &self,
        limit: Duration,
        ask: impl Fn() -> Result<T, KafkaError>,
    ) -> Result<T, AuditError> {
        let start = clock::monotonic();
        loop {
            let error = match ask() {
                Ok(found) => return Ok(found),
                Err(error) => error,
            };
            let code = error.rdkafka_error_code();
            let is_final = code.is_some_and(|code| matches!(remedy(code), Some(Remedy::Topic(_))));
            self.serve_events();
            let rejected_for = self.consumer.context().rejected_for();
            if is_final || rejected_for.is_some_and(|time| time >= REJECTION_TIME) || start.elapsed() >= limit
            {
                return Err(self.failed(&error));
            }
        }
    }

    /// The error of a call that was rejected or timed out. Its cause is often only in the events of the client.
    pub fn failed(&self, error: &KafkaError) -> AuditError {
        self.serve_events();
        let events = self.consumer.context();
        let last = events.last_error();
        let codes =
            [error.rdkafka_error_code(), last.as_ref().and_then(|(error, _)| error.rdkafka_error_code())];
        let servers = self.servers.clone();
        let why = last.map_or_else(|| error.to_string(), |(_, text)| text);
        let mut codes = codes.into_iter().flatten();
        match codes.find_map(|code| Some((code, remedy(code)?))) {
            Some((code, Remedy::Topic(remedy))) => {
                AuditError::Refused { topic: self.topic.clone(), why: code, remedy }
            }
            Some((_, Remedy::Connection(remedy))) => {
                AuditError::NotConnected { servers, why, remedy, events: events.texts() }
            }
            None => AuditError::Unreachable { servers, why, events: events.texts() },
        }
    }

    /// Serves the client's events, so that its context receives errors and log lines: they are queued until the next poll.
    fn serve_events(&self) {
        let deadline = clock::monotonic() + EVENT_WAIT;
        while clock::monotonic() < deadline {
            drop(self.consumer.poll(EVENT_WAIT / 10));
        }
    }
}

/// What to do when a broker rejects a request or a connection.
#[derive(Debug, Clone, Copy)]
enum Remedy {
    Topic(&'static str),
    Connection(&'static str),
}

/// Whether an error with this code is a rejection, which no retry changes.
pub(super) fn is_rejection(code: Code) -> bool {
    remedy(code).is_some()
}

fn remedy(code: Code) -> Option<Remedy> {
    match code {
        Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed => {
            Some(Remedy::Topic("grant READ and DESCRIBE on it to this principal"))
        }
        Code::UnsupportedVersion | Code::UnsupportedFeature => {
            Some(Remedy::Topic("use Apache Kafka 2.5 or newer"))
        }
        Code::InvalidTopic => Some(Remedy::Topic("check its name")),
        Code::SaslAuthenticationFailed | Code::Authentication => {
            Some(Remedy::Connection("check the user name, password and mechanism among the properties"))
        }
        Code::SSL => {
            Some(Remedy::Connection("check ssl.ca.location and the certificates among the properties"))
        }
        _ => None,
    }
}
