//! The target topic: whether it exists, its brokers, its length.

use std::time::Duration;

use dedupd_tokens::Authenticated;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::{Metadata, MetadataTopic};
use rdkafka::{ClientConfig, ClientContext};

use super::error::GenerateError;

const TIMEOUT: Duration = Duration::from_secs(30);
/// How often the brokers are queried about a new topic, and the time between two queries.
const ATTEMPTS: u32 = 100;
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Ignores errors of the client: calls return them.
struct Silent;

impl ClientContext for Silent {
    fn error(&self, _: KafkaError, _: &str) {}
}

impl ConsumerContext for Silent {}

/// A topic and the client that queries it.
pub(super) struct Topic<'a> {
    reader: Authenticated<BaseConsumer<Silent>>,
    config: &'a ClientConfig,
    servers: &'a str,
    name: &'a str,
}

impl<'a> Topic<'a> {
    pub fn new(config: &'a ClientConfig, servers: &'a str, name: &'a str) -> Result<Self, GenerateError> {
        let mut reader = config.clone();
        // All written records count, committed or not.
        reader.set("isolation.level", "read_uncommitted");
        let reader = dedupd_tokens::create(&reader, Silent).map_err(GenerateError::Settings)?;
        Ok(Self { reader, config, servers, name })
    }

    /// Finds the topic, or creates it with `partitions`. Returns its number of partitions.
    pub fn ensure(&self, partitions: Option<u32>) -> Result<i32, GenerateError> {
        let missing =
            || GenerateError::MissingTopic { topic: self.name.to_owned(), servers: self.servers.to_owned() };
        match (self.partitions()?, partitions) {
            (Some(count), _) => Ok(count),
            (None, None) => Err(missing()),
            (None, Some(wanted)) => {
                self.create(wanted)?;
                // A new topic appears in the metadata with a delay.
                for _ in 0..ATTEMPTS {
                    if let Some(count) = self.partitions()? {
                        return Ok(count);
                    }
                    std::thread::sleep(RETRY_INTERVAL);
                }
                Err(missing())
            }
        }
    }

    fn partitions(&self) -> Result<Option<i32>, KafkaError> {
        let metadata = self.metadata()?;
        let found = metadata.topics().iter().find(|topic| topic.name() == self.name);
        let found = found.filter(|topic| topic.error().is_none()).map(MetadataTopic::partitions);
        let led = found.filter(|all| !all.is_empty() && all.iter().all(|one| one.leader() >= 0));
        Ok(led.and_then(|all| i32::try_from(all.len()).ok()))
    }

    fn create(&self, partitions: u32) -> Result<(), GenerateError> {
        let admin: Authenticated<AdminClient<DefaultClientContext>> =
            dedupd_tokens::create(self.config, DefaultClientContext).map_err(GenerateError::Settings)?;
        let count = i32::try_from(partitions).unwrap_or(i32::MAX);
        // -1: the default replication factor of the broker.
        let topic = NewTopic::new(self.name, count, TopicReplication::Fixed(-1));
        let options = AdminOptions::new().operation_timeout(Some(TIMEOUT));
        let results = pollster::block_on(admin.create_topics([&topic], &options))?;
        for result in results {
            match result {
                // Another client created it first.
                Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((topic, why)) => return Err(GenerateError::NotCreated { topic, why }),
            }
        }
        Ok(())
    }

    /// Host and port of every broker, as it advertises them.
    pub fn brokers(&self) -> Result<Vec<(String, u16)>, KafkaError> {
        let metadata = self.metadata()?;
        let brokers = metadata.brokers().iter();
        Ok(brokers.map(|b| (b.host().to_owned(), u16::try_from(b.port()).unwrap_or(0))).collect())
    }

    /// The sum of the end offsets of all partitions.
    pub fn length(&self, partitions: i32) -> Result<u64, KafkaError> {
        (0..partitions)
            .try_fold(0, |sum, partition| Ok(sum + u64::try_from(self.end(partition)?).unwrap_or(0)))
    }

    /// The metadata of the client may contain a new topic before its leader has it, so `NotLeaderForPartition` is
    /// retried.
    fn end(&self, partition: i32) -> Result<i64, KafkaError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.reader.fetch_watermarks(self.name, partition, TIMEOUT) {
                Err(error)
                    if error.rdkafka_error_code() == Some(RDKafkaErrorCode::NotLeaderForPartition)
                        && attempts < ATTEMPTS =>
                {
                    std::thread::sleep(RETRY_INTERVAL);
                }
                ends => return ends.map(|(_, end)| end),
            }
        }
    }

    fn metadata(&self) -> Result<Metadata, KafkaError> {
        self.reader.fetch_metadata(Some(self.name), TIMEOUT)
    }
}
