//! Partitions are added to the raw topic on a real Apache Kafka: dedupd adds them to the other topics, or ends with
//! the reason. And a topic with hundreds of partitions.

use std::time::Duration;

use crate::support::{Draft, Pipe, Running, Scope, Sidecar, shared_kafka, wait_until};

const LIMIT: Duration = Duration::from_mins(2);
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
fn all_instances_process_partitions_that_are_added_under_load() {
    let pipe = Pipe::new(shared_kafka(), "grows", BEFORE);
    let sidecars = ["a", "b"].map(|name| pipe.sidecar(name).scoped(Scope::Partition));
    let [a, b] = sidecars.each_ref().map(Sidecar::start);
    wait_running(&[&a, &b], BEFORE);
    let load = pipe.load(BEFORE, 2_000);
    load.more(4_000);
    pipe.kafka.grow_topic(&pipe.raw, AFTER);
    // Produced before the new partitions are assigned.
    let further = pipe.load(AFTER, 2_000);
    further.more(2_000);
    wait_running(&[&a, &b], AFTER);
    assert_eq!(counts(&pipe), [AFTER, AFTER]);
    further.more(4_000);
    // The state of the new partitions survives a crash too.
    a.kill9();
    let a = sidecars[0].start();
    further.more(4_000);
    load.finish();
    further.finish();
    pipe.wait_caught_up(AFTER, LIMIT);
    let text = format!("{}{}", a.text(), b.text());
    assert!(text.contains(&format!("has grown from {BEFORE} to {AFTER} partitions")), "{text}");
    assert!(
        !text.contains("UnknownPartition"),
        "a client used a partition before it was in its metadata: {text}"
    );
    for process in [&a, &b] {
        assert_eq!(process.ended(), None, "{}", process.text());
        assert_eq!(process.stop(), Some(0), "{}", process.text());
    }
    pipe.assert_exactly_once();
}

#[test]
fn hundreds_of_partitions_are_exact_after_a_kill_with_and_without_local_state() {
    const MANY: usize = 300;
    let pipe = Pipe::new(shared_kafka(), "many", MANY);
    // While the other tests of this file run, a transaction of 600 logs can take longer than the 5 s of other tests.
    let sidecar = pipe
        .sidecar("a")
        .with("DEDUPD_BATCH__TRANSACTION_TIMEOUT", "30s")
        .with("DEDUPD_GROUP__SESSION_TIMEOUT", "40s");
    let running = sidecar.start();
    running.wait_running(MANY, LIMIT);
    let load = pipe.load(MANY, 2_000);
    load.more(4_000);
    running.kill9();
    let running = sidecar.start();
    running.wait_running(MANY, LIMIT);
    load.more(2_000);
    running.kill9();
    std::fs::remove_dir_all(&sidecar.state_dir).unwrap();
    let running = sidecar.start();
    load.finish();
    running.wait_running(MANY, LIMIT);
    pipe.wait_caught_up(MANY, LIMIT);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    pipe.assert_exactly_once();
}

/// A sidecar that may not create topics. The test creates them.
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
fn without_topics_create_the_process_stops_and_reports_the_commands() {
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
        // The second time, no instance is running. The message is the same.
        let stopped = if start == "while it runs" { &running } else { &sidecar.start() };
        assert_eq!(stopped.wait(LIMIT).code(), Some(3), "{start}: {}", stopped.text());
        for command in &commands {
            assert!(stopped.text().contains(command), "{start}: {command}: {}", stopped.text());
        }
    }
    assert_eq!(counts(&pipe), [BEFORE, BEFORE]);
    // The effect of the commands.
    pipe.kafka.grow_topic(&pipe.clean, AFTER);
    pipe.kafka.grow_topic(&state_of(&pipe), AFTER);
    let restarted = sidecar.start();
    restarted.wait_running(AFTER, LIMIT);
    load.finish();
    further.finish();
    pipe.wait_caught_up(AFTER, LIMIT);
    assert_eq!(restarted.stop(), Some(0));
    pipe.assert_exactly_once();
}

