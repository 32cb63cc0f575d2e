//! Records and batches that a broker accepts, and that the client cannot read, or not in order, on a real Apache Kafka: only their partition is
//! affected, the reason is named, and nothing is repeated for ever.

use std::time::Duration;

use crate::support::raw_batch::{Encoded, Handmade, content, send, send_encoded};
use crate::support::{
    Draft, Isolation, Pipe, Record, Rekey, Running, Sidecar, now_ms, shared_kafka, wait_until,
};

const LIMIT: Duration = Duration::from_mins(1);

fn record(id: &str) -> Handmade {
    let value = format!("{{\"id\":\"{id}\"}}").into_bytes();
    Handmade { timestamp_ms: now_ms(), value: Some(value), ..Handmade::default() }
}

/// These records as one batch of partition 0, each with the distance of its offset.
fn send_batch(pipe: &Pipe<'_>, records: Vec<(i64, Vec<u8>)>) {
    let encoded = |(delta, content)| Encoded { timestamp_ms: now_ms(), delta, content };
    let records: Vec<Encoded> = records.into_iter().map(encoded).collect();
    send_encoded(pipe.kafka.bootstrap(), &pipe.raw, 0, &records);
}

/// A header whose value has the length -2: Java reads null, the client of dedupd reads nothing.
fn with_bad_header(id: &str) -> Vec<u8> {
    let mut bytes = content(&record(id));
    assert_eq!(bytes.pop(), Some(0), "no headers");
    [bytes.as_slice(), &[2, 2, b'h', 3]].concat()
}

/// More headers than the client reads.
fn with_many_headers(id: &str) -> Vec<u8> {
    content(&Handmade { headers: vec![(Vec::new(), None); 100_001], ..record(id) })
}

/// A record with such headers in partition 0, among others.
fn unreadable_headers(name: &str) -> Pipe<'static> {
    let pipe = Pipe::new(shared_kafka(), name, 2);
    let bytes = [
        content(&record("before")),
        with_bad_header("bad"),
        content(&record("between")),
        with_many_headers("many"),
        content(&record("many")),
    ];
    send_batch(&pipe, (0..).zip(bytes).collect());
    pipe.kafka.send(&pipe.raw, &[Draft::id(1, "other")]);
    pipe
}

fn ids_of(records: &[Record], partition: i32) -> Vec<String> {
    let strip = |record: &Record| record.text().replace("{\"id\":\"", "").replace("\"}", "");
    records.iter().filter(|record| record.partition == partition).map(strip).collect()
}

fn ids(pipe: &Pipe<'_>, partition: i32) -> Vec<String> {
    ids_of(&pipe.kafka.records(&pipe.clean, Isolation::Committed), partition)
}

/// A sidecar that leaves the group when it stops, so that its offsets can be set.
fn leaving(pipe: &Pipe<'_>) -> Sidecar {
    pipe.sidecar("a").with("DEDUPD_GROUP__STATIC_MEMBERSHIP", "false")
}

fn assert_stops(running: &Running, words: &[&str]) {
    assert_eq!(running.wait(2 * LIMIT).code(), Some(6), "{}", running.text());
    for word in words {
        assert!(running.text().contains(word), "{word:?} is not in:\n{}", running.text());
    }
}

#[test]
fn a_record_with_unreadable_headers_meets_the_policy_and_its_id_gets_no_owner() {
    for mode in ["drop", "bypass"] {
        let pipe = unreadable_headers(&format!("headers-{mode}"));
        let sidecar = pipe.sidecar("a").with("DEDUPD_DEDUPE__MODE", mode);
        assert_stops(
            &sidecar.start(),
            &[&format!("record 0@1 of topic {} cannot be written: its headers cannot be read", pipe.raw)],
        );
        let running = sidecar.with("DEDUPD_STATE__ON_POISON", "drop").start();
        pipe.wait_caught_up(2, LIMIT);
        running.wait_outcomes(&[("rejected", 2)]);
        assert_eq!(
            (ids(&pipe, 0), ids(&pipe, 1)),
            (["before", "between", "many"].map(str::to_owned).into(), vec!["other".to_owned()])
        );
        assert!(!running.text().contains("stores headers in another way"), "{}", running.text());
    }
}

#[test]
fn a_dead_letter_with_unreadable_headers_has_none_of_them() {
    let pipe = unreadable_headers("headers-dead");
    let dead = "headers-dead.dead";
    pipe.kafka.create_topic(dead, 1, &[]);
    let sidecar = pipe.sidecar("a").with("DEDUPD_TOPICS__DEAD_LETTER", dead);
    pipe.through(2, &sidecar.with("DEDUPD_STATE__ON_POISON", "dead_letter"));
    let letters = pipe.kafka.records(dead, Isolation::Committed);
    assert_eq!((ids_of(&letters, 0), ids(&pipe, 0).len()), (["bad", "many"].map(str::to_owned).into(), 3));
    for letter in &letters {
        let value =
            |name| letter.headers.iter().find(|(key, _)| key == name).and_then(|(_, value)| value.clone());
        let text = |name| String::from_utf8(value(name).unwrap_or_default()).unwrap();
        assert_eq!((text("dedupd.reason").as_str(), value("h")), ("rejected", None));
        assert!(text("dedupd.headers").contains("cannot be read"), "{letter:?}");
    }
}

