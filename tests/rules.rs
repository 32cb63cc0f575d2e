//! On a real Apache Kafka: a configuration that changes between two starts, where ids stand and how long they are kept.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod support;

use std::time::Duration;

use support::{Draft, Isolation, Pipe, Running, Sidecar, now_ms, shared_kafka, wait_until};

const LIMIT: Duration = Duration::from_mins(1);
const HOUR_MS: i64 = 3_600_000;

fn count(pipe: &Pipe<'_>) -> usize {
    pipe.kafka.records(&pipe.clean, Isolation::Committed).len()
}

/// How many of these records are forwarded when they come now.
fn news(pipe: &Pipe<'_>, running: &Running, records: &[&str], at_ms: i64) -> usize {
    running.wait_running(1, LIMIT);
    let before = count(pipe);
    let drafts: Vec<Draft> = records.iter().map(|record| Draft::new(0, record).at(at_ms)).collect();
    pipe.kafka.send(&pipe.raw, &drafts);
    pipe.wait_caught_up(1, LIMIT);
    count(pipe) - before
}

/// Starts it, sees it refuse the rule, and gives what accepts it.
fn refused(sidecar: &Sidecar) -> String {
    let running = sidecar.start();
    assert_eq!(running.wait(LIMIT).code(), Some(4), "{}", running.text());
    let text = running.text();
    let (_, accept) = text.rsplit_once("identity.accept_change = ").expect(&text);
    accept.chars().filter(char::is_ascii_hexdigit).take(8).collect()
}

fn remove_local(sidecar: &Sidecar) {
    std::fs::remove_dir_all(&sidecar.state_dir).unwrap();
}

#[test]
fn another_field_never_counts_as_a_known_id() {
    let pipe = Pipe::new(shared_kafka(), "rule", 1);
    let by = |field: &str| pipe.sidecar("a").with("DEDUPD_IDENTITY__FROM", &format!("[\"json:/{field}\"]"));
    let (orders, events) = (by("order"), by("event"));
    let now = now_ms();
    let running = orders.start();
    let made = ["{\"order\":\"7\",\"event\":\"1\"}", "{\"order\":\"8\",\"event\":\"2\"}"];
    assert_eq!(news(&pipe, &running, &made, now), 2);
    assert_eq!(running.stop(), Some(0), "{}", running.text());

    // Whichever is there to tell: local state, the group's offset, the state topic alone.
    let accept = refused(&events);
    remove_local(&events);
    assert_eq!(refused(&events), accept);
    pipe.kafka.delete_group(&pipe.group());
    remove_local(&events);
    assert_eq!(refused(&events), accept);
    remove_local(&events);
    assert_eq!(news(&pipe, &orders.start(), &made, now), 0, "with the old rule it goes on where it stood");

    let accepting = events.clone().with("DEDUPD_IDENTITY__ACCEPT_CHANGE", &accept);
    let running = accepting.start();
    let new = "{\"order\":\"1\",\"event\":\"7\"}";
    assert_eq!(news(&pipe, &running, &[new, new], now), 1, "an event whose id is the order of another");
    let short = || running.metric("dedupd_window_seconds{partition=\"0\"}").filter(|seconds| *seconds < 60.0);
    wait_until("the window to be told as begun", LIMIT, short);
    wait_until("its reason", LIMIT, || running.get("/")?.contains("restarted empty").then_some(()));
    running.kill9();

    // The change is accepted for good: from local state, from the state topic, and without the group's offset.
    let once_more = |running: Running| {
        assert_eq!(news(&pipe, &running, &[new], now), 0, "{}", running.text());
        running.kill9();
    };
    once_more(events.start());
    remove_local(&events);
    once_more(events.start());
    let old = "{\"order\":\"9\",\"event\":\"8\"}";
    let running = events.start();
    assert_eq!(news(&pipe, &running, &[old], now), 1, "no id of before is revived");
    assert!(running.metric("dedupd_window_seconds{partition=\"0\"}").is_some_and(|seconds| seconds < 600.0));
    running.kill9();
    // Nothing else goes through with it.
    let third = by("third").with("DEDUPD_IDENTITY__ACCEPT_CHANGE", &accept);
    assert_ne!(refused(&third), accept);
    refused(&orders);
}

const KINDS: &str = r#"
[[kinds]]
name = "special"
from = "json:/type"
values = ["payment"]
"#;

#[test]
fn a_kind_that_others_belong_to_now_does_not_know_their_ids() {
    let pipe = Pipe::new(shared_kafka(), "kind-rule", 1);
    let now = now_ms();
    let before = pipe.sidecar("a").with_file(KINDS);
    let running = before.start();
    let made = ["{\"id\":\"5\",\"type\":\"payment\"}", "{\"id\":\"6\"}"];
    assert_eq!(news(&pipe, &running, &made, now), 2);
    assert_eq!(running.stop(), Some(0));

    let changed = pipe.sidecar("a").with_file(&KINDS.replace("payment", "click"));
    let accept = refused(&changed);
    remove_local(&changed);
    assert_eq!(refused(&changed), accept, "by the offset's metadata");
    let running = changed.clone().with("DEDUPD_IDENTITY__ACCEPT_CHANGE", &accept).start();
    let click = "{\"id\":\"5\",\"type\":\"click\"}";
    assert_eq!(news(&pipe, &running, &[click, click, made[1]], now), 1, "the other windows are as they were");
    running.kill9();
    remove_local(&changed);
    let running = changed.start();
    assert_eq!(news(&pipe, &running, &[click, made[1], "{\"id\":\"6\",\"type\":\"click\"}"], now), 1);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

#[test]
fn a_window_that_was_short_for_a_while_has_its_past_again() {
    let pipe = Pipe::new(shared_kafka(), "lengthened", 1);
    let of = |length: &str| pipe.sidecar("a").with("DEDUPD_WINDOW__EXACT", length);
    let id = |id: &str| format!("{{\"id\":\"{id}\"}}");
    let start = now_ms() - 48 * HOUR_MS;
    let running = of("24h").start();
    assert_eq!(news(&pipe, &running, &[&id("first")], start), 1);
    assert_eq!(news(&pipe, &running, &[&id("second")], start + 19 * HOUR_MS), 1);
    assert_eq!(running.stop(), Some(0));
    let running = of("1h").start();
    assert_eq!(news(&pipe, &running, &[&id("third")], start + 22 * HOUR_MS), 1);
    assert_eq!(news(&pipe, &running, &[&id("second")], start + 23 * HOUR_MS), 1, "four hours ago, of one");
    assert_eq!(news(&pipe, &running, &[&id("fourth")], start + 24 * HOUR_MS), 1);
    assert_eq!(running.stop(), Some(0));

    let running = of("24h").start();
    let told = || running.metric("dedupd_window_seconds{partition=\"0\"}");
    running.wait_running(1, LIMIT);
    let seconds = wait_until("the window", LIMIT, told);
    assert!((seconds - 86_400.0).abs() < 1.0, "{seconds}");
    let known = [id("first"), id("second"), id("third"), id("fourth")];
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    assert_eq!(
        news(&pipe, &running, &known, start + 24 * HOUR_MS),
        0,
        "as long as it says: {}",
        running.text()
    );
    assert_eq!(running.stop(), Some(0));
}
