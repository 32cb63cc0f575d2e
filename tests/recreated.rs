//! Topics that are deleted and created again under the same name, on a real Apache Kafka. To a client a name
//! is the topic: it would silently go on.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod support;

use std::time::Duration;

use support::{Draft, Pipe, Running, Sidecar, shared_kafka};

const LIMIT: Duration = Duration::from_mins(1);

fn ids(prefix: &str, count: usize) -> Vec<Draft> {
    (0..count).map(|n| Draft::id(0, &format!("{prefix}-{n}"))).collect()
}

/// One partition, ten records through, still running.
fn running(name: &str) -> (Pipe<'static>, Sidecar, Running) {
    let pipe = Pipe::new(shared_kafka(), name, 1);
    let sidecar = pipe.sidecar("a");
    let running = sidecar.start();
    running.wait_running(1, LIMIT);
    pipe.kafka.send(&pipe.raw, &ids("old", 10));
    pipe.wait_caught_up(1, LIMIT);
    (pipe, sidecar, running)
}

fn create_anew(pipe: &Pipe<'_>, topic: &str) {
    pipe.kafka.delete_topic(topic);
    pipe.kafka.create_topic(topic, 1, &[("retention.ms", "-1")]);
}

fn assert_named(ended: &Running, topic: &str) {
    assert_eq!(ended.wait(LIMIT).code(), Some(6), "{}", ended.text());
    let last = ended.text().lines().rfind(|line| line.contains("was deleted and")).map(str::to_owned);
    assert!(
        last.is_some_and(|line| line.contains(&format!("topic {topic} was deleted"))),
        "{}",
        ended.text()
    );
}

#[test]
fn a_raw_topic_that_is_created_again_stops_the_process_until_somebody_decides() {
    let (pipe, sidecar, running) = running("raw-anew");
    create_anew(&pipe, &pipe.raw);
    // More than the old one had: every offset that anybody knows is one of the new topic too.
    pipe.kafka.send(&pipe.raw, &ids("new", 30));
    assert_named(&running, &pipe.raw);
    // The state topic still tells, on whatever host.
    for keeps_local in [true, false] {
        if !keeps_local {
            std::fs::remove_dir_all(&sidecar.state_dir).unwrap();
        }
        assert_named(&sidecar.start(), &pipe.raw);
    }
    // What the message advises.
    let decided = sidecar
        .with("DEDUPD_GROUP__ID", "another-group")
        .with("DEDUPD_TOPICS__STATE", "raw-anew.another-state")
        .start();
    decided.wait_running(1, LIMIT);
    let new = pipe.kafka.texts(&pipe.raw);
    assert_eq!(new.len(), 30);
    support::wait_until("all of the new topic", LIMIT, || {
        let clean = pipe.kafka.texts(&pipe.clean);
        new.iter().all(|text| clean.contains(text)).then_some(())
    });
    assert_eq!(decided.stop(), Some(0), "{}", decided.text());
}

#[test]
fn a_clean_topic_that_is_created_again_stops_the_process_and_the_next_goes_on_into_it() {
    let (pipe, sidecar, running) = running("clean-anew");
    create_anew(&pipe, &pipe.clean);
    assert_named(&running, &pipe.clean);
    let again = sidecar.start();
    again.wait_running(1, LIMIT);
    pipe.kafka.send(&pipe.raw, &[Draft::id(0, "old-3"), Draft::id(0, "new-1")]);
    pipe.wait_caught_up(1, LIMIT);
    assert_eq!(pipe.kafka.texts(&pipe.clean), ["{\"id\":\"new-1\"}"], "{}", again.text());
    assert_eq!(again.stop(), Some(0));
}

#[test]
fn a_state_topic_that_is_created_again_stops_the_process_until_somebody_decides() {
    let (pipe, sidecar, running) = running("state-anew");
    create_anew(&pipe, &format!("{}.dedupd", pipe.clean));
    assert_named(&running, &format!("{}.dedupd", pipe.clean));
    let state = format!("{}.dedupd", pipe.clean);
    assert_named(&sidecar.start(), &state);
    // What the message advises: the same offset, without what dedupd wrote beside it.
    pipe.kafka.commit_offset(&pipe.group(), &pipe.raw, 0, 10);
    let again = sidecar.start();
    again.wait_running(1, LIMIT);
    pipe.kafka.send(&pipe.raw, &[Draft::id(0, "new-1"), Draft::id(0, "old-3"), Draft::id(0, "new-1")]);
    pipe.wait_caught_up(1, LIMIT);
    let clean = pipe.kafka.texts(&pipe.clean);
    assert_eq!(
        clean[10..],
        ["{\"id\":\"new-1\"}", "{\"id\":\"old-3\"}"],
        "the window is empty: {}",
        again.text()
    );
    assert_eq!(again.stop(), Some(0));
}

#[test]
fn a_topic_that_is_deleted_stops_the_process() {
    let (pipe, _, running) = running("deleted");
    pipe.kafka.delete_topic(&pipe.clean);
    assert_eq!(running.wait(LIMIT).code(), Some(6), "{}", running.text());
    assert!(running.text().contains("deleted.clean does not exist any more"), "{}", running.text());
}
