//! All keys of the configuration. The effective configuration has typed values without invalid combinations.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::choices::{
    Mode, OnConflict, OnGap, OnMissing, OnPoison, OnProbable, OnRewind, OnStop, Overflow, PartitionBy, Scope,
    Start, WindowTime,
};
use super::forms::{
    ADDRESS, ChangedRules, Compared, FLAG, Hash, ID_PARTS, INSIGHT_SOURCES, Instance, Maybe, MaybeText,
    PropertyMap, RATE, REGISTRY_URL, SOURCE_TOPICS, Servers, Size, Span, Text, Topic, Whole, Word,
};
use super::insight::InsightSource;
use super::kinds::{KindConfig, KindsForm};
use super::page::Page;
use super::properties::Properties;
use super::reading::ConfigReading;
use super::rules;
use super::section::{ConfigSection, Form, Key, MaybeTable, Shape, Table, joined, section};
use super::topic_name::TopicName;
use crate::dedupe::{Fingerprint, Frame, IdPart, IdSource};

pub(super) const SECOND: Duration = Duration::from_secs(1);
/// The client rejects a longer session timeout.
pub(super) const SESSION_TIMEOUT: Span<RangeInclusive<Duration>> = Span(SECOND..=Duration::from_hours(1));
pub(super) const WORKERS: Whole = Whole(1..=1_000);
const MILLISECOND: Duration = Duration::from_millis(1);
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

section! {
    /// The effective configuration: every key has a valid value.
    Config |at, reading| {
        /// Brokers and client properties.
        kafka: KafkaConfig => Table,
        /// Names of the topics, and whether missing ones are created.
        topics: TopicsConfig => Table,
        /// Name and members of the consumer group, and where it starts.
        group: GroupConfig => Table,
        /// Source and hash of ids.
        identity: IdentityConfig => Table,
        /// Schemas of keys and values, from files or a registry.
        schemas: SchemasConfig => Table,
        /// Whether duplicates are dropped, and where they are found.
        dedupe: DedupeConfig => Table,
        /// How long an id is stored.
        window: WindowConfig => Table,
        /// Kinds of records with separate windows; the first kind that matches a record applies.
        kinds: Vec<KindConfig> => KindsForm,
        /// Limits of a transaction.
        batch: BatchConfig => Table,
        /// Directory and limits of the local state; rejected records.
        state: StateConfig => Table,
        /// By what duplicates are counted.
        insight: InsightConfig => Table,
        /// Metrics, health and status.
        http: HttpConfig => Table,
        /// Source topics and target topic of `dedupd rekey`; `None` when they are not set.
        rekey: Option<RekeyConfig> => MaybeTable; {
            rules::across_sections(reading);
        },
    }
}

section! {
    /// Brokers and client properties.
    KafkaConfig |at, reading| {
        /// `host:port`, several separated by commas.
        bootstrap_servers: String => Servers,
        /// librdkafka properties for every client; none of them breaks the exactly-once guarantee.
        properties: Properties => PropertyMap,
    }
}

section! {
    /// The topics, all different.
    TopicsConfig |at, reading| {
        /// The topic that is read.
        raw: TopicName => Topic(Some("give the topic to read, or --raw")),
        /// The topic that is written.
        clean: TopicName => Topic(Some("give the topic to write, or --clean")),
        /// The topic that stores the ids.
        state: TopicName = or(rules::default_state(clean.as_ref(), reading)) => Topic(None),
        /// The dead-letter topic, for records of policies set to `dead_letter`.
        dead_letter: Option<TopicName> => Maybe(Topic(None)),
        /// The topic for dropped records, with headers that name the owner.
        duplicates: Option<TopicName> => Maybe(Topic(None)),
        /// Whether missing topics are created, shaped like raw.
        create: bool = "false" => FLAG; rules::distinct(&[
            ("topics.raw", raw.as_ref()),
            ("topics.clean", clean.as_ref()),
            ("topics.state", state.as_ref()),
            ("topics.dead_letter", dead_letter.as_ref().and_then(Option::as_ref)),
            ("topics.duplicates", duplicates.as_ref().and_then(Option::as_ref)),
        ], reading),
    }
}

section! {
    /// Name and members of the consumer group, and where it starts.
    GroupConfig |at, reading| {
        /// The group's name; also the prefix of each transactional id.
        id: String = or(rules::default_group(reading)) => Text("name the group, or leave it out"),
        /// This instance's name in it, the same after a restart.
        instance: String => Instance,
        /// The number of members of this process, at least 1; above 1 only in partition scope. A value above 1,000 is taken for a
        /// typing error.
        workers: usize = "1" => WORKERS,
        /// Whether a restarted instance gets its partitions back without a rebalance.
        static_membership: bool = "true" => FLAG,
        /// How long the broker waits for heartbeats of a member. Longer than the transaction timeout; at most 1 hour.
        session_timeout: Duration = "10s" => SESSION_TIMEOUT,
        /// Whether a stop with SIGTERM, SIGINT or SIGHUP ends the membership. `remain` requires partition scope and static membership.
        on_stop: OnStop = "leave" => Word,
        /// The start offset when neither the group nor the state topic has an offset.
        start: Start = "earliest" => Word,
        /// The policy when the group's offset is below the offset committed in the state topic.
        on_rewind: OnRewind = "stop" => Word,
        /// The policy when the raw log does not contain the next offset to process.
        on_gap: OnGap = "stop" => Word,
    }
}

