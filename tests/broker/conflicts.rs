//! Records with an id that was seen and other content, on a real Apache Kafka: all are found, none is invented, and the log, the page and the exit
//! code say so.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::checking::passed;
use crate::support::{Draft, Isolation, Pipe, Record, Running, Scope, Sidecar, shared_kafka, wait_until};

const LIMIT: Duration = Duration::from_mins(2);
const PARTITIONS: usize = 3;

/// The id of a record, and what of it is compared.
fn parsed(record: &Record) -> (String, u64) {
    let value: serde_json::Value = serde_json::from_slice(record.value.as_deref().unwrap()).unwrap();
    (value["id"].as_str().unwrap().to_owned(), value["content"].as_u64().unwrap())
}

/// A record whose value differs from that of all others.
fn draft(rng: &mut fastrand::Rng, partitions: usize, id: u32, content: u64) -> Draft {
    let partition = rng.i32(0..i32::try_from(partitions).unwrap());
    let sent_at = rng.u64(..);
    Draft::new(partition, &format!(r#"{{"id":"{id}","content":{content},"sent_at":{sent_at}}}"#))
}

fn reason(record: &Record) -> String {
    let (_, value) = record.headers.iter().find(|(key, _)| key == "dedupd.reason").unwrap();
    String::from_utf8(value.clone().unwrap()).unwrap()
}

fn duplicates(pipe: &Pipe<'_>) -> String {
    format!("{}.again", pipe.raw)
}

fn sidecar(pipe: &Pipe<'_>, instance: &str) -> Sidecar {
    pipe.sidecar(instance)
        .with("DEDUPD_TOPICS__DUPLICATES", &duplicates(pipe))
        .with("DEDUPD_IDENTITY__COMPARE", r#"["json:/content"]"#)
}

/// Compares the reason of each dropped record with the content of the record that was forwarded for its id. Returns how many were equal, and how
/// many not.
fn assert_found(pipe: &Pipe<'_>) -> [usize; 2] {
    let forwarded: BTreeMap<String, u64> = pipe.kafka.ended_records(&pipe.clean).iter().map(parsed).collect();
    let dropped = pipe.kafka.ended_records(&duplicates(pipe));
    let raw = pipe.kafka.records(&pipe.raw, Isolation::Committed).len();
    assert_eq!(forwarded.len() + dropped.len(), raw);
    let mut counts = [0; 2];
    for record in &dropped {
        let (id, content) = parsed(record);
        let is_conflict = forwarded[&id] != content;
        assert_eq!(reason(record), if is_conflict { "conflict" } else { "duplicate" }, "{record:?}");
        counts[usize::from(is_conflict)] += 1;
    }
    counts
}

/// Starts an instance that is ready.
fn started(instance: &Sidecar) -> Running {
    let running = instance.start();
    running.wait_ready(LIMIT);
    running
}

fn assert_not_compared(running: &Running, expected: f64) {
    let counted = running.value("dedupd_duplicates_not_compared_total");
    assert!((counted - expected).abs() < 0.5, "{counted} instead of {expected}");
}

fn stop(running: &Running) {
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

/// `DEDUPD_PLANTED` times as many records as by default, which is 31,500.
fn scale() -> u32 {
    std::env::var("DEDUPD_PLANTED").ok().and_then(|times| times.parse().ok()).unwrap_or(1)
}

/// In the open transaction, in the index, in slices, after a kill, a restore, a takeover, and growth; in the same and in other partitions.
#[test]
fn planted_conflicts_are_found_wherever_their_owner_is_and_none_is_invented() {
    let pipe = Pipe::new(shared_kafka(), "planted", PARTITIONS);
    let mut rng = fastrand::Rng::with_seed(46);
    let times = scale();
    let mut produce = |partitions: usize, news: std::ops::Range<u32>| {
        let news = news.start * times..news.end * times;
        let olds = (0..news.end / 2).map(|_| rng.u32(0..news.end)).collect::<Vec<_>>();
        // Every eighth record has other content than most with its id.
        let mut content = |id: u32| u64::from(id) + u64::from(rng.u8(0..8) == 0);
        let all: Vec<_> = news.chain(olds).map(|id| (id, content(id))).collect();
        let drafts: Vec<_> =
            all.into_iter().map(|(id, content)| draft(&mut rng, partitions, id, content)).collect();
        pipe.kafka.send(&pipe.raw, &drafts);
    };
    let slice = (2_000 * times).to_string();
    let [a, b] = ["a", "b"].map(|name| sidecar(&pipe, name).with("DEDUPD_SMALLEST_SLICE", &slice));
    let mut running = a.start();
    produce(PARTITIONS, 0..9_000);
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    wait_until("slices", LIMIT, || {
        (running.value("dedupd_sealed_ids_total") > 4_000.0 * f64::from(times)).then_some(())
    });
    produce(PARTITIONS, 9_000..12_000);
    running.kill9();
    running = a.start();
    produce(PARTITIONS, 12_000..15_000);
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    running.kill9();
    std::fs::remove_dir_all(&a.state_dir).unwrap();
    running = a.start();
    produce(PARTITIONS, 15_000..18_000);
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    let spare = b.start();
    stop(&running);
    pipe.kafka.grow_topic(&pipe.raw, PARTITIONS + 2);
    produce(PARTITIONS + 2, 18_000..21_000);
    pipe.wait_caught_up(PARTITIONS + 2, LIMIT);
    assert_not_compared(&spare, 0.0);
    stop(&spare);
    let [equal, conflicts] = assert_found(&pipe);
    println!("{equal} equal, {conflicts} conflicts");
    assert!(equal > 10_000 && conflicts > 2_000);
    let audited = b.audit().unwrap();
    let compared = format!("{equal} equal, {conflicts} not equal, 0 not compared");
    assert!(audited.contains(&compared), "{compared} is not in:\n{audited}");
}

/// Snowplow's case: ids that were used again for another event. By default the whole value is compared.
#[test]
fn an_id_that_is_not_unique_is_a_warning_a_count_and_a_note_until_the_operator_decides() {
    let pipe = Pipe::new(shared_kafka(), "not-unique", 1);
    let record = |id: u32, page: &str| Draft::new(0, &format!(r#"{{"id":"{id}","page":"{page}"}}"#));
    let first: Vec<_> = (0..50).map(|id| record(id, "home")).collect();
    let again = (0..20).map(|id| record(id, "cart")).chain((20..30).map(|id| record(id, "home")));
    pipe.kafka.send(&pipe.raw, &first.into_iter().chain(again).collect::<Vec<_>>());
    let running = started(&pipe.sidecar("a"));
    running.wait_outcomes(&[("forwarded", 50), ("duplicate", 10), ("conflict", 20)]);
    let note = || {
        running.get("/readyz").filter(|page| page.contains("20 of 30 recent duplicates have other content"))
    };
    let note = wait_until("the note", LIMIT, note);
    assert!(note.contains("identity.compare") && note.contains("identity.from"), "{note}");
    wait_until("the warning", LIMIT, || {
        running.text().contains("whose id is that of record 0@").then_some(())
    });
    stop(&running);
    let chosen = started(&pipe.sidecar("a").with("DEDUPD_IDENTITY__COMPARE", "value"));
    pipe.kafka.send(&pipe.raw, &[record(0, "cart")]);
    chosen.wait_outcomes(&[("conflict", 1)]);
    assert!(!chosen.page("/readyz").contains("other content"), "{}", chosen.page("/readyz"));
    stop(&chosen);
}

#[test]
fn a_conflict_is_a_dead_letter_or_the_end_as_configured() {
    let pipe = Pipe::new(shared_kafka(), "conflict-policy", 1);
    let record = |content: &str| Draft::new(0, &format!(r#"{{"id":"1","v":"{content}"}}"#));
    pipe.kafka.send(&pipe.raw, &[record("a"), record("b"), record("a")]);
    let letters = format!("{}.dead", pipe.raw);
    let instance = pipe.sidecar("a").with("DEDUPD_TOPICS__DEAD_LETTER", &letters);
    let running = started(&instance.with("DEDUPD_IDENTITY__ON_CONFLICT", "dead_letter"));
    running.wait_outcomes(&[("forwarded", 1), ("duplicate", 1), ("conflict", 1)]);
    stop(&running);
    let dead = pipe.kafka.ended_records(&letters);
    assert_eq!(
        dead.iter().map(|it| (it.text(), reason(it))).collect::<Vec<_>>(),
        [(r#"{"id":"1","v":"b"}"#.to_owned(), "conflict".to_owned())]
    );
    pipe.kafka.send(&pipe.raw, &[record("c")]);
    let ended = pipe.sidecar("a").with("DEDUPD_IDENTITY__ON_CONFLICT", "stop").start();
    assert_eq!(ended.wait(LIMIT).code(), Some(6), "{}", ended.text());
    let text = ended.text();
    assert!(text.contains("record 0@3") && text.contains("the id of record 0@0 and other content"), "{text}");
    // Nothing was decided about it.
    let dropped = started(&pipe.sidecar("a"));
    dropped.wait_outcomes(&[("conflict", 1)]);
    stop(&dropped);
}

/// Readers of clean would wait for a transaction that stays open, and the next start would take its records for those of another program.
#[test]
fn an_instance_that_a_conflict_stops_leaves_no_open_transaction() {
    for scope in [Scope::Topic, Scope::Partition] {
        let pipe = Pipe::new(shared_kafka(), &format!("conflict-open-{scope:?}").to_lowercase(), 1);
        let record = |content: &str| Draft::new(0, &format!(r#"{{"id":"1","v":"{content}"}}"#));
        let instance = pipe.sidecar("a").scoped(scope);
        let stopping = [
            ("DEDUPD_GROUP__SESSION_TIMEOUT", "3m"),
            ("DEDUPD_BATCH__TRANSACTION_TIMEOUT", "2m"),
            ("DEDUPD_BATCH__INTERVAL", "1m"),
            ("DEDUPD_IDENTITY__ON_CONFLICT", "stop"),
        ];
        let stopping = stopping.iter().fold(instance.clone(), |all, (key, value)| all.with(key, value));
        let running = started(&stopping);
        pipe.kafka.send(&pipe.raw, &[record("a")]);
        let is_written = || !pipe.kafka.records(&pipe.clean, Isolation::Uncommitted).is_empty();
        wait_until("an open transaction", LIMIT, || is_written().then_some(()));
        pipe.kafka.send(&pipe.raw, &[record("b")]);
        assert_eq!(running.wait(LIMIT).code(), Some(6), "{}", running.text());
        let text = running.text();
        for words in [
            "neither it nor any record since the last commit was forwarded",
            "identity.accept_change",
            "drop or dead_letter",
        ] {
            assert!(text.contains(words), "{words:?} is not in:\n{text}");
        }
        pipe.kafka.wait_ended(&pipe.clean, Duration::from_secs(5));
        let end = pipe.kafka.watermarks(&pipe.clean, 0).1;
        assert!(
            end > 0 && pipe.kafka.last_stable_offset(&pipe.clean, 0) == end,
            "{scope:?}: a transaction is open"
        );
        // Aborted records are nobody's.
        let foreign = "has processed none";
        assert!(!passed(&instance).contains(foreign), "{scope:?}");
        let dropping = started(&instance);
        dropping.wait_outcomes(&[("forwarded", 1), ("conflict", 1)]);
        assert!(!dropping.text().contains(foreign), "{}", dropping.text());
        stop(&dropping);
    }
}

/// A digest of another rule is no conflict, whatever the content.
#[test]
fn after_a_change_of_what_is_compared_older_ids_are_not_compared() {
    let pipe = Pipe::new(shared_kafka(), "rule-of-content", 1);
    let record = |id: u32, content: u32| Draft::new(0, &format!(r#"{{"id":"{id}","content":{content}}}"#));
    let all = |content: u32, ids: std::ops::Range<u32>| ids.map(|id| record(id, content)).collect::<Vec<_>>();
    pipe.kafka.send(&pipe.raw, &all(1, 0..10));
    let running = started(&pipe.sidecar("a"));
    running.wait_outcomes(&[("forwarded", 10)]);
    stop(&running);
    let running = started(&pipe.sidecar("a").with("DEDUPD_IDENTITY__COMPARE", r#"["json:/content"]"#));
    pipe.kafka.send(&pipe.raw, &[all(2, 0..10), all(1, 10..20), all(2, 10..15)].concat());
    running.wait_outcomes(&[("forwarded", 10), ("duplicate", 10), ("conflict", 5)]);
    assert_not_compared(&running, 10.0);
    stop(&running);
    let running = started(&pipe.sidecar("a").with("DEDUPD_IDENTITY__COMPARE", "off"));
    pipe.kafka.send(&pipe.raw, &all(3, 0..20));
    running.wait_outcomes(&[("duplicate", 20)]);
    assert_not_compared(&running, 20.0);
    stop(&running);
}
