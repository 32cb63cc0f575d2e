//! The status page for people: plain HTML without external resources, in the dark or light colour scheme of
//! the reader's system.

use std::time::{Duration, UNIX_EPOCH};

use super::{Endpoint, chart};
use crate::metrics::{
    KindStatus, Outcome, PartitionState, PartitionStatus, Rates, Readiness, Warning, WorkerStatus,
};

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
         {readiness}{charts}<h2>Records since the start</h2>\n\
         <table><tr><th>outcome<th class=\"number\">records</tr>\n{records}</table>\n\
         <h2>Partitions</h2>\n{partitions}{kinds}{warnings}\
         <nav><a href=\"/metrics\">metrics</a> <a href=\"/readyz\">readiness</a> \
         <a href=\"/config\">configuration</a> <a href=\"/status.json\">this page as JSON</a></nav></body></html>\n",
        word = word(&readiness),
        now = time(now_ms),
        readiness = readiness_section(&readiness),
        charts = chart::charts(rates, status.lag()),
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
    if readiness.ready { "Ready" } else { "Not ready" }
}

/// Whether the process is ready, with its obstacles and notes.
fn readiness_section(readiness: &Readiness) -> String {
    let class = if readiness.ready { "ready" } else { "waiting" };
    let lines: String = readiness.lines.iter().flat_map(|line| ["<li>".to_owned(), escaped(line)]).collect();
    let list = if lines.is_empty() { lines } else { format!("<ul>{lines}</ul>") };
    format!("<div class=\"{class}\"><strong>{}</strong>{list}</div>\n", word(readiness))
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

/// All partitions of this instance, by number.
fn partitions(workers: &[WorkerStatus]) -> String {
    let owned = |(number, worker)| {
        let worker: &WorkerStatus = worker;
        worker.partitions.iter().map(move |partition| (number, partition))
    };
    let mut all: Vec<(usize, &PartitionStatus)> = workers.iter().enumerate().flat_map(owned).collect();
    if all.is_empty() {
        return "<p>No partition is assigned to this instance.</p>\n".to_owned();
    }
    all.sort_by_key(|(_, partition)| partition.partition);
    let rows: String = all.into_iter().map(|(worker, partition)| row(worker, partition)).collect();
    format!(
        "<div class=\"scroll\"><table id=\"partitions\"><tr><th class=\"number\">partition<th>state\
         <th class=\"number\">lag<th>window<th class=\"number\">ids<th class=\"number\">next offset\
         <th class=\"number\">worker</tr>\n{rows}</table></div>\n"
    )
}

/// The kinds that have windows; empty without any.
fn kinds(kinds: &[KindStatus]) -> String {
    if kinds.is_empty() {
        return String::new();
    }
    let row = |it: &KindStatus| {
        let (effective, configured) = (it.window_seconds, it.asked_seconds);
        let of = if effective < configured { format!(" of {}", span(configured)) } else { String::new() };
        let (name, ids) = (escaped(&it.kind), grouped(it.window_ids));
        format!("<tr><td>{name}<td>{}{of}<td class=\"number\">{ids}</tr>\n", span(effective))
    };
    let rows: String = kinds.iter().map(row).collect();
    format!(
        "<h2>Kinds</h2>\n<table id=\"kinds\"><tr><th>kind<th>shortest window<th class=\"number\">ids</tr>\n{rows}</table>\n"
    )
}

fn row(worker: usize, partition: &PartitionStatus) -> String {
    let unknown = || "?".to_owned();
    let reason =
        partition.reason.as_ref().map_or_else(String::new, |reason| format!(": {}", escaped(reason)));
    let class = if partition.state == PartitionState::Running { "" } else { " class=\"alert\"" };
    format!(
        "<tr><td class=\"number\">{}<td{class}>{}{reason}<td class=\"number\">{}<td>{}<td class=\"number\">{}\
         <td class=\"number\">{}<td class=\"number\">{worker}</tr>\n",
        partition.partition,
        partition.state.as_str(),
        partition.lag_records.map_or_else(unknown, grouped),
        window(partition),
        grouped(partition.window_ids),
        partition.next.map_or_else(unknown, grouped),
    )
}

/// The effective length of the window, and the configured one when that is longer.
fn window(partition: &PartitionStatus) -> String {
    let (status, seconds) = (&partition.window, partition.window_seconds);
    let shorter = seconds < status.asked_seconds;
    let exact_is_shorter = status.exact_seconds < seconds && status.limit.is_some();
    let of = if shorter { format!(" of {}", span(status.asked_seconds)) } else { String::new() };
    let exactly =
        if exact_is_shorter { format!(", {} exactly", span(status.exact_seconds)) } else { String::new() };
    let missed = if status.miss_rate > 0.0 {
        let (share, certain) = (status.miss_rate * 100.0, span(status.certain_seconds));
        format!(", {share:.2} % overwritten, none in {certain}")
    } else {
        String::new()
    };
    format!("{}{of}{exactly}{missed}", span(seconds))
}

/// A number with its digits in groups of three.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// A duration for people, in its two largest units.
fn span(seconds: f64) -> String {
    let (minutes, hours) = ((seconds / 60.0).floor(), (seconds / 3600.0).floor());
    let (large, small) = match (hours, minutes) {
        (..1.0, ..1.0) => return format!("{seconds:.0} s"),
        (..1.0, _) => (format!("{minutes:.0} min"), format!("{:.0} s", (seconds % 60.0).floor())),
        _ => (format!("{hours:.0} h"), format!("{:.0} min", minutes % 60.0)),
    };
    if small.starts_with("0 ") { large } else { format!("{large} {small}") }
}

/// Text escaped for HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_durations_are_readable() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(span(59.4), "59 s");
        assert_eq!(span(61.0), "1 min 1 s");
        assert_eq!(span(86_400.0), "24 h");
        assert_eq!(span(5_400.0), "1 h 30 min");
    }

    #[test]
    fn text_is_escaped_and_cannot_become_markup() {
        assert_eq!(escaped("<b a=\"1\">&"), "&lt;b a=&quot;1&quot;&gt;&amp;");
    }
}
