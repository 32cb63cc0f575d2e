//! Source topics that are recreated or truncated: other records are at the offsets of earlier ones.

use super::{Isolation, Kafka, LIMIT, Rekey, Running, Sidecar, source_of, wait_until};
use crate::hostile::truncate;
use crate::support::{Draft, kafka_version, shared_kafka};

/// A source topic of one partition, and both stages.
struct Stages<'k> {
    kafka: &'k Kafka,
    from: String,
    to: String,
    clean: String,
    dir: tempfile::TempDir,
}

impl<'k> Stages<'k> {
    fn new(kafka: &'k Kafka, name: &str) -> Self {
        let (from, to, clean) = (format!("{name}.from"), format!("{name}.to"), format!("{name}.clean"));
        kafka.create_topic(&from, 1, &[]);
        kafka.create_topic(&to, 1, &[]);
        Self { kafka, from, to, clean, dir: tempfile::tempdir().unwrap() }
    }

    /// A member that leaves the group when it stops, so that the offsets of the group can be set.
    fn rekey(&self, on_gap: &str) -> Rekey {
        let flags = format!("--from {} --id json:/id", self.from);
        let mut rekey = Rekey::new(self.kafka, &self.to, &flags);
        for (key, value) in [("STATIC_MEMBERSHIP", "false"), ("ON_GAP", on_gap)] {
            rekey.environment.push((format!("DEDUPD_GROUP__{key}"), value.to_owned()));
        }
        rekey
    }

    fn run(&self) -> Running {
        Sidecar::new(self.kafka.bootstrap(), &self.to, &self.clean, "a", self.dir.path())
            .with("DEDUPD_DEDUPE__SCOPE", "partition")
            .with("DEDUPD_IDENTITY__ON_MISSING", "source")
            .start()
    }

    /// Writes records without an id, each as a separate batch.
    fn send(&self, texts: &[&str]) {
        for text in texts {
            self.kafka.send(&self.from, &[Draft::new(0, text)]);
        }
    }

    fn recreate(&self) {
        self.kafka.delete_topic(&self.from);
        self.kafka.create_topic(&self.from, 1, &[]);
    }

    /// Writes all records of the source topic, and stops.
    fn through(&self, rekey: &Rekey) -> String {
        let running = rekey.start();
        rekey.wait_done(self.kafka, &[&self.from]);
        assert_eq!(running.stop(), Some(0), "{}", running.text());
        running.text()
    }

    /// Waits until the target has this number of records and all of them are decided. Returns the clean ones.
    fn clean(&self, written: i64) -> Vec<String> {
        let group = format!("dedupd.{}.{}", self.to, self.clean);
        wait_until("the target to be processed", LIMIT, || {
            let committed = self.kafka.committed(&group, &self.to, 0).map_or(0, |(at, _)| at);
            (committed == written).then_some(())
        });
        self.kafka.texts(&self.clean)
    }

    /// The headers that name the sources of the records in the target.
    fn sources(&self) -> Vec<String> {
        let records = self.kafka.records(&self.to, Isolation::Committed);
        records.iter().map(|record| source_of(record).unwrap()).collect()
    }
}

/// Asserts that it ends with exit code 6 and that its log contains all words.
fn assert_stops(running: &Running, words: &[&str]) {
    assert_eq!(running.wait(LIMIT).code(), Some(6), "{}", running.text());
    for word in words {
        assert!(running.text().contains(word), "{word:?} is not in:\n{}", running.text());
    }
}

#[test]
fn records_of_a_recreated_source_are_no_copies_of_earlier_ones() {
    let stages = Stages::new(shared_kafka(), "recreated-source");
    let (rekey, run) = (stages.rekey("stop"), stages.run());
    stages.send(&["old-0", "old-1", "old-2"]);
    stages.through(&rekey);
    assert_eq!(stages.clean(3), ["old-0", "old-1", "old-2"]);
    // The broker deletes the offsets of the group with the topic.
    stages.recreate();
    stages.send(&["new-0", "new-1", "new-2", "new-3", "new-4"]);
    stages.through(&rekey);
    let all = ["old-0", "old-1", "old-2", "new-0", "new-1", "new-2", "new-3", "new-4"];
    assert_eq!(stages.clean(8), all, "{:?}", stages.sources());
    // The control: a second copy of the same records is dropped.
    stages.kafka.commit_offset(&rekey.group(), &stages.from, 0, 0);
    stages.through(&rekey);
    assert_eq!(stages.clean(13), all, "{:?}", stages.sources());
    assert_eq!(run.stop(), Some(0), "{}", run.text());
}

