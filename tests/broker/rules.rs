//! Tests on a real Apache Kafka: changes of the identity rule, the kinds and the window length between two starts.

use std::ops::Range;
use std::time::Duration;

use crate::support::{Draft, Isolation, Pipe, Running, Sidecar, now_ms, shared_kafka, wait_until};

const LIMIT: Duration = Duration::from_mins(1);
const HOUR_MS: i64 = 3_600_000;

fn count(pipe: &Pipe<'_>) -> usize {
    pipe.kafka.records(&pipe.clean, Isolation::Committed).len()
}

/// Produces these records, and returns how many of them are forwarded.
fn forwarded(pipe: &Pipe<'_>, running: &Running, records: &[&str], at_ms: i64) -> usize {
    running.wait_running(1, LIMIT);
    let before = count(pipe);
    let drafts: Vec<Draft> = records.iter().map(|record| Draft::new(0, record).at(at_ms)).collect();
    pipe.kafka.send(&pipe.raw, &drafts);
    pipe.wait_caught_up(1, LIMIT);
    count(pipe) - before
}

/// Starts it, asserts that it rejects the rule, and returns the fingerprint that accepts the rule.
fn rejected(sidecar: &Sidecar) -> String {
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
fn a_changed_id_field_never_matches_old_ids() {
    let pipe = Pipe::new(shared_kafka(), "rule", 1);
    let by = |field: &str| pipe.sidecar("a").with("DEDUPD_IDENTITY__FROM", &format!("[\"json:/{field}\"]"));
    let (orders, events) = (by("order"), by("event"));
    let now = now_ms();
    let running = orders.start();
    let made = ["{\"order\":\"7\",\"event\":\"1\"}", "{\"order\":\"8\",\"event\":\"2\"}"];
    assert_eq!(forwarded(&pipe, &running, &made, now), 2);
    assert_eq!(running.stop(), Some(0), "{}", running.text());

    // The rule is detected from the local state, from the committed offset, and from the state topic alone.
    let accept = rejected(&events);
    remove_local(&events);
    assert_eq!(rejected(&events), accept);
    pipe.kafka.delete_group(&pipe.group());
    remove_local(&events);
    assert_eq!(rejected(&events), accept);
    remove_local(&events);
    assert_eq!(
        forwarded(&pipe, &orders.start(), &made, now),
        0,
        "with the old rule, the old ids are not known"
    );

    let accepting = events.clone().with("DEDUPD_IDENTITY__ACCEPT_CHANGE", &accept);
    let running = accepting.start();
    let new = "{\"order\":\"1\",\"event\":\"7\"}";
    assert_eq!(
        forwarded(&pipe, &running, &[new, new], now),
        1,
        "an event id that equals an old order id is not new"
    );
    let short = || running.metric("dedupd_window_seconds{partition=\"0\"}").filter(|seconds| *seconds < 60.0);
    wait_until("the window to be reported as short", LIMIT, short);
    wait_until("the reason on the page", LIMIT, || {
        running.get("/")?.contains("restarted empty").then_some(())
    });
    running.kill9();

    // The accepted change is permanent: with local state, and with the state topic alone.
    let assert_known = |running: Running| {
        assert_eq!(forwarded(&pipe, &running, &[new], now), 0, "{}", running.text());
        running.kill9();
    };
    assert_known(events.start());
    remove_local(&events);
    assert_known(events.start());
    let old = "{\"order\":\"9\",\"event\":\"8\"}";
    let running = events.start();
    assert_eq!(forwarded(&pipe, &running, &[old], now), 1, "an id of the old rule is known");
    assert!(running.metric("dedupd_window_seconds{partition=\"0\"}").is_some_and(|seconds| seconds < 600.0));
    running.kill9();
    // The fingerprint does not accept another rule.
    let third = by("third").with("DEDUPD_IDENTITY__ACCEPT_CHANGE", &accept);
    assert_ne!(rejected(&third), accept);
    rejected(&orders);
}

const KINDS: &str = r#"
[[kinds]]
name = "special"
from = "json:/type"
values = ["payment"]
"#;

#[test]
fn a_kind_with_changed_values_starts_with_an_empty_window() {
    let pipe = Pipe::new(shared_kafka(), "kind-rule", 1);
    let now = now_ms();
    let before = pipe.sidecar("a").with_file(KINDS);
    let running = before.start();
    let made = ["{\"id\":\"5\",\"type\":\"payment\"}", "{\"id\":\"6\"}"];
    assert_eq!(forwarded(&pipe, &running, &made, now), 2);
    assert_eq!(running.stop(), Some(0));

    let changed = pipe.sidecar("a").with_file(&KINDS.replace("payment", "click"));
    let accept = rejected(&changed);
    remove_local(&changed);
    assert_eq!(rejected(&changed), accept, "the offset metadata has another fingerprint");
    let running = changed.clone().with("DEDUPD_IDENTITY__ACCEPT_CHANGE", &accept).start();
    let click = "{\"id\":\"5\",\"type\":\"click\"}";
    assert_eq!(
        forwarded(&pipe, &running, &[click, click, made[1]], now),
        1,
        "the other windows have changed"
    );
    running.kill9();
    remove_local(&changed);
    let running = changed.start();
    assert_eq!(forwarded(&pipe, &running, &[click, made[1], "{\"id\":\"6\",\"type\":\"click\"}"], now), 1);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

#[test]
fn a_window_that_becomes_longer_uses_local_state_and_reports_how_far_it_reaches() {
    let pipe = Pipe::new(shared_kafka(), "lengthened", 1);
    let of = |length: &str| pipe.sidecar("a").with("DEDUPD_WINDOW__EXACT", length);
    let id = |id: &str| format!("{{\"id\":\"{id}\"}}");
    let start = now_ms() - 48 * HOUR_MS;
    let running = of("24h").start();
    assert_eq!(forwarded(&pipe, &running, &[&id("first")], start), 1);
    assert_eq!(forwarded(&pipe, &running, &[&id("second")], start + 19 * HOUR_MS), 1);
    assert_eq!(running.stop(), Some(0));
    let running = of("1h").start();
    assert_eq!(forwarded(&pipe, &running, &[&id("third")], start + 22 * HOUR_MS), 1);
    assert_eq!(
        forwarded(&pipe, &running, &[&id("second")], start + 23 * HOUR_MS),
        1,
        "an id from four hours ago is known in a window of one hour"
    );
    assert_eq!(forwarded(&pipe, &running, &[&id("fourth")], start + 24 * HOUR_MS), 1);
    assert_eq!(running.stop(), Some(0));

    let running = of("24h").start();
    running.wait_running(1, LIMIT);
    let reports = |running: &Running, hours: Range<f64>| {
        let name = "dedupd_window_seconds{partition=\"0\"}";
        let is_so = |seconds: &f64| hours.contains(&(seconds / 3_600.0));
        wait_until("the window", LIMIT, || running.metric(name).filter(is_so))
    };
    // The second id had expired at the fourth one.
    reports(&running, 3.9..5.1);
    assert!(!running.text().contains("quarantined"), "{}", running.text());
    let known = [id("third"), id("second"), id("fourth")];
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    assert_eq!(
        forwarded(&pipe, &running, &known, start + 24 * HOUR_MS),
        0,
        "an id within the reported window is unknown: {}",
        running.text()
    );
    assert_eq!(forwarded(&pipe, &running, &[&id("fifth")], start + 34 * HOUR_MS), 1);
    assert_eq!(forwarded(&pipe, &running, &[&id("sixth")], start + 34 * HOUR_MS), 1);
    reports(&running, 14.0..15.1);
    running.kill9();
    let running = of("24h").start();
    running.wait_running(1, LIMIT);
    reports(&running, 14.0..15.1);
    assert_eq!(running.stop(), Some(0));

    // The state topic retains more than a short window. It is read where there is no local state.
    let running = of("1h").start();
    assert_eq!(forwarded(&pipe, &running, &[&id("seventh")], start + 40 * HOUR_MS), 1);
    assert_eq!(running.stop(), Some(0));
    remove_local(&of("24h"));
    let running = of("24h").start();
    running.wait_running(1, LIMIT);
    reports(&running, 23.9..24.1);
    assert_eq!(forwarded(&pipe, &running, &[&id("second"), &id("sixth")], start + 40 * HOUR_MS), 0);
    assert_eq!(running.stop(), Some(0));
}
