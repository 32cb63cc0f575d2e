//! The configuration as typed: strings, nothing checked but that the keys exist.

use serde::{Deserialize, Serialize};

use super::properties::Properties;

/// Declares a section whose values are all text as typed.
macro_rules! section {
    ($(#[$doc:meta])* $name:ident { $($(#[$key_doc:meta])* $key:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct $name { $($(#[$key_doc])* pub $key: Option<String>),+ }
    };
}

/// The whole configuration as typed. `None` means not given, so one value of this type can stand
/// for the defaults ([`AsTyped::defaults`]), for the flags, or for everything merged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AsTyped {
    /// How to reach Kafka.
    pub kafka: TypedKafka,
    /// The topics.
    pub topics: TypedTopics,
    /// The consumer group.
    pub group: TypedGroup,
    /// What an id is.
    pub identity: TypedIdentity,
    /// Whether duplicates are dropped at all.
    pub dedupe: TypedDedupe,
    /// How long an identity is remembered.
    pub window: TypedWindow,
    /// Records with windows of their own.
    pub kinds: Vec<TypedKind>,
    /// How much one transaction holds.
    pub batch: TypedBatch,
    /// The local state.
    pub state: TypedState,
    /// Metrics, health and status.
    pub http: TypedHttp,
}

/// How to reach Kafka.
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
        /// What is read.
        raw,
        /// What is written.
        clean,
        /// Where the state is kept.
        state,
        /// Where records go that can be neither forwarded nor dropped.
        dead_letter,
        /// Where dropped records go, with headers naming the owner.
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
        /// How many members this process has.
        workers,
        /// Whether a restarted instance gets its partitions back at once.
        static_membership,
        /// How long a silent member is waited for.
        session_timeout,
        /// Where to begin.
        start,
        /// What a rewound group means.
        on_rewind,
        /// What an offset means that the raw log does not hold.
        on_gap,
    }
}
section! {
    /// Whether duplicates are dropped at all.
    TypedDedupe {
        /// What is done with them.
        mode,
    }
}
section! {
    /// How long an identity is remembered.
    TypedWindow {
        /// Remembered exactly for this long.
        exact,
        /// Remembered in a Bloom filter until then.
        bloom,
        /// Into how many slices that time is cut.
        slices,
        /// Of the Bloom part.
        false_positive_rate,
        /// What a Bloom hit means.
        on_probable,
        /// Limit of the whole process.
        max_ids,
        /// What happens when that is reached.
        overflow,
        /// Limit on the memory of index and filters, of the whole process.
        max_memory,
        /// Which clock moves the window.
        time,
    }
}
section! {
    /// How much one transaction holds.
    TypedBatch {
        /// Most records.
        max_records,
        /// Most bytes.
        max_bytes,
        /// Longest time.
        interval,
        /// When the broker gives a transaction up.
        transaction_timeout,
    }
}
section! {
    /// The local state.
    TypedState {
        /// Where it lies.
        dir,
        /// Memory for reading it.
        cache,
        /// Limit on the size of the directory.
        max_disk,
        /// What to do with a record that the broker refuses.
        on_poison,
        /// How long it is tried again before that.
        poison_retry,
    }
}
section! {
    /// Metrics, health and status.
    TypedHttp {
        /// Address and port.
        listen,
        /// The secret of those who may ask about ids and have them forgotten.
        token_file,
    }
}

/// What an id is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TypedIdentity {
    /// Where it stands; several parts make one id.
    pub from: Option<Vec<String>>,
    /// What to do without one.
    pub on_missing: Option<String>,
    /// A record with this header goes through whatever its id.
    pub force_header: Option<String>,
    /// How it becomes 16 bytes.
    pub hash: Option<String>,
    /// The secret of a keyed hash.
    pub key_file: Option<String>,
    /// The rules under which windows may begin empty.
    pub accept_change: Option<String>,
}

/// Records with a window of their own: one table of `[[kinds]]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TypedKind {
    /// Its name.
    pub name: Option<String>,
    /// Where a record tells its kind.
    pub from: Option<String>,
    /// What records of this kind have there.
    pub values: Option<Vec<String>>,
    /// Whether their ids are looked at.
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
    /// What holds where nothing is given. Three defaults depend on other values and are made
    /// while validating: `topics.state`, `group.id`, `group.instance`; `window.bloom` follows
    /// `window.exact`.
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