#[test]
fn partitions_can_be_added_to_clean_and_state_first() {
    let pipe = Pipe::new(shared_kafka(), "grown-first", BEFORE);
    let running = strict(&pipe).start();
    running.wait_running(BEFORE, LIMIT);
    pipe.kafka.grow_topic(&pipe.clean, AFTER);
    pipe.kafka.grow_topic(&state_of(&pipe), AFTER);
    let command = alter(&pipe, &pipe.raw);
    let warnings = || running.text().matches(&command).count();
    // A check between the two changes warns about one topic only.
    wait_until("a warning for each topic", LIMIT, || (warnings() >= 2).then_some(()));
    // Longer than the check interval.
    std::thread::sleep(Duration::from_secs(6));
    pipe.kafka.grow_topic(&pipe.raw, AFTER);
    running.wait_running(AFTER, LIMIT);
    let load = pipe.load(AFTER, 1_000);
    load.more(2_000);
    load.finish();
    pipe.wait_caught_up(AFTER, LIMIT);
    assert_eq!(warnings(), 2, "not one warning per topic: {}", running.text());
    assert_eq!(running.stop(), Some(0));
    pipe.assert_exactly_once();
}

#[test]
fn only_a_group_with_offsets_adds_partitions_at_its_start() {
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
    // A group without offsets on the topic: its name may be a typing error, and partitions cannot be removed.
    let other = sidecar.clone().with("DEDUPD_GROUP__ID", "other").start();
    assert_eq!(other.wait(LIMIT).code(), Some(3), "{}", other.text());
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
    let all = pipe.kafka.records(topic, crate::support::Isolation::Committed);
    all.iter().filter(|record| record.partition == partition).map(crate::support::Record::text).collect()
}

/// With `group.start = "latest"`, old records are skipped, but never those of a new partition.
#[test]
fn a_new_partition_starts_at_the_earliest_offset_also_with_group_start_latest() {
    let pipe = Pipe::new(shared_kafka(), "latest", 2);
    let old: Vec<Draft> =
        (0..2).flat_map(|p| (0..5).map(move |n| Draft::id(p, &format!("old-{p}-{n}")))).collect();
    pipe.kafka.send(&pipe.raw, &old);
    let sidecar = pipe.sidecar("a").with("DEDUPD_GROUP__START", "latest");
    let running = sidecar.start();
    running.wait_running(2, LIMIT);
    // The start offset is committed immediately, so that another instance continues there.
    let committed = || pipe.kafka.committed(&pipe.group(), &pipe.raw, 1).filter(|(offset, _)| *offset == 5);
    wait_until("the start offset to be committed", LIMIT, committed);
    running.kill9();
    std::fs::remove_dir_all(&sidecar.state_dir).unwrap();
    pipe.kafka.send(&pipe.raw, &[Draft::id(1, "while-away")]);
    pipe.kafka.grow_topic(&pipe.raw, 3);
    pipe.kafka.send(&pipe.raw, &[Draft::id(2, "early-2"), Draft::id(2, "early-2")]);
    let other = pipe.sidecar("b").with("DEDUPD_GROUP__START", "latest").start();
    other.wait_running(3, LIMIT);
    // The same while it runs.
    pipe.kafka.grow_topic(&pipe.raw, 4);
    pipe.kafka.send(&pipe.raw, &[Draft::id(3, "early-3"), Draft::id(3, "early-3")]);
    other.wait_running(4, LIMIT);
    pipe.wait_caught_up(4, LIMIT);
    let clean: Vec<Vec<String>> = (0..4).map(|p| texts_of(&pipe, &pipe.clean, p)).collect();
    let one = |id: &str| vec![format!("{{\"id\":\"{id}\"}}")];
    assert_eq!(clean, [vec![], one("while-away"), one("early-2"), one("early-3")], "{}", other.text());
    assert_eq!(other.metric("dedupd_offset_resets_total{reason=\"grown\"}"), Some(2.0));
}
