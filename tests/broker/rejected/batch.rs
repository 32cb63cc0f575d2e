//! Records that a topic rejects together with the others of their batch: exactly the cause meets the policy.

use std::collections::BTreeSet;
use std::thread;

use crate::support::{Draft, Isolation, Pipe, Record, Rekey, incompressible, now_ms, shared_kafka};

use super::LIMIT;

const PARTITIONS: i32 = 3;
/// A limit on timestamps, and a time ahead of now that is beyond it and that raw accepts.
const TIME: (&str, &str) = ("message.timestamp.after.max.ms", "60000");
const AHEAD_MS: i64 = 1_800_000;
/// A limit on sizes that a batch with the large record exceeds.
const SIZE: (&str, &str) = ("max.message.bytes", "20000");
/// A record without a key is rejected.
const KEY: (&str, &str) = ("cleanup.policy", "compact");

/// The draft, so that the topic with this setting rejects it.
fn rejected(draft: Draft, setting: (&str, &str)) -> Draft {
    match setting {
        TIME => draft.at(now_ms() + AHEAD_MS),
        KEY => Draft { key: None, ..draft },
        _ => {
            let text = String::from_utf8(draft.value.unwrap()).unwrap();
            let padded = text.replace('}', &format!(",\"pad\":\"{}\"}}", incompressible(40_000)));
            Draft { value: Some(padded.into()), ..draft }
        }
    }
}

/// The batch has two such records: then the client reports another error for the others (`InvalidDifferentRecord`), and it reports it first.
fn reject_of_clean(setting: (&str, &str), codec: &str) {
    let (kafka, name) = (shared_kafka(), format!("batch-{}-{codec}", setting.1));
    let pipe = Pipe::new(kafka, &name, 1);
    let (dead, to) = (format!("{name}.dead"), format!("{name}.to"));
    kafka.create_topic(&pipe.clean, 1, &[setting]);
    kafka.create_topic(&to, 1, &[setting]);
    let mut drafts = ["one", "bad", "two", "worse", "three"].map(|id| Draft::id(0, id).key(b"k"));
    for at in [1, 3] {
        drafts[at] = rejected(drafts[at].clone(), setting);
    }
    kafka.send(&pipe.raw, &drafts);
    let sidecar = pipe
        .sidecar("a")
        .with("DEDUPD_KAFKA__PROPERTIES__COMPRESSION_TYPE", codec)
        .with("DEDUPD_TOPICS__DEAD_LETTER", &dead)
        .with("DEDUPD_STATE__POISON_RETRY", "0s")
        .with("DEDUPD_STATE__ON_POISON", "dead_letter");
    pipe.through(1, &sidecar);
    let texts = |ids: &[&str]| ids.iter().map(|id| format!("{{\"id\":\"{id}\"}}")).collect::<Vec<_>>();
    assert_eq!(kafka.texts(&pipe.clean), texts(&["one", "two", "three"]));
    assert_eq!(kafka.texts(&dead), texts(&["bad", "worse"]));

    let flags = format!("--from {} --id json:/id -X compression.type={codec}", pipe.raw);
    let rekey = Rekey::new(kafka, &to, &flags);
    let running = rekey.start();
    assert_eq!(running.wait(LIMIT).code(), Some(6), "{}", running.text());
    let text = running.text();
    let record = format!("record of {}/0 cannot be written", pipe.raw);
    let line = text.lines().find(|line| line.contains(&record)).unwrap_or_else(|| panic!("{text}"));
    assert!(["InvalidRecord", setting.0, "change that setting"].iter().all(|it| line.contains(it)), "{text}");
}

#[test]
fn the_others_of_a_batch_with_a_rejected_record_are_forwarded() {
    thread::scope(|scope| {
        for (setting, codec) in [(TIME, "none"), (TIME, "zstd"), (KEY, "none"), (KEY, "zstd")] {
            scope.spawn(move || reject_of_clean(setting, codec));
        }
    });
}

