//! The status page for people: HTML without external resources, in the dark or light colour scheme of the reader's system. What is
//! wrong comes first. A script of this server replaces its content, so that it survives a restart.

use std::time::{Duration, UNIX_EPOCH};

use super::partitions::partitions;
use super::texts::{bytes, escaped, grouped, rounded_down};
use super::{Endpoint, chart, duplicates};
use crate::metrics::{About, KindStatus, Outcome, Readiness, Role, Snapshot, Totals, Warning, WorkerStatus};
use crate::units::seconds_text;

const STYLE: &str = include_str!("page.css");
/// Served as `/page.js`: the policy of the page allows no script in it.
pub(super) const SCRIPT: &str = include_str!("page.js");
/// Refresh interval of the page, in seconds.
const REFRESH_S: u32 = 5;

/// Age up to which a warning is on the page, in ms.
const WARNINGS_MS: i64 = 3_600_000;

/// What the head of a page shows.
pub(super) struct PageHead<'a> {
    pub about: &'a About,
    /// The role of the instance.
    pub role: &'a str,
    pub readiness: &'a Readiness,
    /// Epoch milliseconds.
    pub now_ms: i64,
}

/// A whole page with this content, HTML.
pub(super) fn document(head: &PageHead<'_>, content: &str) -> String {
    let PageHead { about, role, readiness, now_ms } = head;
    let title = format!("{} to {}", escaped(&about.raw), escaped(&about.clean));
    format!(
        "<!doctype html>\n<html lang=\"en\" data-version=\"{version}\" data-refresh=\"{REFRESH_S}\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <noscript><meta http-equiv=\"refresh\" content=\"{REFRESH_S}\"></noscript><link rel=\"icon\" href=\"data:,\">\
         <title>{word}: {title}</title><style>{STYLE}</style><script src=\"/page.js\" defer></script></head>\n\
         <body><h1>dedupd: {title}</h1>\n\
         <p class=\"quiet\">group {group}, instance {instance} ({role}), version {version}; as of {now}</p>\n\
         <div class=\"waiting\" id=\"unanswered\" hidden><strong>No answer</strong> since <time></time>: this is the state \
         before. The page continues when the instance answers.</div>\n\
         {readiness}{content}\
         <nav><a href=\"/metrics\">metrics</a> <a href=\"/readyz\">readiness</a> \
         <a href=\"/config\">configuration</a> <a href=\"/status.json\">this page as JSON</a></nav></body></html>\n",
        word = word(readiness),
        now = time(*now_ms),
        readiness = readiness_section(readiness),
        group = escaped(&about.group),
        instance = escaped(&about.instance),
        version = escaped(&about.version),
    )
}

