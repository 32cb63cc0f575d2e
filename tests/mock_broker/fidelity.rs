//! A record is forwarded unchanged: key, value, headers, partition, timestamp. This file lists the exceptions,
//! which are limits of the client.

use dedupd::kafka::KafkaSink;
use dedupd::ports::{GroupMember, Reason, Side, Sink};

use crate::support::Isolation;
use crate::support::mock::{CLEAN, DEAD, Mock, RAW};
use crate::support::raw_batch::{Handmade, send};
use crate::support::records::{Record, read_with};
use crate::transactions::{PATIENCE, joined, patiently, read, renewed, transaction, watched};

const PARTITION: i32 = 3;

fn bytes(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

fn header(name: &str, value: Option<&str>) -> (Vec<u8>, Option<Vec<u8>>) {
    (bytes(name), value.map(|value| value.as_bytes().to_vec()))
}

fn unusual_records() -> Vec<Handmade> {
    let plain = Handmade {
        timestamp_ms: 1_700_000_000_123,
        key: Some(bytes("key")),
        value: Some(bytes("value")),
        headers: vec![],
    };
    vec![
        plain.clone(),
        Handmade { key: None, ..plain.clone() },
        Handmade { key: Some(bytes("")), ..plain.clone() },
        Handmade { value: None, ..plain.clone() },
        Handmade { value: Some(bytes("")), ..plain.clone() },
        Handmade { key: Some(vec![0, 0xff, 0xfe]), value: Some((0..=255).collect()), ..plain.clone() },
        Handmade {
            headers: vec![
                header("twice", Some("1")),
                header("twice", Some("2")),
                header("empty", Some("")),
                header("null", None),
                header("", Some("no name")),
            ],
            ..plain.clone()
        },
        Handmade { timestamp_ms: i64::from(u32::MAX) * 1_000, ..plain.clone() },
        Handmade { timestamp_ms: 1, ..plain.clone() },
        // The client would read this as "now".
        Handmade { timestamp_ms: 0, ..plain.clone() },
        Handmade { timestamp_ms: -5, ..plain.clone() },
        // No timestamp at all.
        Handmade { timestamp_ms: -1, ..plain },
    ]
}

/// The timestamp that a record arrives with.
fn forwarded_timestamp(raw_ms: i64) -> Option<i64> {
    match raw_ms {
        -1 => None,
        0 => Some(1),
        ms => Some(ms),
    }
}

/// The headers of a record, names as bytes.
fn headers(seen: &Record) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    seen.headers.iter().map(|(name, value)| (bytes(name), value.clone())).collect()
}

fn assert_same(raw: &Handmade, seen: &Record) {
    assert_eq!(seen.partition, PARTITION);
    assert_eq!(seen.key, raw.key, "{raw:?}");
    assert_eq!(seen.value, raw.value, "{raw:?}");
    assert_eq!(headers(seen)[..raw.headers.len()], raw.headers, "{raw:?}");
    assert_eq!(seen.timestamp_ms, forwarded_timestamp(raw.timestamp_ms), "{raw:?}");
}

#[test]
fn unusual_records_are_forwarded_unchanged() {
    watched(|_| {
        let mock = Mock::start(4);
        let unusual = unusual_records();
        send(&mock.bootstrap(), RAW, PARTITION, &unusual);
        let settings = mock.settings("faithful");
        let source = joined(&settings, &[(3, 0)]);
        let mut records = read(&source, unusual.len());
        let mut sink = KafkaSink::new(settings);
        renewed(&mut sink).expect("a producer");
        transaction(&source, &mut sink, &mut records).expect("a transaction");
        let seen = read_with(&mock.client_config(), CLEAN, Isolation::Committed);
        assert_eq!(seen.len(), unusual.len());
        for (raw, seen) in unusual.iter().zip(&seen) {
            assert_same(raw, seen);
            assert_eq!(seen.headers.len(), raw.headers.len(), "{raw:?}");
        }
    });
}

/// A dead letter is the same record with further headers that contain the reason.
#[test]
fn a_dead_letter_keeps_the_record_and_adds_the_reason() {
    watched(|_| {
        let mock = Mock::start(4);
        mock.create_topic("dead.single", 1);
        let unusual = unusual_records();
        send(&mock.bootstrap(), RAW, PARTITION, &unusual);
        let mut settings = mock.settings("dead");
        settings.dead_letter = Some("dead.single".to_owned());
        let source = joined(&settings, &[(3, 0)]);
        let records = read(&source, unusual.len());
        let writer = settings.transactional_id.clone();
        let mut sink = KafkaSink::new(settings);
        renewed(&mut sink).expect("a producer");
        sink.begin().unwrap();
        let reason = Reason::new("missing_id", "the record has no id".to_owned());
        for record in &records {
            sink.divert(Side::DeadLetter, record, &reason).unwrap();
        }
        sink.drain(PATIENCE).unwrap();
        patiently(|wait| sink.commit(wait)).unwrap();
        let seen = read_with(&mock.client_config(), "dead.single", Isolation::Committed);
        assert_eq!(seen.len(), unusual.len());
        for (offset, (raw, seen)) in unusual.iter().zip(&seen).enumerate() {
            assert_same(raw, &Record { partition: PARTITION, ..seen.clone() });
            let offset = offset.to_string();
            let added = [
                header("dedupd.reason", Some(reason.code)),
                header("dedupd.detail", Some(&reason.detail)),
                header("dedupd.topic", Some(RAW)),
                header("dedupd.partition", Some("3")),
                header("dedupd.offset", Some(&offset)),
                header("dedupd.writer", Some(&writer)),
            ];
            assert_eq!(headers(seen)[raw.headers.len()..], added, "{raw:?}");
        }
        assert!(read_with(&mock.client_config(), DEAD, Isolation::Committed).is_empty());
        assert!(source.events().is_empty());
    });
}
