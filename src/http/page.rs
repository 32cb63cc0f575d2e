//! The status page for people: plain HTML without external resources, in the dark or light colour scheme of
//! the reader's system.

use std::time::{Duration, UNIX_EPOCH};

use super::partitions::partitions;
use super::texts::{bytes, escaped, grouped};
use super::{Endpoint, chart};
use crate::metrics::{KindStatus, Outcome, Rates, Readiness, Warning, WorkerStatus};
use crate::units::seconds_text;

const STYLE: &str = include_str!("page.css");
/// Refresh interval of the page, in seconds.
const REFRESH_S: u32 = 5;

/// The whole page, at `now_ms` in epoch milliseconds.
pub(super) fn render(shown: &Endpoint, counts: &[(Outcome, u64)], rates: &[Rates], now_ms: i64) -> String {
    let status = &shown.status;
    let about = status.about();
    let workers = status.workers();
    let readiness = status.readiness();
    let title = format!("{} to {}", escaped(&about.raw), escaped(&about.clean));
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta http-equiv=\"refresh\" content=\"{REFRESH_S}\"><link rel=\"icon\" href=\"data:,\">\
         <title>{word}: {title}</title><style>{STYLE}</style></head>\n\
         <body><h1>dedupd: {title}</h1>\n\
         <p class=\"quiet\">group {group}, instance {instance} ({role}), version {version}; as of {now}, refreshes every \
         {REFRESH_S} s</p>\n\
         {readiness}{charts}{facts}<h2>Records since the start</h2>\n\
         <table><tr><th>outcome<th class=\"number\">records</tr>\n{records}</table>\n\
         <h2>Partitions</h2>\n{partitions}{kinds}{warnings}\
         <nav><a href=\"/metrics\">metrics</a> <a href=\"/readyz\">readiness</a> \
         <a href=\"/config\">configuration</a> <a href=\"/status.json\">this page as JSON</a></nav></body></html>\n",
        word = word(&readiness),
        now = time(now_ms),
        readiness = readiness_section(&readiness),
        charts = chart::charts(rates, status.lag()),
        facts = facts(shown, &workers, now_ms),
        partitions = partitions(&workers),
        kinds = kinds(&KindStatus::of_all(workers.iter().flat_map(|worker| &worker.kinds))),
        warnings = warnings(&shown.recent.list()),
        records = counts
            .iter()
            // Outcomes that never occurred are left out, except for the two that matter most.
            .filter(
                |(outcome, count)| *count > 0 || matches!(outcome, Outcome::Forwarded | Outcome::Duplicate)
            )
            .map(|(outcome, count)| count_row(*outcome, *count))
            .collect::<String>(),
        role = status.role().0.as_str(),
        group = escaped(&about.group),
        instance = escaped(&about.instance),
        version = escaped(&about.version),
    )
}

fn word(readiness: &Readiness) -> &'static str {
    match readiness {
        Readiness { ready: false, .. } => "Not ready",
        Readiness { noted: true, .. } => "Ready, with a warning",
        _ => "Ready",
    }
}

/// Whether the process is ready, with its obstacles and notes.
fn readiness_section(readiness: &Readiness) -> String {
    let class = match readiness {
        Readiness { ready: false, .. } => "waiting",
        Readiness { noted: true, .. } => "noted",
        _ => "ready",
    };
    let lines: String = readiness.lines.iter().flat_map(|line| ["<li>".to_owned(), escaped(line)]).collect();
    let list = if lines.is_empty() { lines } else { format!("<ul>{lines}</ul>") };
    format!("<div class=\"{class}\"><strong>{}</strong>{list}</div>\n", word(readiness))
}

/// Memory, disk, window and last commit.
fn facts(shown: &Endpoint, workers: &[WorkerStatus], now_ms: i64) -> String {
    let metrics = &shown.metrics;
    let sum = |of: fn(&WorkerStatus) -> u64| workers.iter().map(of).sum::<u64>() as f64;
    let windows = sum(|worker| worker.index_bytes + worker.slices_bytes + worker.filter_bytes);
    let memory = format!("{}; windows {}", bytes(metrics.resident_bytes()), bytes(windows));
    let commit = match metrics.parts.transactions.last_commit.get() {
        0.0 => "none since the start".to_owned(),
        at => format!("{} ago", seconds_text((now_ms as f64 / 1e3 - at).max(0.0))),
    };
    let shortest = workers
        .iter()
        .flat_map(|worker| &worker.partitions)
        .map(|it| (it.window_seconds, it.window.asked_seconds))
        .reduce(|one, other| if other.0 < one.0 { other } else { one });
    let window = shortest.map_or_else(
        || "no partition".to_owned(),
        |(effective, configured)| {
            format!("{} of {}", seconds_text(effective.min(configured)), seconds_text(configured))
        },
    );
    let standby = shown.status.standby().map(|it| ("standby copies", escaped(&it.summary())));
    let rows = [
        ("memory", memory),
        ("local state on disk", bytes(metrics.parts.state.disk.get())),
        ("shortest window", window),
        ("last commit", commit),
    ];
    let row = |(name, text): (&str, String)| format!("<tr><td>{name}<td>{text}</tr>\n");
    let rows: String = rows.into_iter().chain(standby).map(row).collect();
    format!("<h2>Now</h2>\n<table id=\"now\">\n{rows}</table>\n")
}

fn time(ms: i64) -> String {
    let since = Duration::from_millis(u64::try_from(ms).unwrap_or(0));
    format!("<time>{}</time>", humantime::format_rfc3339_seconds(UNIX_EPOCH + since))
}

fn warnings(recent: &[Warning]) -> String {
    if recent.is_empty() {
        return String::new();
    }
    let line = |it: &Warning| format!("<li>{} {}</li>\n", time(it.time_ms), escaped(&it.text));
    let lines: String = recent.iter().map(line).collect();
    format!("<h2>Last warnings</h2>\n<ul class=\"warnings\">\n{lines}</ul>\n")
}

fn count_row(outcome: Outcome, count: u64) -> String {
    let name = outcome.as_str().replace('_', " ");
    format!("<tr><td>{name}<td class=\"number\">{}</tr>\n", grouped(count))
}

/// The kinds that have windows; empty without any.
fn kinds(kinds: &[KindStatus]) -> String {
    if kinds.is_empty() {
        return String::new();
    }
    let row = |it: &KindStatus| {
        let (effective, configured) = (it.window_seconds, it.asked_seconds);
        let of =
            if effective < configured { format!(" of {}", seconds_text(configured)) } else { String::new() };
        let (name, ids) = (escaped(&it.kind), grouped(it.window_ids));
        format!("<tr><td>{name}<td>{}{of}<td class=\"number\">{ids}</tr>\n", seconds_text(effective))
    };
    let rows: String = kinds.iter().map(row).collect();
    format!(
        "<h2>Kinds</h2>\n<table id=\"kinds\"><tr><th>kind<th>shortest window<th class=\"number\">ids</tr>\n{rows}</table>\n"
    )
}
