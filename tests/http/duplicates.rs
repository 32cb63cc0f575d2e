//! The duplicates on the status page and in `/status.json`.

use dedupd::http::ClientLimits;
use dedupd::metrics::{
    ContentLabel, DuplicateStatus, DuplicatesStatus, Outcome, SourceStatus, TopValues, ValueCount,
    WorkerStatus,
};

use super::{Server, assert_in_order, running};

/// One with a content that differs.
pub fn duplicate() -> DuplicateStatus {
    DuplicateStatus {
        committed_ms: 1_000,
        partition: 5,
        offset: 77,
        owner_partition: 4,
        owner_offset: 33,
        age_seconds: Some(90.0),
        content: ContentLabel::Different,
    }
}

#[test]
fn the_page_and_the_json_show_the_same_duplicates_and_sources() {
    let server = Server::start(ClientLimits::default());
    let page = server.request("GET", "/");
    assert!(page.contains("No duplicate whose first record is known"), "{page}");
    for (outcome, count) in
        [(Outcome::Forwarded, 60), (Outcome::Duplicate, 37), (Outcome::Probable, 2), (Outcome::Conflict, 1)]
    {
        server.metrics.records(outcome).inc_by(count);
    }
    let one = duplicate();
    let count = |value: &str, most| ValueCount { value: Some(value.to_owned()), least: 2, most };
    let source = SourceStatus {
        by: "header:app".to_owned(),
        duplicates: TopValues { values: vec![count("<img src=x>", 2), count("b", 5)], unlisted_most: 3 },
        conflicts: TopValues::default(),
    };
    let duplicates = DuplicatesStatus { last: vec![one], sources: vec![source] };
    server.status.publish(0, WorkerStatus { duplicates, ..running() });

    let page = server.request("GET", "/");
    let texts = [
        "id=\"partitions\"",
        "Duplicates since the start",
        "<dt>share of duplicates<dd>40.0 %<small>40 of 100 records",
        "<dd>1<small>2.5 % of the duplicates",
        "<td>5@77<td>4@33<td>1m 30s<td class=\"alert\">other",
        "Most duplicates by header:app",
        "<td>&lt;img src=x&gt;<td class=\"number\">2</tr>",
        "<td>b<td class=\"number\">2 to 5</tr>",
    ];
    assert_in_order(&page, &texts);
    assert!(!page.contains("<img") && !page.contains("Most conflicts by"), "{page}");

    let answer = server.request("GET", "/status.json");
    let status: serde_json::Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    let shown = &status["duplicates"];
    assert_eq!((&shown["duplicates"], &shown["conflicts"]), (&40.into(), &1.into()));
    assert_eq!((&shown["window_seconds"], &shown["needed_windows"]), (&60.0.into(), &serde_json::json!([])));
    assert_eq!(
        (&shown["last"][0]["owner_offset"], &shown["last"][0]["content"]),
        (&33.into(), &"different".into())
    );
    let top = &shown["sources"][0]["duplicates"];
    assert_eq!((&top["values"][0]["value"], &top["unlisted_most"]), (&"<img src=x>".into(), &3.into()));
    assert!(status["workers"][0]["duplicates"].is_null(), "shown once");
    let metrics = server.request("GET", "/metrics");
    assert!(!metrics.contains("img") && !metrics.contains("header:app"), "a value became a label: {metrics}");
}
