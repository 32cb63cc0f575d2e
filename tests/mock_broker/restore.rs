//! A restore that takes longer than `max.poll.interval.ms`: the worker continues to poll while it restores.

use std::collections::BTreeMap;
use std::time::Duration;

use dedupd::clock::{monotonic, wall_ms};
use dedupd::dedupe::{
    Block, Coordinates, Digest, EntryEnd, Fields, HashKind, Identity, KindId, Owner, Schemas, Section,
    StateKey,
};
use dedupd::kafka::Settings;
use dedupd::metrics::PartitionState;
use dedupd::pipeline::{PartitionCounts, StableEnds};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use crate::member::{Clean, LIMIT, Member, Pace, rule};
use crate::support::mock::{Mock, RAW, STATE};
use crate::support::records::produce_with;
use crate::support::wait_until;

/// Ids in each block.
const IDS: u64 = 10;
const MAX_POLL: Duration = Duration::from_secs(5);
/// The partition whose state is large, and the one that runs meanwhile.
const SLOW: i32 = 1;
const OTHER: i32 = 0;

struct Keyed<'a>(&'a str);

impl Fields for Keyed<'_> {
    fn key(&self) -> Option<&[u8]> {
        Some(self.0.as_bytes())
    }

    fn value(&self) -> Option<&[u8]> {
        None
    }

    fn header(&self, _name: &str) -> Option<&[u8]> {
        None
    }
}

fn key(partition: i32, offset: u64) -> String {
    format!("{partition}-{offset}")
}

fn identity(key: &str) -> Identity {
    rule().identify(&Keyed(key), &Schemas::default()).unwrap().expect("a record with a key")
}

fn produce(mock: &Mock, partition: i32, keys: &[String]) {
    let records: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), "value")).collect();
    produce_with(&mock.client_config(), RAW, partition, &records);
}

/// Writes `blocks` blocks to the state topic, as an instance that has ended would have left them, and the raw
/// records that they cover.
fn produce_state(mock: &Mock, blocks: u64) {
    let keys: Vec<String> = (0..blocks * IDS).map(|offset| key(SLOW, offset)).collect();
    produce(mock, SLOW, &keys);
    let producer: BaseProducer = mock.client_config().create().unwrap();
    let now_ms = wall_ms();
    for number in 0..blocks {
        let (first, next) = (number * IDS, (number + 1) * IDS);
        let owner = |offset| Owner {
            at: Coordinates { partition: SLOW.unsigned_abs(), offset },
            time_ms: now_ms,
            identity: identity(&key(SLOW, offset)),
            digest: Digest::NONE,
        };
        let owners = (first..next).map(owner).collect();
        let block = Block { hash: HashKind::Xxh3, kind: KindId::UNNAMED, owners };
        let writer = "group.dead.0".to_owned();
        let key = StateKey { writer, ..StateKey::default() }.render();
        let section = Section {
            partition: SLOW.unsigned_abs(),
            first,
            next,
            clean_end: Some(next),
            time_first_ms: now_ms,
            time_last_ms: now_ms,
            reset_kinds: Vec::new(),
        };
        let encoded = block.encode();
        let end = EntryEnd::of(number + 1, [&*encoded].into_iter(), vec![section]).encode();
        for record in [encoded, end] {
            producer
                .send(BaseRecord::to(STATE).partition(SLOW).key(&key).payload(&record))
                .expect("room in the queue");
        }
    }
    producer.flush(LIMIT).expect("all blocks acknowledged");
}

fn settings(mock: &Mock, name: &str) -> Settings {
    let mut settings = mock.settings(name);
    settings.session_timeout = Duration::from_secs(4);
    settings.properties.push(("max.poll.interval.ms".to_owned(), MAX_POLL.as_millis().to_string()));
    settings
}

