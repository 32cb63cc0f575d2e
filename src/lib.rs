//! dedupd: an exactly-once de-duplication sidecar for Apache Kafka.
//!
//! **The promise.** For each raw partition, each id first seen inside the window appears in the clean topic exactly
//! once to `read_committed` readers, in raw order, byte for byte, through any number of process kills, restarts,
//! rebalances, and broker restarts. Local state is a cache: losing it costs time, never data.
//!
//! **The map.** [`dedupe`] makes the decisions, as pure functions. [`ports`] are the traits between decisions and
//! I/O; [`kafka`] and [`store`] implement them, [`pipeline`] uses them. [`config`] and [`cli`] contain the settings,
//! [`app`] assembles the program, [`metrics`] and [`http`] report its status. [`control`] passes requests of the
//! admin API to a running instance, [`state`] inspects, exports and imports the state of a stopped one. [`audit`]
//! verifies the result and shares no code with the rest; [`plan`] predicts what a window costs; [`generate`] and
//! [`demo`] produce load. ARCHITECTURE.md walks one record through all of it.

pub mod app;
pub mod audit;
pub mod cli;
pub mod clock;
pub mod config;
pub mod control;
pub mod dedupe;
pub mod demo;
pub mod generate;
pub mod http;
pub mod kafka;
pub mod metrics;
pub mod pipeline;
pub mod plan;
pub mod ports;
pub mod state;
pub mod store;
