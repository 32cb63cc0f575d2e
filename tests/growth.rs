//! The raw topic grows while dedupd runs, on a real Apache Kafka: the other topics follow, or the process says
//! why it cannot go on.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod support;

use std::time::Duration;

use support::{Draft, Pipe, Running, Sidecar, shared_kafka, wait_until};

const LIMIT: Duration = Duration::from_mins(1);
const BEFORE: usize = 3;
const AFTER: usize = 5;

fn state_of(pipe: &Pipe<'_>) -> String {
    format!("{}.dedupd", pipe.clean)
}

fn counts(pipe: &Pipe<'_>) -> [usize; 2] {
    [pipe.kafka.partitions(&pipe.clean), pipe.kafka.partitions(&state_of(pipe))]
}

fn running_partitions(instances: &[&Running]) -> f64 {
    let of = |process: &&Running| process.metric("dedupd_partitions{state=\"running\"}").unwrap_or(0.0);
    instances.iter().map(of).sum()
}

fn wait_running(instances: &[&Running], partitions: usize) {
    wait_until(&format!("{partitions} partitions to run"), LIMIT, || {
        (running_partitions(instances) >= partitions as f64).then_some(())
    });
}

#[test]
fn a_raw_topic_that_grows_under_load_is_followed_by_all_instances() {
    let pipe = Pipe::new(shared_kafka(), "grows", BEFORE);
    let (a, b) = (pipe.sidecar("a").start(), pipe.sidecar("b").start());
    wait_running(&[&a, &b], BEFORE);
    let load = pipe.load(BEFORE, 2_000);
    load.more(4_000);
    pipe.kafka.grow_topic(&pipe.raw, AFTER);
    // Written before anybody was given the new partitions.
    let further = pipe.load(AFTER, 2_000);
    further.more(2_000);
    wait_running(&[&a, &b], AFTER);
    assert_eq!(counts(&pipe), [AFTER, AFTER]);
    further.more(4_000);
    // What is known of the new partitions survives a crash like everything else.
    a.kill9();
    let a = pipe.sidecar("a").start();
    further.more(4_000);
    load.finish();
    further.finish();
    pipe.wait_caught_up(AFTER, LIMIT);
    let text = format!("{}{}", a.text(), b.text());
    assert!(text.contains(&format!("has grown from {BEFORE} to {AFTER} partitions")), "{text}");
    assert!(!text.contains("UnknownPartition"), "a client waits until it hears of the growth: {text}");
    for process in [&a, &b] {
        assert_eq!(process.ended(), None, "{}", process.text());
        assert_eq!(process.stop(), Some(0), "{}", process.text());
    }
    pipe.assert_exactly_once();
}

/// A sidecar that may not touch topics; they are made for it.
fn strict(pipe: &Pipe<'_>) -> Sidecar {
    pipe.kafka.create_topic(&pipe.clean, BEFORE, &[]);
    pipe.kafka.create_topic(&state_of(pipe), BEFORE, &[("retention.ms", "-1")]);
    pipe.sidecar("a").with("DEDUPD_TOPICS__CREATE", "false")
}

fn alter(pipe: &Pipe<'_>, topic: &str) -> String {
    let server = pipe.kafka.bootstrap();
    format!("kafka-topics.sh --bootstrap-server {server} --alter --topic {topic} --partitions {AFTER}")
}

#[test]
fn without_the_right_to_follow_the_process_stops_and_names_the_commands() {
    let pipe = Pipe::new(shared_kafka(), "left-behind", BEFORE);
    let sidecar = strict(&pipe);
    let running = sidecar.start();
    running.wait_running(BEFORE, LIMIT);
    let load = pipe.load(BEFORE, 1_000);
    load.more(2_000);
    pipe.kafka.grow_topic(&pipe.raw, AFTER);
    let further = pipe.load(AFTER, 1_000);
    let commands = [alter(&pipe, &pipe.clean), alter(&pipe, &state_of(&pipe))];
    for start in ["while it runs", "at the start"] {
        // The second time nothing runs: what is said is the same.
        let stopped = if start == "while it runs" { &running } else { &sidecar.start() };
        assert_eq!(stopped.wait(LIMIT).code(), Some(3), "{start}: {}", stopped.text());
        for command in &commands {
            assert!(stopped.text().contains(command), "{start}: {command}: {}", stopped.text());
        }
    }
    assert_eq!(counts(&pipe), [BEFORE, BEFORE]);
    // What the commands do.
    pipe.kafka.grow_topic(&pipe.clean, AFTER);
    pipe.kafka.grow_topic(&state_of(&pipe), AFTER);
    let again = sidecar.start();
    again.wait_running(AFTER, LIMIT);
    load.finish();
    further.finish();
    pipe.wait_caught_up(AFTER, LIMIT);
    assert_eq!(again.stop(), Some(0));
    pipe.assert_exactly_once();
}

