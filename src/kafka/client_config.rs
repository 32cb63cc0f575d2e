//! What every client is told: the user's properties between our defaults and what the promise needs.

use std::time::Duration;

use rdkafka::ClientConfig;

use crate::ports::Written;

/// Everything the Kafka side needs to know, already validated. No `Debug`: the properties hold secrets.
#[derive(Clone)]
pub struct Settings {
    /// `host:port` list.
    pub bootstrap_servers: String,
    /// librdkafka properties of the user, for every client.
    pub properties: Vec<(String, String)>,
    /// Raw topic, read.
    pub raw: String,
    /// Clean topic, written.
    pub clean: String,
    /// State topic, written and read.
    pub state: String,
    /// Dead-letter topic, written.
    pub dead_letter: Option<String>,
    /// Where dropped records go, if anywhere.
    pub duplicates: Option<String>,
    /// Consumer group.
    pub group: String,
    /// Transactional id of this worker, stable across restarts.
    pub transactional_id: String,
    /// `group.instance.id` of this worker, when membership is static.
    pub instance: Option<String>,
    /// How long the group waits for a silent member.
    pub session_timeout: Duration,
    /// How long the broker keeps a transaction open; below the session timeout.
    pub transaction_timeout: Duration,
    /// Most records of one transaction.
    pub max_records: usize,
    /// Most bytes of one transaction.
    pub max_bytes: u64,
    /// The largest batch that the clean and the state topic take, bytes, where that is known.
    pub largest_batch: Option<u64>,
}

/// The client's own limit on a batch, bytes.
const BATCH: u64 = 1_000_000;

impl Settings {
    /// A client for questions about topics; also the common base of all others.
    #[must_use]
    pub fn base(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            // A broker that comes back is noticed within a second.
            .set("reconnect.backoff.max.ms", "1000")
            // Growth of the raw topic is noticed within ten.
            .set("topic.metadata.refresh.interval.ms", "10000")
            .set("log.connection.close", "false")
            .set("socket.keepalive.enable", "true")
            .set("client.id", &self.transactional_id);
        for (key, value) in &self.properties {
            config.set(key, value);
        }
        config
            .set("bootstrap.servers", &self.bootstrap_servers)
            .set("allow.auto.create.topics", "false")
            // Telemetry to the broker is the operator's decision, not the client library's.
            .set("enable.metrics.push", "false");
        config
    }

    /// The member of the group that reads the raw topic.
    #[must_use]
    pub fn source(&self) -> ClientConfig {
        let session_ms = self.session_timeout.as_millis();
        let mut config = self.base();
        config
            .set("group.id", &self.group)
            .set("group.protocol", "classic")
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("session.timeout.ms", session_ms.to_string())
            // Members learn of a rebalance from the answer to a heartbeat, and partitions that move wait for that.
            .set("heartbeat.interval.ms", (session_ms / 12).clamp(500, 1_000).to_string())
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("isolation.level", "read_committed")
            .set("auto.offset.reset", "error")
            .set("check.crcs", "true")
            // The default of one second stalls a reader whose queue was full for a moment.
            .set("fetch.queue.backoff.ms", "20");
        self.allow_session(&mut config);
        if let Some(instance) = &self.instance {
            config.set("group.instance.id", instance);
        }
        // Test brokers may want other assignors; the promise does not depend on which.
        for (key, value) in &self.properties {
            if key == "partition.assignment.strategy" {
                config.set(key, value);
            }
        }
        config
    }

    /// The name of a topic that transactions write to; empty for one that is not configured.
    #[must_use]
    pub fn topic_of(&self, topic: Written) -> &str {
        match topic {
            Written::Clean => &self.clean,
            Written::State => &self.state,
            Written::DeadLetter => self.dead_letter.as_deref().unwrap_or_default(),
            Written::Duplicates => self.duplicates.as_deref().unwrap_or_default(),
        }
    }

    /// A reader outside the group's protocol, of the given isolation; sees the group's offsets. What it reads decides, so
    /// it reads from leaders: a follower may be behind.
    #[must_use]
    pub fn reader(&self, isolation: &str) -> ClientConfig {
        let mut config = self.base();
        config
            .set("group.id", &self.group)
            // Not a member, but the client refuses a session above the user's max.poll.interval.ms.
            .set("session.timeout.ms", self.session_timeout.as_millis().to_string())
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("isolation.level", isolation)
            .set("auto.offset.reset", "error")
            .set("check.crcs", "true")
            .set("enable.partition.eof", "true")
            .set("client.rack", "")
            .set("fetch.wait.max.ms", "50")
            .set("fetch.queue.backoff.ms", "20");
        self.allow_session(&mut config);
        config
    }

    /// The client refuses a session longer than the longest pause between polls, five minutes by default.
    fn allow_session(&self, config: &mut ClientConfig) {
        let pause = "max.poll.interval.ms";
        if self.session_timeout > Duration::from_mins(5) && !self.properties.iter().any(|(k, _)| k == pause) {
            config.set(pause, self.session_timeout.as_millis().to_string());
        }
    }

    /// A producer outside of transactions, for copies of what a transactional one wrote.
    #[must_use]
    pub fn copier(&self) -> ClientConfig {
        let mut config = self.producer(&self.transactional_id);
        config.remove("transactional.id").remove("transaction.timeout.ms").set("acks", "all");
        config
    }

    /// The transactional producer under a transactional id (not always our own: settling what a
    /// dead writer left needs its id).
    #[must_use]
    pub fn producer(&self, transactional_id: &str) -> ClientConfig {
        let mut config = self.base();
        let queue_messages = (self.max_records * 2).clamp(100_000, 10_000_000);
        let queue_kbytes = (self.max_bytes * 2 / 1024).clamp(64 * 1024, 2_097_151);
        config
            .set("transactional.id", transactional_id)
            .set("enable.idempotence", "true")
            .set("transaction.timeout.ms", self.transaction_timeout.as_millis().to_string())
            .set("message.timeout.ms", self.transaction_timeout.as_millis().to_string())
            .set("queue.buffering.max.messages", queue_messages.to_string())
            .set("queue.buffering.max.kbytes", queue_kbytes.to_string())
            // Whether a record is too large is the broker's decision; the client's own limit would
            // refuse what the topic allows.
            .set("message.max.bytes", "1000000000");
        for (key, value) in
            [("linger.ms", "2"), ("batch.num.messages", "10000"), ("compression.type", "none")]
        {
            if !self.properties.iter().any(|(k, _)| k == key) {
                config.set(key, value);
            }
        }
        // A batch of several records must not be refused for its size: then a refusal is about one record.
        let batch = config.get("batch.size").and_then(|size| size.parse().ok()).unwrap_or(BATCH);
        if let Some(largest) = self.largest_batch.filter(|largest| *largest < batch) {
            config.set("batch.size", largest.max(1).to_string());
        }
        config
    }
}
