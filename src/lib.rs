//! dedupd: an exactly-once de-duplication sidecar for Apache Kafka.
//!
//! **The promise.** For each raw partition, each id first seen inside the window appears in the clean
//! topic exactly once to `read_committed` readers, in raw order, byte for byte, through any number of
//! process kills, restarts, rebalances, and broker restarts. Local state is a cache: losing it costs
//! time, never data.
//!
//! **The map.** [`dedupe`] decides, as a function of values. [`ports`] are the few traits between
//! thinking and I/O; [`kafka`] and [`store`] implement them, [`pipeline`] is written against them.
//! [`config`] and [`cli`] say what is wanted, [`app`] assembles it, [`metrics`] and [`http`] tell how it
//! goes. [`control`] is what an operator may ask of a running instance, [`state`] looks into that of a
//! stopped one and moves it. [`audit`] proves the result and shares nothing with the rest; [`plan`] tells
//! what a window costs; [`generate`] and [`demo`] make
//! traffic. ARCHITECTURE.md walks one record through all of it.

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
