//! Topics that are deleted and recreated with the same name, on a real Apache Kafka. A client identifies a topic by
//! its name, so it would continue without an error.

use std::time::Duration;

use crate::support::{Draft, Pipe, Running, Sidecar, shared_kafka};

const LIMIT: Duration = Duration::from_mins(1);

fn ids(prefix: &str, count: usize) -> Vec<Draft> {
    (0..count).map(|n| Draft::id(0, &format!("{prefix}-{n}"))).collect()
}

/// A running sidecar that has processed ten records of one partition.
fn running(name: &str) -> (Pipe<'static>, Sidecar, Running) {
    let pipe = Pipe::new(shared_kafka(), name, 1);
    let sidecar = pipe.sidecar("a");
    let running = sidecar.start();
    running.wait_running(1, LIMIT);
    pipe.kafka.send(&pipe.raw, &ids("old", 10));
    pipe.wait_caught_up(1, LIMIT);
    (pipe, sidecar, running)
}

fn recreate(pipe: &Pipe<'_>, topic: &str) {
    pipe.kafka.delete_topic(topic);
    pipe.kafka.create_topic(topic, 1, &[("retention.ms", "-1")]);
}

fn assert_reported(ended: &Running, topic: &str) {
    assert_eq!(ended.wait(LIMIT).code(), Some(6), "{}", ended.text());
    let last = ended.text().lines().rfind(|line| line.contains("was deleted and")).map(str::to_owned);
    assert!(
        last.is_some_and(|line| line.contains(&format!("topic {topic} was deleted"))),
        "{}",
        ended.text()
    );
}

#[test]
fn a_recreated_raw_topic_stops_the_process_until_an_operator_decides() {
    let (pipe, sidecar, running) = running("raw-recreated");
    recreate(&pipe, &pipe.raw);
    // More records than in the old topic: every known offset exists in the new topic too.
    pipe.kafka.send(&pipe.raw, &ids("new", 30));
    assert_reported(&running, &pipe.raw);
    // The state topic contains the topic id, so every host detects it.
    for keeps_local in [true, false] {
        if !keeps_local {
            std::fs::remove_dir_all(&sidecar.state_dir).unwrap();
        }
        assert_reported(&sidecar.start(), &pipe.raw);
    }
    // The remedy in the message.
    let decided = sidecar
        .with("DEDUPD_GROUP__ID", "another-group")
        .with("DEDUPD_TOPICS__STATE", "raw-recreated.another-state")
        .start();
    decided.wait_running(1, LIMIT);
    let new = pipe.kafka.texts(&pipe.raw);
    assert_eq!(new.len(), 30);
    crate::support::wait_until("all of the new topic", LIMIT, || {
        let clean = pipe.kafka.texts(&pipe.clean);
        new.iter().all(|text| clean.contains(text)).then_some(())
    });
    assert_eq!(decided.stop(), Some(0), "{}", decided.text());
}

#[test]
fn a_recreated_clean_topic_stops_the_process_and_the_next_start_continues() {
    let (pipe, sidecar, running) = running("clean-recreated");
    recreate(&pipe, &pipe.clean);
    assert_reported(&running, &pipe.clean);
    let restarted = sidecar.start();
    restarted.wait_running(1, LIMIT);
    pipe.kafka.send(&pipe.raw, &[Draft::id(0, "old-3"), Draft::id(0, "new-1")]);
    pipe.wait_caught_up(1, LIMIT);
    assert_eq!(pipe.kafka.texts(&pipe.clean), ["{\"id\":\"new-1\"}"], "{}", restarted.text());
    assert_eq!(restarted.stop(), Some(0));
}

#[test]
fn a_recreated_state_topic_stops_the_process_until_an_operator_decides() {
    let (pipe, sidecar, running) = running("state-recreated");
    recreate(&pipe, &format!("{}.dedupd", pipe.clean));
    assert_reported(&running, &format!("{}.dedupd", pipe.clean));
    let state = format!("{}.dedupd", pipe.clean);
    assert_reported(&sidecar.start(), &state);
    // The remedy in the message: the same offset, without the metadata of dedupd.
    pipe.kafka.commit_offset(&pipe.group(), &pipe.raw, 0, 10);
    let restarted = sidecar.start();
    restarted.wait_running(1, LIMIT);
    pipe.kafka.send(&pipe.raw, &[Draft::id(0, "new-1"), Draft::id(0, "old-3"), Draft::id(0, "new-1")]);
    pipe.wait_caught_up(1, LIMIT);
    let clean = pipe.kafka.texts(&pipe.clean);
    assert_eq!(
        clean[10..],
        ["{\"id\":\"new-1\"}", "{\"id\":\"old-3\"}"],
        "the window is not empty: {}",
        restarted.text()
    );
    assert_eq!(restarted.stop(), Some(0));
}

#[test]
fn a_deleted_topic_stops_the_process() {
    let (pipe, _, running) = running("deleted");
    pipe.kafka.delete_topic(&pipe.clean);
    assert_eq!(running.wait(LIMIT).code(), Some(6), "{}", running.text());
    assert!(running.text().contains("deleted.clean does not exist any more"), "{}", running.text());
}
