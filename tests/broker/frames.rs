//! Tests on a real Apache Kafka: records in the frame of AWS Glue, with schemas from a directory.

use std::collections::BTreeSet;
use std::time::Duration;

use miniz_oxide::deflate::compress_to_vec_zlib;

use crate::explain::explain;
use crate::schemas::{output, string};
use crate::support::{Draft, Isolation, Pipe, Rekey, shared_kafka, wait_until};

const LIMIT: Duration = Duration::from_mins(1);
const V1: &str = r#"{"type":"record","name":"Order","fields":[{"name":"id","type":"string"}]}"#;
/// The id has another place.
const V2: &str =
    r#"{"type":"record","name":"Order","fields":[{"name":"n","type":"int"},{"name":"id","type":"string"}]}"#;

/// A record whose key differs from that of all others.
fn draft(version: u8, is_packed: bool, key: &str, document: &[u8]) -> Draft {
    let document = if is_packed { compress_to_vec_zlib(document, 6) } else { document.to_vec() };
    let head = [3, if is_packed { 5 } else { 0 }];
    let value = [&head[..], &[version; 16], &document].concat();
    Draft { value: Some(value), ..Draft::default() }.key(key.as_bytes())
}

#[test]
fn records_of_glue_are_deduplicated_with_schemas_that_are_added_to_a_directory() {
    let pipe = Pipe::new(shared_kafka(), "frames", 1);
    let dir = pipe.dir.path().join("schemas");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("01010101-0101-0101-0101-010101010101.avsc"), V1).unwrap();
    let sidecar = pipe
        .sidecar("a")
        .with("DEDUPD_IDENTITY__FROM", "[\"avro:/id | key\"]")
        .with("DEDUPD_SCHEMAS__FRAME", "glue")
        .with("DEDUPD_SCHEMAS__VALUE", dir.to_str().unwrap());
    let running = sidecar.start();
    let [a, b] = ["a", "b"].map(string);
    let with_number = |id: &[u8]| [&[2], id].concat();
    let drafts = [
        draft(1, false, "k1", &a),
        draft(1, true, "k2", &a),
        draft(2, true, "k3", &with_number(&a)),
        draft(2, false, "k4", &with_number(&b)),
        draft(1, false, "k5", &b),
    ];
    pipe.kafka.send(&pipe.raw, &drafts);
    wait_until("the reason", LIMIT, || {
        let page = running.get("/readyz")?;
        (page.contains("needs schema 02020202-0202-0202-0202-020202020202: ") && page.contains("add one"))
            .then_some(())
    });
    assert_eq!(pipe.kafka.records_of(&pipe.clean, 0).len(), 1, "the key is no id of a record that waits");
    std::fs::write(dir.join("02020202-0202-0202-0202-020202020202.avsc"), V2).unwrap();
    pipe.wait_caught_up(1, LIMIT);
    assert_eq!(pipe.kafka.records_of(&pipe.clean, 0).len(), 2, "a, b: {}", running.text());
    assert!(!running.text().contains("without an id"), "{}", running.text());
    sidecar.audit().unwrap();
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    let (_, text) = explain(&sidecar, "0@2", running.port);
    assert!(text.contains("owner     0@0"), "{text}");
    let state_dir = pipe.dir.path().join("checked");
    let check = ["check", "--clean", &pipe.clean, "--state-dir", state_dir.to_str().unwrap()];
    let files = dir.to_str().unwrap();
    let plan = ["plan", "--id", "avro:/id", "--schema-frame", "glue", "--schema-files", files];
    for arguments in [&check[..], &plan] {
        let (code, text) = output(&sidecar, arguments);
        assert!(code == Some(0) && !text.contains("without an id"), "{code:?} {text}");
    }
}

/// In one spelling, plain and packed, an id has one partition; the control distinguishes the spellings.
#[test]
fn rekey_finds_the_ids_of_a_frame_in_any_spelling() {
    let kafka = shared_kafka();
    kafka.create_topic("frames.from", 2, &[]);
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("01010101-0101-0101-0101-010101010101.avsc"), V1).unwrap();
    let drafts = (0..20).flat_map(|id| {
        let upper = draft(1, false, &id.to_string(), &string(&format!("A{id}")));
        let lower = draft(1, true, &id.to_string(), &string(&format!("a{id}")));
        [upper, Draft { partition: 1, ..lower }]
    });
    kafka.send("frames.from", &drafts.collect::<Vec<_>>());
    let moved = |to: &str, from: &str| {
        kafka.create_topic(to, 7, &[]);
        let mut rekey = Rekey::new(kafka, to, "--from frames.from");
        for (key, value) in [
            ("DEDUPD_IDENTITY__FROM", from),
            ("DEDUPD_SCHEMAS__FRAME", "glue"),
            ("DEDUPD_SCHEMAS__VALUE", dir.path().to_str().unwrap()),
        ] {
            rekey.environment.push((key.to_owned(), value.to_owned()));
        }
        let running = rekey.start();
        rekey.wait_done(kafka, &["frames.from"]);
        assert_eq!(running.metric("dedupd_rekey_missing_id_total"), Some(0.0), "{}", running.text());
        assert_eq!(running.stop(), Some(0), "{}", running.text());
        let records = kafka.records(to, Isolation::Committed);
        assert_eq!(records.len(), 40);
        records.into_iter().map(|it| (it.key, it.partition)).collect::<BTreeSet<_>>().len()
    };
    assert_eq!(moved("frames.to", "avro:/id (lower)"), 20);
    assert!(moved("frames.to.control", "avro:/id") > 20);
}
