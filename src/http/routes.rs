//! The routes and their handlers.

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderName, Method, Request, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};

use super::{Endpoint, admin, page};
use crate::clock::wall_ms;
use crate::control::MAX_BODY;
use crate::metrics::{Readiness, Snapshot};

/// What the endpoints of a command show.
pub trait ShownState: Clone + Send + Sync + 'static {
    /// The paths of requests with a body. All others are for GET.
    const POSTED: &'static [&'static str] = &[];

    /// The routes that only this command has.
    fn own_routes() -> Router<Self> {
        Router::new()
    }

    /// The status page at `now_ms` in epoch milliseconds, HTML.
    fn page(&self, now_ms: i64) -> String;

    /// The metrics, in the format of Prometheus.
    fn scrape(&self) -> String;

    /// Why the command has failed, `None` while it works.
    fn failure(&self) -> Option<String>;

    fn readiness(&self) -> Readiness;

    /// The content of `/status.json`.
    fn document(&self) -> Value;

    /// The effective configuration without secrets, as TOML.
    fn config(&self) -> String;
}

impl ShownState for Endpoint {
    const POSTED: &'static [&'static str] = &["/forget", "/log"];

    fn own_routes() -> Router<Self> {
        Router::new()
            .route("/state", get(admin::state))
            .route("/forget", post(admin::forget))
            .route("/log", post(admin::log))
    }

    fn page(&self, now_ms: i64) -> String {
        page::render(self, now_ms)
    }

    fn scrape(&self) -> String {
        self.metrics.scrape(&self.status)
    }

    fn failure(&self) -> Option<String> {
        self.status.read(|it| it.failure.clone())
    }

    fn readiness(&self) -> Readiness {
        self.status.read(Snapshot::readiness)
    }

    fn document(&self) -> Value {
        let outcomes = self.metrics.outcomes();
        let records: serde_json::Map<_, _> =
            outcomes.map(|(outcome, count)| (outcome.as_str().to_owned(), count.into())).collect();
        let status = self.status.snapshot();
        let (role, active) = status.role();
        json!({
            "about": self.status.about,
            "identity_rule": status.identity_rule,
            "role": role,
            "active_instance": active,
            "readiness": status.readiness(),
            "members": status.members,
            "unassigned_partitions": status.unassigned,
            "standby": status.standby,
            "records": records,
            "duplicates": self.metrics.duplicates(&status),
            "workers": status.workers,
            "rates": self.history.rates(),
            "clients": status.clients,
            "warnings": self.recent.list(),
        })
    }

    fn config(&self) -> String {
        self.config.to_string()
    }
}

pub(super) fn router<S: ShownState>(shown: S) -> Router {
    S::own_routes()
        .route("/", get(|State(shown): State<S>| async move { (page_headers(), shown.page(wall_ms())) }))
        .route("/status.json", get(|State(shown): State<S>| async move { json_text(&shown.document()) }))
        .route("/page.js", get(|| async { ([(header::CONTENT_TYPE, "text/javascript")], page::SCRIPT) }))
        .route("/metrics", get(|State(shown): State<S>| async move { (METRICS, shown.scrape()) }))
        .route("/livez", get(|State(shown): State<S>| async move { livez(shown.failure()) }))
        .route("/readyz", get(|State(shown): State<S>| async move { readyz(&shown.readiness()) }))
        .route("/config", get(|State(shown): State<S>| async move { (TEXT, shown.config()) }))
        // Browsers request it with every text page.
        .route("/favicon.ico", get(|| async { StatusCode::NO_CONTENT }))
        .fallback(|| async {
            (StatusCode::NOT_FOUND, "try /, /status.json, /config, /metrics, /livez or /readyz\n")
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn(|request, next| one_method(S::POSTED, request, next)))
        .with_state(shown)
}

type ContentType = [(HeaderName, &'static str); 1];
const METRICS: ContentType = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
const TEXT: ContentType = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];

/// A response of JSON.
pub(super) fn json_text(document: &Value) -> impl IntoResponse + use<> {
    ([(header::CONTENT_TYPE, "application/json")], format!("{document}\n"))
}

/// Rejects every method but GET, or POST for the paths `posted`, and forbids caching of responses.
async fn one_method(posted: &[&str], request: Request<axum::body::Body>, next: Next) -> Response {
    let is_posted = posted.contains(&request.uri().path());
    let (allowed, name) = if is_posted { (Method::POST, "POST") } else { (Method::GET, "GET") };
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

fn livez(failure: Option<String>) -> (StatusCode, String) {
    match failure {
        None => (StatusCode::OK, "alive\n".to_owned()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("failed: {reason}\n")),
    }
}

fn readyz(readiness: &Readiness) -> (StatusCode, String) {
    let (code, first) = if readiness.ready {
        (StatusCode::OK, "ready")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready")
    };
    let lines = readiness.lines.iter().map(|line| format!("{line}\n"));
    (code, std::iter::once(format!("{first}\n")).chain(lines).collect())
}

/// The headers of a status page: it loads nothing but its script.
fn page_headers() -> [(HeaderName, &'static str); 2] {
    let policy = "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'unsafe-inline'; img-src data:; \
                  frame-ancestors 'none'";
    [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CONTENT_SECURITY_POLICY, policy)]
}
