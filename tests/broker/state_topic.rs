//! A state topic that changes during a restore, or accepts only small records, on a real Apache Kafka.

use std::time::Duration;

use crate::support::{Draft, Pipe, Record, shared_kafka, wait_until};
use dedupd::dedupe::{Checkpoint, KindId, WindowCheckpoint};
use dedupd::pipeline::metadata_bytes;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseProducer, Producer};
use rdkafka::{Offset, TopicPartitionList};

const LIMIT: Duration = Duration::from_secs(40);

fn state_topic(pipe: &Pipe<'_>) -> String {
    format!("{}.dedupd", pipe.clean)
}

/// Produces records with the ids `prefix-id`.
fn send(pipe: &Pipe<'_>, prefix: &str, ids: std::ops::Range<usize>) {
    let drafts: Vec<Draft> = ids.map(|id| Draft::id(0, &format!("{prefix}-{id}"))).collect();
    pipe.kafka.send(&pipe.raw, &drafts);
}

#[cfg(feature = "failpoints")]
#[test]
fn a_deletion_of_old_records_at_the_start_of_a_restore_restarts_it() {
    let pipe = Pipe::new(shared_kafka(), "head-deleted", 1);
    let sidecar = pipe.sidecar("a");
    let running = sidecar.start();
    for part in 0..4 {
        send(&pipe, "old", part * 50..(part + 1) * 50);
        pipe.wait_caught_up(1, LIMIT);
    }
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    std::fs::remove_dir_all(&sidecar.state_dir).unwrap();

    let gate = pipe.dir.path().join("gate");
    let running = sidecar.held_at("before_state_open", &gate).start();
    wait_until("the restore to request the ends of the log", LIMIT, || gate.exists().then_some(()));
    // Only the last block and its marker are left.
    let topic = state_topic(&pipe);
    let (_, end) = pipe.kafka.watermarks(&topic, 0);
    pipe.kafka.delete_records(&topic, 0, end - 2);
    std::fs::remove_file(&gate).unwrap();
    running.wait_running(1, LIMIT);
    send(&pipe, "new", 0..10);
    pipe.wait_caught_up(1, LIMIT);
    running.wait_outcomes(&[("forwarded", 10)]);
    assert!(
        running.text().contains("lost records while it was read; restarting the restore"),
        "{}",
        running.text()
    );
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

/// About 4,000 new ids are one transaction with 70 KB of state.
#[test]
fn blocks_fit_into_a_state_topic_that_accepts_only_small_records() {
    let pipe = Pipe::new(shared_kafka(), "small-blocks", 1);
    pipe.kafka.create_topic(
        &state_topic(&pipe),
        1,
        &[("max.message.bytes", "20000"), ("retention.ms", "-1")],
    );
    send(&pipe, "id", 0..4_000);
    send(&pipe, "id", 0..100);
    let sidecar = pipe.sidecar("a");
    let running = sidecar.start();
    pipe.wait_caught_up(1, LIMIT);
    assert!(running.transactions("aborted") < 1.0, "{}", running.text());
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    std::fs::remove_dir_all(&sidecar.state_dir).unwrap();

    let running = sidecar.start();
    running.wait_running(1, LIMIT);
    send(&pipe, "id", 0..4_000);
    pipe.wait_caught_up(1, LIMIT);
    // All ids were restored.
    running.wait_outcomes(&[("duplicate", 4_000), ("forwarded", 0)]);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    pipe.assert_exactly_once();
}

#[test]
fn a_state_topic_for_tiny_records_is_rejected_at_the_start() {
    let pipe = Pipe::new(shared_kafka(), "tiny-blocks", 1);
    pipe.kafka.create_topic(&state_topic(&pipe), 1, &[("max.message.bytes", "4000"), ("retention.ms", "-1")]);
    let running = pipe.sidecar("a").start();
    assert_eq!(running.wait(LIMIT).code(), Some(3), "{}", running.text());
    let text = running.text();
    assert!(text.contains("max.message.bytes=4000") && text.contains(&state_topic(&pipe)), "{text}");
}

#[test]
fn a_limit_lowered_below_the_block_size_ends_the_process_with_its_name() {
    let pipe = Pipe::new(shared_kafka(), "lowered", 1);
    let sidecar = pipe.sidecar("a");
    let running = sidecar.start();
    send(&pipe, "first", 0..10);
    pipe.wait_caught_up(1, LIMIT);
    pipe.kafka.alter_topic_config(&state_topic(&pipe), &[("max.message.bytes", "20000")]);
    send(&pipe, "many", 0..4_000);
    assert_eq!(running.wait(LIMIT).code(), Some(6), "{}", running.text());
    let text = running.text();
    assert!(text.contains("rejected a state record") && text.contains("max.message.bytes"), "{text}");
    // The next start writes blocks that fit.
    let running = sidecar.start();
    pipe.wait_caught_up(1, LIMIT);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

/// The largest offset metadata within this number of bytes.
fn largest_metadata(most: usize) -> String {
    let windows = (0..90).map(|kind| WindowCheckpoint {
        kind: KindId::numbered(kind * 300),
        dropped_ms: Some(1_700_000_000_000),
        incomplete_ms: Some(1_700_000_000_000),
    });
    Checkpoint { windows: windows.collect(), writer: "w".repeat(20), ..Checkpoint::default() }
        .render_within(most)
}

/// All offsets of a transaction are one batch. With 3,300 bytes each, which was the maximum of earlier checkpoints,
/// the broker rejects those of 340 partitions.
#[test]
fn the_largest_checkpoints_of_many_partitions_fit_into_one_commit() {
    const PARTITIONS: usize = 340;
    let kafka = shared_kafka();
    kafka.create_topic("many-checkpoints", PARTITIONS, &[]);
    let commit = |most: usize, name: &str| {
        let metadata = largest_metadata(most);
        assert!((most - 400..=most).contains(&metadata.len()), "{} of {most}", metadata.len());
        let mut offsets = TopicPartitionList::new();
        for partition in 0..i32::try_from(PARTITIONS).unwrap() {
            let mut element = offsets.add_partition("many-checkpoints", partition);
            element.set_offset(Offset::Offset(0)).unwrap();
            element.set_metadata(&metadata);
        }
        let mut config = kafka.client_config();
        let member: BaseConsumer = config.set("group.id", name).create().unwrap();
        let producer: BaseProducer = kafka.client_config().set("transactional.id", name).create().unwrap();
        // A broker that has just created so many partitions is slow.
        wait_until("the producer", LIMIT * 4, || producer.init_transactions(LIMIT).ok());
        producer.begin_transaction().unwrap();
        let group = member.group_metadata().unwrap();
        let sent = producer.send_offsets_to_transaction(&offsets, &group, LIMIT);
        sent.and_then(|()| producer.commit_transaction(LIMIT))
    };
    assert_eq!(commit(metadata_bytes(PARTITIONS), "bounded"), Ok(()));
    assert!(commit(3_300, "unbounded").is_err(), "the broker accepts more than documented");
}

#[test]
fn a_copy_of_the_last_entry_ends_a_restore_with_its_offset() {
    let pipe = Pipe::new(shared_kafka(), "copied-entry", 1);
    let sidecar = pipe.sidecar("a");
    let running = sidecar.start();
    send(&pipe, "id", 0..10);
    pipe.wait_caught_up(1, LIMIT);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    let topic = state_topic(&pipe);
    let last = pipe.kafka.ended_records(&topic).pop().unwrap();
    let (_, copied_at) = pipe.kafka.watermarks(&topic, 0);
    let Record { key, value, headers, .. } = last;
    pipe.kafka.send(&topic, &[Draft { key, value, headers, ..Draft::default() }]);

    // Local state has that entry.
    let running = sidecar.start();
    running.wait_running(1, LIMIT);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    std::fs::remove_dir_all(&sidecar.state_dir).unwrap();
    let running = sidecar.start();
    assert_eq!(running.wait(LIMIT).code(), Some(6), "{}", running.text());
    let text = running.text();
    let what = format!("topic {topic} partition 0 has entry 1 again at offset {copied_at}, behind entry 1: ");
    assert!(text.contains(&what) && text.contains("set topics.state to a new topic"), "{text}");
    assert!(!text.contains("lacks records") && !text.contains("replicas"), "nothing is missing: {text}");
}

#[test]
fn a_record_of_another_program_in_the_state_topic_is_reported_while_it_runs() {
    let pipe = Pipe::new(shared_kafka(), "foreign-state", 1);
    let running = pipe.sidecar("a").start();
    let reports = || {
        let all = running.complaints().into_iter();
        all.filter(|line| line.contains("this instance has not written")).collect::<Vec<_>>()
    };
    for part in 0..4 {
        send(&pipe, "id", part * 10..(part + 1) * 10);
        pipe.wait_caught_up(1, LIMIT);
    }
    assert_eq!(reports(), [""; 0], "the control");
    pipe.kafka.send(&state_topic(&pipe), &[Draft::new(0, "x"), Draft::new(0, "y")]);
    for part in 4..8 {
        send(&pipe, "id", part * 10..(part + 1) * 10);
        pipe.wait_caught_up(1, LIMIT);
    }
    let found = reports();
    assert!(found.len() == 1 && found[0].contains("offsets=2"), "{found:?}");
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

/// What this build cannot read would otherwise count as absent.
#[test]
fn state_of_another_release_ends_the_process() {
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, "other-release", 1);
    let sidecar = pipe.sidecar("a");
    let running = sidecar.start();
    send(&pipe, "id", 0..10);
    pipe.wait_caught_up(1, LIMIT);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    let (offset, metadata) = kafka.committed(&pipe.group(), &pipe.raw, 0).unwrap();

    // A record whose key has another version, which a start reads because the local state is missing.
    let key = Draft::new(0, "x").key(b"v7;tx=other");
    kafka.send(&state_topic(&pipe), &[key]);
    std::fs::remove_dir_all(&sidecar.state_dir).unwrap();
    let running = sidecar.start();
    assert_eq!(running.wait(LIMIT).code(), Some(6), "{}", running.text());
    let message = "was written by another release of dedupd, with a key of version 7 that this build cannot read; start \
                   that release; or set topics.state to a new topic";
    assert!(running.text().contains(message), "{}", running.text());

    for version in ["1", "3"] {
        let metadata = metadata.replacen("v2;", &format!("v{version};"), 1);
        kafka.commit_with(&pipe.group(), (&pipe.raw, 0), offset, &metadata);
        let running = sidecar.start();
        assert_eq!(running.wait(LIMIT).code(), Some(4), "{}", running.text());
        let message = format!(
            "was committed by another release of dedupd, with a checkpoint of version {version} that this build cannot read"
        );
        assert!(running.text().contains(&message), "{}", running.text());
    }
}
