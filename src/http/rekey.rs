//! The endpoints of `dedupd rekey`.

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;

use super::server::{ClientLimits, serve_router};
use crate::metrics::RekeyMetrics;

/// The data that the endpoints serve.
#[derive(Clone)]
pub struct RekeyEndpoint {
    /// Metrics and status, as the loop last published them.
    pub metrics: RekeyMetrics,
    /// The effective configuration, without secrets.
    pub config: Arc<str>,
}

/// Serves until `shutdown` completes.
pub async fn serve_rekey(listener: TcpListener, endpoint: RekeyEndpoint, shutdown: impl Future<Output = ()>) {
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/status.json", get(status))
        .route("/config", get(config))
        .fallback(|| async {
            (StatusCode::NOT_FOUND, "try /status.json, /config, /metrics, /livez or /readyz\n")
        })
        .with_state(endpoint);
    serve_router(ClientLimits::default(), listener, router, shutdown).await;
}

async fn metrics(State(shown): State<RekeyEndpoint>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], shown.metrics.scrape())
}

async fn livez(State(shown): State<RekeyEndpoint>) -> (StatusCode, String) {
    match shown.metrics.status().failure {
        None => (StatusCode::OK, "alive\n".to_owned()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("failed: {reason}\n")),
    }
}

async fn readyz(State(shown): State<RekeyEndpoint>) -> (StatusCode, String) {
    let status = shown.metrics.status();
    let notes: String = status.notes.iter().flat_map(|note| ["note: ", note, "\n"]).collect();
    match status.failure.or(status.not_ready) {
        None => (StatusCode::OK, format!("ready\n{notes}")),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready\nrekey {reason}\n{notes}")),
    }
}

async fn status(State(shown): State<RekeyEndpoint>) -> impl IntoResponse {
    let document = serde_json::json!(shown.metrics.status());
    ([(header::CONTENT_TYPE, "application/json")], format!("{document}\n"))
}

async fn config(State(shown): State<RekeyEndpoint>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], shown.config.to_string())
}