#[test]
fn a_long_restore_misses_no_poll_and_does_not_block_other_partitions() {
    const BLOCKS: u64 = 900;
    let mock = Mock::start(2);
    produce_state(&mock, BLOCKS);
    let mut clean = Clean::of(&mock.client_config(), 2);
    let began = monotonic();
    let pace = Pace { pause: Duration::from_millis(50), pauses: usize::MAX, items: 6 };
    let member = Member::worker(settings(&mock, "slow"), 2, pace);
    let slow = SLOW.unsigned_abs();
    member.runs([OTHER.unsigned_abs()]);

    // The other partition forwards records until the restore ends.
    let mut meanwhile = 0;
    while member.in_state(PartitionState::Restoring).contains(&slow) {
        let keys = vec![key(OTHER, meanwhile)];
        produce(&mock, OTHER, &keys);
        clean.wait_for(&BTreeMap::from([(OTHER.unsigned_abs(), keys)]), || member.assert_alive());
        meanwhile += 1;
    }
    member.runs([0, 1]);
    let took = began.elapsed();
    eprintln!("restored {BLOCKS} blocks in {took:?}, {meanwhile} records forwarded meanwhile");
    assert!(took > MAX_POLL + Duration::from_secs(1), "the restore took only {took:?}");
    assert!(meanwhile > 5, "only {meanwhile} records of the other partition passed in {took:?}");
    assert_eq!(member.metrics.rebalances().get(), 1, "the member lost its partitions during the restore");

    // The restored ids are dropped as duplicates, and new ids are forwarded.
    let known = key(SLOW, BLOCKS * IDS - 1);
    let fresh = vec![key(SLOW, BLOCKS * IDS), key(SLOW, BLOCKS * IDS + 1)];
    produce(&mock, SLOW, &[fresh[0].clone(), key(SLOW, 0), known, fresh[1].clone()]);
    clean.wait_for(&BTreeMap::from([(slow, fresh.clone())]), || member.assert_alive());
    assert_eq!(clean.keys[&slow], fresh);
    member.stop();
}

/// A partition that is assigned before it exists in the other topics waits, and does not block other partitions.
#[test]
fn a_partition_that_is_missing_in_another_topic_waits_and_does_not_block_others() {
    let mock = Mock::start(2);
    let mut clean = Clean::of(&mock.client_config(), 2);
    let (here, there) = (OTHER.unsigned_abs(), SLOW.unsigned_abs());
    let keys = |partition| vec![key(partition, 0), key(partition, 1)];
    [OTHER, SLOW].into_iter().for_each(|partition| produce(&mock, partition, &keys(partition)));
    let limit = PartitionCounts::new(1);
    let shared = (limit.clone(), StableEnds::default());
    let member = Member::sharing(settings(&mock, "early"), shared, Pace::FULL);
    clean.wait_for(&BTreeMap::from([(here, keys(OTHER))]), || member.assert_alive());
    wait_until("the other partition to be in state starting", LIMIT, || {
        (member.in_state(PartitionState::Starting) == [there].into()).then_some(())
    });
    clean.read();
    assert!(clean.keys.get(&there).is_none_or(Vec::is_empty), "{:?}", clean.keys);
    std::thread::sleep(Duration::from_secs(1));
    limit.raise(2);
    clean.wait_for(&BTreeMap::from([(there, keys(SLOW))]), || member.assert_alive());
    member.runs([here, there]);
    let text = member.metrics.scrape(&member.status);
    let seconds = text.lines().find_map(|line| line.strip_prefix("dedupd_restore_seconds_sum "));
    let seconds: f64 = seconds.unwrap_or(&text).parse().expect("a number");
    assert!(seconds > 1.0, "{seconds} s: the time counts from the assignment on, the wait included");
    member.stop();
}

/// The negative control: a member that does not poll in time is removed, and rejoins.
#[test]
fn a_member_that_misses_its_polls_loses_its_partitions_and_gets_them_back() {
    let mock = Mock::start(2);
    produce_state(&mock, 5);
    let mut clean = Clean::of(&mock.client_config(), 2);
    let pace = Pace { pause: MAX_POLL + Duration::from_secs(2), pauses: 1, items: usize::MAX };
    let member = Member::worker(settings(&mock, "silent"), 2, pace);
    wait_until("assignment, loss and assignment", LIMIT, || {
        member.assert_alive();
        (member.metrics.rebalances().get() >= 3).then_some(())
    });
    member.runs([0, 1]);
    let fresh = vec![key(SLOW, 5 * IDS)];
    produce(&mock, SLOW, &[key(SLOW, 0), fresh[0].clone()]);
    let slow = SLOW.unsigned_abs();
    clean.wait_for(&BTreeMap::from([(slow, fresh.clone())]), || member.assert_alive());
    assert_eq!(clean.keys[&slow], fresh);
    member.stop();
}
