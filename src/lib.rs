//! dedupd: an exactly-once de-duplication sidecar for Apache Kafka.
//!
//! **The promise.** Each id first seen inside the window, of the raw topic or of each of its partitions, appears in the clean topic exactly
//! once to `read_committed` readers, in raw order, byte for byte, through any number of process kills, restarts,
//! rebalances, and broker restarts. Local state is a cache: losing it costs time, never data.
//!
//! **The map.** [`dedupe`] makes the decisions, as pure functions. [`ports`] are the traits between decisions and
//! I/O; [`kafka`] and [`store`] implement them, [`pipeline`] uses them. [`config`] and [`cli`] contain the settings,
//! [`schemas`] fetches the schemas of encoded records, [`app`] assembles the service, [`metrics`] and [`http`] report its status. [`control`] passes requests of the
//! admin API to a running instance. [`tools`] contains the other commands: `audit` verifies the result with the crate
//! `dedupd_audit`, which uses no code of this one, `plan` predicts what a window costs, `state` inspects, exports and
//! imports the state of a stopped instance, `rekey` writes the records of many topics to the partitions of their ids, `generate` and `demo` produce load with the crate
//! `testkit`. ARCHITECTURE.md walks one record through all of it.

pub mod app;
pub mod cli;
pub mod clock;
pub mod config;
pub mod control;
pub mod dedupe;
pub mod http;
pub mod kafka;
pub(crate) mod locked;
pub mod metrics;
pub mod pipeline;
pub mod ports;
pub mod schemas;
pub mod store;
pub mod tools;
pub(crate) mod units;
