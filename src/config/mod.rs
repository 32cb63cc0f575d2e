//! Configuration: texts from four layers, then typed values.
//!
//! `keys.rs` declares each key once: name, type, default, form (how its text is parsed, checked and printed) and help.
//! The first step merges texts from the defaults, a TOML file, the environment and the command line ([`AsTyped`]), and
//! rejects unknown keys. The second converts them to a [`Config`] and rejects invalid values and combinations. Both
//! collect every problem instead of stopping at the first. This module opens no socket, and only [`load`],
//! `load_listen`, `load_local`, `load_rekeying`, [`load_with_texts`], [`Properties::with_files_read`] and `small_files.rs` read files or
//! the environment.

mod as_typed;
mod choices;
mod environment;
mod error;
mod forms;
mod insight;
mod keys;
mod kinds;
mod known;
mod layers;
mod local;
mod page;
mod problem;
mod properties;
mod reading;
mod rekeying;
mod rules;
mod secret_files;
mod section;
mod small_files;
mod sources;
mod topic_name;

pub use crate::dedupe::{Frame, IdPart, IdSource};
pub use crate::units::parse_duration;
pub(crate) use crate::units::{duration_text, parse_bytes, size_text};
pub use as_typed::AsTyped;
pub(crate) use choices::WindowTime;
pub use choices::{
    Mode, OnConflict, OnGap, OnMissing, OnPoison, OnProbable, OnRewind, OnStop, Overflow, PartitionBy, Scope,
    Start,
};
pub use error::ConfigError;
pub(crate) use forms::{OFF, parse_servers};
pub use insight::InsightSource;
pub(crate) use keys::compared;
pub use keys::{
    BatchConfig, Config, GroupConfig, HashChoice, IdentityConfig, InsightConfig, KafkaConfig, RekeyConfig,
    SchemasConfig, StateConfig, WindowConfig, keys,
};
pub use kinds::KindConfig;
pub use local::Local;
pub use problem::ValueFault;
#[cfg(test)]
pub(crate) use properties::harmless;
pub use properties::{Properties, Property};
pub use rekeying::Rekeying;
pub use section::{Key, Shape};
pub(crate) use small_files::{read_file_of, read_small_file, read_small_text};
pub use sources::{ConfigSources, FileText, load, load_with_texts};
pub(crate) use sources::{load_listen, load_local, load_rekeying};
pub(crate) use topic_name::TopicName;
