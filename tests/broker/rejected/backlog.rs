//! Records that a topic rejects while a backlog is processed: most calls of the transaction follow the rejection.

use std::thread;

use crate::support::{Draft, Isolation, Pipe, incompressible, shared_kafka};

use super::{LIMIT, too_large};

/// Number of accepted records, and of rejected ones among them.
const ACCEPTED: usize = 4_000;
const REJECTED: usize = 3;

/// The topic with the limit is the clean or the duplicates topic. Each partition has rejected records at its start and between others.
fn reject(by_clean: bool, policy: &str) {
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, &format!("backlog-{by_clean}-{policy}"), 2);
    let (side, dead) = (format!("{}.side", pipe.raw), format!("{}.dead", pipe.raw));
    let rejecting = if by_clean { &pipe.clean } else { &side };
    kafka.create_topic(rejecting, 2, &[("max.message.bytes", "20000")]);
    let pad = incompressible(3_000);
    let mut drafts: Vec<Draft> = (0..ACCEPTED)
        .map(|n| {
            Draft::new(i32::from(n % 2 == 1), &format!("{{\"id\":\"{n}\",\"pad\":\"{}\"}}", &pad[n % 64..]))
        })
        .collect();
    for at in [0, 1, ACCEPTED / 2] {
        // The duplicates topic gets the second one.
        let bad = Draft { partition: i32::from(at == 1), ..too_large(&format!("big-{at}")) };
        drafts.splice(at..at, std::iter::repeat_n(bad, if by_clean { 1 } else { 2 }));
    }
    kafka.send(&pipe.raw, &drafts);
    let mut sidecar = pipe
        .sidecar("a")
        .with("DEDUPD_TOPICS__DEAD_LETTER", &dead)
        .with("DEDUPD_STATE__POISON_RETRY", "0s")
        .with("DEDUPD_STATE__ON_POISON", policy);
    if !by_clean {
        sidecar = sidecar.with("DEDUPD_TOPICS__DUPLICATES", &side);
    }
    let running = sidecar.start();
    if policy == "stop" {
        assert_eq!(running.wait(LIMIT).code(), Some(6), "{}", running.text());
        let line = running.text().lines().rfind(|it| it.contains("cannot be written")).unwrap().to_owned();
        let names = [&format!(" of topic {} ", pipe.raw), &format!("topic {rejecting} does not accept")];
        assert!(
            names.iter().all(|name| line.contains(*name)) && line.contains("max.message.bytes"),
            "{line}"
        );
        return;
    }
    pipe.wait_caught_up(2, LIMIT);
    let (outcome, kept) = if policy == "drop" { ("rejected", 0) } else { ("dead_letter", REJECTED) };
    running.wait_outcomes(&[(outcome, REJECTED as u64)]);
    assert!(!running.text().contains("must be aborted while writing"), "{}", running.text());
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    let count = |topic: &str| kafka.records(topic, Isolation::Committed).len();
    assert_eq!(count(&pipe.clean), ACCEPTED + if by_clean { 0 } else { REJECTED });
    assert_eq!(count(&dead), kept);
}

#[test]
fn a_record_that_is_rejected_in_a_backlog_meets_the_policy() {
    for by_clean in [true, false] {
        thread::scope(|scope| {
            for policy in ["stop", "drop", "dead_letter"] {
                scope.spawn(move || reject(by_clean, policy));
            }
        });
    }
}

/// Number of records that the clean topic certainly rejects.
const LARGE: usize = 300;

/// The topic accepts those that are small only compressed, and what is slightly too large is tried.
#[test]
fn records_that_are_certainly_too_large_meet_the_policy_without_aborts() {
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, "backlog-large", 1);
    let dead = "backlog-large.dead";
    kafka.create_topic(&pipe.clean, 1, &[("max.message.bytes", "20000")]);
    let draft = |id: &str, pad: &str| Draft::new(0, &format!("{{\"id\":\"{id}\",\"pad\":\"{pad}\"}}"));
    let (noise, zeros) = (incompressible(60_000), "0".repeat(60_000));
    let mut drafts: Vec<Draft> = Vec::new();
    for n in 0..LARGE {
        drafts.push(draft(&format!("large-{n}"), &noise[..40_000 + n * 50]));
        if n % 10 == 5 {
            drafts.push(draft(&format!("small-{n}"), &zeros));
        }
    }
    // About 20,700 bytes compressed.
    drafts.insert(LARGE, draft("slightly", &noise[..27_500]));
    kafka.send(&pipe.raw, &drafts);
    let sidecar = pipe
        .sidecar("a")
        .with("DEDUPD_TOPICS__DEAD_LETTER", dead)
        .with("DEDUPD_STATE__POISON_RETRY", "0s")
        .with("DEDUPD_STATE__ON_POISON", "dead_letter");
    let running = sidecar.start();
    pipe.wait_caught_up(1, LIMIT);
    running.wait_outcomes(&[("dead_letter", LARGE as u64 + 1)]);
    let aborted = running.transactions("aborted");
    assert!(aborted <= 10.0, "{aborted} aborted transactions: {}", running.text());
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    let clean = kafka.texts(&pipe.clean);
    assert_eq!(clean.len(), LARGE / 10);
    assert!(clean.iter().all(|text| text.contains("small-")));
    let dead = kafka.records(dead, Isolation::Committed);
    assert_eq!(dead.len(), LARGE + 1);
    let detail = |record: &crate::support::Record| {
        let (_, value) = record.headers.iter().find(|(name, _)| name == "dedupd.detail").unwrap();
        String::from_utf8(value.clone().unwrap()).unwrap()
    };
    let names = [format!("topic {} does not accept", pipe.clean), "max.message.bytes".to_owned()];
    assert!(dead.iter().all(|record| names.iter().all(|name| detail(record).contains(name))));
}
