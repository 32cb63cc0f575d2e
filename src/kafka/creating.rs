//! Creates missing topics and adds partitions when the raw topic has grown; only with `topics.create`. For `dedupd check` the
//! brokers only validate both.

use std::time::Duration;

use rdkafka::admin::{NewTopic, TopicReplication};
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::Offset as KafkaOffset;

use super::acceptance::inherited;
use super::admin::{CheckError, TopicAdmin, check_error};
use super::client_config::Settings;
use super::ends::Listed;
use super::native::{self, Execution, TopicAnswer};
use super::partitions::list_of;
use super::rights::{self, Operation, Resource};
use super::topics::{self, TopicShape};

/// How many times, and at which interval, the metadata is checked for new topics and partitions.
const WAIT_TRIES: usize = 50;
const WAIT_PAUSE: Duration = Duration::from_millis(100);

/// What happens to topics that are missing, or have too few partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Create {
    /// They are problems.
    Never,
    /// The brokers validate what a start would do, and nothing is changed.
    Validate,
    /// They are created, and get more partitions.
    Perform,
}

/// The topic whose partitions, replication and settings a created one gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Model {
    pub source: String,
    pub partitions: usize,
    pub replication: i32,
}

/// Settings of a topic.
type Settable = Vec<(&'static str, String)>;

/// The topics as the broker describes them.
pub(super) struct FoundTopics {
    pub raw: TopicShape,
    pub clean: TopicShape,
    pub state: TopicShape,
    /// The configured ones of the dead-letter and duplicates topics.
    pub side: Vec<(String, TopicShape)>,
    pub replication: i32,
    /// What the brokers would create or change, a sentence for each topic.
    pub planned: Vec<String>,
}

impl FoundTopics {
    /// Whether the raw topic exists and no other topic is hidden by permissions: then missing topics can be created.
    pub(super) fn can_be_completed(&self) -> bool {
        self.raw.partitions().is_some() && self.has_no(TopicShape::Unauthorized)
    }

    /// Whether no topic is missing.
    fn is_complete(&self) -> bool {
        self.has_no(TopicShape::Missing)
    }

    fn has_no(&self, unwanted: TopicShape) -> bool {
        let side = self.side.iter().map(|(_, shape)| shape);
        self.shapes().into_iter().chain(side).all(|shape| *shape != unwanted)
    }

    pub(super) fn shapes(&self) -> [&TopicShape; 3] {
        [&self.raw, &self.clean, &self.state]
    }

    /// Takes these missing topics for created.
    fn plan(mut self, planned: Vec<String>, partitions: usize) -> Self {
        self.planned.extend(planned);
        let side = self.side.iter_mut().map(|(_, shape)| shape);
        let missing = [&mut self.clean, &mut self.state].into_iter().chain(side);
        for shape in missing.filter(|shape| **shape == TopicShape::Missing) {
            *shape = TopicShape::Planned(partitions);
        }
        self
    }
}

impl TopicAdmin {
    /// Creates the missing ones of the clean, state, dead-letter and duplicates topics. Returns the topics from metadata that
    /// has them all: another broker may still lack them, so they must not be requested again.
    pub(super) fn create_missing(
        &self,
        found: FoundTopics,
        create: Create,
        window: Duration,
    ) -> Result<FoundTopics, CheckError> {
        if found.is_complete() {
            return Ok(found);
        }
        let settings = &self.settings;
        let partitions = found.raw.partitions().unwrap_or(1);
        let raw = self.topic_configs(&settings.raw)?;
        let state_retention_ms = topics::state_retention(window).as_millis().to_string();
        let state = [
            ("cleanup.policy", "delete".to_owned()),
            ("retention.ms", state_retention_ms),
            ("retention.bytes", "-1".to_owned()),
        ];
        let main = [
            (settings.clean.clone(), found.clean, inherited(&raw, false)),
            (settings.state.clone(), found.state, state.to_vec()),
        ];
        let side = found.side.iter().map(|(name, shape)| (name.clone(), *shape, inherited(&raw, true)));
        let missing = main.into_iter().chain(side).filter(|(_, shape, _)| *shape == TopicShape::Missing);
        let missing: Vec<_> = missing.map(|(name, _, configs)| (name, configs)).collect();
        let model = Model { source: settings.raw.clone(), partitions, replication: found.replication };
        let planned = self.create_topics(&missing, &model, create)?;
        if create == Create::Validate {
            return Ok(found.plan(planned, partitions));
        }
        wait_for("topics were created", || Ok(Some(self.topics()?).filter(FoundTopics::is_complete)))
    }

    /// Creates the target of `rekey`. It keeps all records with one key, because several topics may have the same keys. Returns
    /// what a start does when the brokers only validate it.
    pub(super) fn create_target(&self, model: &Model, create: Create) -> Result<Option<String>, CheckError> {
        let configs = inherited(&self.topic_configs(&model.source)?, true);
        let planned = self.create_topics(&[(self.settings.clean.clone(), configs)], model, create)?;
        if create == Create::Validate {
            return Ok(planned.into_iter().next());
        }
        wait_for("the target topic was created", || {
            Ok((self.topic(&self.settings.clean)?.0 != TopicShape::Missing).then_some(()))
        })?;
        Ok(None)
    }

    /// Creates these topics. Returns what a start does about each.
    fn create_topics(
        &self,
        topics: &[(String, Settable)],
        Model { partitions, replication, .. }: &Model,
        create: Create,
    ) -> Result<Vec<String>, CheckError> {
        let count = i32::try_from(*partitions).unwrap_or(i32::MAX);
        let wanted: Vec<NewTopic<'_>> = topics
            .iter()
            .map(|(name, configs)| {
                let new = NewTopic::new(name, count, TopicReplication::Fixed(*replication));
                configs.iter().fold(new, |new, (key, value)| new.set(key, value))
            })
            .collect();
        let answers = native::create_topics(self.admin.inner(), &wanted, self.execution(create));
        self.accept(answers, Operation::Create, create)?;
        Ok(wanted.iter().map(|new| planned(new, *partitions, *replication)).collect())
    }

    fn execution(&self, create: Create) -> Execution {
        Execution { validate_only: create == Create::Validate, wait: self.wait }
    }

    /// Fails with the first topic that the brokers refuse to create or to change.
    fn accept(
        &self,
        answers: Result<Vec<TopicAnswer>, KafkaError>,
        operation: Operation,
        create: Create,
    ) -> Result<(), CheckError> {
        use RDKafkaErrorCode as C;
        // The code is the answer when another instance was first.
        let (doing, done, already) = match operation {
            Operation::Create => ("creating", "topic created", C::TopicAlreadyExists),
            _ => ("adding partitions to", "partitions added", C::InvalidPartitions),
        };
        let answers = answers.map_err(|e| check_error(&format!("{doing} topics"), &e))?;
        for TopicAnswer { name, error, why } in answers {
            match error {
                None if create == Create::Perform => tracing::info!(topic = name, "{done}"),
                None => {}
                Some(code) if code == already => {}
                Some(C::TopicAuthorizationFailed | C::ClusterAuthorizationFailed) => {
                    let missing = rights::missing(&self.settings, operation, Resource::Topic(&name));
                    return Err(CheckError::Refused(vec![missing]));
                }
                Some(code) => {
                    let doing = format!("{doing} topic {name}, which the brokers reject ({why})");
                    return Err(check_error(&doing, &KafkaError::AdminOp(code)));
                }
            }
        }
        Ok(())
    }

    /// Whether the group has ever committed an offset of the raw topic. A pair of topics that was never used together may
    /// be a mistake, and partitions cannot be removed.
    pub(super) fn group_has_committed(&self, raw: usize) -> Result<bool, CheckError> {
        let doing = format!("reading the offsets of group {}", self.settings.group);
        let list =
            list_of((0..u32::try_from(raw).unwrap_or(u32::MAX)).map(|id| (self.settings.raw.as_str(), id)));
        let committed =
            native::committed(self.reader.client(), &list, self.wait).map_err(|e| check_error(&doing, &e))?;
        Ok(committed.into_iter().flatten().any(|it| it.offset.is_some()))
    }

    /// The warning about a clean topic without a record, although the group has processed raw: the end of a log never moves back.
    pub(super) fn empty_clean(&self, found: &FoundTopics) -> Option<String> {
        let Settings { raw, clean, group, .. } = &self.settings;
        let partitions =
            found.clean.partitions().filter(|_| matches!(found.clean, TopicShape::Partitions(_)));
        let logs = (0..).take(partitions.unwrap_or(0)).map(|number| (clean.as_str(), number));
        let ends = Listed::request(&self.reader, logs.clone(), KafkaOffset::End, self.wait);
        // What cannot be read may have records.
        let is_written =
            |log| ends.as_ref().map_or(true, |ends| ends.offset_of(log).map_or(true, |end| end > 0));
        if logs.clone().any(is_written) {
            return None;
        }
        let has_processed = self.group_has_committed(found.raw.partitions().unwrap_or(0)).unwrap_or(false);
        has_processed.then(|| {
            format!(
                "topic {clean} has no record, but group {group} has processed topic {raw}: what it has forwarded is in another topic, \
                 and is not written again. Restore topics.clean; or, to write everything again, set group.id and topics.state to \
                 other names"
            )
        })
    }

    /// Adds partitions to the clean and the state topic until they have as many as the raw topic. Returns the topics from
    /// metadata that has the partitions.
    pub(super) fn grow(&self, mut found: FoundTopics, create: Create) -> Result<FoundTopics, CheckError> {
        let Some(partitions) = found.raw.partitions() else { return Ok(found) };
        let too_small = topics::too_few_partitions(&self.settings, &found.shapes());
        let grown: Vec<&str> = too_small.iter().map(|(name, _)| *name).collect();
        let answers = native::add_partitions(self.admin.inner(), &grown, partitions, self.execution(create));
        self.accept(answers, Operation::Alter, create)?;
        if create == Create::Validate {
            found.planned.extend(too_small.iter().map(|(name, count)| {
                format!("a start adds partitions to topic {name}: {partitions} instead of {count}")
            }));
            let is_small = |shape: &&mut TopicShape| shape.partitions() < Some(partitions);
            for shape in [&mut found.clean, &mut found.state].into_iter().filter(is_small) {
                *shape = TopicShape::Partitions(partitions);
            }
            return Ok(found);
        }
        wait_for("partitions were added", || {
            let has_all =
                |it: &FoundTopics| topics::too_few_partitions(&self.settings, &it.shapes()).is_empty();
            Ok(Some(self.topics()?).filter(has_all))
        })
    }
}

/// What a start does about a missing topic.
fn planned(NewTopic { name, config, .. }: &NewTopic<'_>, partitions: usize, replication: i32) -> String {
    let settings = config.iter().map(|(key, value)| format!(", {key}={value}"));
    format!(
        "a start creates topic {name} with {partitions} partitions, replication factor {replication}{}",
        settings.collect::<String>()
    )
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
