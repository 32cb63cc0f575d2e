//! The status page for people: plain HTML, nothing loaded from elsewhere, dark or light as the
//! reader's system is.

use std::time::{Duration, UNIX_EPOCH};

use super::{Endpoint, chart};
use crate::metrics::{Outcome, PartitionStatus, Rates, Readiness, Warning, WorkerStatus};

const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}\
.ready,.waiting{padding:.6rem 1rem;border-left:.4rem solid}\
.ready{border-color:#2a8}.waiting{border-color:#d60}\
.scroll{overflow-x:auto}\
table{border-collapse:collapse}\
th,td{text-align:left;padding:.2rem 1.2rem .2rem 0;border-bottom:1px solid #8885}\
td.number,th.number{text-align:right;font-variant-numeric:tabular-nums}\
svg{width:100%;height:6rem;border-bottom:1px solid #8885}\
polyline{fill:none;stroke-width:2;vector-effect:non-scaling-stroke}\
polyline.all{stroke:#28c}polyline.again{stroke:#d60}\
span.all{border-bottom:2px solid #28c}span.again{border-bottom:2px solid #d60}\
.legend{margin-top:.3rem}time{opacity:.75;white-space:nowrap}\
footer{margin-top:2rem;opacity:.75}";

/// The page as a whole; it loads itself again every five seconds.
pub(super) fn render(shown: &Endpoint, counts: &[(Outcome, u64)], rates: &[Rates]) -> String {
    let status = &shown.status;
    let about = status.about();
    let workers = status.workers();
    let title = format!("dedupd: {} to {}", escaped(&about.raw), escaped(&about.clean));
    let partitions: String =
        workers.iter().enumerate().map(|(number, worker)| rows(number, worker)).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <meta http-equiv=\"refresh\" content=\"5\"><title>{title}</title><style>{STYLE}</style></head>\n\
         <body><h1>{title}</h1>\n{readiness}\n\
         {chart}<h2>Records</h2><table><tr><th>became<th class=\"number\">records</tr>\n{records}</table>\n\
         <h2>Partitions</h2><div class=\"scroll\"><table><tr><th class=\"number\">partition\
         <th class=\"number\">worker<th>state<th class=\"number\">next offset<th class=\"number\">lag\
         <th class=\"number\">ids<th>window</tr>\n{partitions}</table></div>\n\
         {warnings}\
         <footer>group {group}, instance {instance}, version {version}. \
         <a href=\"/metrics\">metrics</a>, <a href=\"/readyz\">readiness</a>, \
         <a href=\"/config\">configuration</a>, <a href=\"/status.json\">this page as JSON</a></footer></body></html>\n",
        readiness = readiness(&status.readiness()),
        chart = chart::rates(rates),
        warnings = warnings(&shown.recent.list()),
        records = counts
            .iter()
            // What never happens here need not be read.
            .filter(
                |(outcome, count)| *count > 0 || matches!(outcome, Outcome::Forwarded | Outcome::Duplicate)
            )
            .map(|(outcome, count)| count_row(*outcome, *count))
            .collect::<String>(),
        group = escaped(&about.group),
        instance = escaped(&about.instance),
        version = escaped(&about.version),
    )
}

fn readiness(readiness: &Readiness) -> String {
    let (class, word) = if readiness.ready { ("ready", "Ready") } else { ("waiting", "Not ready") };
    let lines: String = readiness.lines.iter().flat_map(|line| ["<br>".to_owned(), escaped(line)]).collect();
    format!("<p class=\"{class}\"><strong>{word}</strong>{lines}</p>")
}

fn warnings(recent: &[Warning]) -> String {
    if recent.is_empty() {
        return String::new();
    }
    let line = |warning: &Warning| {
        let time = u64::try_from(warning.time_ms).unwrap_or(0);
        let time = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(time));
        format!("<li><time>{time}</time> {}</li>\n", escaped(&warning.text))
    };
    let lines: String = recent.iter().map(line).collect();
    format!("<h2>Last warnings</h2><ul>\n{lines}</ul>\n")
}

fn count_row(outcome: Outcome, count: u64) -> String {
    let name = outcome.as_str().replace('_', " ");
    format!("<tr><td>{name}<td class=\"number\">{}</tr>\n", grouped(count))
}

fn rows(number: usize, worker: &WorkerStatus) -> String {
    worker.partitions.iter().map(|partition| row(number, partition)).collect()
}

fn row(worker: usize, partition: &PartitionStatus) -> String {
    let unknown = || "?".to_owned();
    let reason =
        partition.reason.as_ref().map_or_else(String::new, |reason| format!(": {}", escaped(reason)));
    format!(
        "<tr><td class=\"number\">{}<td class=\"number\">{worker}<td>{}{reason}<td class=\"number\">{}\
         <td class=\"number\">{}<td class=\"number\">{}<td>{}</tr>\n",
        partition.partition,
        partition.state.as_str(),
        partition.next.map_or_else(unknown, grouped),
        partition.lag_records.map_or_else(unknown, grouped),
        grouped(partition.window_ids),
        window(partition),
    )
}

/// How far back memory reaches, and what was asked where that is more.
fn window(partition: &PartitionStatus) -> String {
    let (status, seconds) = (&partition.window, partition.window_seconds);
    let shorter = seconds < status.asked_seconds;
    let part = status.exact_seconds < seconds && status.limit.is_some();
    let of = if shorter { format!(" of {}", span(status.asked_seconds)) } else { String::new() };
    let exactly = if part { format!(", {} exactly", span(status.exact_seconds)) } else { String::new() };
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

/// A length of time for people, in its two largest units.
fn span(seconds: f64) -> String {
    let minutes = seconds / 60.0;
    let hours = minutes / 60.0;
    if minutes < 1.0 {
        format!("{seconds:.0} s")
    } else if hours < 1.0 {
        format!("{:.0} min {:.0} s", minutes.floor(), (seconds % 60.0).floor())
    } else {
        format!("{:.0} h {:.0} min", hours.floor(), (minutes % 60.0).floor())
    }
}

/// Text for HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_well() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(span(59.4), "59 s");
        assert_eq!(span(61.0), "1 min 1 s");
        assert_eq!(span(86_400.0), "24 h 0 min");
    }

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escaped("<b a=\"1\">&"), "&lt;b a=&quot;1&quot;&gt;&amp;");
    }
}
