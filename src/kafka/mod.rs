//! Kafka through librdkafka, behind the ports. The service uses the Kafka client only here.
//!
//! This folder contains no de-duplication logic. It moves bytes and offsets, and classifies errors by remedy.

mod acceptance;
mod admin;
mod aside;
mod client_config;
mod closing;
pub mod connection;
mod consumer;
mod creating;
mod delivery;
mod endings;
mod ends;
pub mod error;
mod features;
mod forecast;
mod group;
mod group_monitor;
mod log_context;
mod member;
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
mod single;
mod state_topic;
mod statistics;
mod topic;
mod topic_monitor;
mod topics;
mod unread;

pub(crate) use admin::{CheckError, Wanted};
pub use admin::{Checks, Topology, check};
pub use client_config::{ACTIVE_ID, Settings};
pub(crate) use closing::Closing;
pub use consumer::KafkaSource;
pub(crate) use creating::Create;
pub(crate) use ends::LogEnds;
pub use ends::Offsets;
pub(crate) use forecast::{Forecast, forecast};
pub use group_monitor::Member;
pub(crate) use group_monitor::{GroupMonitor, GroupState, GroupView};
pub use member::{SourceLog, SourceStart};
pub(crate) use outages::{OUTAGE_QUIET, log_ended_outages};
pub use producer::KafkaSink;
pub use record::RawRecord;
pub use rekey::SourceReader;
pub(crate) use rekey::{Acknowledgements, TargetWriter, check_rekey};
pub(crate) use sample::difference::{ComparedPart, compared_parts, place as first_difference};
pub use sample::sample;
pub(crate) use sample::{
    FOLLOWED_IDS, Respelled, SampleError, SampleLimits, SampleRule, Sampling, TopicSample, sample_ids,
};
pub(crate) use single::{NoRecord, read_record};
pub use state_topic::KafkaStateLog;
pub(crate) use statistics::{ClientFigures, ClientUse, client_figures};
pub(crate) use topic_monitor::{TopicError, TopicMonitor};
