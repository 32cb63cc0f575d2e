//! The topic to be written: is it there, who leads it, how long is it.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::MetadataTopic;

use super::error::GenerateError;

const ANSWER: Duration = Duration::from_secs(30);

/// A topic and the client that asks about it.
pub(super) struct Topic<'a> {
    reader: BaseConsumer,
    config: &'a ClientConfig,
    servers: &'a str,
    name: &'a str,
}

impl<'a> Topic<'a> {
    pub fn new(config: &'a ClientConfig, servers: &'a str, name: &'a str) -> Result<Self, GenerateError> {
        let mut questions = config.clone();
        // Everything written counts, committed or not.
        questions.set("isolation.level", "read_uncommitted");
        let reader = questions.create().map_err(GenerateError::Settings)?;
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
                // A new topic is not at once in the metadata.
                for _ in 0..100 {
                    if let Some(count) = self.partitions()? {
                        return Ok(count);
                    }
                    std::thread::sleep(Duration::from_millis(100));
                }
                Err(missing())
            }
        }
    }

    fn partitions(&self) -> Result<Option<i32>, GenerateError> {
        let metadata =
            self.reader.fetch_metadata(Some(self.name), ANSWER).map_err(|e| self.unreachable(e))?;
        let found = metadata.topics().iter().find(|topic| topic.name() == self.name);
        let found = found.filter(|topic| topic.error().is_none()).map(MetadataTopic::partitions);
        let led = found.filter(|all| !all.is_empty() && all.iter().all(|one| one.leader() >= 0));
        Ok(led.and_then(|all| i32::try_from(all.len()).ok()))
    }

    fn create(&self, partitions: u32) -> Result<(), GenerateError> {
        let admin: AdminClient<DefaultClientContext> =
            self.config.create().map_err(GenerateError::Settings)?;
        let count = i32::try_from(partitions).unwrap_or(i32::MAX);
        // -1: as many replicas as the broker makes by default.
        let topic = NewTopic::new(self.name, count, TopicReplication::Fixed(-1));
        let options = AdminOptions::new().operation_timeout(Some(ANSWER));
        let answers =
            pollster::block_on(admin.create_topics([&topic], &options)).map_err(|e| self.unreachable(e))?;
        for answer in answers {
            match answer {
                // Somebody else was faster.
                Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((topic, why)) => return Err(GenerateError::NotCreated { topic, why }),
            }
        }
        Ok(())
    }

    /// Host and port of every broker, as it advertises them.
    pub fn brokers(&self) -> Result<Vec<(String, u16)>, GenerateError> {
        let metadata =
            self.reader.fetch_metadata(Some(self.name), ANSWER).map_err(|e| self.unreachable(e))?;
        let brokers = metadata.brokers().iter();
        Ok(brokers.map(|b| (b.host().to_owned(), u16::try_from(b.port()).unwrap_or(0))).collect())
    }

    /// Offsets in all partitions' logs so far.
    pub fn length(&self, partitions: i32) -> Result<u64, GenerateError> {
        (0..partitions).try_fold(0, |sum, partition| {
            let ends = self.reader.fetch_watermarks(self.name, partition, ANSWER);
            let (_, end) = ends.map_err(|e| self.unreachable(e))?;
            Ok(sum + u64::try_from(end).unwrap_or(0))
        })
    }

    fn unreachable(&self, source: KafkaError) -> GenerateError {
        GenerateError::Unreachable { servers: self.servers.to_owned(), seconds: ANSWER.as_secs(), source }
    }
}
