//! The duplicates on the status page: shares, ages, the last ones, and the values with most of them.

use super::chart;
use super::page::{Figure, ago, figures};
use super::texts::{escaped, grouped, rounded_down};
use crate::metrics::{
    ContentLabel, DuplicateStatus, DuplicatesSummary, NeededWindow, SourceStatus, TopValues, ValueCount,
};
use crate::units::seconds_text;

/// The block, at this time in epoch milliseconds.
pub(super) fn duplicates(summary: &DuplicatesSummary, now_ms: i64) -> String {
    let DuplicatesSummary { status, .. } = summary;
    let sources: String = status.sources.iter().map(source).collect();
    format!(
        "<section id=\"duplicates\"><h2>Duplicates since the start</h2>\n{}\
         <div class=\"columns\"><div>{}{}</div>\n<div>{}{sources}</div></div></section>\n",
        figures(&shares(summary)),
        chart::ages(summary),
        needed_windows(summary),
        last(&status.last, now_ms),
    )
}

fn shares(summary: &DuplicatesSummary) -> Vec<Figure> {
    let DuplicatesSummary { records, duplicates, conflicts, not_compared, .. } = *summary;
    let of_duplicates = |count| {
        rounded_down(count, duplicates)
            .map_or("no duplicates yet".to_owned(), |share| format!("{share} of the duplicates"))
    };
    let all = format!("{} of {} records", grouped(duplicates), grouped(records));
    vec![
        Figure(
            "share of duplicates",
            rounded_down(duplicates, records).unwrap_or_else(|| "?".to_owned()),
            all,
        ),
        Figure("conflicts: other content than the first", grouped(conflicts), of_duplicates(conflicts)),
        Figure("content not compared", grouped(not_compared), of_duplicates(not_compared)),
    ]
}

/// How long the window must be.
fn needed_windows(summary: &DuplicatesSummary) -> String {
    if summary.needed_windows.is_empty() {
        return String::new();
    }
    let row = |NeededWindow { percent, seconds }: &NeededWindow| {
        let window = if seconds.is_finite() {
            format!("at most {}", seconds_text(*seconds))
        } else {
            "more than 30d".to_owned()
        };
        format!("<tr><td>{percent} %<td>{window}</tr>\n")
    };
    let rows: String = summary.needed_windows.iter().map(row).collect();
    format!(
        "<h3>How long the window must be</h3>\n<table><tr><th>to find<th>a window of</tr>\n{rows}</table>\n\
         <p class=\"note\">Of the duplicates that were found, by {} observed ages, rounded up. Copies later than the window are not seen, \
         so they do not count here.</p>\n",
        grouped(summary.observed())
    )
}

fn last(last: &[DuplicateStatus], now_ms: i64) -> String {
    if last.is_empty() {
        return "<p>No duplicate whose first record is known, since the start.</p>\n".to_owned();
    }
    let row = |it: &DuplicateStatus| {
        let (content, class) = match it.content {
            ContentLabel::Equal => ("equal", ""),
            ContentLabel::Different => ("other", " class=\"alert\""),
            ContentLabel::NotCompared => ("not compared", ""),
        };
        format!(
            "<tr><td>{}<td>{}@{}<td>{}@{}<td>{}<td{class}>{content}</tr>\n",
            ago(it.committed_ms, now_ms),
            it.partition,
            it.offset,
            it.owner_partition,
            it.owner_offset,
            it.age_seconds.map_or("?".to_owned(), seconds_text),
        )
    };
    let rows: String = last.iter().map(row).collect();
    format!(
        "<h3>The last ones</h3>\n<table><tr><th>found<th>record<th>first record<th>age<th>content</tr>\n{rows}</table>\n\
         <p class=\"note\">Records are partition@offset of the raw topic.</p>\n"
    )
}

/// The values of a source with most duplicates, and with most conflicts.
fn source(source: &SourceStatus) -> String {
    let by = escaped(&source.by);
    let list = |what: &str, top: &TopValues| {
        if top.values.is_empty() {
            return String::new();
        }
        let rows: String = top.values.iter().map(value).collect();
        format!(
            "<h3>Most {what} by {by}</h3>\n<table><tr><th>value<th class=\"number\">{what}</tr>\n{rows}</table>\n"
        )
    };
    list("duplicates", &source.duplicates) + &list("conflicts", &source.conflicts)
}

fn value(ValueCount { value, least, most }: &ValueCount) -> String {
    let name = value.as_deref().map_or("<i>none</i>".to_owned(), escaped);
    let least = if least == most { String::new() } else { format!("{} to ", grouped(*least)) };
    format!("<tr><td>{name}<td class=\"number\">{least}{}</tr>\n", grouped(*most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{AgeCount, DuplicatesStatus};

    fn count(value: Option<&str>, least: u64, most: u64) -> ValueCount {
        ValueCount { value: value.map(str::to_owned), least, most }
    }

    #[test]
    fn values_are_escaped_and_uncertain_counts_are_shown_as_bounds() {
        let top = |values| TopValues { values, unlisted_most: 0 };
        let shown = source(&SourceStatus {
            by: "header:<app>".to_owned(),
            duplicates: top(vec![count(Some("<script>"), 1_000, 1_000), count(None, 3, 7)]),
            conflicts: TopValues::default(),
        });
        assert!(shown.contains("by header:&lt;app&gt;</h3>"), "{shown}");
        assert!(shown.contains("<td>&lt;script&gt;<td class=\"number\">1\u{202f}000</tr>"), "{shown}");
        assert!(shown.contains("<td><i>none</i><td class=\"number\">3 to 7</tr>"), "{shown}");
        assert!(!shown.contains("<script>") && !shown.contains("conflicts"), "{shown}");
    }

    #[test]
    fn the_block_shows_shares_the_needed_windows_and_each_content() {
        let one = |content, age_seconds| DuplicateStatus {
            committed_ms: 60_000,
            partition: 3,
            offset: 1_234,
            owner_partition: 1,
            owner_offset: 7,
            age_seconds,
            content,
        };
        let last = vec![one(ContentLabel::Different, Some(61.0)), one(ContentLabel::NotCompared, None)];
        let summary = DuplicatesSummary {
            records: 2_000,
            duplicates: 1_999,
            conflicts: 1,
            not_compared: 2,
            window_seconds: 86_400.0,
            ages: vec![AgeCount { at_most_seconds: 10.0, count: 1_500 }],
            needed_windows: vec![
                NeededWindow { percent: 99.0, seconds: 10.0 },
                NeededWindow { percent: 99.9, seconds: f64::INFINITY },
            ],
            status: DuplicatesStatus { last, sources: Vec::new() },
        };
        let shown = duplicates(&summary, 90_000);
        for text in [
            "<dd>99.9 %<small>1\u{202f}999 of 2\u{202f}000 records",
            "<dd>1<small>0.0 % of the duplicates",
            "<td>99 %<td>at most 10s</tr>",
            "<td>99.9 %<td>more than 30d</tr>",
            "by 1\u{202f}500 observed ages",
            "<td>30s ago<td>3@1234<td>1@7<td>1m 1s<td class=\"alert\">other</tr>",
            "<td>?<td>not compared</tr>",
        ] {
            assert!(shown.contains(text), "{text} is not in {shown}");
        }
        let empty = duplicates(&DuplicatesSummary::default(), 0);
        assert!(empty.contains("No duplicate") && empty.contains("<dd>?"), "{empty}");
        assert!(!empty.contains("How long") && !empty.contains("<path"), "{empty}");
        assert!(empty.contains("<small>no duplicates yet") && !empty.contains("? of"), "{empty}");
    }
}
