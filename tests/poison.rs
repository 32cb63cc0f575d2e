//! Records that the clean topic refuses: found among the others, tried again for a while, then treated by policy.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod support;

use std::time::Duration;

use dedupd::clock::monotonic;
use support::{Draft, Isolation, Pipe, Running, Sidecar, shared_kafka, wait_until};

const LIMIT: Duration = Duration::from_secs(40);

/// Partition 0 holds 600 small records with one large one in their middle, too large for the clean topic;
/// partition 1 holds small ones. Together the small ones are more than the clean topic takes in one batch.
fn poisoned(name: &str) -> (Pipe<'static>, Sidecar) {
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, name, 2);
    kafka.create_topic(&pipe.clean, 2, &[("max.message.bytes", "20000")]);
    let dead = format!("{name}.dead");
    let mut drafts: Vec<Draft> =
        (0..1_200).map(|n| Draft::id(n % 2, &format!("{}-{}", n % 2, n / 2 % 550))).collect();
    drafts.insert(601, too_large("big"));
    kafka.send(&pipe.raw, &drafts);
    let sidecar = pipe.sidecar("a").with("DEDUPD_TOPICS__DEAD_LETTER", &dead);
    (pipe, sidecar.with("DEDUPD_STATE__POISON_RETRY", "2s"))
}

/// A record for partition 0 that such a clean topic refuses.
fn too_large(id: &str) -> Draft {
    Draft::new(0, &format!("{{\"id\":\"{id}\",\"pad\":\"{}\"}}", "x".repeat(30_000)))
}

/// Everything but the poison is in clean, once and in order.
fn assert_only_poison_is_missing(pipe: &Pipe<'_>) {
    let findings = pipe.audit();
    assert_eq!((findings.lost, findings.repeats), (1, 100), "{findings:?}");
    assert!(findings.first.as_ref().is_some_and(|first| first.contains("\"big\"")), "{findings:?}");
    assert!(support::Findings { lost: 0, ..findings }.is_clean());
}

#[test]
fn records_go_in_batches_that_clean_takes() {
    let pipe = Pipe::new(shared_kafka(), "small-batches", 1);
    pipe.kafka.create_topic(&pipe.clean, 1, &[("max.message.bytes", "2000")]);
    let drafts: Vec<Draft> = (0..1_000).map(|n| Draft::id(0, &format!("{}", n % 900))).collect();
    pipe.kafka.send(&pipe.raw, &drafts);
    let running = pipe.sidecar("a").start();
    pipe.wait_caught_up(1, LIMIT);
    assert!(!running.text().contains("the broker rejected records"), "{}", running.text());
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    pipe.assert_exactly_once();
}

#[test]
fn a_record_that_clean_refuses_is_dropped_and_nothing_else() {
    let (pipe, sidecar) = poisoned("poison-drop");
    let running = sidecar.with("DEDUPD_STATE__ON_POISON", "drop").start();
    pipe.wait_caught_up(2, LIMIT);
    assert_only_poison_is_missing(&pipe);
    assert_eq!(running.outcome("rejected"), 1, "{}", running.text());
    assert!(running.text().contains("attempt 2 of 3, next in 1s"), "{}", running.text());
    let refusals = running.text().matches("the broker rejected records").count();
    assert!(
        (3..=5).contains(&refusals),
        "it is found at once, and then refused three times: {}",
        running.text()
    );
    // The next one is not waited for once more.
    pipe.kafka.send(&pipe.raw, &[Draft::id(0, "after"), too_large("big too"), Draft::id(1, "after")]);
    pipe.wait_caught_up(2, LIMIT);
    assert_eq!(running.outcome("rejected"), 2, "{}", running.text());
    assert_eq!(running.text().matches("attempt 1 of").count(), 1, "{}", running.text());
    assert_eq!(pipe.audit().lost, 2);
}

/// Waits until its log says so, while it runs.
fn wait_told(running: &Running, words: &str) {
    wait_until(words, LIMIT, || {
        assert_eq!(running.ended(), None, "{}", running.text());
        running.text().contains(words).then_some(())
    });
}

