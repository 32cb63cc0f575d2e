//! Creates missing topics and adds partitions when the raw topic has grown; only with `topics.create`.

use std::time::Duration;

use rdkafka::admin::{AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::acceptance::inherited;
use super::admin::{CheckError, FoundTopics, TopicAdmin, check_error};
use super::native;
use super::partitions::list_of;
use super::rights::{self, Operation, Resource};
use super::topics::{self, TopicShape};

/// How many times, and at which interval, the metadata is checked for new topics and partitions.
const WAIT_TRIES: usize = 50;
const WAIT_PAUSE: Duration = Duration::from_millis(100);

impl TopicAdmin {
    /// Creates the missing ones of the clean, state, dead-letter and duplicates topics. Returns the topics from metadata that
    /// has them all: another broker may still lack them, so they must not be requested again.
    pub(super) fn create_missing(
        &self,
        found: FoundTopics,
        window: Duration,
    ) -> Result<FoundTopics, CheckError> {
        if found.is_complete() {
            return Ok(found);
        }
        let settings = &self.settings;
        let partitions = i32::try_from(found.raw.partitions().unwrap_or(1)).unwrap_or(1);
        let raw = self.topic_configs(&settings.raw)?;
        let state_retention_ms = topics::state_retention(window).as_millis().to_string();
        let state = [
            ("cleanup.policy", "delete".to_owned()),
            ("retention.ms", state_retention_ms),
            ("retention.bytes", "-1".to_owned()),
        ];
        let main = [
            (&settings.clean, found.clean, inherited(&raw, false)),
            (&settings.state, found.state, state.to_vec()),
        ];
        let side = found.side.iter().map(|(name, shape)| (name, *shape, inherited(&raw, true)));
        let missing: Vec<_> =
            main.into_iter().chain(side).filter(|(_, shape, _)| *shape == TopicShape::Missing).collect();
        let wanted: Vec<NewTopic<'_>> = missing
            .iter()
            .map(|(name, _, configs)| {
                let new = NewTopic::new(name, partitions, TopicReplication::Fixed(found.replication));
                configs.iter().fold(new, |new, (key, value)| new.set(key, value))
            })
            .collect();
        self.create(&wanted)?;
        wait_for("topics were created", || Ok(Some(self.topics()?).filter(FoundTopics::is_complete)))
    }

    fn create(&self, wanted: &[NewTopic<'_>]) -> Result<(), CheckError> {
        let options = AdminOptions::new().operation_timeout(Some(self.wait));
        let results = pollster::block_on(self.admin.create_topics(wanted, &options))
            .map_err(|e| check_error("creating topics", &e))?;
        for result in results {
            match result {
                Ok(name) => tracing::info!(topic = name, "topic created"),
                // Another instance created it first.
                Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((name, code)) => {
                    let new = wanted.iter().find(|new| new.name == name);
                    let why = new.and_then(|new| native::why_not_created(self.admin.inner(), new, self.wait));
                    let why =
                        why.map_or_else(String::new, |why| format!(", which the brokers reject ({why})"));
                    return Err(self.refused(Operation::Create, ("creating", &why), (name, code)));
                }
            }
        }
        Ok(())
    }

    /// The error for a topic that the broker did not create or change.
    fn refused(
        &self,
        operation: Operation,
        (doing, why): (&str, &str),
        (name, code): (String, RDKafkaErrorCode),
    ) -> CheckError {
        match code {
            RDKafkaErrorCode::TopicAuthorizationFailed | RDKafkaErrorCode::ClusterAuthorizationFailed => {
                let missing = rights::missing(&self.settings, operation, Resource::Topic(&name));
                CheckError::Refused(vec![missing])
            }
            code => check_error(&format!("{doing} topic {name}{why}"), &KafkaError::AdminOp(code)),
        }
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

    /// Adds partitions to the clean and the state topic until they have as many as the raw topic. Returns the topics from
    /// metadata that has the partitions.
    pub(super) fn grow(&self, found: FoundTopics) -> Result<FoundTopics, CheckError> {
        let Some(partitions) = found.raw.partitions() else { return Ok(found) };
        let too_small = topics::too_few_partitions(&self.settings, &found.shapes());
        for (name, _) in &too_small {
            self.add_partitions(name, partitions)?;
        }
        wait_for("partitions were added", || {
            let has_all =
                |it: &FoundTopics| topics::too_few_partitions(&self.settings, &it.shapes()).is_empty();
            Ok(Some(self.topics()?).filter(has_all))
        })
    }

    fn add_partitions(&self, name: &str, partitions: usize) -> Result<(), CheckError> {
        let options = AdminOptions::new().operation_timeout(Some(self.wait));
        let growth = NewPartitions::new(name, partitions);
        let results = pollster::block_on(self.admin.create_partitions([&growth], &options))
            .map_err(|e| check_error(&format!("adding partitions to topic {name}"), &e))?;
        for result in results {
            match result {
                Ok(name) => tracing::info!(topic = name, partitions, "partitions added"),
                // Another instance added them first.
                Err((_, RDKafkaErrorCode::InvalidPartitions)) => {}
                Err(failed) => {
                    return Err(self.refused(Operation::Alter, ("adding partitions to", ""), failed));
                }
            }
        }
        Ok(())
    }
}

/// New topics and partitions do not appear at once in the metadata of every broker.
fn wait_for<T>(done: &str, request: impl Fn() -> Result<Option<T>, CheckError>) -> Result<T, CheckError> {
    for _ in 0..WAIT_TRIES {
        if let Some(found) = request()? {
            return Ok(found);
        }
        std::thread::sleep(WAIT_PAUSE);
    }
    Err(CheckError::Unreachable(format!("{done} but do not appear in the metadata")))
}
