//! A state topic as many transactions leave it in topic scope, each with the same number of identities of each partition.

use std::time::Duration;

use dedupd::clock::wall_ms;
use dedupd::dedupe::{
    Block, Checkpoint, Coordinates, Digest, EntryEnd, HashKind, Identity, KindId, LastEntry, Owner,
    PartitionId, Section, StateKey,
};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use rdkafka::{Offset, TopicPartitionList};

use super::harness::{Kafka, Pipe};

const LIMIT: Duration = Duration::from_mins(2);
/// The key of a state record has about this length, with the names of usual topics.
const KEY_BYTES: usize = 130;

/// Most identities of a block.
const BLOCK_IDS: usize = 30_000;

/// The size of a state topic.
#[derive(Clone, Copy, Debug)]
pub struct Blocks {
    pub partitions: PartitionId,
    /// Number of transactions.
    pub transactions: u64,
    /// Identities of a transaction and a partition.
    pub ids: u64,
    /// Stream time from the first transaction to the last.
    pub over: Duration,
}

impl Blocks {
    /// Identities of a partition, which are also its raw records.
    fn ids_of_partition(self) -> u64 {
        self.transactions * self.ids
    }

    /// All identities.
    pub fn total(self) -> u64 {
        u64::from(self.partitions) * self.ids_of_partition()
    }

    /// Writes the blocks to the journal of a pipe, and to raw the records that they cover.
    pub fn write(self, pipe: &Pipe<'_>) {
        self.write_raw(pipe);
        let state = format!("{}.dedupd", pipe.clean);
        pipe.kafka.create_topic(&state, self.partitions as usize, &[("retention.ms", "-1")]);
        let producer: BaseProducer = transactional(pipe.kafka).create().expect("a transactional producer");
        producer.init_transactions(LIMIT).unwrap();
        let mut random = fastrand::Rng::with_seed(20_261_123);
        let (writer, now_ms) = ("w".repeat(KEY_BYTES - "v2;scope=topic;tx=".len()), wall_ms());
        let key = StateKey { writer, is_topic_wide: true, ..StateKey::default() }.render();
        let mut checkpoint = Checkpoint::default();
        let step_ms = i64::try_from(self.over.as_millis()).unwrap() / self.transactions.max(1).cast_signed();
        // The blocks of a transaction, its end record and its marker.
        let offsets = (u64::from(self.partitions) * self.ids).div_ceil(BLOCK_IDS as u64) + 2;
        for number in 0..self.transactions {
            let at_ms = now_ms - step_ms * (self.transactions - number).cast_signed();
            let covered = number * self.ids..(number + 1) * self.ids;
            let owner = |at| Owner {
                at,
                time_ms: at_ms,
                identity: Identity(random.u128(..).to_le_bytes()),
                digest: Digest::NONE,
            };
            let places = |partition| covered.clone().map(move |offset| Coordinates { partition, offset });
            let owners: Vec<Owner> = (0..self.partitions).flat_map(places).map(owner).collect();
            let block = |owners: &[Owner]| {
                Block { hash: HashKind::Xxh3, kind: KindId::UNNAMED, owners: owners.to_vec() }.encode()
            };
            let mut records: Vec<Vec<u8>> = owners.chunks(BLOCK_IDS).map(block).collect();
            let section = |partition| Section {
                partition,
                first: covered.start,
                next: covered.end,
                clean_end: None,
                time_first_ms: at_ms,
                time_last_ms: at_ms,
                reset_kinds: Vec::new(),
            };
            let sections = (0..self.partitions).map(section).collect();
            let end = EntryEnd::of(number + 1, records.iter().map(|record| &**record), sections);
            records.push(end.encode());
            let from = offsets * number;
            checkpoint = Checkpoint {
                state_next: from,
                stream_time_ms: at_ms,
                horizon_ms: at_ms,
                section_next: Some(covered.end),
                is_topic_wide: true,
                last_entry: Some(LastEntry { entry: end.name(), from: Some(from) }),
                ..Checkpoint::default()
            };
            producer.begin_transaction().unwrap();
            for record in &records {
                producer.send(BaseRecord::to(&state).partition(0).key(&key).payload(record)).unwrap();
            }
            // A commit with records in flight waits for them in steps of 100 ms.
            while producer.in_flight_count() > 0 {
                producer.poll(Duration::from_millis(1));
            }
            producer.commit_transaction(LIMIT).unwrap();
        }
        self.commit(pipe, &checkpoint);
    }

    /// Commits the offsets of the group, each with a checkpoint that names the last entry: otherwise a restore searches for
    /// more records with another client.
    fn commit(self, pipe: &Pipe<'_>, checkpoint: &Checkpoint) {
        let mut list = TopicPartitionList::new();
        for partition in 0..i32::try_from(self.partitions).unwrap() {
            let mut added = list.add_partition(&pipe.raw, partition);
            added.set_offset(Offset::Offset(self.ids_of_partition().cast_signed())).unwrap();
            added.set_metadata(checkpoint.render_within(Checkpoint::MOST_BYTES));
        }
        let mut config = pipe.kafka.client_config();
        let client: BaseConsumer = config.set("group.id", pipe.group()).create().expect("a consumer");
        client.commit(&list, CommitMode::Sync).unwrap();
    }

    fn write_raw(self, pipe: &Pipe<'_>) {
        let mut config = pipe.kafka.client_config();
        config.set("linger.ms", "20").set("queue.buffering.max.messages", "400000");
        let producer: ThreadedProducer<DefaultProducerContext> = config.create().expect("a producer");
        for _ in 0..self.ids_of_partition() {
            for partition in 0..self.partitions {
                let partition = i32::try_from(partition).unwrap();
                while producer
                    .send(BaseRecord::<(), str>::to(&pipe.raw).partition(partition).payload("{}"))
                    .is_err()
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        producer.flush(LIMIT).unwrap();
    }
}

fn transactional(kafka: &Kafka) -> rdkafka::ClientConfig {
    let mut config = kafka.client_config();
    config.set("transactional.id", "bench.blocks").set("linger.ms", "0");
    config
}
