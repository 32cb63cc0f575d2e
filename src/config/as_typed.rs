//! The configuration as typed: strings, of which only the keys are checked.

use serde::{Deserialize, Serialize};

use super::properties::Properties;

/// Declares a section whose values are all strings as typed.
macro_rules! section {
    ($(#[$doc:meta])* $name:ident { $($(#[$key_doc:meta])* $key:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct $name { $($(#[$key_doc])* pub $key: Option<String>),+ }
    };
}

/// The whole configuration as typed. `None` means not set, so a value of this type can be the defaults
/// ([`AsTyped::defaults`]), the flags, or the merged result.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AsTyped {
    /// Connection to Kafka.
    pub kafka: TypedKafka,
    /// The topics.
    pub topics: TypedTopics,
    /// The consumer group.
    pub group: TypedGroup,
    /// Source and hash of ids.
    pub identity: TypedIdentity,
    /// Handling of duplicates.
    pub dedupe: TypedDedupe,
    /// How long an id is stored.
    pub window: TypedWindow,
    /// Kinds of records with separate windows.
    pub kinds: Vec<TypedKind>,
    /// Limits of a transaction.
    pub batch: TypedBatch,
    /// The local state.
    pub state: TypedState,
    /// Metrics, health and status.
    pub http: TypedHttp,
}

/// Connection to Kafka.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TypedKafka {
    /// `host:port`, several separated by commas.
    pub bootstrap_servers: Option<String>,
    /// librdkafka properties by name.
    pub properties: Properties,
}

section! {
    /// The topics.
    TypedTopics {
        /// The topic that is read.
        raw,
        /// The topic that is written.
        clean,
        /// The state topic.
        state,
        /// The dead-letter topic, for records of policies set to `dead_letter`.
        dead_letter,
        /// The topic for dropped records, with headers that name the owner.
        duplicates,
        /// Whether missing topics are created.
        create,
    }
}
section! {
    /// The consumer group.
    TypedGroup {
        /// The group's name.
        id,
        /// This instance's name in it.
        instance,
        /// The number of members of this process.
        workers,
        /// Whether a restarted instance gets its partitions back without a rebalance.
        static_membership,
        /// How long the broker waits for heartbeats of a member.
        session_timeout,
        /// The offset reset policy without a committed offset.
        start,
        /// The policy for a rewound group.
        on_rewind,
        /// The policy for a committed offset that the raw log does not contain.
        on_gap,
    }
}
section! {
    /// Handling of duplicates.
    TypedDedupe {
        /// Drop, shadow or bypass.
        mode,
    }
}
section! {
    /// How long an id is stored.
    TypedWindow {
        /// How long it is stored exactly.
        exact,
        /// How long it is stored in Bloom filters.
        bloom,
        /// The number of slices of the Bloom filters.
        slices,
        /// The false-positive rate of the Bloom filters.
        false_positive_rate,
        /// The policy for a record that only the filters report as seen.
        on_probable,
        /// Maximum number of ids in the process.
        max_ids,
        /// The behaviour at `max_ids`.
        overflow,
        /// Maximum memory of index and filters in the process.
        max_memory,
        /// Which clock moves the window.
        time,
    }
}
section! {
    /// Limits of a transaction.
    TypedBatch {
        /// Maximum number of records.
        max_records,
        /// Maximum number of bytes.
        max_bytes,
        /// Maximum time.
        interval,
        /// When the broker aborts a transaction.
        transaction_timeout,
    }
}
section! {
    /// The local state.
    TypedState {
        /// Its directory.
        dir,
        /// Memory of the read cache.
        cache,
        /// Maximum size of the directory.
        max_disk,
        /// The policy for a record that the broker rejects.
        on_poison,
        /// How long such a record is retried first.
        poison_retry,
    }
}
section! {
    /// Metrics, health and status.
    TypedHttp {
        /// Listen address and port.
        listen,
        /// The file with the bearer token of the admin API.
        token_file,
    }
}

/// Source and hash of ids.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TypedIdentity {
    /// The sources; several parts form one id.
    pub from: Option<Vec<String>>,
    /// The policy for a record without an id.
    pub on_missing: Option<String>,
    /// A record with this header is forwarded regardless of its id.
    pub force_header: Option<String>,
    /// The hash that maps an id to 16 bytes.
    pub hash: Option<String>,
    /// The file with the secret key of a keyed hash.
    pub key_file: Option<String>,
    /// The fingerprint of the changed identity rules for which windows may start empty.
    pub accept_change: Option<String>,
}

/// A kind of records with a separate window: one table of `[[kinds]]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TypedKind {
    /// Its name.
    pub name: Option<String>,
    /// The header or JSON pointer that contains the kind.
    pub from: Option<String>,
    /// The values of records of this kind.
    pub values: Option<Vec<String>>,
    /// Whether records of this kind are de-duplicated.
    pub dedupe: Option<String>,
    /// As in `[window]`.
    pub exact: Option<String>,
    /// As in `[window]`.
    pub bloom: Option<String>,
    /// As in `[window]`.
    pub false_positive_rate: Option<String>,
    /// As in `[window]`.
    pub on_probable: Option<String>,
}

impl AsTyped {
    /// The defaults. Four depend on other values and are set by the validation: `topics.state`, `group.id`,
    /// `group.instance`, and `window.bloom`, which follows `window.exact`.
    pub fn defaults() -> Self {
        let text = |text: &str| Some(text.to_owned());
        Self {
            kafka: TypedKafka::default(),
            topics: TypedTopics { create: text("false"), ..TypedTopics::default() },
            group: TypedGroup {
                workers: text("1"),
                static_membership: text("true"),
                session_timeout: text("10s"),
                start: text("earliest"),
                on_rewind: text("stop"),
                on_gap: text("stop"),
                ..TypedGroup::default()
            },
            identity: TypedIdentity {
                on_missing: text("forward"),
                hash: text("xxh3"),
                ..TypedIdentity::default()
            },
            dedupe: TypedDedupe { mode: text("drop") },
            window: TypedWindow {
                exact: text("24h"),
                bloom: None,
                slices: text("7"),
                false_positive_rate: text("1e-9"),
                on_probable: text("drop"),
                max_ids: text("100000000"),
                overflow: text("shrink"),
                max_memory: None,
                time: text("record"),
            },
            kinds: Vec::new(),
            batch: TypedBatch {
                max_records: text("50000"),
                max_bytes: text("32MiB"),
                interval: text("100ms"),
                transaction_timeout: text("8s"),
            },
            state: TypedState {
                dir: text("./dedupd-state"),
                cache: text("64MiB"),
                max_disk: None,
                on_poison: text("stop"),
                poison_retry: text("30s"),
            },
            http: TypedHttp { listen: text("127.0.0.1:9464"), ..TypedHttp::default() },
        }
    }
}
