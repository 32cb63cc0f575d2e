//! Configuration in two steps: as typed, then validated.
//!
//! The first step ([`AsTyped`]) merges strings from the defaults, a TOML file, the environment and
//! the command line, and knows which keys exist. The second ([`Config`]) gives them types and
//! refuses what cannot work. Both collect every [`Problem`] instead of stopping at the first.
//! Nothing in here opens a socket, and only [`load`] and [`Properties::with_files_read`] touch a file or
//! the environment.

mod as_typed;
mod choices;
mod environment;
mod error;
mod id_source;
mod known;
mod layers;
mod problem;
mod properties;
mod reading;
mod secret_files;
mod show;
mod sources;
mod topic_name;
mod units;
mod validated;

pub use as_typed::{
    AsTyped, TypedBatch, TypedDedupe, TypedGroup, TypedHttp, TypedIdentity, TypedKafka, TypedKind,
    TypedState, TypedTopics, TypedWindow,
};
pub use choices::{Mode, OnGap, OnMissing, OnPoison, OnProbable, OnRewind, Overflow, Start, WindowTime};
pub use error::ConfigError;
pub use id_source::IdSource;
pub use problem::{Problem, Problems};
pub use properties::{Properties, Property};
pub use sources::{FileText, Sources, load, load_local};
pub use topic_name::TopicName;
pub use units::{duration_text, parse_bytes, parse_duration, size_text};
pub use validated::{
    Batch, Config, Group, HashChoice, Http, Identity, Kafka, Kind, Local, State, Topics, Window,
};
