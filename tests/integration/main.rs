//! Tests with other systems than Apache Kafka: schema registries, OIDC providers, KDCs, `MirrorMaker` 2, Debezium, containers
//! and charts.
//!
//! `make integration` installs these systems (`scripts/setup integration`, in `.integration`) and runs the tests. `make test` does not.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod containers;
mod grafana;
#[path = "../support/mod.rs"]
mod support;

mod chart;
mod connect;
mod debezium;
mod gate;
mod kerberos;
mod mirror;
mod msk_iam;
mod oidc;
mod registry;
mod server;
