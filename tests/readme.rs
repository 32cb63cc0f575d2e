//! The documentation lists all metrics of the program. `UPDATE=1 cargo test --test readme` rewrites the table.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use dedupd::metrics::table::{MetricKind, Row, rows};

/// The generated section of the page is between these lines.
const BEGIN: &str = "<!-- metrics: begin, made from src/metrics/table.rs -->\n";
const END: &str = "<!-- metrics: end -->";

/// The row of a metric in Markdown.
fn markdown(row: &Row) -> String {
    let kind = match row.kind {
        MetricKind::Counter => "counter",
        MetricKind::Gauge => "gauge",
        MetricKind::Histogram(_) => "histogram",
    };
    let label = row.label.map(|label| match label.values {
        [] => format!("`{}`", label.name),
        values => format!("`{}`: {}", label.name, values.join(", ")),
    });
    let labels: Vec<_> = row.by_kind.then(|| "`kind`".to_owned()).into_iter().chain(label).collect();
    format!("| `{}` | {kind} | {} | {} | {} |\n", row.name, row.unit, labels.join("; "), row.help)
}

/// The page with the table of now.
fn regenerated(page: &str) -> String {
    let marks = "docs/metrics.md has the marks of the metrics table";
    let (before, rest) = page.split_once(BEGIN).expect(marks);
    let (_, after) = rest.split_once(END).expect(marks);
    let table: String = rows().map(markdown).collect();
    format!(
        "{before}{BEGIN}| metric | kind | unit | label | meaning |\n|---|---|---|---|---|\n{table}{END}{after}"
    )
}

#[test]
fn the_documentation_lists_every_metric() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md");
    let page = std::fs::read_to_string(path).unwrap();
    let wanted = regenerated(&page);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &wanted).unwrap();
        return;
    }
    assert!(
        page == wanted,
        "the table in docs/metrics.md is outdated: run UPDATE=1 cargo test --test readme"
    );
}
