//! Tests on librdkafka's embedded broker: every error of the client has a remedy that works, calls end
//! in time, and a rebalance under a running pipeline loses nothing.
//!
//! The mock does not support transactions (`support::mock`), so exactly-once itself is tested on a real broker.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::needless_for_each,
    clippy::unnecessary_wraps,
    clippy::unnecessary_find_map,
    reason = "a test fails by panicking"
)]

#[path = "support/memory_store.rs"]
mod memory_store;
mod support;

#[path = "mock_broker/demo.rs"]
mod demo;
#[path = "mock_broker/errors.rs"]
mod errors;
#[path = "mock_broker/features.rs"]
mod features;
#[path = "mock_broker/fidelity.rs"]
mod fidelity;
#[path = "mock_broker/member.rs"]
mod member;
#[path = "mock_broker/membership.rs"]
mod membership;
#[path = "mock_broker/outages.rs"]
mod outages;
#[path = "mock_broker/rebalances.rs"]
mod rebalances;
#[path = "mock_broker/rekey.rs"]
mod rekey;
#[path = "mock_broker/restore.rs"]
mod restore;
#[path = "mock_broker/stalled.rs"]
mod stalled;
#[path = "mock_broker/tails.rs"]
mod tails;
#[path = "mock_broker/throttled.rs"]
mod throttled;
#[path = "mock_broker/transactions.rs"]
mod transactions;