/// The page of `run`, at `now_ms` in epoch milliseconds.
pub(super) fn render(shown: &Endpoint, now_ms: i64) -> String {
    let status = shown.status.snapshot();
    let (total, readiness) = (status.total(), status.readiness());
    let content = format!(
        "{warnings}{figures}\
         <main class=\"columns\"><section>{charts}<h2>Records since the start</h2>\n\
         <table><tr><th>outcome<th class=\"number\">records</tr>\n{records}</table></section>\n\
         <section><h2>Partitions</h2>\n{partitions}{kinds}</section></main>\n{duplicates}",
        charts = chart::charts(&shown.history.rates()),
        figures = figures(&all_figures(shown, &status, &total, now_ms)),
        partitions = partitions(&status.workers),
        kinds = kinds(&total.kinds),
        duplicates = duplicates::duplicates(&shown.metrics.duplicates(&status), now_ms),
        warnings = warnings(&shown.recent.list(), now_ms),
        records = shown
            .metrics
            .outcomes()
            // Outcomes that never occurred are left out, except for the two that matter most.
            .filter(
                |(outcome, count)| *count > 0 || matches!(outcome, Outcome::Forwarded | Outcome::Duplicate)
            )
            .map(|(outcome, count)| count_row(outcome, count))
            .collect::<String>(),
    );
    let role = status.role().0.as_str();
    document(&PageHead { about: &shown.status.about, role, readiness: &readiness, now_ms }, &content)
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

/// A figure with its name, and what explains it; texts for HTML.
pub(super) struct Figure(pub &'static str, pub String, pub String);

/// What a person asks for first, in this order.
fn all_figures(shown: &Endpoint, status: &Snapshot, total: &WorkerStatus, now_ms: i64) -> Vec<Figure> {
    let (metrics, totals) = (&shown.metrics, shown.metrics.totals(status.lag()));
    let recent = shown.history.last_minutes();
    let percent = |of: &Totals| rounded_down(of.duplicates, of.records).unwrap_or_else(|| "?".to_owned());
    let latency = |quantile| match recent.latency_seconds(quantile) {
        Some(bound) if bound.is_finite() => format!("at most {}", seconds_text(bound)),
        Some(_) => "more than 1h".to_owned(),
        None => "?".to_owned(),
    };
    let windows = (total.index_bytes + total.slices_bytes) as f64;
    let commit = match metrics.parts.transactions.last_commit.get() {
        0.0 => "no commit since the start".to_owned(),
        at => format!("last commit {} ago", seconds_text(now_ms as f64 / 1e3 - at)),
    };
    let (window, configured) = shortest_window(status);
    let mut all = vec![
        Figure(
            "duplicates, last 10 minutes",
            percent(&recent),
            format!("{} since the start", percent(&totals)),
        ),
        Figure(
            "duplicates since the start",
            grouped(totals.duplicates),
            format!("of {} records", grouped(totals.records)),
        ),
        Figure("latency of forwarded records", latency(0.99), format!("99 %; half of them {}", latency(0.5))),
        Figure("shortest window", window, configured),
        Figure("running for", seconds_text(shown.began.elapsed().as_secs_f64()), commit),
        Figure("other instances", instances(status), String::new()),
        Figure("memory", bytes(metrics.resident_bytes()), format!("windows {}", bytes(windows))),
        Figure("local state on disk", bytes(metrics.parts.state.disk.get()), String::new()),
    ];
    all.extend(
        status.standby.iter().map(|it| Figure("standby copies", escaped(&it.summary()), String::new())),
    );
    all
}

pub(super) fn figures(all: &[Figure]) -> String {
    let text = |Figure(name, value, more): &Figure| {
        let more = if more.is_empty() { String::new() } else { format!("<small>{more}</small>") };
        format!("<div><dt>{name}<dd>{value}{more}</div>\n")
    };
    format!("<dl class=\"figures\">\n{}</dl>\n", all.iter().map(text).collect::<String>())
}

/// The shortest window, and the configured one.
fn shortest_window(status: &Snapshot) -> (String, String) {
    let windows = status.partitions().map(|it| (it.window_seconds, it.window.asked_seconds));
    let shortest = windows.reduce(|one, other| if other.0 < one.0 { other } else { one });
    let Some((effective, configured)) = shortest else { return ("no partition".to_owned(), String::new()) };
    (seconds_text(effective.min(configured)), format!("of {}", seconds_text(configured)))
}

/// The other instances that are known here.
fn instances(status: &Snapshot) -> String {
    if let (Role::Spare, Some(active)) = status.role() {
        return format!("{} is active", escaped(active));
    }
    let other = |(name, count): (&String, &usize)| format!("{} with {count} partitions", escaped(name));
    let list: Vec<String> = status.members.iter().map(other).collect();
    if list.is_empty() { "none in the group".to_owned() } else { list.join(", ") }
}

fn time(ms: i64) -> String {
    let since = Duration::from_millis(u64::try_from(ms).unwrap_or(0));
    format!("<time>{}</time>", humantime::format_rfc3339_seconds(UNIX_EPOCH + since))
}

/// How long ago a time in epoch milliseconds is.
pub(super) fn ago(ms: i64, now_ms: i64) -> String {
    format!("{} ago", seconds_text(now_ms.saturating_sub(ms) as f64 / 1e3))
}

fn warnings(recent: &[Warning], now_ms: i64) -> String {
    let line = |it: &Warning| {
        let age = ago(it.time_ms, now_ms);
        format!("<li>{} ({age}) {}</li>\n", time(it.time_ms), escaped(&it.text))
    };
    let last = recent.iter().filter(|it| now_ms.saturating_sub(it.time_ms) <= WARNINGS_MS);
    let lines: String = last.map(line).collect();
    if lines.is_empty() {
        return lines;
    }
    format!("<h2>Warnings of the last hour</h2>\n<ul class=\"warnings\">\n{lines}</ul>\n")
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
