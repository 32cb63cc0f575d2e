//! Metrics, health and status over HTTP, for Prometheus, an orchestrator and people.
//!
//! It reads what the workers published and never asks them anything, so a slow or hostile client
//! cannot reach the data path. It has no authentication and changes nothing: GET only.

mod page;
mod routes;
mod server;

pub use server::{Limits, serve, serve_within};