#[test]
fn clean_and_state_may_be_grown_first_and_nothing_stops() {
    let pipe = Pipe::new(shared_kafka(), "grown-first", BEFORE);
    let running = strict(&pipe).start();
    running.wait_running(BEFORE, LIMIT);
    pipe.kafka.grow_topic(&pipe.clean, AFTER);
    pipe.kafka.grow_topic(&state_of(&pipe), AFTER);
    let told = alter(&pipe, &pipe.raw);
    wait_until("a warning", LIMIT, || running.text().contains(&told).then_some(()));
    // Another look.
    std::thread::sleep(Duration::from_secs(6));
    pipe.kafka.grow_topic(&pipe.raw, AFTER);
    running.wait_running(AFTER, LIMIT);
    let load = pipe.load(AFTER, 1_000);
    load.more(2_000);
    load.finish();
    pipe.wait_caught_up(AFTER, LIMIT);
    let warnings = running.text().matches(&told).count();
    assert_eq!(warnings, 2, "one for each topic, and not with every look: {}", running.text());
    assert_eq!(running.stop(), Some(0));
    pipe.assert_exactly_once();
}

#[test]
fn a_topic_that_grew_while_nothing_ran_is_followed_only_by_its_own_group() {
    let pipe = Pipe::new(shared_kafka(), "grew-before", BEFORE);
    let sidecar = pipe.sidecar("a");
    let running = sidecar.start();
    running.wait_running(BEFORE, LIMIT);
    let load = pipe.load(BEFORE, 1_000);
    load.more(1_000);
    load.finish();
    pipe.wait_caught_up(BEFORE, LIMIT);
    assert_eq!(running.stop(), Some(0));
    pipe.kafka.grow_topic(&pipe.raw, AFTER);
    // A group that has never read the topic: perhaps somebody mistyped a name, and partitions stay for ever.
    let stranger = sidecar.clone().with("DEDUPD_GROUP__ID", "stranger").start();
    assert_eq!(stranger.wait(LIMIT).code(), Some(3), "{}", stranger.text());
    assert_eq!(counts(&pipe), [BEFORE, BEFORE]);
    let load = pipe.load(AFTER, 1_000);
    load.more(1_000);
    let running = sidecar.start();
    running.wait_running(AFTER, LIMIT);
    assert_eq!(counts(&pipe), [AFTER, AFTER]);
    load.finish();
    pipe.wait_caught_up(AFTER, LIMIT);
    assert_eq!(running.stop(), Some(0));
    pipe.assert_exactly_once();
}

fn texts_of(pipe: &Pipe<'_>, topic: &str, partition: i32) -> Vec<String> {
    let all = pipe.kafka.records(topic, support::Isolation::Committed);
    all.iter().filter(|record| record.partition == partition).map(support::Record::text).collect()
}

/// With `group.start = "latest"` old records are left out on purpose; those of a new partition never are.
#[test]
fn a_new_partition_begins_at_its_beginning_wherever_the_group_began() {
    let pipe = Pipe::new(shared_kafka(), "latest", 2);
    let old: Vec<Draft> =
        (0..2).flat_map(|p| (0..5).map(move |n| Draft::id(p, &format!("old-{n}")))).collect();
    pipe.kafka.send(&pipe.raw, &old);
    let sidecar = pipe.sidecar("a").with("DEDUPD_GROUP__START", "latest");
    let running = sidecar.start();
    running.wait_running(2, LIMIT);
    // Where it began is the group's business at once: whoever takes over has to begin there too.
    let begun = || pipe.kafka.committed(&pipe.group(), &pipe.raw, 1).filter(|(offset, _)| *offset == 5);
    wait_until("the beginning to be committed", LIMIT, begun);
    running.kill9();
    std::fs::remove_dir_all(&sidecar.state_dir).unwrap();
    pipe.kafka.send(&pipe.raw, &[Draft::id(1, "while-away")]);
    pipe.kafka.grow_topic(&pipe.raw, 3);
    pipe.kafka.send(&pipe.raw, &[Draft::id(2, "at-once"), Draft::id(2, "at-once")]);
    let other = pipe.sidecar("b").with("DEDUPD_GROUP__START", "latest").start();
    other.wait_running(3, LIMIT);
    // And once more while it runs.
    pipe.kafka.grow_topic(&pipe.raw, 4);
    pipe.kafka.send(&pipe.raw, &[Draft::id(3, "at-once"), Draft::id(3, "at-once")]);
    other.wait_running(4, LIMIT);
    pipe.wait_caught_up(4, LIMIT);
    let clean: Vec<Vec<String>> = (0..4).map(|p| texts_of(&pipe, &pipe.clean, p)).collect();
    let one = |id: &str| vec![format!("{{\"id\":\"{id}\"}}")];
    assert_eq!(clean, [vec![], one("while-away"), one("at-once"), one("at-once")], "{}", other.text());
    assert_eq!(other.metric("dedupd_offset_resets_total{reason=\"grown\"}"), Some(2.0));
}
