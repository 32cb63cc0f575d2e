//! Raw records that no well-behaved producer writes and logs that no healthy broker holds, on a real Apache Kafka:
//! they arrive unchanged, or the process stops and names them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod support;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use support::raw_batch::{self, Handmade};
use support::{Kafka, Pipe, shared_kafka};

const LIMIT: Duration = Duration::from_secs(40);

/// The first segment of a topic's partition 0.
fn segment(kafka: &Kafka, topic: &str) -> PathBuf {
    kafka.dir().join("logs").join(format!("{topic}-0")).join("00000000000000000000.log")
}

/// How often these bytes occur.
fn count(haystack: &[u8], needle: &[u8]) -> usize {
    haystack.windows(needle.len()).filter(|window| *window == needle).count()
}

/// A header whose name is no UTF-8, and then those given.
fn strange(value: &str, headers: &[(&str, &str)]) -> Handmade {
    let bytes = |text: &str| text.as_bytes().to_vec();
    let named = headers.iter().map(|(name, value)| (bytes(name), Some(bytes(value))));
    let odd = [(vec![0xff, b'n', 0xfe], Some(vec![0, 0xff])), (vec![0xc3, 0x28], None)];
    Handmade {
        timestamp_ms: 1_700_000_000_000,
        key: None,
        value: Some(bytes(value)),
        headers: odd.into_iter().chain(named).collect(),
    }
}

#[test]
fn header_names_that_are_not_utf_8_are_forwarded_and_the_headers_beside_them_still_count() {
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, "header-names", 1);
    kafka.create_topic("header-names.dead", 1, &[]);
    let records = [
        strange("first", &[("event-id", "a")]),
        strange("repeated", &[("event-id", "a")]),
        strange("forced", &[("event-id", "a"), ("again", "")]),
        strange("noise", &[("event-id", "a"), ("kind", "noise")]),
        strange("without an id", &[]),
    ];
    raw_batch::send(kafka.bootstrap(), &pipe.raw, 0, &records);
    let kinds = "[[kinds]]\nname = \"noise\"\nfrom = \"header:kind\"\nvalues = [\"noise\"]\ndedupe = false\n";
    let sidecar = pipe
        .sidecar("a")
        .with_file(kinds)
        .with("DEDUPD_IDENTITY__FROM", "[\"header:event-id\"]")
        .with("DEDUPD_IDENTITY__FORCE_HEADER", "again")
        .with("DEDUPD_IDENTITY__ON_MISSING", "dead_letter")
        .with("DEDUPD_TOPICS__DEAD_LETTER", "header-names.dead");
    pipe.through(1, &sidecar);
    let clean = std::fs::read(segment(kafka, &pipe.clean)).unwrap();
    let copies: Vec<usize> =
        records.iter().map(|record| count(&clean, &raw_batch::content(record))).collect();
    assert_eq!(
        copies,
        [1, 0, 1, 1, 0],
        "the record as it was: first, repeated, forced, noise, without an id"
    );
    let dead = std::fs::read(segment(kafka, "header-names.dead")).unwrap();
    let odd = [&[6, 0xff, b'n', 0xfe, 4, 0, 0xff][..], &[4, 0xc3, 0x28, 1]].concat();
    assert_eq!(count(&dead, &odd), 1, "a dead letter keeps the names");

    let servers = ["--bootstrap-servers", kafka.bootstrap(), "--raw", &pipe.raw];
    let audit = ["--clean", &pipe.clean, "--id", "header:event-id"];
    for (command, more, words) in
        [("audit", &audit[..], "header-names.raw"), ("plan", &["--id", "header:event-id"], "newest 5")]
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
