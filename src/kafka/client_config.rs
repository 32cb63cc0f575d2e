//! The configuration of every client, in this order: our defaults, the user's properties, the settings that the guarantee
//! requires. Later entries override earlier ones.

use std::time::Duration;

use rdkafka::ClientConfig;

use super::statistics;
use crate::ports::OutputTopic;

/// Last part of the transactional id of the active worker in topic scope, after the group. In partition scope there are two, the instance and the
/// number of the worker.
pub const ACTIVE_ID: &str = "active";

/// The validated settings of the Kafka clients. No `Debug`: the properties hold secrets.
#[derive(Clone)]
pub struct Settings {
    /// `host:port` list.
    pub bootstrap_servers: String,
    /// librdkafka properties of the user, for every client.
    pub properties: Vec<(String, String)>,
    /// Raw topic, only read.
    pub raw: String,
    /// Clean topic, written in transactions.
    pub clean: String,
    /// State topic, written and read.
    pub state: String,
    /// Dead-letter topic, written. `None` when it is not configured.
    pub dead_letter: Option<String>,
    /// Duplicates topic, written: it receives the dropped records. `None` when it is not configured.
    pub duplicates: Option<String>,
    /// `group.id`: the consumer group that has the committed offsets.
    pub group: String,
    /// Transactional id of this worker, stable across restarts.
    pub transactional_id: String,
    /// Name of the clients of this worker, different for all workers of the group.
    pub client_id: String,
    /// `group.instance.id` of this worker, when membership is static.
    pub instance: Option<String>,
    /// `session.timeout.ms`: the coordinator removes a member that sends no heartbeat for this long.
    pub session_timeout: Duration,
    /// The broker aborts a transaction that is open for longer; below the session timeout.
    pub transaction_timeout: Duration,
    /// Time between commits while records arrive.
    pub interval: Duration,
    /// The smallest `max.message.bytes` of the topics that transactions write to, bytes; `None` when unknown.
    pub largest_batch: Option<u64>,
    /// Number of raw partitions at the start; 0 when unknown.
    pub partitions: usize,
}

/// The client's default `batch.size`, bytes.
const DEFAULT_BATCH_SIZE: u64 = 1_000_000;
/// The default of `queue.buffering.max.kbytes`.
const DEFAULT_QUEUE_KIB: usize = 65_536;
/// The largest response, bytes: above the broker's default for the largest request (100 MiB), which limits a record, and below the first bytes
/// of a TLS alert, 352,518,912, so that the client still detects one. It also limits a batch that is decompressed with zstd.
const LARGEST_RESPONSE: &str = "300000000";
/// With at least this many raw partitions, a fetch waits for more than one record.
const MANY_PARTITIONS: usize = 256;

/// Other names of properties, and the name that is set in their place. The client gets all entries in random order, so of two names
/// for one property either could win: that of the user, or that of our default.
const ALIASES: [(&str, &str); 4] = [
    ("compression.codec", "compression.type"),
    ("fetch.message.max.bytes", "max.partition.fetch.bytes"),
    ("message.send.max.retries", "retries"),
    ("queue.buffering.max.ms", "linger.ms"),
];

/// The one name of a property that is set.
fn canonical(name: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, canonical)| canonical)
}

impl Settings {
    /// The configuration of a client that only reads metadata; also the base of all others.
    #[must_use]
    pub fn base(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            // The client reconnects to a returning broker within a second.
            .set("reconnect.backoff.max.ms", "1000")
            // The client detects new partitions of the raw topic within ten seconds.
            .set("topic.metadata.refresh.interval.ms", "10000")
            .set("log.connection.close", "false")
            .set("socket.keepalive.enable", "true")
            .set("client.id", &self.client_id)
            // Telemetry to the broker is the operator's decision, not the client library's default.
            .set("enable.metrics.push", "false");
        for (key, value) in &self.properties {
            config.set(canonical(key), value);
        }
        // The client rejects a smaller one than a limit on fetches.
        if !self.is_set("receive.message.max.bytes") && !self.is_set("fetch.max.bytes") {
            config.set("receive.message.max.bytes", LARGEST_RESPONSE);
        }
        config.set("bootstrap.servers", &self.bootstrap_servers).set("allow.auto.create.topics", "false");
        config
    }

