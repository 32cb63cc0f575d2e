//! A state topic that changes under a restore, on a real Apache Kafka.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod support;

use std::time::Duration;

use support::{Draft, Pipe, shared_kafka, wait_until};

const LIMIT: Duration = Duration::from_secs(40);

fn state_topic(pipe: &Pipe<'_>) -> String {
    format!("{}.dedupd", pipe.clean)
}

/// Records with the ids in `ids`, of which `prefix` makes others.
fn send(pipe: &Pipe<'_>, prefix: &str, ids: std::ops::Range<usize>) {
    let drafts: Vec<Draft> = ids.map(|id| Draft::id(0, &format!("{prefix}-{id}"))).collect();
    pipe.kafka.send(&pipe.raw, &drafts);
}

#[cfg(feature = "failpoints")]
#[test]
fn a_head_deleted_while_a_restore_begins_starts_the_restore_again() {
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
    let held = format!("before_state_open:1:{}", gate.display());
    let running = sidecar.with("DEDUPD_FAILPOINT_HOLD", &held).start();
    wait_until("the restore to know the ends of the log", LIMIT, || gate.exists().then_some(()));
    // Only the last block and its marker are left.
    let topic = state_topic(&pipe);
    let (_, end) = pipe.kafka.watermarks(&topic, 0);
    pipe.kafka.delete_records(&topic, 0, end - 2);
    std::fs::remove_file(&gate).unwrap();
    running.wait_running(1, LIMIT);
    send(&pipe, "new", 0..10);
    pipe.wait_caught_up(1, LIMIT);
    assert_eq!(running.outcome("forwarded"), 10);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}
