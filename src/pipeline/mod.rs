//! The worker: reads records, decides, writes and commits; recovers after errors.
//!
//! One worker is one thread. It owns its partitions and their state; nothing here is shared or locked. `step`
//! processes a chunk of records, `commit` ends a transaction, `recovery` restores the state of a partition.

mod batch;
mod commit;
mod complete;
mod control;
mod error;
mod evidence;
pub mod failpoint;
mod gap;
mod kinds;
mod limits;
mod loading;
mod local;
mod markers;
mod membership;
mod options;
mod order;
mod partition;
mod partition_limit;
mod recovery;
mod rejected;
mod repair;
mod report;
mod restore;
mod rules;
mod safeguard;
mod shortened;
mod side;
mod sizes;
mod stalled;
mod step;
mod time;
mod torn;
mod worker;

pub use crate::config::Overflow;
pub use error::{Fatal, WorkerError};
pub use kinds::{Kind, Kinds};
pub use limits::Limits;
pub use loading::{LoadSlice, Stored, load_window};
pub use options::{Mode, OnGap, OnMissing, OnProbable, OnRejected, OnRewind, Options, Start};
pub use partition_limit::PartitionLimit;
pub use report::Report;
pub use safeguard::Safeguard;
pub use sizes::{block_ids, metadata_bytes, most_partitions};
pub use stalled::StableEnds;
pub use worker::{Worker, World};
