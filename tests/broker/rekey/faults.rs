//! Both stages under kills, rebalances and broker failures, and an audit of all source topics and the clean topic.

use super::{Duration, Isolation, Kafka, LIMIT, Rekey, Running, Sidecar, audited, monotonic};
use crate::support::{Draft, now_ms, shared_kafka, wait_until};

const SOURCES: [&str; 2] = ["orders", "payments"];
const SOURCE_PARTITIONS: i32 = 3;

/// Two source topics, the target and the clean topic of one test.
struct Chain<'k> {
    kafka: &'k Kafka,
    sources: [String; 2],
    to: String,
    clean: String,
    dir: tempfile::TempDir,
    sent: u64,
    random: fastrand::Rng,
}

impl<'k> Chain<'k> {
    fn new(kafka: &'k Kafka, name: &str) -> Self {
        // The second stage creates the clean topic, so a name that another test uses would not be rejected here.
        let name = format!("chain-{name}");
        let sources = SOURCES.map(|source| format!("{name}.{source}"));
        for topic in &sources {
            kafka.create_topic(topic, 3, &[]);
        }
        let to = format!("{name}.to");
        kafka.create_topic(&to, 4, &[]);
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let (clean, dir) = (format!("{name}.clean"), tempfile::tempdir().unwrap());
        Self { kafka, sources, to, clean, dir, sent: 0, random: fastrand::Rng::with_seed(seed) }
    }

    fn rekey(&self, instance: &str) -> Rekey {
        let flags = format!("--from {} --from {} --id json:/id", self.sources[0], self.sources[1]);
        let log = self.dir.path().join(format!("rekey-{instance}.log"));
        Rekey::new(self.kafka, &self.to, &flags).instance(instance, log)
    }

    fn run(&self) -> Sidecar {
        Sidecar::new(self.kafka.bootstrap(), &self.to, &self.clean, "a", self.dir.path())
            .with("DEDUPD_DEDUPE__SCOPE", "partition")
            .with("DEDUPD_IDENTITY__ON_MISSING", "source")
    }

    /// Writes records to random source partitions: a third repeat an earlier id, and some have no id.
    fn send(&mut self, records: usize) {
        let mut drafts = [Vec::new(), Vec::new()];
        for _ in 0..records {
            let partition = self.random.i32(0..SOURCE_PARTITIONS);
            let id = if self.random.u8(..3) == 0 { self.random.u64(..=self.sent) } else { self.sent + 1 };
            self.sent = self.sent.max(id);
            let draft = if self.random.u8(..20) == 0 {
                Draft::new(partition, "without an id")
            } else {
                Draft::id(partition, &format!("id-{id}"))
            };
            drafts[self.random.usize(..2)].push(draft.at(now_ms()).header("h", Some(b"1")));
        }
        for (topic, drafts) in self.sources.iter().zip(drafts) {
            self.kafka.send(topic, &drafts);
        }
    }

    /// Waits until both groups have committed the ends of their topics.
    fn wait_done(&self) {
        self.rekey("a").wait_done(self.kafka, &[&self.sources[0], &self.sources[1]]);
        let group = format!("dedupd.{}.{}", self.to, self.clean);
        for partition in 0..4 {
            wait_until("the clean topic", LIMIT, || {
                let end = self.kafka.watermarks(&self.to, partition).1;
                let committed = self.kafka.committed(&group, &self.to, partition).map_or(0, |(at, _)| at);
                (committed == end).then_some(())
            });
        }
    }

    /// Audits all source topics and the clean topic. Returns the number of copies that the target contains beyond the source
    /// records, which the second stage has dropped.
    fn audit(&self) -> u64 {
        let report = audited(self.kafka, &[&self.sources[0], &self.sources[1]], &self.clean, "json:/id");
        assert!(report["duplicates_in_raw"].as_u64() > Some(0), "the source topics have no repeated id");
        let written = self.kafka.records(&self.to, Isolation::Committed).len() as u64;
        println!("{} source records, {written} records in the target", report["raw_records"]);
        written - report["raw_records"].as_u64().unwrap()
    }
}

#[test]
fn kills_of_both_stages_lose_nothing_and_repeat_nothing() {
    let mut chain = Chain::new(shared_kafka(), "killed");
    let (rekey, run) = (chain.rekey("a"), chain.run());
    let (mut first, mut second) = (rekey.start(), run.start());
    chain.send(2_000);
    second.wait_ready(LIMIT);
    let start = monotonic();
    for round in 0..12 {
        chain.send(3_000);
        if round % 2 == 0 {
            std::thread::sleep(Duration::from_millis(chain.random.u64(200..1_500)));
        } else {
            // On a busy machine no process gets that far in the random time. What it has just written is not committed.
            wait_until("a written record", LIMIT, || {
                (first.metric("dedupd_rekey_written_total")? > 0.0).then_some(())
            });
        }
        if round % 3 == 2 {
            second.kill9();
            second = run.start();
        }
        first.kill9();
        first = rekey.start();
    }
    println!("12 kills in {:?}", start.elapsed());
    chain.wait_done();
    assert_eq!((first.stop(), second.stop()), (Some(0), Some(0)), "{}{}", first.text(), second.text());
    let copies = chain.audit();
    assert!(copies > 0, "no kill left a copy, so the test proves nothing");
}

#[test]
fn partitions_move_between_instances_without_a_loss() {
    let mut chain = Chain::new(shared_kafka(), "moved");
    let run = chain.run().start();
    let instances = ["a", "b", "c"].map(|instance| chain.rekey(instance));
    let mut running: Vec<Running> = vec![instances[0].start()];
    for instance in &instances[1..] {
        chain.send(3_000);
        running.push(instance.start());
        std::thread::sleep(Duration::from_secs(2));
    }
    let has_two = |it: &Running| it.metric("dedupd_rekey_partitions") == Some(2.0);
    wait_until("an even assignment", LIMIT, || running.iter().all(has_two).then_some(()));
    chain.send(3_000);
    let stopped = running.remove(0);
    assert_eq!(stopped.stop(), Some(0), "{}", stopped.text());
    chain.send(3_000);
    // Static members keep their partitions for a session after the stop.
    chain.wait_done();
    for it in running.iter().chain([&run]) {
        assert_eq!(it.stop(), Some(0), "{}", it.text());
    }
    chain.audit();
}

#[test]
fn a_broker_that_is_killed_and_frozen_loses_nothing() {
    let kafka = Kafka::start();
    let mut chain = Chain::new(&kafka, "outage");
    let (first, second) = (chain.rekey("a").start(), chain.run().start());
    chain.send(3_000);
    second.wait_ready(LIMIT);
    for _ in 0..2 {
        chain.send(20_000);
        kafka.kill9();
        std::thread::sleep(Duration::from_secs(2));
        kafka.restart();
        chain.send(20_000);
        kafka.sigstop();
        std::thread::sleep(Duration::from_secs(3));
        kafka.sigcont();
    }
    chain.wait_done();
    assert_eq!((first.stop(), second.stop()), (Some(0), Some(0)), "{}{}", first.text(), second.text());
    chain.audit();
}
