//! Metrics, health and status over HTTP, for Prometheus, orchestrators and people.
//!
//! These endpoints read only what the workers published, so a slow or hostile client cannot affect the data
//! path. They have no authentication. The admin API (`admin.rs`) sends requests to the workers and requires a
//! bearer token.

mod admin;
mod chart;
mod duplicates;
mod page;
mod partitions;
mod rekey;
mod routes;
mod server;
mod texts;

use std::sync::Arc;
use std::time::Instant;

pub use admin::{AdminApi, Token};
pub(crate) use rekey::RekeyEndpoint;
pub use server::{ClientLimits, serve};

use crate::metrics::{History, Metrics, Recent, Status};

/// The data that the endpoints serve.
#[derive(Clone)]
pub struct Endpoint {
    /// Served by `/metrics` and the status page.
    pub metrics: Metrics,
    /// As the workers last published it; decides `/readyz`.
    pub status: Arc<Status>,
    /// Answers `/state` and `/forget`.
    pub admin: AdminApi,
    /// The effective configuration, without secrets.
    pub config: Arc<str>,
    /// The history of the counters, for the charts.
    pub history: History,
    /// Last warnings of the log, for the status page.
    pub recent: Recent,
    /// When the process started.
    pub began: Instant,
}
