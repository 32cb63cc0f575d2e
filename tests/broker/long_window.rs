//! Tests on a real Apache Kafka: the Bloom part of the window, and ids that are forgotten or forced through.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use crate::support::{
    Draft, Isolation, Pipe, Record, Running, Scope, Sidecar, now_ms, shared_kafka, wait_until,
};
use serde_json::Value;

const LIMIT: Duration = Duration::from_mins(1);
const HOUR_MS: i64 = 3_600_000;

/// An exact window of one hour and Bloom filters for a day, in slices of a little more than six hours.
fn sidecar(pipe: &Pipe<'_>, instance: &str) -> Sidecar {
    let token_file = pipe.dir.path().join("token");
    std::fs::write(&token_file, "a-secret-of-this-test\n").unwrap();
    pipe.sidecar(instance)
        .with("DEDUPD_WINDOW__EXACT", "1h")
        .with("DEDUPD_WINDOW__BLOOM", "24h")
        .with("DEDUPD_WINDOW__SLICES", "4")
        .with("DEDUPD_TOPICS__DUPLICATES", &format!("{}.again", pipe.raw))
        .with("DEDUPD_HTTP__TOKEN_FILE", token_file.to_str().unwrap())
}

const SECRET: &str = "Authorization: Bearer a-secret-of-this-test";
const JSON: &str = "Content-Type: application/json";

/// A time before the start of every window in this file.
fn long_ago() -> i64 {
    now_ms() - 48 * HOUR_MS
}

/// Produces ids with one timestamp, and waits until they are processed.
fn send(pipe: &Pipe<'_>, ids: &[&str], at_ms: i64) {
    let drafts: Vec<Draft> = ids.iter().map(|id| Draft::id(0, id).at(at_ms)).collect();
    pipe.kafka.send(&pipe.raw, &drafts);
    pipe.wait_caught_up(1, LIMIT);
}

fn ids(records: &[Record]) -> Vec<String> {
    let strip = |record: &Record| record.text().replace("{\"id\":\"", "").replace("\"}", "");
    records.iter().map(strip).collect()
}

fn clean(pipe: &Pipe<'_>) -> Vec<String> {
    ids(&pipe.kafka.records(&pipe.clean, Isolation::Committed))
}

fn header(record: &Record, name: &str) -> Option<String> {
    let (_, value) = record.headers.iter().find(|(key, _)| key == name)?;
    Some(String::from_utf8(value.clone().unwrap()).unwrap())
}

