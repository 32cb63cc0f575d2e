//! The worker: reads records, decides, writes and commits; recovers after errors.
//!
//! One worker is one thread. It owns its partitions and their state; nothing here is shared or locked. `worker` has the poll
//! loop, `commit` the transaction, `journal` the life cycle of a journal and its windows, `partition` the cursor of a partition and its clock, `recovery`
//! the start of partitions, `torn` what a broker left without a transaction marker, `limits` the limits on the windows.

mod access;
mod commit;
mod context;
mod error;
pub mod failpoint;
mod journal;
mod kinds;
mod limits;
mod options;
mod partition;
mod partition_counts;
mod ports;
mod progress;
mod recovery;
mod report;
mod rivals;
mod safeguard;
mod sizes;
mod standby;
mod time;
mod torn;
mod worker;

use std::time::Duration;

pub use crate::config::Overflow;
pub use commit::size::TransactionSize;
pub use error::{Fatal, WorkerError};
pub use journal::loading::{LoadPart, LocalRead};
pub use journal::stored::Stored;
pub use kinds::{Kind, Kinds};
pub use limits::Limits;
pub use options::{
    Mode, OnConflict, OnGap, OnMissing, OnPoison, OnProbable, OnRewind, OnStop, Scope, Start, WorkerOptions,
};
pub(crate) use partition::stall::{COMPARE_INTERVAL, Fetching, STALL_TIMEOUT, StallDetector};
pub(crate) use partition::{SchemaCheck, SchemaWait};
pub use partition_counts::PartitionCounts;
pub use ports::{Ports, WorkerPorts};
pub use progress::Progress;
pub(crate) use recovery::completed::foreign_records;
pub use recovery::locate::{StartLogs, check_start, start_notes};
pub(crate) use report::MissingIds;
pub use report::{CountedBy, WorkerReport};
pub(crate) use rivals::{REPLACED_MAX, Rivals, second_process};
#[cfg(feature = "failpoints")]
pub use safeguard::Safeguard;
pub use sizes::{block_ids, metadata_bytes, most_partitions, most_sections};
pub use standby::{Standby, StandbyPace};
pub(crate) use time::is_due;
pub use torn::EVIDENCE_RECORDS;
pub use worker::Worker;
pub use worker::chunk::ITERATION_TIME;
pub use worker::stalled::StableEnds;

/// Timeout of one request to the broker between two polls: the group needs the next poll in time.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
