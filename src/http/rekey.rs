//! The endpoints of `dedupd rekey`.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;

use super::page::{self, Figure, PageHead};
use super::routes::page_headers;
use super::server::{ClientLimits, serve_router};
use super::texts::{bytes, escaped, grouped};
use crate::clock::wall_ms;
use crate::metrics::{Readiness, RekeyMetrics, RekeyStatus};
use crate::units::seconds_text;

/// The data that the endpoints serve.
#[derive(Clone)]
pub struct RekeyEndpoint {
    /// Metrics and status, as the loop last published them.
    pub metrics: RekeyMetrics,
    /// The effective configuration, without secrets.
    pub config: Arc<str>,
    /// When the process started.
    pub began: Instant,
}

/// Serves until `shutdown` completes.
pub async fn serve_rekey(listener: TcpListener, endpoint: RekeyEndpoint, shutdown: impl Future<Output = ()>) {
    let router = Router::new()
        .route("/", get(page))
        .route("/page.js", get(|| async { ([(header::CONTENT_TYPE, "text/javascript")], page::SCRIPT) }))
        .route("/metrics", get(metrics))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/status.json", get(status))
        .route("/config", get(config))
        .fallback(|| async {
            (StatusCode::NOT_FOUND, "try /, /status.json, /config, /metrics, /livez or /readyz\n")
        })
        .with_state(endpoint);
    serve_router(ClientLimits::default(), listener, router, shutdown).await;
}

async fn page(State(shown): State<RekeyEndpoint>) -> impl IntoResponse {
    (page_headers(), render(&shown, wall_ms()))
}

/// The status page: readiness, figures, and the lag of each source topic.
fn render(shown: &RekeyEndpoint, now_ms: i64) -> String {
    let RekeyEndpoint { metrics, began, .. } = shown;
    let (status, parts) = (metrics.status(), &metrics.parts);
    let count = |name, value: u64, more: &str| Figure(name, grouped(value), more.to_owned());
    let lag: u64 = status.lag.values().sum();
    let figures = [
        count("records read", parts.read.get(), "repeated ones included"),
        count("records written", parts.written.get(), "acknowledged by the target"),
        count("records in flight", status.in_flight as u64, ""),
        count("lag", lag, "offsets, in the assigned partitions"),
        count("records without an id", parts.missing_id.get(), ""),
        count("failures", parts.failures.get(), "after which records were read again"),
        count("partitions", status.partitions as u64, "assigned to this process"),
        Figure("running for", seconds_text(began.elapsed().as_secs_f64()), String::new()),
        Figure("memory", bytes(metrics.resident_bytes()), String::new()),
    ];
    let row = |(topic, lag): (&String, &u64)| {
        format!("<tr><td>{}<td class=\"number\">{}</tr>\n", escaped(topic), grouped(*lag))
    };
    let content = format!(
        "{}<main><h2>Source topics</h2>\n<table><tr><th>topic<th class=\"number\">lag</tr>\n{}</table></main>\n",
        page::figures(&figures),
        status.lag.iter().map(row).collect::<String>()
    );
    page::document(
        &PageHead { about: metrics.about(), role: "rekey", readiness: &readiness(status), now_ms },
        &content,
    )
}

fn readiness(status: RekeyStatus) -> Readiness {
    let obstacle = status.failure.or(status.not_ready);
    let (ready, noted) = (obstacle.is_none(), !status.notes.is_empty());
    let first = obstacle.map(|why| format!("rekey {why}"));
    let rest = status.notes.into_iter().map(|it| format!("note: {it}"));
    Readiness { ready, noted, lines: first.into_iter().chain(rest).collect() }
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
    let Readiness { ready, lines, .. } = readiness(shown.metrics.status());
    let lines: String = lines.iter().flat_map(|line| [line, "\n"]).collect();
    if ready {
        (StatusCode::OK, format!("ready\n{lines}"))
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("not ready\n{lines}"))
    }
}

async fn status(State(shown): State<RekeyEndpoint>) -> impl IntoResponse {
    let document = serde_json::json!(shown.metrics.status());
    ([(header::CONTENT_TYPE, "application/json")], format!("{document}\n"))
}

async fn config(State(shown): State<RekeyEndpoint>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], shown.config.to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::clock::monotonic;
    use crate::metrics::About;

    #[test]
    fn the_page_shows_readiness_figures_and_the_lag_of_each_source() {
        let about = About { raw: "a<b,c".to_owned(), clean: "t".to_owned(), ..About::default() };
        let metrics = RekeyMetrics::new(about);
        metrics.parts.written.inc_by(1_234);
        let shown = RekeyEndpoint { metrics: metrics.clone(), config: "".into(), began: monotonic() };
        let page = render(&shown, 0);
        assert!(page.contains("<strong>Not ready</strong><ul><li>rekey is starting</ul>"), "{page}");
        let notes = vec!["most records have no id".to_owned()];
        let lag = BTreeMap::from([("a<b".to_owned(), 7), ("c".to_owned(), 5_000)]);
        metrics.publish(RekeyStatus { notes, lag, ..RekeyStatus::default() });
        let page = render(&shown, 0);
        for part in [
            "<title>Ready, with a warning: a&lt;b,c to t</title>",
            "<li>note: most records have no id",
            "<dt>records written<dd>1\u{202f}234<small>",
            "<dt>lag<dd>5\u{202f}007<small>",
            "<tr><td>a&lt;b<td class=\"number\">7</tr>",
            "<tr><td>c<td class=\"number\">5\u{202f}000</tr>",
            "instance  (rekey)",
        ] {
            assert!(page.contains(part), "{part} is not in\n{page}");
        }
        metrics.publish(RekeyStatus::default());
        assert!(render(&shown, 0).contains("<div class=\"ready\"><strong>Ready</strong></div>"));
    }
}