#[test]
fn rekey_stops_at_a_record_with_unreadable_headers_and_continues_behind_it() {
    let pipe = unreadable_headers("headers-rekey");
    let kafka = pipe.kafka;
    kafka.create_topic("headers-rekey.to", 1, &[]);
    let rekey = Rekey::new(kafka, "headers-rekey.to", &format!("--from {} --id json:/id", pipe.raw));
    for (bad, next) in [(1, 2), (3, 4)] {
        let source = format!("record {}/0@{bad}", pipe.raw);
        assert_stops(&rekey.start(), &[&source, "its headers cannot be read"]);
        wait_until("the position of the group", LIMIT, || {
            (kafka.committed(&rekey.group(), &pipe.raw, 0)?.0 == bad).then_some(())
        });
        // The remedy in the message.
        kafka.commit_offset(&rekey.group(), &pipe.raw, 0, next);
    }
    let running = rekey.start();
    rekey.wait_done(kafka, &[&pipe.raw]);
    assert_eq!(running.stop(), Some(0));
    let mut all = ids_of(&kafka.records("headers-rekey.to", Isolation::Committed), 0);
    all.sort();
    all.dedup();
    assert_eq!(all, ["before", "between", "many", "other"]);
}

#[test]
fn a_batch_whose_offsets_decrease_ends_the_process_with_a_remedy() {
    // With more records than one poll returns, only the commit behind it shows that a record was skipped.
    for (name, higher) in [("two", vec![1]), ("many", (1..=300).collect::<Vec<i64>>())] {
        let pipe = Pipe::new(shared_kafka(), &format!("decreasing-{name}"), 1);
        send_batch(&pipe, vec![(0, content(&record("first")))]);
        let last = higher.len();
        let mut records: Vec<_> =
            higher.iter().map(|delta| (*delta, content(&record(&format!("id-{delta}"))))).collect();
        records.push((0, content(&record("late"))));
        send_batch(&pipe, records);
        let sidecar = leaving(&pipe).with("DEDUPD_BATCH__INTERVAL", "1s");
        // The second time the batch is the first one behind the committed offset.
        for _ in 0..2 {
            let words = [
                &*format!("record 0@1 of topic {} always arrives after record 0@2", pipe.raw),
                "offset for the partition to 2",
            ];
            assert_stops(&sidecar.start(), &words);
            assert_eq!(pipe.kafka.committed(&pipe.group(), &pipe.raw, 0).unwrap().0, 1);
            assert_eq!(ids(&pipe, 0), ["first"]);
        }
        // The remedy in the message.
        pipe.kafka.commit_offset(&pipe.group(), &pipe.raw, 0, 2);
        pipe.through(1, &sidecar);
        let clean = ids(&pipe, 0);
        assert_eq!((clean.len(), clean[1].as_str()), (last + 1, "id-1"));
        assert!(!clean.contains(&"late".to_owned()), "{clean:?}");
    }
}

#[test]
fn a_partition_whose_next_record_the_client_does_not_return_is_not_ready() {
    let pipe = Pipe::new(shared_kafka(), "no-record", 2);
    let mut bad = content(&record("bad"));
    bad[0] = 3; // the length of the key: -2
    send_batch(&pipe, vec![(0, content(&record("first"))), (1, bad)]);
    // The control: a transaction marker at the end of the log.
    pipe.kafka.send_in_transaction(&pipe.raw, &[Draft::id(1, "other")], true);
    let running = pipe.sidecar("a").start();
    running.wait_ready(LIMIT);
    let page = wait_until("the reason on /readyz", 2 * LIMIT, || {
        running
            .get("/readyz")
            .filter(|page| page.contains("no record from offset 1 on, although the log ends at 2"))
    });
    assert!(page.starts_with("HTTP/1.1 503") && page.contains("partition 0 is waiting"), "{page}");
    assert!(!page.contains(" more"), "the control: {page}");
    assert_eq!((ids(&pipe, 0), ids(&pipe, 1)), (vec!["first".to_owned()], vec!["other".to_owned()]));
    let audit = pipe.sidecar("a").audit().unwrap_err();
    assert!(audit.contains("partition 0 returned no record from offset 1 on"), "{audit}");
    assert_eq!(running.stop(), Some(0));
}

#[test]
fn timestamps_before_the_epoch_are_forwarded_unchanged() {
    let pipe = Pipe::new(shared_kafka(), "epoch", 1);
    let kafka = pipe.kafka;
    kafka.create_topic("epoch.to", 1, &[]);
    let stamps = [-5, -2, -1, 1, -86_400_000_000_000];
    let stamped = |ms: i64| Handmade { timestamp_ms: ms, ..record(&ms.to_string()) };
    for ms in stamps {
        send(kafka.bootstrap(), &pipe.raw, 0, &[stamped(ms)]);
    }
    send(kafka.bootstrap(), &pipe.raw, 0, &stamps.map(|ms| stamped(ms * 10)));
    pipe.through(1, &pipe.sidecar("a"));
    let rekey = Rekey::new(kafka, "epoch.to", &format!("--from {} --id json:/id", pipe.raw));
    let running = rekey.start();
    rekey.wait_done(kafka, &[&pipe.raw]);
    assert_eq!(running.stop(), Some(0));
    let times = |topic: &str| -> Vec<_> {
        kafka.records(topic, Isolation::Committed).iter().map(|it| it.timestamp_ms).collect()
    };
    assert_eq!(times(&pipe.clean), times(&pipe.raw));
    assert_eq!(times("epoch.to"), times(&pipe.raw));
    pipe.sidecar("a").audit().unwrap();
}