    /// The consumer that reads the raw topic as a member of the group.
    #[must_use]
    pub fn source(&self) -> ClientConfig {
        let session_ms = self.session_timeout.as_millis();
        let mut config = self.base();
        config
            .set("group.id", &self.group)
            .set("group.protocol", "classic")
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("session.timeout.ms", session_ms.to_string())
            // A member detects a rebalance by the heartbeat response, and partitions that move wait for it.
            .set("heartbeat.interval.ms", (session_ms / 12).clamp(500, 1_000).to_string())
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("isolation.level", "read_committed")
            .set("auto.offset.reset", "error")
            .set("check.crcs", "true")
            // The default of one second stalls a reader whose queue was briefly full.
            .set("fetch.queue.backoff.ms", "20");
        self.raise_poll_interval(&mut config);
        // The broker visits all partitions of a fetch request, and the client sends the next one at once. A fetch for each
        // record of a thousand partitions took most of the broker's time.
        let is_set = |key: &str| self.is_set(key);
        if self.partitions >= MANY_PARTITIONS && !is_set("fetch.min.bytes") && !is_set("fetch.wait.max.ms") {
            config.set("fetch.min.bytes", "65536").set("fetch.wait.max.ms", "100");
        }
        if let Some(instance) = &self.instance {
            config.set("group.instance.id", instance);
        }
        // Test brokers may need other assignors; the guarantee does not depend on the assignor.
        for (key, value) in &self.properties {
            if key == "partition.assignment.strategy" {
                config.set(key, value);
            }
        }
        config
    }

    fn is_set(&self, key: &str) -> bool {
        self.properties.iter().any(|(name, _)| canonical(name) == key)
    }

    /// Whether records are compressed in another way than by default.
    pub(super) fn sets_compression(&self) -> bool {
        self.is_set("compression.type") || self.is_set("compression.level")
    }

    /// A client that reports its statistics.
    pub(super) fn reporting(&self, mut config: ClientConfig) -> ClientConfig {
        if !self.is_set("statistics.interval.ms") {
            config.set("statistics.interval.ms", statistics::INTERVAL_MS);
        }
        config
    }

    /// The name of a topic that transactions write to; empty when it is not configured.
    #[must_use]
    pub fn topic_of(&self, topic: OutputTopic) -> &str {
        match topic {
            OutputTopic::Clean => &self.clean,
            OutputTopic::State => &self.state,
            OutputTopic::DeadLetter => self.dead_letter.as_deref().unwrap_or_default(),
            OutputTopic::Duplicates => self.duplicates.as_deref().unwrap_or_default(),
        }
    }

    /// Those of these topics that are configured, with their names.
    pub fn configured<const N: usize>(
        &self,
        topics: [OutputTopic; N],
    ) -> impl Iterator<Item = (OutputTopic, &str)> {
        topics.map(|topic| (topic, self.topic_of(topic))).into_iter().filter(|(_, name)| !name.is_empty())
    }

    /// A reader with the given isolation level. It does not join the group but can read its offsets. Decisions depend on
    /// what it reads, so it fetches from leaders: a follower may be behind.
    #[must_use]
    pub fn reader(&self, isolation: &str) -> ClientConfig {
        let mut config = self.base();
        config
            .set("group.id", &self.group)
            // It is not a member, but the client rejects a session timeout above the user's max.poll.interval.ms.
            .set("session.timeout.ms", self.session_timeout.as_millis().to_string())
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("isolation.level", isolation)
            .set("auto.offset.reset", "error")
            .set("check.crcs", "true")
            .set("enable.partition.eof", "true")
            .set("client.rack", "")
            // It is how long the client waits at the end of a partition before it reports the end.
            .set("fetch.wait.max.ms", "10")
            .set("fetch.queue.backoff.ms", "20");
        // A restore reads blocks as fast as it seals their ids, which is slower than the client fetches. By default 64 MB wait, and a response has up
        // to 50 MB more. The client limits `fetch.max.bytes` to the same size, and raises it to `message.max.bytes`.
        if !self.is_set("queued.max.messages.kbytes") {
            config.set("queued.max.messages.kbytes", "8192");
        }
        self.raise_poll_interval(&mut config);
        config
    }

    /// The client rejects a `session.timeout.ms` above `max.poll.interval.ms`, five minutes by default.
    fn raise_poll_interval(&self, config: &mut ClientConfig) {
        let key = "max.poll.interval.ms";
        if self.session_timeout > Duration::from_mins(5) && !self.is_set(key) {
            config.set(key, self.session_timeout.as_millis().to_string());
        }
    }

    /// A producer without transactions, for copies of records that a transactional producer wrote.
    #[must_use]
    pub fn copier(&self) -> ClientConfig {
        let mut config = self.producer(&self.transactional_id);
        config.remove("transactional.id").remove("transaction.timeout.ms").set("acks", "all");
        config
    }

