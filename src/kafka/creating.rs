//! Creates missing topics and adds partitions when the raw topic has grown; only with `topics.create`.

use std::time::Duration;

use rdkafka::admin::{AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::admin::{CheckError, FoundTopics, TopicAdmin, check_error};
use super::native;
use super::partitions::list_of;
use super::rights::{self, Operation, Resource};
use super::topics::{self, Shape};

/// Settings that a created clean topic inherits from the raw topic: retention, and which records it accepts.
const INHERITED: [&str; 6] = [
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
    "max.message.bytes",
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
];
/// How many times, and at which interval, the metadata is checked for new topics and partitions.
const WAIT_TRIES: usize = 50;
const WAIT_PAUSE: Duration = Duration::from_millis(100);

impl TopicAdmin {
    /// Creates the missing ones of the clean, state, dead-letter and duplicates topics.
    pub(super) fn create_missing(&self, found: &FoundTopics, window: Duration) -> Result<(), CheckError> {
        let settings = &self.settings;
        let partitions = i32::try_from(found.raw.partitions().unwrap_or(1)).unwrap_or(1);
        let raw = self.topic_configs(&settings.raw)?;
        let state_retention_ms = topics::state_retention(window).as_millis().to_string();
        let inherited: Vec<(&str, &str)> =
            INHERITED.iter().filter_map(|key| Some((*key, raw.get(*key)?.as_str()))).collect();
        let state = [
            ("cleanup.policy", "delete"),
            ("retention.ms", state_retention_ms.as_str()),
            ("retention.bytes", "-1"),
        ];
        let mut wanted: Vec<NewTopic<'_>> = Vec::new();
        let topic = |name: &str, configs: &[(&str, &str)]| -> (String, Vec<(String, String)>) {
            (name.to_owned(), configs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
        };
        let mut missing = Vec::new();
        if found.clean == Shape::Missing {
            missing.push(topic(&settings.clean, &inherited));
        }
        if found.state == Shape::Missing {
            missing.push(topic(&settings.state, &state));
        }
        let side = found.side.iter().filter(|(_, shape)| *shape == Shape::Missing);
        missing.extend(side.map(|(name, _)| topic(name, &[])));
        for (name, configs) in &missing {
            let mut new = NewTopic::new(name, partitions, TopicReplication::Fixed(found.replication));
            for (key, value) in configs {
                new = new.set(key, value);
            }
            wanted.push(new);
        }
        self.create(&wanted)
    }

    fn create(&self, wanted: &[NewTopic<'_>]) -> Result<(), CheckError> {
        if wanted.is_empty() {
            return Ok(());
        }
        let options = AdminOptions::new().operation_timeout(Some(self.wait));
        let results = pollster::block_on(self.admin.create_topics(wanted, &options))
            .map_err(|e| check_error("creating topics", &e))?;
        for result in results {
            match result {
                Ok(name) => tracing::info!(topic = name, "topic created"),
                // Another instance created it first.
                Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((
                    name,
                    RDKafkaErrorCode::TopicAuthorizationFailed | RDKafkaErrorCode::ClusterAuthorizationFailed,
                )) => return Err(self.missing_permission(Operation::Create, &name)),
                Err((name, code)) => {
                    return Err(check_error(&format!("creating topic {name}"), &KafkaError::AdminOp(code)));
                }
            }
        }
        wait_until("topics were created", || {
            let missing = wanted.iter().try_fold(0, |n, topic| {
                Ok::<_, CheckError>(n + usize::from(self.topic(topic.name)?.0 == Shape::Missing))
            })?;
            Ok(missing == 0)
        })
    }

    fn missing_permission(&self, operation: Operation, topic: &str) -> CheckError {
        CheckError::Refused(vec![rights::missing(&self.settings, operation, Resource::Topic(topic))])
    }

    /// Whether the group has ever committed an offset of the raw topic. A pair of topics that was never used together may
    /// be a mistake, and partitions cannot be removed.
    pub(super) fn group_has_committed(&self, raw: usize) -> Result<bool, CheckError> {
        let doing = format!("reading the offsets of group {}", self.settings.group);
        let list = list_of(&self.settings.raw, 0..u32::try_from(raw).unwrap_or(u32::MAX));
        let committed =
            native::committed(self.reader.client(), &list, self.wait).map_err(|e| check_error(&doing, &e))?;
        Ok(committed.into_iter().flatten().any(|it| it.offset.is_some()))
    }

    /// Adds partitions to the clean and the state topic until they have as many as the raw topic. Returns once the metadata
    /// shows them.
    pub(super) fn grow(&self, found: &FoundTopics) -> Result<(), CheckError> {
        let Some(partitions) = found.raw.partitions() else { return Ok(()) };
        let too_small = topics::too_few_partitions(&self.settings, &found.shapes());
        for (name, _) in &too_small {
            self.add_partitions(name, partitions)?;
        }
        wait_until("partitions were added", || {
            Ok(topics::too_few_partitions(&self.settings, &self.topics()?.shapes()).is_empty())
        })
    }

    fn add_partitions(&self, name: &str, partitions: usize) -> Result<(), CheckError> {
        let options = AdminOptions::new().operation_timeout(Some(self.wait));
        let growth = NewPartitions::new(name, partitions);
        let doing = format!("adding partitions to topic {name}");
        let results = pollster::block_on(self.admin.create_partitions([&growth], &options))
            .map_err(|e| check_error(&doing, &e))?;
        for result in results {
            match result {
                Ok(name) => tracing::info!(topic = name, partitions, "partitions added"),
                // Another instance added them first.
                Err((_, RDKafkaErrorCode::InvalidPartitions)) => {}
                Err((
                    name,
                    RDKafkaErrorCode::TopicAuthorizationFailed | RDKafkaErrorCode::ClusterAuthorizationFailed,
                )) => return Err(self.missing_permission(Operation::Alter, &name)),
                Err((_, code)) => return Err(check_error(&doing, &KafkaError::AdminOp(code))),
            }
        }
        Ok(())
    }
}

/// New topics and partitions do not appear at once in the metadata of every broker.
fn wait_until(done: &str, is_visible: impl Fn() -> Result<bool, CheckError>) -> Result<(), CheckError> {
    for _ in 0..WAIT_TRIES {
        if is_visible()? {
            return Ok(());
        }
        std::thread::sleep(WAIT_PAUSE);
    }
    Err(CheckError::Unreachable(format!("{done} but do not appear in the metadata")))
}