/// The partition and offset of the raw record.
fn origin(record: &Record) -> (i32, i64) {
    let header = |name: &str| {
        let (_, value) = record.headers.iter().find(|(header, _)| header == name).unwrap();
        String::from_utf8(value.clone().unwrap()).unwrap()
    };
    (header("dedupd.partition").parse().unwrap(), header("dedupd.offset").parse().unwrap())
}

/// In each round a record of another partition is rejected, in one batch of the side topic with single records of the others.
fn reject_of_side(of_duplicates: bool, setting: (&str, &str)) {
    let pipe = Pipe::new(shared_kafka(), &format!("batch-{of_duplicates}-{}", setting.1), 3);
    let (side, dead) = (format!("{}.side", pipe.raw), format!("{}.dead", pipe.raw));
    pipe.kafka.create_topic(&side, 1, &[]);
    // Of a duplicate, or of a record without an id.
    let value = if of_duplicates { "{\"id\":\"first\"" } else { "{\"of\":\"none\"" };
    let draft = |partition, is: &str| Draft::new(partition, &format!("{value},\"is\":\"{is}\"}}")).key(b"k");
    let mut sidecar = pipe
        .sidecar("a")
        // All records of a round are in one batch, which is larger than the topic accepts later.
        .with("DEDUPD_BATCH__INTERVAL", "1s")
        .with("DEDUPD_KAFKA__PROPERTIES__LINGER_MS", "500")
        .with("DEDUPD_IDENTITY__ON_MISSING", "dead_letter")
        .with("DEDUPD_STATE__POISON_RETRY", "0s")
        .with("DEDUPD_TOPICS__DEAD_LETTER", if of_duplicates { &dead } else { &side })
        .with("DEDUPD_STATE__ON_POISON", if of_duplicates { "dead_letter" } else { "drop" });
    if of_duplicates {
        sidecar = sidecar.with("DEDUPD_TOPICS__DUPLICATES", &side);
    }
    let running = sidecar.start();
    pipe.kafka.send(&pipe.raw, &[Draft::id(0, "first")]);
    running.wait_ready(LIMIT);
    pipe.wait_caught_up(3, LIMIT);
    pipe.kafka.alter_topic_config(&side, &[setting]);
    for rejecting in 0..PARTITIONS {
        let mut drafts: Vec<Draft> = (0..PARTITIONS).map(|partition| draft(partition, "good")).collect();
        drafts.extend([rejected(draft(rejecting, "bad"), setting), draft(rejecting, "good")]);
        pipe.kafka.send(&pipe.raw, &drafts);
        pipe.wait_caught_up(3, LIMIT);
    }
    let (outcome, kept) = if of_duplicates { ("dead_letter", 3) } else { ("rejected", 0) };
    running.wait_outcomes(&[(outcome, 3)]);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    let raw = pipe.kafka.records(&pipe.raw, Isolation::Committed);
    let origins = |is_bad: bool| -> BTreeSet<(i32, i64)> {
        let of =
            raw.iter().filter(|it| it.text().contains("\"is\"") && it.text().contains("\"bad\"") == is_bad);
        of.map(|it| (it.partition, it.offset)).collect()
    };
    let written = pipe.kafka.ended_records(&side);
    assert_eq!(written.iter().map(origin).collect::<BTreeSet<_>>(), origins(false), "{}", running.text());
    assert_eq!(written.len(), 12, "once");
    let dead = if of_duplicates { pipe.kafka.ended_records(&dead) } else { Vec::new() };
    assert_eq!(dead.len(), kept);
    assert!(dead.iter().all(|it| origins(true).contains(&origin(it))));
}

#[test]
fn only_the_rejected_record_of_a_side_batch_meets_the_policy() {
    thread::scope(|scope| {
        for (of_duplicates, setting) in [(true, SIZE), (true, KEY), (false, SIZE), (false, KEY)] {
            scope.spawn(move || reject_of_side(of_duplicates, setting));
        }
    });
}
