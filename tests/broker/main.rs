//! All tests on a real Apache Kafka, except `torture`, in one test binary: tests of all files run side by side, because
//! most of them mostly wait. Most use the shared broker, so the names of topics and groups are unique in this folder.
//!
//! The Makefile sets the number of threads.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[path = "../support/mod.rs"]
mod support;

mod accepted;
mod arrival;
mod audit;
mod bounds;
mod browser;
mod bytes;
mod check_findings;
mod checking;
mod compacted;
mod conflicts;
mod cookbook;
mod crash;
mod encoded;
mod explain;
mod figures;
mod first_hour;
mod foreign;
mod forwarding;
mod frames;
mod group;
mod growth;
mod harness;
mod hostile;
mod kinds;
mod lifecycle;
mod long_window;
mod membership;
mod modes;
mod monitoring;
mod offsets;
mod orphans;
mod outage;
mod recreated;
mod rejected;
mod rekey;
mod rolling;
mod rules;
mod schemas;
mod security;
mod shared_sides;
mod spares;
mod spelled;
mod standby;
mod startup;
mod state_topic;
mod takeovers;
mod topic_scope;
mod torn;
mod trial;
mod upstream;