#[test]
fn the_bloom_window_survives_crashes_and_then_expires() {
    let pipe = Pipe::new(shared_kafka(), "beyond", 1);
    let sidecar = sidecar(&pipe, "a");
    let start = long_ago();
    let running = sidecar.start();
    send(&pipe, &["a", "b", "c", "d"], start);
    send(&pipe, &["e", "e"], start + 3 * HOUR_MS);
    send(&pipe, &["a", "f"], start + 3 * HOUR_MS);
    running.kill9();
    let running = sidecar.start();
    send(&pipe, &["b"], start + 3 * HOUR_MS);
    running.kill9();
    std::fs::remove_dir_all(&sidecar.state_dir).unwrap();
    let running = sidecar.start();
    send(&pipe, &["c", "e"], start + 5 * HOUR_MS);
    assert_eq!(clean(&pipe), ["a", "b", "c", "d", "e", "f"]);
    let rate = || running.metric("dedupd_false_positive_rate").filter(|rate| *rate > 0.0);
    let rate = wait_until("the false positive rate of filled filters", LIMIT, rate);
    assert!(rate <= 1e-9, "{rate:e}");

    let duplicates = pipe.kafka.records(&format!("{}.again", pipe.raw), Isolation::Committed);
    assert_eq!(ids(&duplicates), ["e", "a", "b", "c", "e"]);
    let headers = |name: &str| duplicates.iter().map(|record| header(record, name)).collect::<Vec<_>>();
    let reasons = ["duplicate", "probable", "probable", "probable", "probable"];
    assert_eq!(headers("dedupd.reason"), reasons.map(|word| Some(word.to_owned())));
    assert_eq!(headers("dedupd.owner"), [Some("4".to_owned()), None, None, None, None]);
    for slice in &headers("dedupd.slice")[1..4] {
        let first: i64 = slice.as_ref().unwrap().parse().unwrap();
        assert!(first <= start && start < first + 7 * HOUR_MS, "{first} for {start}");
    }

    // A slice expires when its newest id is too old, at the latest one slice length after the window.
    send(&pipe, &["d"], start + 20 * HOUR_MS);
    send(&pipe, &["tick"], start + 32 * HOUR_MS);
    send(&pipe, &["d", "d"], start + 32 * HOUR_MS);
    assert_eq!(clean(&pipe)[6..], ["tick", "d"]);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

#[test]
fn rebuilt_filters_have_the_same_size_and_content() {
    let pipe = Pipe::new(shared_kafka(), "layout", 1);
    // In topic scope the metric includes the filter over all windows, whose size is not stored.
    let sidecar = sidecar(&pipe, "a").scoped(Scope::Partition);
    let start = long_ago() - 48 * HOUR_MS;
    let running = sidecar.start();
    // Busy slices determine the size of later filters, and have expired at the end.
    for (hours, count) in [(0, 60_000), (7, 60_000), (14, 1_000), (21, 500), (28, 500), (35, 500)] {
        let ids: Vec<String> = (0..count).map(|number| format!("{hours}-{number}")).collect();
        send(&pipe, &ids.iter().map(String::as_str).collect::<Vec<_>>(), start + hours * HOUR_MS);
    }
    send(&pipe, &["last"], start + 43 * HOUR_MS);
    let alone =
        || running.metric("dedupd_window_ids{partition=\"0\"}").filter(|ids| (1.0..2.0).contains(ids));
    wait_until("only the last id to be in the exact window", LIMIT, alone);
    let bytes =
        |running: &Running| running.metric("dedupd_memory_bytes{part=\"bloom\"}").filter(|b| *b > 0.0);
    let before = wait_until("the filters", LIMIT, || bytes(&running));
    assert!(before > 300_000.0, "the size does not depend on the busy slice: {before}");
    // First from the local store, which has no blocks of the busy slices, then from the state topic, which has them.
    running.kill9();
    let running = sidecar.start();
    running.wait_running(1, LIMIT);
    assert_eq!(wait_until("the rebuilt filters", LIMIT, || bytes(&running)).to_bits(), before.to_bits());
    running.kill9();
    std::fs::remove_dir_all(&sidecar.state_dir).unwrap();
    let running = sidecar.start();
    running.wait_running(1, LIMIT);
    assert_eq!(wait_until("the rebuilt filters", LIMIT, || bytes(&running)).to_bits(), before.to_bits());
    send(&pipe, &["21-1", "28-1"], start + 43 * HOUR_MS);
    assert_eq!(running.outcome("probable"), 2);
}

#[test]
fn a_probable_duplicate_follows_the_policy() {
    for (policy, clean_has, dead) in
        [("forward", ["a", "e", "a"].as_slice(), 0), ("dead_letter", &["a", "e"], 1)]
    {
        let pipe = Pipe::new(shared_kafka(), &format!("probable-{policy}"), 1);
        let dead_topic = format!("{}.dead", pipe.raw);
        let running = sidecar(&pipe, "a")
            .with("DEDUPD_WINDOW__ON_PROBABLE", policy)
            .with("DEDUPD_TOPICS__DEAD_LETTER", &dead_topic)
            .start();
        let start = long_ago();
        send(&pipe, &["a"], start);
        send(&pipe, &["e", "a"], start + 3 * HOUR_MS);
        assert_eq!(clean(&pipe), clean_has, "{policy}");
        let letters = pipe.kafka.records(&dead_topic, Isolation::Committed);
        assert_eq!(letters.len(), dead, "{policy}");
        assert!(letters.iter().all(|letter| header(letter, "dedupd.slice").is_some()), "{letters:?}");
        assert_eq!(running.outcome("probable"), 1);
        // A forwarded id is in the exact window from now on.
        send(&pipe, &["a"], start + 3 * HOUR_MS);
        assert_eq!(running.outcome("duplicate"), u64::from(policy == "forward"), "{policy}");
    }
}

/// The status code and the JSON body of a response.
fn answer(page: Option<String>) -> (u16, Value) {
    let page = page.expect("an answer");
    let code = page.split(' ').nth(1).unwrap().parse().unwrap();
    (code, serde_json::from_str(page.split_once("\r\n\r\n").unwrap().1.trim()).unwrap())
}

fn forget(running: &Running, id: &str) -> (u16, Value) {
    let body = format!("{{\"id\":\"{id}\"}}");
    answer(running.request("POST", "/forget", &[SECRET, JSON], &body, LIMIT))
}

fn find(running: &Running, query: &str) -> (u16, Value) {
    answer(running.request("GET", &format!("/state?{query}"), &[SECRET], "", LIMIT))
}

#[test]
fn a_forgotten_id_is_forwarded_again_after_crashes_and_failover() {
    let pipe = Pipe::new(shared_kafka(), "forget", 1);
    let (a, b) = (sidecar(&pipe, "a"), sidecar(&pipe, "b"));
    let start = long_ago();
    // Both instances have earlier local state.
    let running = b.start();
    send(&pipe, &["old", "older"], start);
    // In topic scope windows expire two commits later.
    for ids in [["x", "y", "z", "w", "v"].as_slice(), &["tick"], &["tock"]] {
        send(&pipe, ids, start + 3 * HOUR_MS);
    }
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    let running = a.start();
    running.wait_running(1, LIMIT);

    let (code, found) = find(&running, "id=x&partition=0");
    assert_eq!(
        (code, &found["found"][0]["offset"], &found["found"][0]["part"]),
        (200, &2.into(), &"exact".into())
    );
    let (code, found) = find(&running, "id=old");
    assert_eq!(
        (code, &found["found"][0]["offset"], &found["found"][0]["part"]),
        (200, &0.into(), &"bloom".into())
    );
    assert_eq!(find(&running, "id=never").0, 404);
    assert_eq!(forget(&running, "never").0, 404);
    let plain =
        running.request("POST", "/forget", &[SECRET, "Content-Type: text/plain"], "{\"id\":\"x\"}", LIMIT);
    assert_eq!(answer(plain).0, 415);
    for wrong in ["Authorization: Bearer a-secret-of-this-tesT", "Authorization: Bearer ", "X: y"] {
        let response = running.request("POST", "/forget", &[wrong, JSON], "{\"id\":\"x\"}", LIMIT);
        assert_eq!(answer(response).0, 401, "{wrong}");
    }

    // One id in the exact window and one in a filter. Each is forwarded once and then a duplicate again.
    for id in ["x", "old"] {
        let (code, done) = forget(&running, id);
        assert_eq!((code, done["forgotten"].as_array().unwrap().len()), (200, 1), "{done}");
        assert_eq!(find(&running, &format!("id={id}")).0, 404);
        send(&pipe, &[id, id], start + 3 * HOUR_MS);
    }
    assert_eq!(clean(&pipe)[9..], ["x", "old"]);

    // Ids are forgotten, then the local state is lost.
    assert_eq!(forget(&running, "y").0, 200);
    assert_eq!(forget(&running, "older").0, 200);
    running.kill9();
    std::fs::remove_dir_all(&a.state_dir).unwrap();
    let running = a.start();
    send(&pipe, &["y", "older", "y", "older"], start + 3 * HOUR_MS);
    assert_eq!(clean(&pipe)[11..], ["y", "older"]);

    // An id is forgotten, then the process restarts with the same local state.
    assert_eq!(forget(&running, "z").0, 200);
    running.kill9();
    let running = a.start();
    send(&pipe, &["z", "z"], start + 3 * HOUR_MS);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    assert_eq!(clean(&pipe)[13..], ["z"]);

    // Both instances have state up to the same offset. One of them forgets an id, the other takes over.
    let running = b.start();
    send(&pipe, &["u"], start + 3 * HOUR_MS);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    let running = a.start();
    running.wait_running(1, LIMIT);
    assert_eq!(forget(&running, "w").0, 200);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    let running = b.start();
    send(&pipe, &["w", "w", "v"], start + 3 * HOUR_MS);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    assert_eq!(clean(&pipe)[14..], ["u", "w"]);
}

#[test]
fn the_admin_api_is_disabled_without_a_token() {
    let pipe = Pipe::new(shared_kafka(), "closed", 1);
    let running = pipe.sidecar("a").start();
    send(&pipe, &["x"], now_ms());
    assert_eq!(forget(&running, "x").0, 403);
    assert_eq!(find(&running, "id=x").0, 403);
    send(&pipe, &["x"], now_ms());
    assert_eq!(clean(&pipe), ["x"]);
}

#[test]
fn a_record_with_the_force_header_is_forwarded() {
    let pipe = Pipe::new(shared_kafka(), "forced", 1);
    let forced = sidecar(&pipe, "a").with("DEDUPD_IDENTITY__FORCE_HEADER", "again");
    let running = forced.start();
    let start = long_ago();
    send(&pipe, &["a", "b"], start);
    send(&pipe, &["tick"], start + 2 * HOUR_MS);
    let again = |id: &str| Draft::id(0, id).at(start + 2 * HOUR_MS).header("again", None);
    // An id in a filter, an id in the exact window, and a new id.
    pipe.kafka.send(&pipe.raw, &[again("a"), again("tick"), again("new")]);
    send(&pipe, &["a", "tick", "new", "b"], start + 2 * HOUR_MS);
    assert_eq!(clean(&pipe), ["a", "b", "tick", "a", "tick", "new"]);
    let counted = ["forced", "forwarded", "duplicate", "probable"].map(|outcome| running.outcome(outcome));
    assert_eq!(counted, [2, 4, 3, 1]);
    running.kill9();
    let running = forced.start();
    send(&pipe, &["a", "tick", "new"], start + 2 * HOUR_MS);
    assert_eq!(clean(&pipe).len(), 6);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

fn id_of(text: &str) -> String {
    let value: Value = serde_json::from_str(text).unwrap();
    value["id"].as_str().unwrap().to_owned()
}

#[test]
fn a_plan_samples_the_live_topic() {
    let pipe = Pipe::new(shared_kafka(), "live", 3);
    let load = pipe.load(3, 2_000);
    load.more(6_000);
    load.finish();
    let written = pipe.kafka.records(&pipe.raw, Isolation::Committed);
    let distinct: BTreeSet<(i32, String)> = written
        .iter()
        .map(|record| (record.partition, record.text()))
        .map(|(p, text)| (p, id_of(&text)))
        .collect();
    let repeats = written.len() - distinct.len();
    assert!(repeats > 0);
    let plan = |topic: &str, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dedupd"));
        command.args(["plan", "--bootstrap-servers", pipe.kafka.bootstrap(), "--raw", topic, "--json"]);
        command.args(["--id", "json:/id"]).args(more).output().unwrap()
    };
    let output = plan(&pipe.raw, &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_str(&text).unwrap();
    let (sample, workload) = (&report["sample"], &report["plan"]["asked"]);
    assert_eq!(sample["read"], written.len(), "{report}");
    assert_eq!((&sample["repeats"], &sample["partitions"]), (&repeats.into(), &3.into()), "{report}");
    assert_eq!(workload["partitions"], 3);
    // All records were written within the last minutes.
    let rate = workload["events_per_second"].as_f64().unwrap();
    let most = written.len() as f64;
    assert!(rate > most / 120.0 && rate <= most, "{rate} of {most}");

    assert_eq!(report["scope"]["recommended"], Value::Null, "{report}");
    let advice = report["scope"]["advice"].as_str().unwrap();
    assert!(advice.ends_with("is in several partitions; nothing to do"), "{advice}");

    let limited = plan(&pipe.raw, &["--sample", "300", "--events", "10"]);
    let report: Value = serde_json::from_slice(&limited.stdout).unwrap();
    assert_eq!(
        (&report["sample"]["read"], &report["plan"]["asked"]["events_per_second"]),
        (&300.into(), &10.0.into())
    );
    let moved: Vec<Draft> = (0..10).map(|n| Draft::id(n % 2, "moved")).collect();
    pipe.kafka.send(&pipe.raw, &moved);
    let report: Value = serde_json::from_slice(&plan(&pipe.raw, &[]).stdout).unwrap();
    assert_eq!((&report["sample"]["elsewhere"], &report["sample"]["moved_ids"]), (&1.into(), &1.into()));
    assert_eq!(report["scope"]["recommended"], "topic", "{report}");
    let advice = report["scope"]["advice"].as_str().unwrap();
    assert!(advice.contains("use dedupe.scope = \"topic\", the default, which drops 1 copy"), "{advice}");
    let missing = plan("no-such-topic", &[]);
    assert_eq!(missing.status.code(), Some(6));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("no-such-topic"));
}

#[test]
fn a_window_shortened_by_a_limit_is_reported_also_after_a_restart() {
    let pipe = Pipe::new(shared_kafka(), "shortened", 1);
    let sidecar = pipe.sidecar("a").with("DEDUPD_WINDOW__EXACT", "1h").with("DEDUPD_WINDOW__MAX_IDS", "1000");
    let start = long_ago();
    let running = sidecar.start();
    let minute = 60_000;
    let drafts: Vec<Draft> =
        (0..3_000).map(|n| Draft::id(0, &format!("{n}")).at(start + n / 100 * minute)).collect();
    pipe.kafka.send(&pipe.raw, &drafts);
    pipe.wait_caught_up(1, LIMIT);
    // 1,000 ids at 100 per minute are ten minutes. The newest ids are in the window, the oldest are not.
    send(&pipe, &["2999", "2500", "0"], start + 30 * minute);
    let seconds = |running: &Running| running.metric("dedupd_window_seconds{partition=\"0\"}");
    let short = |running: &Running| seconds(running).filter(|seconds| (300.0..900.0).contains(seconds));
    wait_until("the metric to show it", LIMIT, || short(&running));
    assert_eq!(clean(&pipe).len(), 3_001);
    wait_until("the warning", LIMIT, || {
        // Limits are enforced at commits.
        send(&pipe, &["2999"], start + 30 * minute);
        let text = running.text();
        (text.contains("window.max_ids = 1000") && text.contains("dedupd plan")).then_some(())
    });
    assert!(running.is_ready());
    running.kill9();
    let running = sidecar.start();
    running.wait_running(1, LIMIT);
    let after = wait_until("the metric after a restart", LIMIT, || seconds(&running).filter(|s| *s > 0.0));
    assert!((300.0..900.0).contains(&after), "{after}");
    let page = running.get("/readyz").unwrap();
    assert!(page.contains("window.max_ids = 1000"), "{page}");
}
