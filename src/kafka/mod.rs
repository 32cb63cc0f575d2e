//! Kafka through librdkafka, behind the ports. The service uses the Kafka client only here.
//!
//! This folder contains no de-duplication logic. It moves bytes and offsets, and classifies errors by remedy.

mod admin;
mod aside;
mod client_config;
mod closing;
pub mod connection;
mod consumer;
mod creating;
mod delivery;
mod ends;
pub mod error;
mod features;
mod forecast;
mod group;
mod group_monitor;
mod log_context;
mod native;
mod offsets;
mod outages;
mod partitions;
mod producer;
mod reader;
mod record;
mod rekey;
mod rights;
mod sample;
mod scope_advice;
mod settle;
mod side_log;
mod state_topic;
mod statistics;
mod topic;
mod topic_monitor;
mod topics;
mod unread;

pub(crate) use admin::{CheckError, Wanted};
pub use admin::{Topology, check};
pub use client_config::Settings;
pub(crate) use closing::Closing;
pub use consumer::KafkaSource;
pub(crate) use ends::LogEnds;
pub use ends::Offsets;
pub(crate) use forecast::{Forecast, forecast};
pub use group_monitor::Member;
pub(crate) use group_monitor::{GroupMonitor, GroupState, GroupView};
pub(crate) use outages::log_ended_outages;
pub use producer::KafkaSink;
pub use record::RawRecord;
pub(crate) use rekey::{Acknowledgements, RekeyTopics, TargetWriter, check_rekey};
pub use rekey::{MembershipChange, SourceLog, SourceReader};
pub use sample::sample;
pub(crate) use sample::{SampleError, SampleLimits, Sampling, TopicSample, sample_ids};
pub use state_topic::KafkaStateLog;
pub(crate) use statistics::{ClientFigures, ClientUse, client_figures};
pub(crate) use topic_monitor::{TopicError, TopicMonitor};
