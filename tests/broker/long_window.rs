//! Tests on a real Apache Kafka: the part of the window that is in filters only, and ids that are forgotten or forced through.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use crate::support::{Draft, Isolation, Pipe, Record, Running, Sidecar, now_ms, shared_kafka, wait_until};
use serde_json::Value;

const LIMIT: Duration = Duration::from_mins(1);
const HOUR_MS: i64 = 3_600_000;

/// A window of a day, of which one hour is exact. A filter has the ids of at least an hour and a half. Four ids are a slice.
fn sidecar(pipe: &Pipe<'_>, instance: &str) -> Sidecar {
    with_token(pipe, instance)
        .with("DEDUPD_WINDOW__EXACT", "1h")
        .with("DEDUPD_WINDOW__BLOOM", "24h")
        .with("DEDUPD_SMALLEST_SLICE", "4")
        .with("DEDUPD_TOPICS__DUPLICATES", &format!("{}.again", pipe.raw))
}

/// An instance whose admin API [`find`] can use.
pub fn with_token(pipe: &Pipe<'_>, instance: &str) -> Sidecar {
    let token_file = pipe.dir.path().join("token");
    std::fs::write(&token_file, "a-secret-of-this-test\n").unwrap();
    pipe.sidecar(instance).with("DEDUPD_HTTP__TOKEN_FILE", token_file.to_str().unwrap())
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

/// Produces ids 40 minutes apart from `start` on, then `last` from the fourth hour on, and waits until a filter has the first four.
/// Returns the number of records.
fn age(pipe: &Pipe<'_>, running: &Running, ids: [&str; 4], (start, last): (i64, &[&str])) -> u64 {
    for (id, number) in ids.into_iter().zip(0..) {
        send(pipe, &[id], start + number * 2 * HOUR_MS / 3);
    }
    for (id, number) in last.iter().zip(0..) {
        send(pipe, &[id], start + 4 * HOUR_MS + number * HOUR_MS / 10);
    }
    // In topic scope, ids expire by the commit before the last one.
    for ticks in 1..=60 {
        send(pipe, &[&format!("tick-{ticks}")], start + 9 * HOUR_MS / 2);
        if running.metric("dedupd_false_positive_rate").is_some_and(|rate| rate > 0.0) {
            return (ids.len() + last.len()) as u64 + ticks;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    panic!("no filter was made: {}", running.text())
}

fn ids(records: &[Record]) -> Vec<String> {
    let strip = |record: &Record| record.text().replace("{\"id\":\"", "").replace("\"}", "");
    records.iter().map(strip).collect()
}

fn clean(pipe: &Pipe<'_>) -> Vec<String> {
    let mut ids = ids(&pipe.kafka.records(&pipe.clean, Isolation::Committed));
    ids.retain(|id| !id.starts_with("tick"));
    ids
}

fn header(record: &Record, name: &str) -> Option<String> {
    let (_, value) = record.headers.iter().find(|(key, _)| key == name)?;
    Some(String::from_utf8(value.clone().unwrap()).unwrap())
}

#[test]
fn ids_in_filters_survive_crashes_and_then_expire() {
    let pipe = Pipe::new(shared_kafka(), "beyond", 1);
    let sidecar = sidecar(&pipe, "a");
    let start = long_ago();
    let running = sidecar.start();
    age(&pipe, &running, ["a", "b", "c", "d"], (start, &["e", "e"]));
    let rate = running.metric("dedupd_false_positive_rate").unwrap();
    assert!(rate > 1e-12 && rate <= 1e-9, "{rate:e}");
    // The estimate grows by the rate with each new record, whenever that is counted.
    let figures = || (running.value("dedupd_probable_false_drops_estimate"), running.outcome("forwarded"));
    let before = figures();
    send(&pipe, &["a", "f"], start + 4 * HOUR_MS);
    wait_until("the estimate", LIMIT, || {
        let (now, rate) = (figures(), running.metric("dedupd_false_positive_rate")?);
        let (new, estimated) = (now.1 - before.1, (now.0 - before.0) / rate);
        println!("{new} new records, the estimate has grown by {estimated} times the rate");
        (new > 0 && (estimated - new as f64).abs() < 0.5).then_some(())
    });
    running.kill9();
    let running = sidecar.start();
    send(&pipe, &["b"], start + 4 * HOUR_MS);
    running.kill9();
    std::fs::remove_dir_all(&sidecar.state_dir).unwrap();
    let running = sidecar.start();
    send(&pipe, &["c", "e"], start + 4 * HOUR_MS);
    assert_eq!(clean(&pipe), ["a", "b", "c", "d", "e", "f"]);

    let duplicates = pipe.kafka.ended_records(&format!("{}.again", pipe.raw));
    assert_eq!(ids(&duplicates), ["e", "a", "b", "c", "e"]);
    let headers = |name: &str| duplicates.iter().map(|record| header(record, name)).collect::<Vec<_>>();
    let reasons: Vec<_> = headers("dedupd.reason").into_iter().flatten().collect();
    assert_eq!(reasons[..3], ["duplicate", "probable", "probable"]);
    // A restored id is in the index until its slice is old enough.
    assert!(["duplicate", "probable"].contains(&&*reasons[3]) && reasons[4] == "duplicate", "{reasons:?}");
    assert_eq!(headers("dedupd.owner")[..3], [Some("4".to_owned()), None, None]);
    for slice in &headers("dedupd.slice")[1..3] {
        assert_eq!(slice.as_deref(), Some(&*start.to_string()));
    }

    // An id in a filter expires with the newest one in it.
    send(&pipe, &["d"], start + 20 * HOUR_MS);
    send(&pipe, &["tick"], start + 32 * HOUR_MS);
    send(&pipe, &["d", "d"], start + 32 * HOUR_MS);
    assert_eq!(clean(&pipe)[6..], ["d"]);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

#[test]
fn a_probable_duplicate_follows_the_policy() {
    for (policy, clean_has, dead) in [
        ("forward", ["a", "b", "c", "d", "e", "a"].as_slice(), 0),
        ("dead_letter", &["a", "b", "c", "d", "e"], 1),
    ] {
        let pipe = Pipe::new(shared_kafka(), &format!("probable-{policy}"), 1);
        let dead_topic = format!("{}.dead", pipe.raw);
        let running = sidecar(&pipe, "a")
            .with("DEDUPD_WINDOW__ON_PROBABLE", policy)
            .with("DEDUPD_TOPICS__DEAD_LETTER", &dead_topic)
            .start();
        let start = long_ago();
        age(&pipe, &running, ["a", "b", "c", "d"], (start, &["e"]));
        send(&pipe, &["a"], start + 4 * HOUR_MS);
        assert_eq!(clean(&pipe), clean_has, "{policy}");
        let letters = pipe.kafka.ended_records(&dead_topic);
        assert_eq!(letters.len(), dead, "{policy}");
        assert!(letters.iter().all(|letter| header(letter, "dedupd.slice").is_some()), "{letters:?}");
        running.wait_outcomes(&[("probable", 1)]);
        // A forwarded id is in the exact window from now on.
        send(&pipe, &["a"], start + 4 * HOUR_MS);
        running.wait_outcomes(&[("duplicate", u64::from(policy == "forward"))]);
    }
}

/// The status code and the JSON body of a response.
fn answer(page: Option<String>) -> (u16, Value) {
    let page = page.expect("an answer");
    let code = page.split(' ').nth(1).unwrap().parse().unwrap();
    (code, serde_json::from_str(page.split_once("\r\n\r\n").unwrap().1.trim()).unwrap())
}

/// What `POST /forget` returns for an id in JSON.
pub fn forget(running: &Running, id: &str) -> (u16, Value) {
    let body = format!("{{\"id\":{id}}}");
    answer(running.request("POST", "/forget", &[SECRET, JSON], &body, LIMIT))
}

/// What `GET /state` returns.
pub fn find(running: &Running, query: &str) -> (u16, Value) {
    answer(running.request("GET", &format!("/state?{query}"), &[SECRET], "", LIMIT))
}

#[test]
fn a_forgotten_id_is_forwarded_again_after_crashes_and_failover() {
    let pipe = Pipe::new(shared_kafka(), "forget", 1);
    let (a, b) = (sidecar(&pipe, "a"), sidecar(&pipe, "b"));
    let start = long_ago();
    // Both instances have earlier local state.
    let running = a.start();
    age(&pipe, &running, ["old", "older", "c", "d"], (start, &["x", "y", "z", "w", "v"]));
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    let running = b.start();
    running.wait_running(1, LIMIT);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    let running = a.start();
    running.wait_running(1, LIMIT);

    let (code, found) = find(&running, "id=x&partition=0");
    assert_eq!(
        (code, &found["found"][0]["offset"], &found["found"][0]["part"]),
        (200, &4.into(), &"exact".into())
    );
    let (code, found) = find(&running, "id=old");
    assert_eq!(
        (code, &found["found"][0]["offset"], &found["found"][0]["part"]),
        (200, &Value::Null, &"bloom".into())
    );
    assert_eq!(find(&running, "id=never").0, 404);
    assert_eq!(forget(&running, "\"never\"").0, 404);
    let (code, refused) = find(&running, "id=x&partition=1");
    assert_eq!(
        (code, refused["error"].as_str().unwrap()),
        (400, &*format!("partition 1 does not exist: {} has 1", pipe.raw))
    );
    let plain =
        running.request("POST", "/forget", &[SECRET, "Content-Type: text/plain"], "{\"id\":\"x\"}", LIMIT);
    assert_eq!(answer(plain).0, 415);
    for wrong in ["Authorization: Bearer a-secret-of-this-tesT", "Authorization: Bearer ", "X: y"] {
        let response = running.request("POST", "/forget", &[wrong, JSON], "{\"id\":\"x\"}", LIMIT);
        assert_eq!(answer(response).0, 401, "{wrong}");
    }

    // One id in the exact window and one in a filter. Each is forwarded once and then a duplicate again.
    for id in ["x", "old"] {
        let (code, done) = forget(&running, &format!("\"{id}\""));
        assert_eq!((code, done["forgotten"].as_array().unwrap().len()), (200, 1), "{done}");
        assert_eq!(find(&running, &format!("id={id}")).0, 404);
        send(&pipe, &[id, id], start + 4 * HOUR_MS);
    }
    assert_eq!(clean(&pipe)[9..], ["x", "old"]);

    // Ids are forgotten, then the local state is lost.
    assert_eq!(forget(&running, "\"y\"").0, 200);
    let trail = "id forgotten by a request of the admin API id=[\"y\"] identity=";
    wait_until("the trail in the log", LIMIT, || running.text().contains(trail).then_some(()));
    assert_eq!(forget(&running, "\"older\"").0, 200);
    running.kill9();
    std::fs::remove_dir_all(&a.state_dir).unwrap();
    let running = a.start();
    send(&pipe, &["y", "older", "y", "older"], start + 4 * HOUR_MS);
    assert_eq!(clean(&pipe)[11..], ["y", "older"]);

    // An id is forgotten, then the process restarts with the same local state.
    assert_eq!(forget(&running, "\"z\"").0, 200);
    running.kill9();
    let running = a.start();
    send(&pipe, &["z", "z"], start + 4 * HOUR_MS);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    assert_eq!(clean(&pipe)[13..], ["z"]);

    // Both instances have state up to the same offset. One of them forgets an id, the other takes over.
    let running = b.start();
    send(&pipe, &["u"], start + 4 * HOUR_MS);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    let running = a.start();
    running.wait_running(1, LIMIT);
    assert_eq!(forget(&running, "\"w\"").0, 200);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    let running = b.start();
    send(&pipe, &["w", "w", "v"], start + 4 * HOUR_MS);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    assert_eq!(clean(&pipe)[14..], ["u", "w"]);
}

#[test]
fn nothing_is_forgotten_between_join_and_assignment() {
    let pipe = Pipe::new(shared_kafka(), "forget-joining", 2);
    // It has seen an empty group, and joins while the only member is frozen: the group waits for that one until its session ends.
    let gate = pipe.dir.path().join("gate");
    let joining = sidecar(&pipe, "b").held_at("before_join", &gate).start();
    wait_until("an empty group", LIMIT, || gate.exists().then_some(()));
    let active = sidecar(&pipe, "a").with("DEDUPD_GROUP__SESSION_TIMEOUT", "30s").start();
    active.wait_running(2, LIMIT);
    active.signal("STOP");
    std::fs::remove_file(&gate).unwrap();
    let answer = wait_until("an answer of the worker", LIMIT, || {
        let (code, answer) = forget(&joining, "\"x\"");
        // Before the worker has started there is only an error.
        (code != 503 || answer["error"].is_null()).then_some((code, answer))
    });
    active.signal("CONT");
    assert_eq!((answer.0, answer.1["not_ready"].to_string()), (503, "[0,1]".to_owned()), "{}", answer.1);
    wait_until("one of them to be a spare", LIMIT, || joining.has_role("spare").then_some(()));
    assert_eq!(forget(&active, "\"x\"").0, 404, "{}", active.text());
}

#[test]
fn the_admin_api_is_disabled_without_a_token() {
    let pipe = Pipe::new(shared_kafka(), "closed", 1);
    let running = pipe.sidecar("a").start();
    send(&pipe, &["x"], now_ms());
    assert_eq!(forget(&running, "\"x\"").0, 403);
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
    let aged = age(&pipe, &running, ["a", "b", "c", "d"], (start, &["e"]));
    let again = |id: &str| Draft::id(0, id).at(start + 4 * HOUR_MS).header("again", None);
    // An id in a filter, an id in the exact window, and a new id.
    pipe.kafka.send(&pipe.raw, &[again("a"), again("e"), again("new")]);
    send(&pipe, &["a", "e", "new", "b"], start + 4 * HOUR_MS);
    assert_eq!(clean(&pipe), ["a", "b", "c", "d", "e", "a", "e", "new"]);
    running.wait_outcomes(&[("forced", 2), ("forwarded", aged + 1), ("duplicate", 3), ("probable", 1)]);
    running.kill9();
    let running = forced.start();
    send(&pipe, &["a", "e", "new"], start + 4 * HOUR_MS);
    assert_eq!(clean(&pipe).len(), 8);
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
    assert!(sample["span_seconds"].as_f64().is_some_and(|span| (1.0..120.0).contains(&span)), "{report}");

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
    assert_eq!(missing.status.code(), Some(3));
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
    let advice = running.complaints().into_iter().find(|line| line.contains("dedupd plan")).unwrap();
    assert!(!advice.contains("--memory") && advice.contains("command=\"dedupd plan --events"), "{advice}");
    running.wait_ready(LIMIT);
    running.kill9();
    let running = sidecar.start();
    running.wait_running(1, LIMIT);
    let after = wait_until("the metric after a restart", LIMIT, || seconds(&running).filter(|s| *s > 0.0));
    assert!((300.0..900.0).contains(&after), "{after}");
    let page = running.get("/readyz").unwrap();
    assert!(page.contains("window.max_ids = 1000"), "{page}");
}
