//! The traits between decisions and I/O, one for each role.
//!
//! The pipeline uses Kafka and the local store only through these traits. So the same worker runs on a real broker,
//! on librdkafka's embedded broker, and on a simulated broker and store in memory, driven by a seed. Every effect of
//! a worker is a call of one of these methods, which is also where a test can inject a crash.
//!
//! One type may have several roles: the client that reads the raw topic is also the member of the group, and the sink
//! writes with the producer that it creates. A function requires only the roles that it needs.

mod failure;
mod group;
mod log;
mod log_reads;
mod producer;
mod sink;
mod source;
mod state_log;
mod store;
mod truncation;

pub use crate::dedupe::Epoch;
pub(crate) use failure::SEARCHING;
pub use failure::{Failure, RejectedRecords, Remedy};
pub use group::{Committed, GroupEvent, GroupMember};
pub use log::{LogBounds, LogId, OutputTopic};
pub use log_reads::{Isolation, LogReads, SideRecord, SideRecords};
pub use producer::ProducerLife;
pub use sink::{CommitPosition, Reason, Side, Sink, WrittenEnds};
pub use source::{Record, Source};
pub use state_log::{StateItem, StateLog};
pub use store::{
    Covered, FilterJob, FilterSummary, FoundSlices, Head, SealJob, SealedLookup, SealedPlaces, Sealing,
    Store, StoreError, ToForget, Undone, VisitOwner, VisitRun,
};
pub use truncation::Truncation;
