//! The table of docs/metrics.md.

use std::fmt::Write as _;

use super::MetricKind::{Counter, Gauge, Histogram};
use super::TABLE;

/// Marks the start of the generated section of a Markdown file.
pub const BEGIN: &str = "<!-- metrics: begin, made from src/metrics/table.rs -->";
/// Marks the end of the generated section of a Markdown file.
pub const END: &str = "<!-- metrics: end -->";

/// The table in Markdown.
pub fn markdown() -> String {
    let mut text = String::from("| metric | kind | unit | label | meaning |\n|---|---|---|---|---|\n");
    for row in TABLE {
        let kind = match row.kind {
            Counter => "counter",
            Gauge => "gauge",
            Histogram(_) => "histogram",
        };
        let label = row.label.map(|label| match label.values {
            [] => format!("`{}`", label.name),
            values => format!("`{}`: {}", label.name, values.join(", ")),
        });
        let labels: Vec<_> = row.by_kind.then(|| "`kind`".to_owned()).into_iter().chain(label).collect();
        let label = labels.join("; ");
        let line = writeln!(text, "| `{}` | {kind} | {} | {label} | {} |", row.name, row.unit, row.help);
        debug_assert!(line.is_ok(), "writing to a String cannot fail");
    }
    text
}

/// Replaces the text between [`BEGIN`] and [`END`] in a Markdown file by [`markdown`]. `None` when the
/// marks are missing. The file is up to date when the result equals it.
pub fn regenerated(file: &str) -> Option<String> {
    let (before, rest) = file.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{}{END}{after}", markdown()))
}