#[test]
fn a_topic_that_is_allowed_more_while_a_record_waits_gets_it_and_nothing_is_put_aside() {
    let (pipe, sidecar) = poisoned("poison-patience");
    let running = sidecar
        .with("DEDUPD_STATE__ON_POISON", "dead_letter")
        .with("DEDUPD_STATE__POISON_RETRY", "2m")
        .start();
    wait_told(&running, "attempt 3 of 8, next in 4s");
    wait_until("readiness to tell", LIMIT, || {
        running.get("/readyz").filter(|page| page.contains("is rejected: attempt 3 of 8"))
    });
    // The other partition goes on meanwhile.
    pipe.kafka.send(&pipe.raw, &[Draft::id(1, "meanwhile")]);
    wait_until("the other partition", LIMIT, || {
        pipe.kafka.texts(&pipe.clean).contains(&"{\"id\":\"meanwhile\"}".to_owned()).then_some(())
    });
    assert!(
        !running.text().contains("attempt 4 of"),
        "it went on while the record waited: {}",
        running.text()
    );
    pipe.kafka.alter_topic_config(&pipe.clean, &[("max.message.bytes", "1000000")]);
    pipe.wait_caught_up(2, LIMIT);
    pipe.assert_exactly_once();
    running.wait_ready(LIMIT);
    assert_eq!(running.outcome("dead_letter"), 0, "{}", running.text());
    assert_eq!(pipe.kafka.records("poison-patience.dead", Isolation::Committed), []);
    assert!(running.text().contains("rejected record accepted on retry"), "{}", running.text());
}

#[test]
fn a_stop_while_a_refused_record_waits_is_prompt() {
    let (pipe, sidecar) = poisoned("poison-stopped");
    let sidecar = sidecar.with("DEDUPD_STATE__POISON_RETRY", "10m");
    let running = sidecar.start();
    wait_told(&running, "next in 8s");
    let asked = monotonic();
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}\n{}", asked.elapsed(), running.text());
    // What it had committed stays, and the record is still there for the next one.
    pipe.kafka.alter_topic_config(&pipe.clean, &[("max.message.bytes", "1000000")]);
    pipe.through(2, &sidecar);
    pipe.assert_exactly_once();
}

#[test]
fn a_record_that_clean_refuses_goes_to_the_dead_letter_topic() {
    let (pipe, sidecar) = poisoned("poison-dead");
    pipe.through(2, &sidecar.with("DEDUPD_STATE__ON_POISON", "dead_letter"));
    assert_only_poison_is_missing(&pipe);
    let dead = pipe.kafka.records("poison-dead.dead", Isolation::Committed);
    assert_eq!(dead.len(), 1);
    let raw = pipe.kafka.records(&pipe.raw, Isolation::Committed);
    let origin = raw.iter().find(|record| record.text().contains("\"big\"")).unwrap();
    assert_eq!(dead[0].value, origin.value);
    let header = |name: &str| {
        let (_, value) = dead[0].headers.iter().find(|(key, _)| key == name).unwrap();
        String::from_utf8(value.clone().unwrap()).unwrap()
    };
    assert_eq!(header("dedupd.reason"), "rejected");
    assert_eq!(header("dedupd.offset"), origin.offset.to_string());
}

#[test]
fn a_record_that_clean_refuses_stops_the_process_by_default_and_is_named() {
    let (pipe, sidecar) = poisoned("poison-stop");
    let raw = pipe.kafka.records(&pipe.raw, Isolation::Committed);
    let offset = raw.iter().find(|record| record.text().contains("\"big\"")).unwrap().offset;
    let running = sidecar.start();
    assert_eq!(running.wait(LIMIT).code(), Some(6), "{}", running.text());
    let text = running.text();
    assert!(text.contains(&format!("record 0@{offset} of topic {}", pipe.raw)), "{text}");
    // What the message advises.
    pipe.kafka.alter_topic_config(&pipe.clean, &[("max.message.bytes", "1000000")]);
    pipe.through(2, &sidecar);
    pipe.assert_exactly_once();
}

#[test]
fn a_dead_letter_topic_that_refuses_too_ends_the_process() {
    let (pipe, sidecar) = poisoned("poison-both");
    pipe.kafka.create_topic("poison-both.dead", 1, &[("max.message.bytes", "20000")]);
    let running = sidecar.with("DEDUPD_STATE__ON_POISON", "dead_letter").start();
    assert_eq!(running.wait(LIMIT).code(), Some(6), "{}", running.text());
    assert!(running.text().contains("poison-both.dead"), "{}", running.text());
}
