//! The worker: reads records, decides, writes and commits; recovers after errors.
//!
//! One worker is one thread. It owns its partitions and their state; nothing here is shared or locked. `step`
//! processes a chunk of records, `commit` ends a transaction, `recovery` restores the state of a partition.

mod batch;
mod checkpoint;
mod commit;
mod complete;
mod control;
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
mod poison;
mod reach;
mod recovery;
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
mod trouble;
mod worker;

pub use crate::config::Overflow;
pub use checkpoint::{Checkpoint, Origin, Tail};
pub use kinds::{Kind, Kinds};
pub use limits::Limits;
pub use loading::{LoadSlice, Stored, load_window};
pub use options::{Mode, OnGap, OnMissing, OnPoison, OnProbable, OnRewind, Options, Start};
pub use reach::Reach;
pub use report::Report;
pub use safeguard::Safeguard;
pub use sizes::{block_ids, metadata_bytes, most_partitions};
pub use stalled::StableEnds;
pub use trouble::{Fatal, Trouble};
pub use worker::{Worker, World};
