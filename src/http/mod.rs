//! Metrics, health and status over HTTP, for Prometheus, an orchestrator and people.
//!
//! It reads what the workers published and asks them nothing, so a slow or hostile client cannot reach
//! the data path; what an operator may ask and change has a door of its own. No authentication.

mod chart;
mod door;
mod page;
mod routes;
mod server;

use std::sync::{Arc, Mutex};

pub use door::{Door, Token};
pub use server::{Limits, serve, serve_within};

use crate::metrics::{History, Metrics, Recent, Status};

/// What the answers are made of.
#[derive(Clone)]
pub struct Endpoint {
    /// What is counted.
    pub metrics: Metrics,
    /// What the workers said last.
    pub status: Arc<Status>,
    /// The way to the workers.
    pub door: Door,
    /// The configuration in force, without secrets.
    pub config: Arc<str>,
    /// The last minutes.
    pub history: Arc<Mutex<History>>,
    /// The last warnings.
    pub recent: Recent,
}