section! {
    /// Source and hash of ids.
    IdentityConfig |at, reading| {
        /// The parts, at least one; several form one id.
        from: Vec<IdPart> => ID_PARTS,
        /// The policy for a record without an id.
        on_missing: OnMissing = "forward" => Word,
        /// What of two records with one id is compared: parts as those of an id, or nothing when empty. The whole value if it is not set,
        /// unless that is a part of the id.
        compare: Option<Vec<IdPart>> => Compared;
            rules::schemas_for("identity.compare", reading),
        /// The policy for a record whose content differs from that of the owner of its id.
        on_conflict: OnConflict = "drop" => Word; rules::compared_conflicts(from.as_ref(), compare.as_ref(), on_conflict, reading),
        /// A record with this header is forwarded regardless of its id.
        force_header: Option<String> => MaybeText,
        /// The hash that maps an id to 16 bytes.
        hash + key_file: HashChoice = "xxh3" => Hash,
        /// The fingerprint of the changed identity rules for which windows may start empty, once.
        accept_change: Option<Fingerprint> => ChangedRules,
    }
}

impl IdentityConfig {
    /// What of two records with one id is compared; nothing when empty.
    #[must_use]
    pub fn compared(&self) -> Vec<IdPart> {
        compared(&self.from, self.compare.as_deref())
    }
}

/// What is compared with these values of `identity.from` and `identity.compare`: by default the value, unless that is a part of the id.
pub(crate) fn compared(from: &[IdPart], compare: Option<&[IdPart]>) -> Vec<IdPart> {
    let has_value = from.iter().any(|part| part.sources().contains(&IdSource::Value));
    let by_default = if has_value { Vec::new() } else { vec![IdSource::Value.into()] };
    compare.map_or(by_default, <[_]>::to_vec)
}

/// The hash that maps an id other than a UUID to 16 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HashChoice {
    /// XXH3-128, unkeyed.
    Xxh3,
    /// SipHash 128 with a secret key.
    SipHash {
        /// The file with the key. Not opened during validation.
        key_file: PathBuf,
    },
}

section! {
    /// Schemas of keys and values, from files or a registry. No file is opened during validation.
    SchemasConfig |at, reading| {
        /// What stands before a document, unless a header names its schema.
        frame: Frame = "confluent" => Word,
        /// The schema of all values: a file that ends in `.avsc`, `.proto` or `.desc`. Or a directory of them by their ids.
        value: Option<PathBuf> => MaybeText,
        /// The schema of all keys, or a directory.
        key: Option<PathBuf> => MaybeText,
        /// The URL of a registry with the API of the Confluent Schema Registry; with the frames of Apicurio, with its own.
        registry: Option<String> => Maybe(REGISTRY_URL),
        /// How long a record waits for a schema that the registry, or the directory, does not have. Then the record is without an id.
        wait: Duration = "5m" => Span(Duration::ZERO..),
        /// The name of the user, for basic authentication.
        username: Option<String> => MaybeText,
        /// The file with the password.
        password_file: Option<PathBuf> => MaybeText,
        /// The file with a bearer token.
        token_file: Option<PathBuf> => MaybeText,
        /// The file with the certificates that are trusted, in PEM. Without it, those of the operating system.
        ca_file: Option<PathBuf> => MaybeText,
        /// The file with the certificate of the client, in PEM.
        certificate_file: Option<PathBuf> => MaybeText,
        /// The file with its private key, PKCS #8 in PEM.
        private_key_file: Option<PathBuf> => MaybeText; rules::registry_access(reading),
    }
}

section! {
    /// Whether duplicates are dropped, and where they are found.
    DedupeConfig |at, reading| {
        /// Drop, shadow or bypass.
        mode: Mode = "drop" => Word,
        /// Whether an id counts once in the whole raw topic, or once in each of its partitions.
        scope: Scope = "topic" => Word,
    }
}

section! {
    /// How long an id is stored.
    WindowConfig |at, reading| {
        /// How long it is stored with the offset of its record, at least one second.
        exact: Duration = "24h" => Span(SECOND..),
        /// How long it is stored in all, at least `exact`; older ids than that in filters only.
        bloom: Duration = or(exact) => Span(SECOND..); rules::bloom_length(at, exact, bloom, reading),
        /// The false-positive rate of these filters: 1e-10 to 0.5.
        false_positive_rate: f64 = "1e-9" => RATE,
        /// The policy for a record whose id only these filters report as seen.
        on_probable: OnProbable = "drop" => Word,
        /// Maximum number of ids in this process, at least 1; required with `overflow = "evict"`. The index stores the distance
        /// between the numbers of owners in 38 bits.
        max_ids: Option<u64> => Maybe(Whole(1..=1 << 38)),
        /// The behaviour at `max_ids`.
        overflow: Overflow = "shrink" => Word,
        /// Maximum memory of index and filters in this process, in bytes, at least 16 MiB: with less, the smallest tables
        /// of a few dozen partitions would not fit.
        max_memory: Option<u64> => Maybe(Size(16 * MIB)),
        /// The clock that advances the window.
        time: WindowTime = "record" => Word,
    }
}

