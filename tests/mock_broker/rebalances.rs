//! Rebalances under a running pipeline. Every id reaches the clean topic in raw order, every partition runs in
//! the end, and no id appears twice unless a transaction was aborted, whose records stay visible on the mock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use dedupd::clock::monotonic;
use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::types::{RDKafkaApiKey as Api, RDKafkaErrorCode as Code};

use crate::member::{Clean, LIMIT, Member, Pace, config, first_of_each};
use crate::support::mock::{Mock, RAW};
use crate::support::wait_until;

const PARTITIONS: i32 = 12;
/// Pause between two rounds of one record per partition.
const ROUND: Duration = Duration::from_millis(40);

fn all() -> impl Iterator<Item = u32> {
    0..PARTITIONS.unsigned_abs()
}

type Sent = BTreeMap<u32, Vec<String>>;

/// Produces raw records until it is stopped. Every fifth record repeats an earlier key of its partition.
struct Traffic {
    sent: Arc<Mutex<Sent>>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Traffic {
    fn start(client: &ClientConfig) -> Self {
        let (sent, stop) = (Arc::new(Mutex::new(Sent::new())), Arc::new(AtomicBool::new(false)));
        let (out, stopped) = (Arc::clone(&sent), Arc::clone(&stop));
        let producer: BaseProducer =
            client.clone().set("enable.idempotence", "true").set("linger.ms", "0").create().unwrap();
        let thread = thread::spawn(move || {
            for round in 0usize.. {
                for partition in 0..PARTITIONS {
                    let number = if round % 5 == 4 { round / 2 } else { round };
                    let key = format!("{partition}-{number}");
                    let record = BaseRecord::to(RAW).partition(partition).key(&key).payload("value");
                    producer.send(record).expect("room in the queue");
                    out.lock().unwrap().entry(partition.unsigned_abs()).or_default().push(key);
                }
                if stopped.load(Ordering::Acquire) {
                    break;
                }
                producer.poll(ROUND);
            }
            producer.flush(LIMIT).expect("everything acknowledged");
        });
        Self { sent, stop, thread }
    }

    /// The keys sent so far.
    fn sent(&self) -> Sent {
        self.sent.lock().unwrap().clone()
    }

    fn stop(self) -> Sent {
        self.stop.store(true, Ordering::Release);
        self.thread.join().expect("the traffic");
        Arc::into_inner(self.sent).unwrap().into_inner().unwrap()
    }
}

/// Runs one member, then two, then one again, while records are produced continuously.
fn group_changes(client: &ClientConfig, start: impl Fn(&str) -> Member) {
    let mut clean = Clean::of(client, PARTITIONS);
    let traffic = Traffic::start(client);
    let first = start("a");
    first.runs(all());
    clean.wait_for(&traffic.sent(), || first.assert_alive());

    let second = start("b");
    wait_until("both members to share the partitions", LIMIT, || {
        first.assert_alive();
        second.assert_alive();
        let (one, two) = (first.running(), second.running());
        let shared = !one.is_empty() && !two.is_empty() && one.is_disjoint(&two);
        (shared && one.union(&two).copied().eq(all())).then_some(())
    });
    clean.wait_for(&traffic.sent(), || second.assert_alive());

    let uncommitted = second.uncommitted();
    second.stop();
    first.runs(all());
    finish(first, traffic, clean, uncommitted);
}

/// Stops the load, waits until all of it is in the clean topic, stops the member and compares. `uncommitted` is the number
/// of transactions of other members that were not committed.
fn finish(member: Member, traffic: Traffic, mut clean: Clean, uncommitted: f64) {
    let sent = traffic.stop();
    clean.wait_for(&sent, || member.assert_alive());
    let uncommitted = uncommitted + member.uncommitted();
    member.stop();
    clean.read();
    check(&sent, &clean, uncommitted);
}

fn check(sent: &Sent, clean: &Clean, uncommitted: f64) {
    let mut repeated = 0;
    for (partition, keys) in sent {
        let (wanted, seen) = (first_of_each(keys), &clean.keys[partition]);
        assert!(wanted.len() < keys.len(), "no key of partition {partition} was repeated");
        assert_eq!(first_of_each(seen), wanted, "partition {partition}");
        repeated += seen.len() - wanted.len();
    }
    let total: usize = sent.values().map(Vec::len).sum();
    eprintln!("{total} records, {repeated} keys repeated, {uncommitted} transactions not committed");
    assert!(
        repeated == 0 || uncommitted > 0.0,
        "{repeated} keys are repeated although every transaction committed"
    );
}

#[test]
fn a_cooperative_rebalance_loses_nothing() {
    let mock = Mock::start(PARTITIONS);
    let dir = tempfile::tempdir().unwrap();
    group_changes(&mock.client_config(), |name| {
        Member::service(config(&mock.bootstrap(), name, dir.path()), usize::try_from(PARTITIONS).unwrap())
    });
}

#[test]
fn an_eager_rebalance_loses_nothing() {
    let mock = Mock::start(PARTITIONS);
    group_changes(&mock.client_config(), |name| {
        let mut settings = mock.settings(name);
        settings.properties.push(("partition.assignment.strategy".to_owned(), "range".to_owned()));
        Member::worker(settings, usize::try_from(PARTITIONS).unwrap(), Pace::FULL)
    });
}

/// The coordinator removes the member twice, once with each error code.
#[test]
fn a_removed_member_rejoins_without_loss() {
    let mock = Mock::start(PARTITIONS);
    let mut clean = Clean::of(&mock.client_config(), PARTITIONS);
    let traffic = Traffic::start(&mock.client_config());
    let member = Member::worker(mock.settings("out"), usize::try_from(PARTITIONS).unwrap(), Pace::FULL);
    member.runs(all());
    for code in [Code::UnknownMemberId, Code::IllegalGeneration] {
        let before = member.metrics.rebalances().get();
        mock.inject(Api::Heartbeat, &[code]);
        wait_until("the loss and the new assignment", LIMIT, || {
            member.assert_alive();
            (member.metrics.rebalances().get() >= before + 2).then_some(())
        });
        member.runs(all());
        clean.wait_for(&traffic.sent(), || member.assert_alive());
    }
    finish(member, traffic, clean, 0.0);
}

/// The broker is unavailable for longer than the transaction timeout: the result of an open transaction is unknown,
/// the membership may be lost, and the pipeline recovers. Whether a transaction is open when the broker stops is
/// not certain, so the outage is repeated until one was open.
#[test]
fn an_outage_longer_than_the_transaction_timeout_loses_nothing() {
    let mock = Mock::start(PARTITIONS);
    let mut clean = Clean::of(&mock.client_config(), PARTITIONS);
    let traffic = Traffic::start(&mock.client_config());
    let mut settings = mock.settings("away");
    settings.transaction_timeout = Duration::from_secs(2);
    let outage = settings.transaction_timeout + Duration::from_secs(1);
    // A transaction is open nearly all of the time: the next one begins with the first record after a commit.
    let interval = settings.transaction_timeout / 2;
    let member = Member::committing_every(interval, settings, usize::try_from(PARTITIONS).unwrap());
    member.runs(all());
    for _ in 0..6 {
        clean.wait_for(&traffic.sent(), || member.assert_alive());
        thread::sleep(3 * ROUND);
        mock.down();
        let began = monotonic();
        wait_until("the member to be not ready", LIMIT, || {
            (!member.status.snapshot().readiness().ready).then_some(())
        });
        wait_until("the transaction timeout", LIMIT, || {
            member.assert_alive();
            (began.elapsed() > outage || member.uncommitted() > 0.0).then_some(())
        });
        mock.up();
        wait_until("readiness", LIMIT, || member.status.snapshot().readiness().ready.then_some(()));
        member.runs(all());
        if member.uncommitted() > 0.0 {
            break;
        }
    }
    assert!(member.uncommitted() > 0.0, "no transaction was open at the start of any outage");
    finish(member, traffic, clean, 0.0);
}