    /// The transactional producer with a transactional id. It is not always our own: settling the transaction of a dead
    /// writer needs the writer's id.
    #[must_use]
    pub fn producer(&self, transactional_id: &str) -> ClientConfig {
        let mut config = self.base();
        config
            .set("transactional.id", transactional_id)
            .set("enable.idempotence", "true")
            .set("transaction.timeout.ms", self.transaction_timeout.as_millis().to_string())
            .set("message.timeout.ms", self.transaction_timeout.as_millis().to_string())
            // The broker decides whether a record is too large; the client's own limit would reject records that the
            // topic allows.
            .set("message.max.bytes", "1000000000");
        let linger_ms = self.linger().as_millis().to_string();
        for (key, value) in [
            ("linger.ms", linger_ms.as_str()),
            ("batch.num.messages", "10000"),
            // A record that is small only compressed must fit into the topic again. zstd is the smallest of the codecs of Kafka for nearly all
            // records.
            ("compression.type", "zstd"),
            ("queue.buffering.max.messages", "200000"),
        ] {
            if !self.is_set(key) {
                config.set(key, value);
            }
        }
        // The limit is [`Self::queue_bytes`]: the client would never accept a record above its own.
        config.set("queue.buffering.max.kbytes", "2147483647");
        // No batch of several records may be rejected for its size: then a size rejection is always about one record.
        let batch = config.get("batch.size").and_then(|size| size.parse().ok()).unwrap_or(DEFAULT_BATCH_SIZE);
        if let Some(largest) = self.largest_batch.filter(|largest| *largest < batch) {
            config.set("batch.size", largest.max(1).to_string());
        }
        config
    }

    /// Most bytes that wait in a producer, `queue.buffering.max.kbytes`. With a slow broker a send waits for room there, so that memory does not
    /// depend on the size of a transaction, and its last drain is short.
    pub(super) fn queue_bytes(&self) -> usize {
        let set = self.properties.iter().rfind(|(name, _)| name == "queue.buffering.max.kbytes");
        set.and_then(|(_, kib)| kib.parse::<usize>().ok()).unwrap_or(DEFAULT_QUEUE_KIB).saturating_mul(1_024)
    }

    /// How long a record waits for others of its batch. A longer time gives fewer and larger requests, up to 20 ms. The first
    /// records of a transaction are sent, and their partitions verified by the broker, while it is still open; the drain at its
    /// end does not wait for this time.
    fn linger(&self) -> Duration {
        (self.interval / 10).min(Duration::from_millis(20))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(properties: &[(&str, &str)]) -> Settings {
        let text = |text: &str| text.to_owned();
        Settings {
            bootstrap_servers: text("a:1"),
            properties: properties.iter().map(|(name, value)| (text(name), text(value))).collect(),
            raw: text("r"),
            clean: text("c"),
            state: text("s"),
            dead_letter: None,
            duplicates: None,
            group: text("g"),
            transactional_id: text("g.active"),
            client_id: text("g.i.0"),
            instance: None,
            session_timeout: Duration::from_secs(10),
            transaction_timeout: Duration::from_secs(8),
            interval: Duration::from_millis(100),
            largest_batch: None,
            partitions: 0,
        }
    }

    #[test]
    fn each_property_has_one_name() {
        for (alias, name) in ALIASES {
            let settings = settings(&[(alias, "7")]);
            for config in [settings.producer("t"), settings.copier(), settings.source()] {
                assert_eq!((config.get(name), config.get(alias)), (Some("7"), None), "{alias}");
            }
        }
        // The client knows all these names.
        for (alias, name) in ALIASES {
            let value = if name == "compression.type" { "zstd" } else { "7000" };
            for name in [alias, name] {
                let config = ClientConfig::new().set(name, value).create_native_config();
                assert!(config.is_ok(), "{name}");
            }
        }
    }

    #[test]
    fn the_telemetry_of_the_client_is_off_by_default() {
        assert_eq!(settings(&[]).source().get("enable.metrics.push"), Some("false"));
        let on = settings(&[("enable.metrics.push", "true")]);
        assert_eq!(on.producer("t").get("enable.metrics.push"), Some("true"));
    }

    /// A property that the user may set must not be overridden without a message.
    #[test]
    fn a_property_that_is_accepted_has_an_effect() {
        for name in crate::config::harmless() {
            let config = settings(&[(name, "7")]);
            for (kind, config) in [("producer", config.producer("t")), ("consumer", config.source())] {
                if (name, kind) != ("queue.buffering.max.kbytes", "producer") {
                    assert_eq!(config.get(canonical(name)), Some("7"), "{name} of the {kind}");
                }
            }
        }
        assert_eq!(settings(&[("queue.buffering.max.kbytes", "7")]).queue_bytes(), 7 * 1_024);
    }
}
