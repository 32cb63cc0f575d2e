//! The endpoints of `dedupd rekey`.

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};

use super::page::{self, Figure, PageHead};
use super::routes::ShownState;
use super::texts::{bytes, escaped, grouped};
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

impl ShownState for RekeyEndpoint {
    fn page(&self, now_ms: i64) -> String {
        render(self, now_ms)
    }

    fn scrape(&self) -> String {
        self.metrics.scrape()
    }

    fn failure(&self) -> Option<String> {
        self.metrics.status().failure
    }

    fn readiness(&self) -> Readiness {
        readiness(self.metrics.status())
    }

    fn document(&self) -> Value {
        json!(self.metrics.status())
    }

    fn config(&self) -> String {
        self.config.to_string()
    }
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
        &PageHead { about: &metrics.about, role: "rekey", readiness: &readiness(status), now_ms },
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