section! {
    /// Limits of a transaction: the first limit that is reached ends it.
    BatchConfig |at, reading| {
        /// Maximum number of records, at least 1. A value above ten million is taken for a typing error.
        max_records: usize = "500000" => Whole(1..=10_000_000),
        /// Maximum number of bytes of keys and values, at least 1 KiB.
        max_bytes: u64 = "256MiB" => Size(KIB),
        /// Time between the starts of two commits while records arrive; up to 1 s while more records are waiting. Shorter than the transaction timeout.
        interval: Duration = "100ms" => Span(MILLISECOND..),
        /// When the broker aborts a transaction. Shorter than the session timeout.
        transaction_timeout: Duration = "8s" => Span(SECOND..);
            rules::interval_below_timeout(interval, transaction_timeout, reading),
    }
}

section! {
    /// Directory and limits of the local state; rejected records.
    StateConfig |at, reading| {
        /// The directory, used by one process at a time.
        dir: PathBuf = "./dedupd-state" => Text("name a directory for the local state"),
        /// Memory for the newest ids of all partitions, in bytes, at least 1 MiB. An older id is read from its file.
        cache: u64 = "64MiB" => Size(MIB),
        /// Maximum size of the directory in bytes, at least 16 MiB: with less, the engine's own files and dead space would
        /// leave no space for the state.
        max_disk: Option<u64> => Maybe(Size(16 * MIB)),
        /// Whether the directory also follows the state topic of partitions that this process does not own.
        standby: bool = "false" => FLAG,
        /// The policy for a record that the broker rejects.
        on_poison: OnPoison = "stop" => Word,
        /// How long such a record is retried first.
        poison_retry: Duration = "30s" => Span(Duration::ZERO..),
    }
}

section! {
    /// By what duplicates are counted.
    InsightConfig |at, reading| {
        /// The sources of the values, at most three. The status page lists those with the most duplicates.
        by: Vec<InsightSource> => INSIGHT_SOURCES; {
            rules::shown_values(by.as_deref(), reading);
            rules::schemas_of_others(reading);
        },
    }
}

section! {
    /// Metrics, health and status.
    HttpConfig |at, reading| {
        /// Listen address and port; port 0 means any free port.
        listen: SocketAddr = "127.0.0.1:9464" => ADDRESS,
        /// The file with the bearer token of the admin API, which is disabled without it. Not opened during validation.
        token_file: Option<PathBuf> => MaybeText,
        /// Whether the status page may show keys and values of records, where `insight.by` names them.
        show_values: bool = "false" => FLAG,
    }
}

section! {
    /// Source topics and target topic of `dedupd rekey`.
    RekeyConfig |at, reading| {
        /// The topics to read: their names, or regular expressions that begin with `^`.
        from: Vec<String> => SOURCE_TOPICS,
        /// The topic to write.
        to: TopicName => Topic(Some("give the topic to write, or --to")); {
                rules::target_is_no_source(from.as_deref(), to.as_ref(), reading);
                rules::rekey_before_run(from.as_deref(), to.as_ref(), reading);
            },
        /// The consumer group.
        group: String = or(to.as_ref().map(|to| format!("dedupd.rekey.{to}")))
            => Text("name the group, or leave it out"),
        /// How the partition follows from the id.
        partitioner: PartitionBy = "murmur2" => Word,
    }
}

impl SchemasConfig {
    /// What has the schemas with ids, for messages.
    #[must_use]
    pub fn holder(&self) -> &'static str {
        if self.registry.is_some() { "the registry" } else { "the directory of schemas" }
    }

    /// A registry without authorization, or none.
    #[must_use]
    pub fn open(registry: Option<String>) -> Self {
        Self {
            frame: Frame::default(),
            value: None,
            key: None,
            registry,
            wait: Duration::from_mins(5),
            username: None,
            password_file: None,
            token_file: None,
            ca_file: None,
            certificate_file: None,
            private_key_file: None,
        }
    }
}

/// All sections with their keys, in the order in which `dedupd check` prints them.
pub fn keys() -> Vec<Key> {
    Config::keys()
}

impl Config {
    /// The effective configuration as TOML. A value that could be a secret is printed as `"***"`. Without such values
    /// the text parses to the same configuration.
    pub fn show(&self) -> String {
        let mut page = Page::default();
        self.print(&mut page);
        page.into_text()
    }
}
