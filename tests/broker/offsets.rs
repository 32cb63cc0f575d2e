//! Committed offsets that do not match the state or the log, on a real Apache Kafka: lost, rewound, outside of the
//! log, or at compacted records.

use std::collections::HashSet;
use std::time::Duration;

use crate::support::{Draft, Pipe, Sidecar, compacting_kafka, shared_kafka};
#[cfg(feature = "failpoints")]
use crate::support::{Isolation, wait_until};

const LIMIT: Duration = Duration::from_secs(40);

/// A sidecar that leaves the group when it stops, so that its offsets can be set.
fn leaving(pipe: &Pipe<'_>) -> Sidecar {
    pipe.sidecar("a").comparing_ids().with("DEDUPD_GROUP__STATIC_MEMBERSHIP", "false")
}

/// Numbered records with these ids, in order.
fn numbered(ids: impl IntoIterator<Item = usize>) -> Vec<Draft> {
    ids.into_iter()
        .enumerate()
        .map(|(n, id)| Draft::new(0, &format!("{{\"id\":\"{id}\",\"n\":{n}}}")))
        .collect()
}

fn through(pipe: &Pipe<'_>, sidecar: &Sidecar) {
    let running = sidecar.start();
    pipe.wait_caught_up(1, LIMIT);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

/// One partition with 100 records and 60 ids, processed in several transactions and stopped.
fn processed(name: &str) -> (Pipe<'static>, Sidecar) {
    let pipe = Pipe::new(compacting_kafka(), name, 1);
    let sidecar = leaving(&pipe);
    pipe.kafka.send(&pipe.raw, &numbered((0..100).map(|n| n % 60)));
    through(&pipe, &sidecar.clone().with("DEDUPD_BATCH__MAX_RECORDS", "10"));
    (pipe, sidecar)
}

fn set_offset(pipe: &Pipe<'_>, offset: i64) {
    pipe.kafka.commit_offset(&pipe.group(), &pipe.raw, 0, offset);
}

/// Asserts that it ends with exit code 6 and that its log contains all words.
fn assert_stopped(sidecar: &Sidecar, words: &[&str]) {
    let running = sidecar.start();
    let ended = running.wait(LIMIT).code();
    assert_eq!(ended, Some(6), "{}", running.text());
    for word in words {
        assert!(running.text().contains(word), "{word:?} is not in:\n{}", running.text());
    }
}

/// Asserts that an instance with the state of [`processed`] forwards only the new ones of some ids, and logs `words`.
fn assert_only_new_ids_are_forwarded(pipe: &Pipe<'_>, sidecar: &Sidecar, words: &str) {
    let running = sidecar.start();
    pipe.kafka.send(&pipe.raw, &numbered([5, 61, 62, 61]));
    pipe.wait_caught_up(1, LIMIT);
    assert!(running.text().contains(words), "{}", running.text());
    running.wait_outcomes(&[("forwarded", 2), ("retry", 0)]);
    assert_eq!(running.stop(), Some(0));
    pipe.assert_exactly_once();
}

#[test]
fn a_group_without_offsets_continues_at_the_end_of_the_state() {
    for keeps_local in [true, false] {
        let (pipe, sidecar) = processed(&format!("group-deleted-{keeps_local}"));
        pipe.kafka.delete_group(&pipe.group());
        if !keeps_local {
            std::fs::remove_dir_all(&sidecar.state_dir).unwrap();
        }
        assert_only_new_ids_are_forwarded(&pipe, &sidecar, "the group has no committed offset");
    }
}

#[test]
fn an_older_checkpoint_at_the_current_offset_is_not_said_to_be_the_fault_of_a_broker() {
    let pipe = Pipe::new(shared_kafka(), "older-checkpoint", 1);
    let sidecar = leaving(&pipe);
    pipe.kafka.send(&pipe.raw, &numbered(0..10));
    through(&pipe, &sidecar);
    let (_, older) = pipe.kafka.committed(&pipe.group(), &pipe.raw, 0).unwrap();
    pipe.kafka.send(&pipe.raw, &numbered(5..20));
    through(&pipe, &sidecar);
    let (offset, _) = pipe.kafka.committed(&pipe.group(), &pipe.raw, 0).unwrap();
    pipe.kafka.commit_with(&pipe.group(), (&pipe.raw, 0), offset, &older);
    let running = sidecar.start();
    running.wait_running(1, LIMIT);
    let repairs =
        running.complaints().into_iter().find(|line| line.contains("repairing its traces")).unwrap();
    assert!(repairs.contains("or another program has set offsets or checkpoints of the group"), "{repairs}");
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    pipe.assert_exactly_once();
}

#[test]
fn a_rewound_group_stops_the_process_by_default() {
    let (pipe, sidecar) = processed("rewind-stop");
    set_offset(&pipe, 30);
    // The last block of the state ends with the last new id: everything after it repeats one.
    let words = ["is 30,", "was rewound", "group.on_rewind"];
    assert_stopped(&sidecar, &words);
    std::fs::remove_dir_all(&sidecar.state_dir).unwrap();
    assert_stopped(&sidecar, &words);
    let text = sidecar.start();
    text.wait(LIMIT);
    let (_, after) = text
        .text()
        .rsplit_once("reset the group's offset to ")
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    let advised: i64 = after.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
    assert!((60..=100).contains(&advised), "{advised}");
    set_offset(&pipe, advised);
    through(&pipe, &sidecar);
    pipe.assert_exactly_once();
}

#[test]
fn a_group_rewound_by_one_transaction_after_a_kill_is_detected() {
    let pipe = Pipe::new(compacting_kafka(), "rewind-kill", 1);
    let sidecar = leaving(&pipe);
    let running = sidecar.start();
    for part in [0..10, 10..20, 20..30] {
        pipe.kafka.send(&pipe.raw, &numbered(part));
        pipe.wait_caught_up(1, LIMIT);
    }
    // The store writes asynchronously. Unwritten data does not survive a kill.
    std::thread::sleep(Duration::from_secs(2));
    running.kill9();
    // The confirmed part of the local state ends here, before the last transaction.
    set_offset(&pipe, 20);
    assert_stopped(&sidecar, &["is 20,", "was rewound"]);
    assert_eq!(pipe.kafka.texts(&pipe.clean).len(), 30);
}

#[test]
fn a_rewound_group_can_skip_committed_records() {
    let (pipe, sidecar) = processed("rewind-skip");
    set_offset(&pipe, 30);
    let skipping = sidecar.with("DEDUPD_GROUP__ON_REWIND", "skip");
    assert_only_new_ids_are_forwarded(&pipe, &skipping, "on_rewind = skip");
}

#[test]
fn a_rewound_group_can_reemit_committed_records() {
    let (pipe, sidecar) = processed("rewind-reemit");
    set_offset(&pipe, 30);
    through(&pipe, &sidecar.clone().with("DEDUPD_GROUP__ON_REWIND", "reemit"));
    let raw = pipe.kafka.texts(&pipe.raw);
    let id = |text: &str| text.split('"').nth(3).unwrap().to_owned();
    let firsts = |from: usize| {
        let mut seen: HashSet<String> = raw[..from].iter().map(|text| id(text)).collect();
        raw[from..].iter().filter(|text| seen.insert(id(text))).cloned().collect::<Vec<_>>()
    };
    let expected = [firsts(0), firsts(30)].concat();
    assert_eq!(expected.len(), 60 + 30);
    assert_eq!(pipe.kafka.texts(&pipe.clean), expected);
    // The state is consistent afterwards, from the disk and from the state topic.
    for keeps_local in [true, false] {
        if !keeps_local {
            std::fs::remove_dir_all(&sidecar.state_dir).unwrap();
        }
        pipe.kafka.send(&pipe.raw, &numbered(0..60));
        through(&pipe, &sidecar);
        assert_eq!(pipe.kafka.texts(&pipe.clean), expected, "local state kept: {keeps_local}");
    }
}

#[test]
fn an_offset_below_the_log_start_stops_the_process() {
    let (pipe, sidecar) = processed("retention");
    pipe.kafka.send(&pipe.raw, &numbered(100..150));
    pipe.kafka.delete_records(&pipe.raw, 0, 120);
    let words = ["partition 0 of topic retention.raw", "120 to 150", "continue at 100"];
    assert_stopped(&sidecar, &words);
    std::fs::remove_dir_all(&sidecar.state_dir).unwrap();
    assert_stopped(&sidecar, &words);
    // The remedy in the message.
    set_offset(&pipe, 120);
    through(&pipe, &sidecar);
    assert_eq!(pipe.kafka.texts(&pipe.clean).len(), 60 + 30);
}

/// Number of skipped offsets, and of partitions with skipped offsets.
fn gap(running: &crate::support::Running) -> (Option<f64>, Option<f64>) {
    let skipped = running.metric("dedupd_gap_offsets_total");
    (skipped, running.metric("dedupd_offset_resets_total{reason=\"gap\"}"))
}

#[test]
fn a_gap_can_be_accepted_and_is_counted() {
    let (pipe, sidecar) = processed("accepted");
    pipe.kafka.send(&pipe.raw, &numbered(100..150));
    pipe.kafka.delete_records(&pipe.raw, 0, 120);
    let accepting = sidecar.clone().with("DEDUPD_GROUP__ON_GAP", "accept");
    let running = accepting.start();
    pipe.wait_caught_up(1, LIMIT);
    assert!(running.text().contains("20 offsets skipped (group.on_gap = accept)"), "{}", running.text());
    assert_eq!(gap(&running), (Some(20.0), Some(1.0)));
    // The window is complete.
    pipe.kafka.send(&pipe.raw, &numbered([5, 59, 120]));
    pipe.wait_caught_up(1, LIMIT);
    running.wait_outcomes(&[("forwarded", 30), ("duplicate", 3)]);
    assert_eq!(running.stop(), Some(0));
    // The committed offset is after the gap, so no instance has to accept it again.
    std::fs::remove_dir_all(&sidecar.state_dir).unwrap();
    through(&pipe, &sidecar);
    assert_eq!(pipe.kafka.texts(&pipe.clean).len(), 60 + 30);
}

#[test]
fn an_accepted_gap_is_committed_before_any_record_arrives() {
    let (pipe, sidecar) = processed("accepted-idle");
    pipe.kafka.send(&pipe.raw, &numbered(100..150));
    pipe.kafka.delete_records(&pipe.raw, 0, 150);
    let running = sidecar.clone().with("DEDUPD_GROUP__ON_GAP", "accept").start();
    pipe.wait_caught_up(1, LIMIT);
    assert_eq!(gap(&running), (Some(50.0), Some(1.0)));
    running.kill9();
    through(&pipe, &sidecar);
}

#[test]
fn an_offset_beyond_the_log_can_be_accepted() {
    let (pipe, sidecar) = processed("beyond");
    set_offset(&pipe, 120);
    assert_stopped(&sidecar, &["0 to 100", "continue at 120", "truncated", "group.on_gap"]);
    let running = sidecar.clone().with("DEDUPD_GROUP__ON_GAP", "accept").start();
    pipe.wait_caught_up(1, LIMIT);
    pipe.kafka.send(&pipe.raw, &numbered([5, 61, 62, 61]));
    pipe.wait_caught_up(1, LIMIT);
    assert_eq!(gap(&running), (Some(0.0), Some(1.0)));
    running.wait_outcomes(&[("forwarded", 2), ("duplicate", 2)]);
    assert_eq!(running.stop(), Some(0));
    for keeps_local in [true, false] {
        if !keeps_local {
            std::fs::remove_dir_all(&sidecar.state_dir).unwrap();
        }
        through(&pipe, &sidecar);
    }
    pipe.assert_exactly_once();
}

/// Retention deletes unread records of an assigned partition, whose process is frozen.
#[test]
fn unread_records_deleted_from_a_running_partition_are_reported_with_their_offsets() {
    for accepts in [false, true] {
        let (pipe, sidecar) = processed(&format!("passed-{accepts}"));
        let sidecar = sidecar.with("DEDUPD_GROUP__SESSION_TIMEOUT", "30s");
        let running =
            if accepts { sidecar.with("DEDUPD_GROUP__ON_GAP", "accept").start() } else { sidecar.start() };
        running.wait_running(1, LIMIT);
        running.signal("STOP");
        // The pending fetch at the broker ends empty (fetch.wait.max.ms = 50), and a frozen client sends no
        // further one: it has not read any of the deleted records.
        std::thread::sleep(Duration::from_secs(1));
        pipe.kafka.send(&pipe.raw, &numbered(100..150));
        pipe.kafka.delete_records(&pipe.raw, 0, 120);
        running.signal("CONT");
        if accepts {
            pipe.wait_caught_up(1, LIMIT);
            assert_eq!(gap(&running), (Some(20.0), Some(1.0)));
            assert_eq!(pipe.kafka.texts(&pipe.clean).len(), 60 + 30);
            assert_eq!(running.stop(), Some(0), "{}", running.text());
        } else {
            assert_eq!(running.wait(LIMIT).code(), Some(6), "{}", running.text());
            assert!(
                running.text().contains("120 to 150, but the group has to continue at 100"),
                "{}",
                running.text()
            );
        }
    }
}

#[test]
fn an_idle_log_emptied_by_retention_is_not_a_gap() {
    let (pipe, sidecar) = processed("emptied");
    pipe.kafka.delete_records(&pipe.raw, 0, 100);
    std::fs::remove_dir_all(&sidecar.state_dir).unwrap();
    let running = sidecar.start();
    running.wait_running(1, LIMIT);
    pipe.kafka.send(&pipe.raw, &numbered([5, 61]));
    pipe.wait_caught_up(1, LIMIT);
    running.wait_outcomes(&[("forwarded", 1), ("duplicate", 1)]);
}

#[test]
fn without_any_offset_group_start_determines_the_start_offset() {
    let pipe = Pipe::new(compacting_kafka(), "start", 1);
    pipe.kafka.send(&pipe.raw, &numbered(0..10));
    let sidecar = leaving(&pipe);
    assert_stopped(&sidecar.clone().with("DEDUPD_GROUP__START", "stop"), &["group.start", "start.raw"]);
    let running = sidecar.clone().with("DEDUPD_GROUP__START", "latest").start();
    running.wait_running(1, LIMIT);
    pipe.kafka.send(&pipe.raw, &numbered(8..12));
    pipe.wait_caught_up(1, LIMIT);
    assert_eq!(running.stop(), Some(0));
    assert_eq!(pipe.kafka.texts(&pipe.clean), pipe.kafka.texts(&pipe.raw)[10..]);
}

/// The owner of an id is in the local state, its transaction was not committed, and its record is compacted away:
/// the next record with the id must be forwarded.
#[test]
#[cfg(feature = "failpoints")]
fn an_uncommitted_owner_that_is_compacted_away_owns_nothing() {
    let kafka = compacting_kafka();
    let pipe = Pipe::new(kafka, "compacted", 1);
    kafka.alter_topic_config(
        &pipe.raw,
        &[
            ("cleanup.policy", "compact"),
            ("min.cleanable.dirty.ratio", "0.001"),
            ("segment.ms", "200"),
            ("max.compaction.lag.ms", "200"),
        ],
    );
    kafka.create_topic(&pipe.clean, 1, &[]); // otherwise it would be compacted like raw
    let sidecar = pipe.sidecar("a");
    kafka.send(&pipe.raw, &[Draft::id(0, "first").key(b"first")]);
    through(&pipe, &sidecar);
    kafka.send(&pipe.raw, &[Draft::id(0, "taken").key(b"k")]);
    let killed = sidecar.clone().with("DEDUPD_FAILPOINT", "after_store:1").start();
    assert_eq!(killed.wait(LIMIT).code(), None, "{}", killed.text());
    // A newer record with the same key, then others until the old one's segment is closed and compacted.
    kafka.send(&pipe.raw, &[Draft::id(0, "other").key(b"k")]);
    let mut filler = 0;
    wait_until("the owner to be compacted away", LIMIT, || {
        filler += 1;
        let id = format!("filler-{filler}");
        kafka.send(&pipe.raw, &[Draft::id(0, &id).key(id.as_bytes())]);
        std::thread::sleep(Duration::from_millis(250));
        let left = kafka.records(&pipe.raw, Isolation::Committed);
        left.iter().all(|record| !record.text().contains("taken")).then_some(())
    });
    kafka.send(&pipe.raw, &[Draft::id(0, "taken").key(b"late"), Draft::id(0, "taken").key(b"later")]);
    through(&pipe, &sidecar);
    let clean = kafka.records(&pipe.clean, Isolation::Committed);
    let taken: Vec<_> = clean.iter().filter(|record| record.text().contains("taken")).collect();
    assert_eq!(taken.len(), 1, "{clean:?}");
    assert_eq!(taken[0].key.as_deref(), Some(b"late".as_slice()));
}
