//! Metrics, health and status over HTTP, for Prometheus, an orchestrator and people.
//!
//! It reads what the workers published and asks them nothing, so a slow or hostile client cannot reach
//! the data path; what an operator may ask and change has a door of its own. No authentication.

mod door;
mod page;
mod routes;
mod server;

use std::sync::Arc;

pub use door::{Door, Token};
pub use server::{Limits, serve, serve_within};

use crate::metrics::{Metrics, Status};

/// What the answers are made of.
#[derive(Clone)]
pub struct Endpoint {
    /// What is counted.
    pub metrics: Metrics,
    /// What the workers said last.
    pub status: Arc<Status>,
    /// The way to the workers.
    pub door: Door,
}
