//! A state topic as it is left by many transactions with one block of the same size in each partition.

use std::time::Duration;

use dedupd::clock::wall_ms;
use dedupd::dedupe::{Block, Checkpoint, HashKind, Identity, PartitionId, StateKey, Tail};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use rdkafka::{Offset, TopicPartitionList};

use super::harness::{Kafka, Pipe};

const LIMIT: Duration = Duration::from_mins(2);
/// The key of a state record has about this length, with the names of usual topics.
const KEY_BYTES: usize = 130;

/// The size of a state topic.
#[derive(Clone, Copy, Debug)]
pub struct Blocks {
    pub partitions: PartitionId,
    /// Transactions, each with one block per partition.
    pub transactions: u64,
    /// Identities of a block.
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

    /// Writes the blocks to the state topic of a pipe, and to raw the records that they cover.
    pub fn write(self, pipe: &Pipe<'_>) {
        self.write_raw(pipe);
        let state = format!("{}.dedupd", pipe.clean);
        pipe.kafka.create_topic(&state, self.partitions as usize, &[("retention.ms", "-1")]);
        let producer: BaseProducer = transactional(pipe.kafka).create().expect("a transactional producer");
        producer.init_transactions(LIMIT).unwrap();
        let mut random = fastrand::Rng::with_seed(20_261_123);
        let (writer, now_ms) = ("w".repeat(KEY_BYTES - "v1;tx=".len()), wall_ms());
        let key = StateKey { writer, ..StateKey::default() }.render();
        let mut checkpoints = vec![Checkpoint::default(); self.partitions as usize];
        let step_ms = i64::try_from(self.over.as_millis()).unwrap() / self.transactions.max(1).cast_signed();
        for number in 0..self.transactions {
            let at_ms = now_ms - step_ms * (self.transactions - number).cast_signed();
            let covered = number * self.ids..(number + 1) * self.ids;
            producer.begin_transaction().unwrap();
            for partition in 0..self.partitions {
                let block = Block {
                    hash: HashKind::Xxh3,
                    window: partition.into(),
                    first: covered.start,
                    next: covered.end,
                    time_first_ms: at_ms,
                    time_last_ms: at_ms,
                    entries: covered
                        .clone()
                        .map(|owner| (owner, Identity(random.u128(..).to_le_bytes())))
                        .collect(),
                }
                .encode();
                // Each transaction takes two offsets: those of the block and of the marker.
                checkpoints[partition as usize] = Checkpoint {
                    state_next: 2 * number,
                    stream_time_ms: at_ms,
                    tail: Some(Tail {
                        crc: Block::checksum(&block),
                        next: covered.end,
                        from: Some(2 * number),
                    }),
                    ..Checkpoint::default()
                };
                let to = BaseRecord::to(&state).partition(i32::try_from(partition).unwrap());
                producer.send(to.key(&key).payload(&block)).unwrap();
            }
            // A commit with records in flight waits for them in steps of 100 ms.
            while producer.in_flight_count() > 0 {
                producer.poll(Duration::from_millis(1));
            }
            producer.commit_transaction(LIMIT).unwrap();
        }
        self.commit(pipe, &checkpoints);
    }

    /// Commits the offsets of the group, each with a checkpoint that names the last block: otherwise a restore searches for
    /// more records with another client.
    fn commit(self, pipe: &Pipe<'_>, checkpoints: &[Checkpoint]) {
        let mut list = TopicPartitionList::new();
        for (partition, checkpoint) in (0..).zip(checkpoints) {
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
