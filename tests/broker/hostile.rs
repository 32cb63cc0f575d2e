//! Invalid raw records and damaged logs on a real Apache Kafka: they are forwarded unchanged, or the process stops and
//! reports them.
//!
//! Most tests stop their broker, so each one has its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::raw_batch::{self, Handmade};
use crate::support::{Draft, Kafka, Pipe, Running, Sidecar, wait_until};

const LIMIT: Duration = Duration::from_secs(40);

/// The first segment of a topic's partition 0.
fn segment(kafka: &Kafka, topic: &str) -> PathBuf {
    kafka.dir().join("logs").join(format!("{topic}-0")).join("00000000000000000000.log")
}

/// Changes a file of a stopped broker.
fn change(path: &Path, how: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    how(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

/// Writes each id as a separate batch.
fn send_each(pipe: &Pipe<'_>, ids: &[&str]) {
    for id in ids {
        pipe.kafka.send(&pipe.raw, &[Draft::id(0, id)]);
    }
}

fn ids(pipe: &Pipe<'_>) -> Vec<String> {
    let strip = |text: String| text.replace("{\"id\":\"", "").replace("\"}", "");
    pipe.kafka.texts(&pipe.clean).into_iter().map(strip).collect()
}

/// A sidecar that leaves the group when it stops, so that its offsets can be set.
fn leaving(pipe: &Pipe<'_>) -> Sidecar {
    pipe.sidecar("a").with("DEDUPD_GROUP__STATIC_MEMBERSHIP", "false")
}

/// Asserts that it ends with exit code 6 and that its log contains all words. Returns the log.
fn assert_stopped(sidecar: &Sidecar, words: &[&str]) -> String {
    assert_stops(&sidecar.start(), words)
}

fn assert_stops(running: &Running, words: &[&str]) -> String {
    assert_eq!(running.wait(LIMIT).code(), Some(6), "{}", running.text());
    for word in words {
        assert!(running.text().contains(word), "{word:?} is not in:\n{}", running.text());
    }
    running.text()
}

/// How often these bytes occur.
fn count(haystack: &[u8], needle: &[u8]) -> usize {
    haystack.windows(needle.len()).filter(|window| *window == needle).count()
}

/// A record with header names that are not UTF-8, followed by the given headers.
fn with_invalid_names(value: &str, headers: &[(&str, &str)]) -> Handmade {
    let bytes = |text: &str| text.as_bytes().to_vec();
    let named = headers.iter().map(|(name, value)| (bytes(name), Some(bytes(value))));
    let invalid = [(vec![0xff, b'n', 0xfe], Some(vec![0, 0xff])), (vec![0xc3, 0x28], None)];
    Handmade {
        timestamp_ms: 1_700_000_000_000,
        key: None,
        value: Some(bytes(value)),
        headers: invalid.into_iter().chain(named).collect(),
    }
}

#[test]
fn header_names_that_are_not_utf_8_are_forwarded_and_other_headers_are_still_used() {
    let kafka = Kafka::start();
    let pipe = Pipe::new(&kafka, "header-names", 1);
    kafka.create_topic("header-names.dead", 1, &[]);
    let records = [
        with_invalid_names("first", &[("event-id", "a")]),
        with_invalid_names("repeated", &[("event-id", "a")]),
        with_invalid_names("forced", &[("event-id", "a"), ("again", "")]),
        with_invalid_names("noise", &[("event-id", "a"), ("kind", "noise")]),
        with_invalid_names("without an id", &[]),
    ];
    raw_batch::send(kafka.bootstrap(), &pipe.raw, 0, &records);
    // The test reads the files of the broker, so nothing is compressed.
    let kinds = "[[kinds]]\nname = \"noise\"\nfrom = \"header:kind\"\nvalues = [\"noise\"]\ndedupe = false\n\
                 [kafka.properties]\n\"compression.type\" = \"none\"\n";
    let sidecar = pipe
        .sidecar("a")
        .with_file(kinds)
        .with("DEDUPD_IDENTITY__FROM", "[\"header:event-id\"]")
        .with("DEDUPD_IDENTITY__FORCE_HEADER", "again")
        .with("DEDUPD_IDENTITY__ON_MISSING", "dead_letter")
        .with("DEDUPD_TOPICS__DEAD_LETTER", "header-names.dead");
    pipe.through(1, &sidecar);
    let clean = std::fs::read(segment(&kafka, &pipe.clean)).unwrap();
    let copies: Vec<usize> =
        records.iter().map(|record| count(&clean, &raw_batch::content(record))).collect();
    assert_eq!(copies, [1, 0, 1, 1, 0], "unchanged records: first, repeated, forced, noise, without an id");
    let dead = std::fs::read(segment(&kafka, "header-names.dead")).unwrap();
    let invalid = [&[6, 0xff, b'n', 0xfe, 4, 0, 0xff][..], &[4, 0xc3, 0x28, 1]].concat();
    assert_eq!(count(&dead, &invalid), 1, "the dead letter has other header names");

    let servers = ["--bootstrap-servers", kafka.bootstrap(), "--raw", &pipe.raw];
    let audit = ["--clean", &pipe.clean, "--id", "header:event-id"];
    for (command, more, words) in
        [("audit", &audit[..], "raw: 5 records"), ("plan", &["--id", "header:event-id"], "newest 5")]
    {
        let output = Command::new(env!("CARGO_BIN_EXE_dedupd"))
            .arg(command)
            .args(servers)
            .args(more)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!errors.contains("panicked") && text.contains(words), "{command}: {text}{errors}");
    }
}

#[test]
fn a_damaged_batch_is_neither_forwarded_nor_skipped() {
    let kafka = Kafka::start();
    let pipe = Pipe::new(&kafka, "damaged", 1);
    send_each(&pipe, &["first", "second", "third"]);
    kafka.stop();
    change(&segment(&kafka, &pipe.raw), |bytes| {
        let at = bytes.windows(6).position(|window| window == b"second").unwrap();
        bytes[at] ^= 0x20;
    });
    kafka.restart();
    let sidecar = leaving(&pipe);
    // The first commit fails: the record before the batch is then read, and committed, once more.
    let gate = pipe.dir.path().join("gate");
    let hold = format!("before_commit:1:{}", gate.display());
    let fenced = sidecar.clone().with("DEDUPD_FAILPOINT_HOLD", &hold).start();
    wait_until("the commit", LIMIT, || gate.exists().then_some(()));
    kafka.fence(&format!("{}.a.0", pipe.group()));
    std::fs::remove_file(&gate).unwrap();
    for running in [Some(fenced), None] {
        let log = assert_stops(
            &running.unwrap_or_else(|| sidecar.start()),
            &["partition 0 of topic damaged.raw holds a damaged batch at offset 1", "CRC"],
        );
        assert_eq!(ids(&pipe), ["first"], "{log}");
        let committed = kafka.committed(&pipe.group(), &pipe.raw, 0).unwrap().0;
        assert_eq!(committed, 1, "the committed offset is not at the damaged batch");
    }
    let audit = ["--clean", &pipe.clean, "--id", "json:/id"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_dedupd"));
    command.args(["audit", "--bootstrap-servers", kafka.bootstrap(), "--raw", &pipe.raw]).args(audit);
    let errors = String::from_utf8_lossy(&command.output().unwrap().stderr).into_owned();
    assert!(errors.contains("topic damaged.raw, partition 0 holds a damaged batch"), "{errors}");

    // The remedy in the message.
    kafka.commit_offset(&pipe.group(), &pipe.raw, 0, 2);
    pipe.through(1, &sidecar);
    assert_eq!(ids(&pipe), ["first", "third"]);
}

#[test]
fn a_restore_does_not_skip_a_damaged_batch_of_the_state_topic() {
    let kafka = Kafka::start();
    let pipe = Pipe::new(&kafka, "damaged-state", 1);
    let sidecar = leaving(&pipe).with("DEDUPD_TOPICS__STATE", "damaged-state.state");
    for id in ["first", "second"] {
        send_each(&pipe, &[id]);
        pipe.through(1, &sidecar);
    }
    kafka.stop();
    // Only the checksum of the batch covers the key.
    change(&segment(&kafka, "damaged-state.state"), |bytes| {
        let at = bytes.windows(3).position(|window| window == b"v2;").unwrap();
        bytes[at] ^= 1;
    });
    kafka.restart();
    std::fs::remove_dir_all(&sidecar.state_dir).unwrap();
    assert_stopped(&sidecar, &["partition 0 of topic damaged-state.state holds a damaged batch at offset 0"]);
    assert_eq!(ids(&pipe), ["first", "second"]);
}

/// Truncates the log of a raw topic to its first batches, as a leader without the others would.
pub fn truncate(kafka: &Kafka, topic: &str, batches: usize) {
    change(&segment(kafka, topic), |bytes| {
        let mut end = 0;
        for _ in 0..batches {
            let length = i32::from_be_bytes(bytes[end + 8..end + 12].try_into().unwrap());
            end += 12 + usize::try_from(length).unwrap();
        }
        bytes.truncate(end);
    });
}

#[test]
fn a_log_that_was_truncated_and_rewritten_beyond_the_committed_offset_is_detected() {
    let kafka = Kafka::start();
    let pipe = Pipe::new(&kafka, "rewritten", 1);
    let sidecar = leaving(&pipe);
    send_each(&pipe, &["a0", "a1", "a2", "a3", "a4", "a5"]);
    pipe.through(1, &sidecar);
    let (committed, metadata) = kafka.committed(&pipe.group(), &pipe.raw, 0).unwrap();
    assert!(committed == 6 && metadata.contains("@6;"), "{committed} {metadata}");
    kafka.kill9();
    truncate(&kafka, &pipe.raw, 3);
    kafka.restart();
    send_each(&pipe, &["b3", "b4", "b5", "b6", "b7"]);
    assert_eq!(kafka.watermarks(&pipe.raw, 0).1, 8);

    let words = ["partition 0 of topic rewritten.raw", "was truncated and written again", "offset to 3 with"];
    assert_stopped(&sidecar, &words);
    std::fs::remove_dir_all(&sidecar.state_dir).unwrap();
    assert_stopped(&sidecar, &words);
    assert_eq!(ids(&pipe), ["a0", "a1", "a2", "a3", "a4", "a5"]);

    pipe.through(1, &sidecar.clone().with("DEDUPD_GROUP__ON_GAP", "accept"));
    // Only the ids of lost records are removed from the window.
    send_each(&pipe, &["a4", "a1", "b3"]);
    pipe.through(1, &sidecar);
    assert_eq!(ids(&pipe), ["a0", "a1", "a2", "a3", "a4", "a5", "b3", "b4", "b5", "b6", "b7", "a4"]);
}
