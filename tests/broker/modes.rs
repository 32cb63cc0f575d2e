//! Tests on a real Apache Kafka: the modes `shadow` and `bypass`, which do not drop duplicates.

use std::time::Duration;

use crate::support::{Draft, Isolation, Pipe, Record, Running, Sidecar, now_ms, shared_kafka, wait_until};

const LIMIT: Duration = Duration::from_mins(1);

fn sidecar(pipe: &Pipe<'_>, mode: &str) -> Sidecar {
    pipe.sidecar("a")
        .with("DEDUPD_DEDUPE__MODE", mode)
        .with("DEDUPD_IDENTITY__ON_MISSING", "drop")
        .with("DEDUPD_TOPICS__DUPLICATES", &format!("{}.again", pipe.raw))
}

fn send(pipe: &Pipe<'_>, values: &[&str]) {
    let now = now_ms();
    let draft = |value: &&str| match *value {
        "none" => Draft::new(0, "no json").at(now),
        id => Draft::id(0, id).header("own", Some(b"1")).at(now),
    };
    pipe.kafka.send(&pipe.raw, &values.iter().map(draft).collect::<Vec<_>>());
    pipe.wait_caught_up(1, LIMIT);
}

fn records(pipe: &Pipe<'_>) -> Vec<Record> {
    pipe.kafka.records(&pipe.clean, Isolation::Committed)
}

fn clean(pipe: &Pipe<'_>) -> Vec<String> {
    let strip = |text: String| text.replace("{\"id\":\"", "").replace("\"}", "");
    records(pipe).iter().map(|record| strip(record.text())).collect()
}

fn reason(record: &Record) -> Option<String> {
    let (_, value) = record.headers.iter().find(|(key, _)| key == "dedupd.reason")?;
    Some(String::from_utf8(value.clone().unwrap()).unwrap())
}

/// Asserts that the mode is in the log and on `/readyz`.
fn assert_reported(running: &Running, mode: &str) {
    let setting = format!("dedupe.mode = \"{mode}\"");
    let note = || running.get("/readyz").filter(|page| page.contains(&setting)).map(|_| ());
    wait_until("the note", LIMIT, note);
    assert!(running.text().contains(&setting), "{}", running.text());
    running.wait_ready(LIMIT);
}

#[test]
fn shadow_forwards_everything_and_marks_what_it_would_have_dropped() {
    let pipe = Pipe::new(shared_kafka(), "shadow", 1);
    let shadow = sidecar(&pipe, "shadow");
    let running = shadow.start();
    send(&pipe, &["a", "b", "a", "none"]);
    assert_reported(&running, "shadow");
    running.kill9();
    let running = shadow.start();
    send(&pipe, &["b", "c"]);
    assert_eq!(clean(&pipe), ["a", "b", "a", "no json", "b", "c"]);
    let marked: Vec<Option<String>> = records(&pipe).iter().map(reason).collect();
    let (duplicate, missing) = (Some("duplicate".to_owned()), Some("missing_id".to_owned()));
    assert_eq!(marked, [None, None, duplicate.clone(), missing, duplicate, None]);
    running.wait_outcomes(&[("duplicate", 1), ("forwarded", 1)]);
    // Records without a mark are unchanged. Marks follow the record's own headers.
    let raw = pipe.kafka.records(&pipe.raw, Isolation::Committed);
    for (raw, clean) in raw.iter().zip(records(&pipe)) {
        assert_eq!((&raw.key, &raw.value, raw.timestamp_ms), (&clean.key, &clean.value, clean.timestamp_ms));
        assert_eq!(raw.headers, clean.headers[..raw.headers.len()]);
        assert_eq!(reason(&clean).is_none(), raw.headers.len() == clean.headers.len());
    }
    let again = records(&pipe)[4].headers.clone();
    let header = |name: &str| {
        let (_, value) = again.iter().find(|(key, _)| key == name).unwrap();
        String::from_utf8(value.clone().unwrap()).unwrap().parse::<i64>().unwrap()
    };
    assert_eq!(header("dedupd.owner"), 1);
    assert!((now_ms() - header("dedupd.owner_time")).abs() < 120_000);
    assert!(pipe.kafka.partitions(&format!("{}.again", pipe.raw)) > 0);
    assert!(pipe.kafka.records(&format!("{}.again", pipe.raw), Isolation::Committed).is_empty());
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    // The window contains all ids.
    let running = sidecar(&pipe, "drop").start();
    send(&pipe, &["a", "c", "none", "d"]);
    assert_eq!(clean(&pipe)[6..], ["d"]);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

#[test]
fn bypass_forwards_everything_unchanged_and_loses_no_offset() {
    let pipe = Pipe::new(shared_kafka(), "bypass", 1);
    let running = sidecar(&pipe, "drop").start();
    send(&pipe, &["a", "b", "a"]);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    let bypass = sidecar(&pipe, "bypass");
    let running = bypass.start();
    send(&pipe, &["a", "c", "none"]);
    assert_reported(&running, "bypass");
    running.kill9();
    let running = bypass.start();
    send(&pipe, &["c", "a"]);
    assert_eq!(clean(&pipe), ["a", "b", "a", "c", "no json", "c", "a"]);
    assert!(records(&pipe).iter().all(|record| reason(record).is_none()));
    running.wait_outcomes(&[("bypassed", 2)]);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    // Ids from before are in the window. Ids that arrived meanwhile are not.
    let running = sidecar(&pipe, "drop").start();
    send(&pipe, &["a", "b", "c", "c"]);
    assert_eq!(clean(&pipe)[7..], ["c"]);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}
