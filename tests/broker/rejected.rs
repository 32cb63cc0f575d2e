//! Records that the clean topic rejects: they are isolated, retried for a while, and then follow the policy.

mod backlog;
mod batch;

use std::time::Duration;

use crate::support::{Draft, Isolation, Pipe, Running, Sidecar, incompressible, shared_kafka, wait_until};
use dedupd::clock::monotonic;

const LIMIT: Duration = Duration::from_secs(40);

/// Partition 0 has 600 small records and one in the middle that is too large for the clean topic. Partition 1 has
/// small ones. All small records together exceed the batch limit of the clean topic.
fn with_large_record(name: &str) -> (Pipe<'static>, Sidecar) {
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

/// A record for partition 0 that this clean topic rejects.
fn too_large(id: &str) -> Draft {
    Draft::new(0, &format!("{{\"id\":\"{id}\",\"pad\":\"{}\"}}", incompressible(40_000)))
}

/// Asserts that all records except the rejected one are in clean, once and in order.
fn assert_only_rejected_is_missing(pipe: &Pipe<'_>) {
    let findings = pipe.audit();
    assert_eq!((findings.lost, findings.repeats), (1, 100), "{findings:?}");
    assert!(findings.first.as_ref().is_some_and(|first| first.contains("\"big\"")), "{findings:?}");
    assert!(crate::support::Findings { lost: 0, ..findings }.is_clean());
}

#[test]
fn batches_stay_below_the_limit_of_the_clean_topic() {
    let pipe = Pipe::new(shared_kafka(), "small-batches", 1);
    pipe.kafka.create_topic(&pipe.clean, 1, &[("max.message.bytes", "2000")]);
    let drafts: Vec<Draft> = (0..1_000).map(|n| Draft::id(0, &format!("{}", n % 900))).collect();
    pipe.kafka.send(&pipe.raw, &drafts);
    let running = pipe.sidecar("a").start();
    pipe.wait_caught_up(1, LIMIT);
    assert!(!running.text().contains("does not accept the record"), "{}", running.text());
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    pipe.assert_exactly_once();
}

#[test]
fn only_the_rejected_record_is_dropped() {
    let (pipe, sidecar) = with_large_record("rejected-drop");
    let running = sidecar.with("DEDUPD_STATE__ON_POISON", "drop").start();
    pipe.wait_caught_up(2, LIMIT);
    assert_only_rejected_is_missing(&pipe);
    running.wait_outcomes(&[("rejected", 1)]);
    assert!(running.text().contains("attempt 2 of 3, next in 1s"), "{}", running.text());
    let rejections = running.text().matches("does not accept the record").count();
    assert!(
        (3..=5).contains(&rejections),
        "the record was not isolated and then rejected three times: {}",
        running.text()
    );
    // The next rejected record is not retried.
    pipe.kafka.send(&pipe.raw, &[Draft::id(0, "after-0"), too_large("big too"), Draft::id(1, "after-1")]);
    pipe.wait_caught_up(2, LIMIT);
    running.wait_outcomes(&[("rejected", 2)]);
    assert_eq!(running.text().matches("attempt 1 of").count(), 1, "{}", running.text());
    assert_eq!(pipe.audit().lost, 2);
}

/// Waits until its log contains the words, while it runs.
fn wait_logged(running: &Running, words: &str) {
    wait_until(words, LIMIT, || {
        assert_eq!(running.ended(), None, "{}", running.text());
        running.text().contains(words).then_some(())
    });
}

#[test]
fn a_rejected_record_is_forwarded_after_the_topic_limit_is_raised() {
    let (pipe, sidecar) = with_large_record("rejected-retry");
    let running = sidecar
        .with("DEDUPD_STATE__ON_POISON", "dead_letter")
        .with("DEDUPD_STATE__POISON_RETRY", "2m")
        .start();
    // The pause is longer than what follows takes.
    wait_logged(&running, "attempt 5 of 8, next in 16s");
    wait_until("the reason on /readyz", LIMIT, || {
        running.get("/readyz").filter(|page| {
            page.contains("is rejected: attempt 5 of 8") && page.contains("does not accept the record")
        })
    });
    // The other partition continues.
    pipe.kafka.send(&pipe.raw, &[Draft::id(1, "meanwhile")]);
    wait_until("the other partition", LIMIT, || {
        pipe.kafka.texts(&pipe.clean).contains(&"{\"id\":\"meanwhile\"}".to_owned()).then_some(())
    });
    assert!(!running.text().contains("attempt 6 of"), "it was retried too early: {}", running.text());
    pipe.kafka.alter_topic_config(&pipe.clean, &[("max.message.bytes", "1000000")]);
    pipe.wait_caught_up(2, LIMIT);
    pipe.assert_exactly_once();
    running.wait_ready(LIMIT);
    assert_eq!(running.outcome("dead_letter"), 0, "{}", running.text());
    assert_eq!(pipe.kafka.records("rejected-retry.dead", Isolation::Committed), []);
    assert!(running.text().contains("rejected record accepted on retry"), "{}", running.text());
}

#[test]
fn a_stop_does_not_wait_for_the_next_attempt_of_a_rejected_record() {
    let (pipe, sidecar) = with_large_record("rejected-stopped");
    let sidecar = sidecar.with("DEDUPD_STATE__POISON_RETRY", "10m");
    let running = sidecar.start();
    wait_logged(&running, "next in 16s");
    let start = monotonic();
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}\n{}", start.elapsed(), running.text());
    // Committed records stay committed, and the next start forwards the record.
    pipe.kafka.alter_topic_config(&pipe.clean, &[("max.message.bytes", "1000000")]);
    pipe.through(2, &sidecar);
    pipe.assert_exactly_once();
}

#[test]
fn a_rejected_record_is_written_to_the_dead_letter_topic() {
    let (pipe, sidecar) = with_large_record("rejected-dead");
    pipe.through(2, &sidecar.with("DEDUPD_STATE__ON_POISON", "dead_letter"));
    assert_only_rejected_is_missing(&pipe);
    let dead = pipe.kafka.records("rejected-dead.dead", Isolation::Committed);
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
fn a_rejected_record_stops_the_process_by_default_and_is_reported() {
    let (pipe, sidecar) = with_large_record("rejected-stop");
    let raw = pipe.kafka.records(&pipe.raw, Isolation::Committed);
    let offset = raw.iter().find(|record| record.text().contains("\"big\"")).unwrap().offset;
    let running = sidecar.start();
    assert_eq!(running.wait(LIMIT).code(), Some(6), "{}", running.text());
    let text = running.text();
    assert!(text.contains(&format!("record 0@{offset} of topic {}", pipe.raw)), "{text}");
    // The remedy in the message.
    pipe.kafka.alter_topic_config(&pipe.clean, &[("max.message.bytes", "1000000")]);
    pipe.through(2, &sidecar);
    pipe.assert_exactly_once();
}

#[test]
fn a_dead_letter_topic_that_rejects_the_record_ends_the_process() {
    let (pipe, sidecar) = with_large_record("rejected-both");
    pipe.kafka.create_topic("rejected-both.dead", 1, &[("max.message.bytes", "20000")]);
    let running = sidecar.with("DEDUPD_STATE__ON_POISON", "dead_letter").start();
    assert_eq!(running.wait(LIMIT).code(), Some(6), "{}", running.text());
    assert!(running.text().contains("rejected-both.dead"), "{}", running.text());
}
