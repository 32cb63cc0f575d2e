//! Configuration in two steps: as typed, then validated.
//!
//! The first step ([`AsTyped`]) merges strings from the defaults, a TOML file, the environment and the command line,
//! and rejects unknown keys. The second ([`Config`]) converts them to types and rejects invalid values and
//! combinations. Both collect every [`Problem`] instead of stopping at the first. This module opens no socket, and
//! only [`load`], [`load_local`] and [`Properties::with_files_read`] read files or the environment.

mod as_typed;
mod choices;
mod environment;
mod error;
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

pub use crate::dedupe::IdSource;
pub use as_typed::{
    AsTyped, TypedBatch, TypedDedupe, TypedGroup, TypedHttp, TypedIdentity, TypedKafka, TypedKind,
    TypedState, TypedTopics, TypedWindow,
};
pub use choices::{Mode, OnGap, OnMissing, OnProbable, OnRejected, OnRewind, Overflow, Start, WindowTime};
pub use error::ConfigError;
pub use problem::{Problem, Problems};
pub use properties::{Properties, Property};
pub use sources::{FileText, Sources, load, load_local};
pub use topic_name::TopicName;
pub use units::{duration_text, parse_bytes, parse_duration, size_text};
pub use validated::{
    Batch, Config, Group, HashChoice, Http, Identity, Kafka, Kind, Local, State, Topics, Window,
};
