//! The documentation lists all metrics of the program (`UPDATE=1 cargo test --test readme` rewrites the table), and its links have targets.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use dedupd::metrics::table::{MetricKind, Row, rows};

const TOP: &str = env!("CARGO_MANIFEST_DIR");

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
    let labels: Vec<_> = row.configured.iter().map(|name| format!("`{name}`")).chain(label).collect();
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

/// The anchor that a heading gets.
fn anchor(heading: &str) -> String {
    let mut text = String::new();
    let mut in_target = false;
    for c in heading.trim().to_lowercase().replace("](", "\u{0}").chars() {
        match c {
            '\u{0}' => in_target = true,
            ')' if in_target => in_target = false,
            _ if in_target => {}
            ' ' => text.push('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => text.push(c),
            _ => {}
        }
    }
    text
}

/// The files in Markdown at the top and in `docs/`.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.starts_with(Path::new(TOP).join("docs")) {
            pages(&path, found);
        } else if path.extension() == Some("md".as_ref()) {
            found.push(path);
        }
    }
}

#[test]
fn every_link_of_the_documentation_has_a_target() {
    let mut all = Vec::new();
    pages(Path::new(TOP), &mut all);
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let (mut checked, mut wrong) = (0, Vec::new());
    for page in &all {
        for link in read(page).split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            let (path, fragment) = link.split_once('#').unwrap_or((link, ""));
            if link.starts_with("http") || link.contains(' ') {
                continue;
            }
            let target = if path.is_empty() { page.clone() } else { page.parent().unwrap().join(path) };
            let is_there = fragment.is_empty() && target.exists()
                || target.is_file()
                    && read(&target)
                        .lines()
                        .filter(|line| line.starts_with('#'))
                        .any(|line| anchor(line.trim_start_matches('#')) == fragment);
            checked += 1;
            if !is_there {
                wrong.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(checked > 300 && wrong.is_empty(), "{checked} links; without a target: {wrong:#?}");
}
