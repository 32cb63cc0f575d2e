//! The routes and their handlers.

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderName, Method, Request, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::json;

use super::{Endpoint, admin, page};
use crate::clock::wall_ms;
use crate::metrics::Snapshot;

/// Maximum size of a request body, in bytes: an id and its JSON.
const MAX_BODY: usize = 64 * 1024;

pub(super) fn router(endpoint: Endpoint) -> Router {
    Router::new()
        .route("/", get(status_page))
        .route("/status.json", get(status_json))
        .route("/page.js", get(|| async { ([(header::CONTENT_TYPE, "text/javascript")], page::SCRIPT) }))
        .route("/metrics", get(metrics_page))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/config", get(config))
        .route("/state", get(admin::state))
        .route("/forget", post(admin::forget))
        .route("/log", post(admin::log))
        // Browsers request it with every text page.
        .route("/favicon.ico", get(|| async { StatusCode::NO_CONTENT }))
        .fallback(|| async {
            (StatusCode::NOT_FOUND, "try /, /status.json, /config, /metrics, /livez or /readyz\n")
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn(one_method))
        .with_state(endpoint)
}

/// Rejects every method but GET (`/forget` and `/log`: POST), and forbids caching of responses.
async fn one_method(request: Request<axum::body::Body>, next: Next) -> Response {
    let (allowed, name) = match request.uri().path() {
        "/forget" | "/log" => (Method::POST, "POST"),
        _ => (Method::GET, "GET"),
    };
    if request.method() != allowed {
        let allow = [(header::ALLOW, name)];
        return (StatusCode::METHOD_NOT_ALLOWED, allow, format!("method not allowed; use {name}\n"))
            .into_response();
    }
    let mut response = next.run(request).await;
    let no_store = header::HeaderValue::from_static("no-store");
    response.headers_mut().insert(header::CACHE_CONTROL, no_store);
    response
}

async fn metrics_page(State(shown): State<Endpoint>) -> impl IntoResponse {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], shown.metrics.scrape(&shown.status))
}

async fn livez(State(shown): State<Endpoint>) -> (StatusCode, String) {
    match shown.status.read(|it| it.failure.clone()) {
        None => (StatusCode::OK, "alive\n".to_owned()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("failed: {reason}\n")),
    }
}

async fn readyz(State(shown): State<Endpoint>) -> (StatusCode, String) {
    let readiness = shown.status.read(Snapshot::readiness);
    let (code, first) = if readiness.ready {
        (StatusCode::OK, "ready")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready")
    };
    let lines = readiness.lines.iter().map(|line| format!("{line}\n"));
    (code, std::iter::once(format!("{first}\n")).chain(lines).collect())
}

async fn status_json(State(shown): State<Endpoint>) -> impl IntoResponse {
    let outcomes = shown.metrics.outcomes();
    let records: serde_json::Map<_, _> =
        outcomes.map(|(outcome, count)| (outcome.as_str().to_owned(), count.into())).collect();
    let status = shown.status.snapshot();
    let (role, active) = status.role();
    let document = json!({
        "about": shown.status.about,
        "identity_rule": status.identity_rule,
        "role": role,
        "active_instance": active,
        "readiness": status.readiness(),
        "members": status.members,
        "unassigned_partitions": status.unassigned,
        "standby": status.standby,
        "records": records,
        "duplicates": shown.metrics.duplicates(&status),
        "workers": status.workers,
        "rates": shown.history.rates(),
        "clients": status.clients,
        "warnings": shown.recent.list(),
    });
    ([(header::CONTENT_TYPE, "application/json")], format!("{document}\n"))
}

async fn status_page(State(shown): State<Endpoint>) -> impl IntoResponse {
    (page_headers(), page::render(&shown, wall_ms()))
}

/// The headers of a status page: it loads nothing but its script.
pub(super) fn page_headers() -> [(HeaderName, &'static str); 2] {
    let policy = "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'unsafe-inline'; img-src data:; \
                  frame-ancestors 'none'";
    [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CONTENT_SECURITY_POLICY, policy)]
}

/// The effective configuration, as TOML.
async fn config(State(shown): State<Endpoint>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], shown.config.to_string())
}