#[test]
fn a_recreated_source_stops_it_until_an_operator_decides() {
    let stages = Stages::new(shared_kafka(), "recreated-while-read");
    let rekey = stages.rekey("stop");
    let running = rekey.start();
    stages.send(&["old-0", "old-1", "old-2"]);
    rekey.wait_done(stages.kafka, &[&stages.from]);
    let old = stages.kafka.committed(&rekey.group(), &stages.from, 0).unwrap();
    stages.recreate();
    // More than before: every known offset exists again.
    stages.send(&["new-0", "new-1", "new-2", "new-3", "new-4"]);
    let words = [
        "topic recreated-while-read.from was deleted and recreated: its id is",
        "DEDUPD_GROUP__ON_GAP=accept",
        "--to-earliest",
    ];
    assert_stops(&running, &words);
    // A later start finds the id in the committed offset, if the broker has not deleted that.
    stages.kafka.commit_with(&rekey.group(), (&stages.from, 0), old.0, &old.1);
    assert_stops(&rekey.start(), &words);
    let text = stages.through(&stages.rekey("accept"));
    assert!(text.contains("group.on_gap = accept"), "{text}");
    let written = stages.kafka.texts(&stages.to);
    assert_eq!(written[written.len() - 5..], ["new-0", "new-1", "new-2", "new-3", "new-4"], "{written:?}");
    // What was decided is committed.
    stages.through(&rekey);
    assert_eq!(stages.kafka.texts(&stages.to).len(), written.len());
}

#[test]
fn a_truncated_source_stops_it_and_the_replacing_records_are_no_copies() {
    if kafka_version() < vec![4] {
        println!(
            "skipped: before Kafka 4.0 a broker that was killed keeps its leader epoch, which shows what was truncated"
        );
        return;
    }
    let kafka = Kafka::start();
    let stages = Stages::new(&kafka, "truncated-source");
    let (rekey, run) = (stages.rekey("stop"), stages.run());
    let running = rekey.start();
    let old = ["a0", "a1", "a2", "a3", "a4", "a5"];
    stages.send(&old);
    rekey.wait_done(&kafka, &[&stages.from]);
    assert_eq!(stages.clean(6), old);
    kafka.kill9();
    truncate(&kafka, &stages.from, 3);
    kafka.restart();
    stages.send(&["b3", "b4", "b5", "b6", "b7"]);
    let words = [
        "truncated-source.from/0 was truncated and written again: from offset 3 on",
        "DEDUPD_GROUP__ON_GAP=accept",
    ];
    assert_stops(&running, &words);
    assert_stops(&rekey.start(), &words);
    let before = stages.sources().len();
    stages.through(&stages.rekey("accept"));
    let sources = stages.sources();
    assert_eq!(sources.len(), before + 5, "{sources:?}");
    let all = ["a0", "a1", "a2", "a3", "a4", "a5", "b3", "b4", "b5", "b6", "b7"];
    let written = i64::try_from(sources.len()).unwrap();
    assert_eq!(stages.clean(written), all, "{sources:?}");

    // Read again, under another leader epoch, each record has the same name as before.
    kafka.commit_offset(&rekey.group(), &stages.from, 0, 0);
    stages.through(&rekey);
    let again = stages.sources().split_off(sources.len());
    let expected = [&sources[..3], &sources[before..]].concat();
    assert_eq!(again, expected);
    assert_eq!(stages.clean(written + 8), all, "{sources:?}");
    assert_eq!(run.stop(), Some(0), "{}", run.text());
    let id = kafka.topic_id(&stages.from);
    assert!(again.iter().all(|source| source.contains(&format!("#{id}."))), "{id} {again:?}");
}
