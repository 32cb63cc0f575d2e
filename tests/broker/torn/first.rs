//! The first transaction of a partition is torn, and has a hundred state blocks.
//!
//! The group has no offset and no checkpoint that names the first entry, so the evidence has to be read back until the start
//! of the transaction is certain. A block has at most 400 ids where a state record has at most 20,000 bytes. The offsets of the group are on node 2, as well as the clean or the
//! state topic: the marker in the other topic is the only one.

use std::time::Duration;

use super::cluster::{Away, Cluster, assert_crashed, sidecar};
use crate::support::{Draft, Findings, Isolation, Pipe, Sidecar, now_ms, wait_until};

/// What another writer could have left open is settled only after the transaction timeout.
const LIMIT: Duration = Duration::from_secs(90);
const RECORDS: i64 = 50_000;
/// Time between two records: the window covers all of them.
const STEP_MS: i64 = 30_000;

/// The records, until now.
fn drafts() -> Vec<Draft> {
    let start = now_ms() - RECORDS * STEP_MS;
    (1..=RECORDS).map(|number| Draft::id(0, &format!("id-{number}")).at(start + number * STEP_MS)).collect()
}

/// A sidecar whose window covers all records.
fn wide(pipe: &Pipe<'_>) -> Sidecar {
    sidecar(pipe, None).with("DEDUPD_WINDOW__BLOOM", "20days").with("DEDUPD_BATCH__INTERVAL", "3s")
}

/// Commits the first transaction while node 2 is down, and crashes.
fn tear(cluster: &Cluster, pipe: &Pipe<'_>, topic_away: &str) {
    let gate = pipe.dir.path().join("gate");
    let armed = wide(pipe).held_at("before_commit", &gate).with("DEDUPD_FAILPOINT", "after_commit:1").start();
    wait_until("the commit", LIMIT, || gate.exists().then_some(()));
    cluster.lose(topic_away);
    cluster.wait_lost("__consumer_offsets");
    std::fs::remove_file(&gate).unwrap();
    assert_crashed(&armed, "after_commit");
    cluster.second.restart();
}

/// Tears the first transaction, which has its marker in one of the two topics. Then every record is sent again.
fn torn(cluster: &Cluster, away: Away) -> (Away, Findings) {
    let pipe = cluster.pipe(&format!("first-{away:?}"), 1, away);
    let state = format!("{}.dedupd", pipe.clean);
    for topic in [&pipe.raw, &pipe.clean, &state] {
        pipe.kafka.alter_topic_config(topic, &[("retention.ms", "-1")]);
    }
    pipe.kafka.alter_topic_config(&state, &[("retention.ms", "-1"), ("max.message.bytes", "20000")]);
    let drafts = drafts();
    pipe.kafka.send(&pipe.raw, &drafts);
    let (topic_away, topic_here) =
        if away == Away::Clean { (&pipe.clean, &state) } else { (&state, &pipe.clean) };
    tear(cluster, &pipe, topic_away);
    let blocks = pipe.kafka.records_in(&state, 0, Isolation::Uncommitted).len();
    assert!(blocks > 100, "{blocks} blocks in the first transaction");
    let seen = |topic: &str| pipe.kafka.records_in(topic, 0, Isolation::Committed).len();
    assert_eq!(seen(topic_away), 0, "the marker in {topic_away} is not missing");
    assert!(seen(topic_here) > 100, "the marker in {topic_here} is missing");

    // A start without local state has only what the topics show. The file `lock` shows that the instance was active, so it resumes at once.
    let directory = wide(&pipe).state_dir;
    let lock = std::fs::read(directory.join("lock")).unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("lock"), lock).unwrap();
    let last = drafts.last().unwrap().timestamp_ms.unwrap();
    let again: Vec<Draft> = drafts.into_iter().map(|draft| draft.at(last)).collect();
    let running = wide(&pipe).start();
    pipe.wait_caught_up(1, LIMIT);
    pipe.kafka.send(&pipe.raw, &again);
    pipe.wait_caught_up(1, LIMIT);
    let findings = pipe.audit_after(&running);
    println!("{away:?} without its marker: {blocks} blocks, {findings:?}");
    (away, findings)
}

#[test]
fn a_first_transaction_with_hundreds_of_blocks_and_one_marker_loses_and_repeats_nothing() {
    let cluster = Cluster::with_offsets_away();
    let torn = [Away::Clean, Away::State].map(|away| torn(&cluster, away));
    for (away, findings) in torn {
        assert!(findings.is_clean(), "{away:?} without its marker: {findings:#?}");
        assert_eq!(findings.repeats, findings.raw / 2);
    }
}
