//! Start-up checks: do the topics exist, do they fit together, can the promise be held on them.

use std::collections::HashMap;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::TopicPartitionList;

use super::client_config::Settings;
use super::connection::said;
use super::connection::{self, Listening};
use super::error::failure;
use super::native::{self, Described};
use super::rights::{self, Operation, Resource};
use super::topics::{self, Shape};
use crate::clock;
use crate::ports::Remedy;

/// How long one question may take at the start; well below the time that a stop may take.
const ANSWER: Duration = Duration::from_secs(5);
/// Slice of a question after which events of the client are looked at.
const SLICE: Duration = Duration::from_millis(200);

/// What the checks found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// Partitions of the raw, clean and state topics.
    pub partitions: usize,
    /// Id of the cluster, where the broker tells it.
    pub cluster_id: Option<String>,
    /// Topic ids of raw, clean and state, where the broker has them (Kafka 2.8).
    pub topic_ids: [Option<String>; 3],
    /// The largest batch that the clean topic takes, bytes, where the broker tells it.
    pub largest_batch: Option<u64>,
    /// The largest batch that the state topic takes, bytes, where the broker tells it.
    pub largest_state: Option<u64>,
    /// What does not break the promise but deserves to be known.
    pub warnings: Vec<String>,
}

/// Why dedupd does not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// Nobody answers; trying again may help.
    #[error("no broker answers: {0}")]
    Unreachable(String),
    /// A broker refuses the connection: certificates, user or password. Trying again helps only when
    /// somebody mends that (exit code 3).
    #[error("the broker refuses the connection: {0}")]
    Rejected(String),
    /// The configuration asks for what this cluster does not allow (exit code 2).
    #[error("{}", .0.join("\n"))]
    Configuration(Vec<String>),
    /// Topics or rights are not as needed (exit code 3).
    #[error("{}", .0.join("\n"))]
    Refused(Vec<String>),
}

/// What the topics have to fit.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// Create what is missing, shaped like the raw topic.
    pub create: bool,
    /// The longest window: the state topic has to keep its records at least as long.
    pub window: Duration,
}

/// Asks the cluster about everything that must hold before a record moves.
pub fn check(settings: &Settings, wanted: Wanted) -> Result<Topology, CheckError> {
    let asking = Inquiry::new(settings, ANSWER)?;
    asking.everything(wanted).map_err(|error| match error {
        CheckError::Unreachable(what) => asking.unreachable(what),
        other => other,
    })
}

/// The topics as the broker describes them.
pub(super) struct Found {
    pub raw: Shape,
    pub clean: Shape,
    pub state: Shape,
    /// Dead-letter and duplicates topic, those that are configured.
    pub aside: Vec<(String, Shape)>,
    pub replication: i32,
}

impl Found {
    /// Whether the raw topic is there, and every other may be seen.
    fn may_be_completed(&self) -> bool {
        let aside = self.aside.iter().map(|(_, shape)| shape);
        self.raw.partitions().is_some() && self.shapes().into_iter().chain(aside).all(|s| *s != Shape::Hidden)
    }

    pub(super) fn shapes(&self) -> [&Shape; 3] {
        [&self.raw, &self.clean, &self.state]
    }
}

/// Asks about the topics, by clients of its own.
pub(super) struct Inquiry {
    pub settings: Settings,
    pub reader: BaseConsumer<Listening>,
    pub admin: AdminClient<DefaultClientContext>,
    /// How long one answer may take.
    pub wait: Duration,
}

pub(super) fn refuse(doing: &str, error: &KafkaError) -> CheckError {
    let failed = failure(doing, error);
    match failed.remedy {
        Remedy::Stop => CheckError::Refused(vec![failed.what]),
        _ => CheckError::Unreachable(failed.what),
    }
}

impl Inquiry {
    pub(super) fn new(settings: &Settings, wait: Duration) -> Result<Self, CheckError> {
        let create = |e: KafkaError| CheckError::Configuration(vec![said(&e)]);
        Ok(Self {
            settings: settings.clone(),
            reader: Listening::reader(settings.reader("read_committed")).map_err(create)?,
            admin: settings.base().create().map_err(create)?,
            wait,
        })
    }

    fn everything(&self, wanted: Wanted) -> Result<Topology, CheckError> {
        let mut found = self.topics()?;
        self.broker_limits()?;
        if wanted.create && found.may_be_completed() {
            self.create_missing(&found, wanted.window)?;
            found = self.topics()?;
            if topics::may_grow(&found.shapes())
                && self.group_has_begun(found.raw.partitions().unwrap_or(0))?
            {
                self.grow(&found)?;
                found = self.topics()?;
            }
        }
        let configs = self.configs(&found)?;
        let described = self.described();
        let mut verdict = topics::judge(&self.settings, &found.shapes(), &configs, wanted.window);
        verdict.problems.extend(self.missing_rights(&described));
        if !verdict.problems.is_empty() {
            return Err(CheckError::Refused(verdict.problems));
        }
        let mut ids = described.into_iter().map(|topic| topic.id);
        Ok(Topology {
            partitions: found.raw.partitions().unwrap_or(0),
            cluster_id: self.reader.client().fetch_cluster_id(self.wait),
            topic_ids: std::array::from_fn(|_| ids.next().flatten()),
            largest_batch: topics::largest_batch(&configs[1]),
            largest_state: topics::largest_batch(&configs[2]),
            warnings: verdict.warnings,
        })
    }

    /// Nobody answered; the client may have said why.
    fn unreachable(&self, what: String) -> CheckError {
        match connection::complaint_of(&self.reader, &self.settings.base()) {
            Some(complaint) if complaint.refused => CheckError::Rejected(complaint.what),
            Some(complaint) => CheckError::Unreachable(format!("{what}: {}", complaint.what)),
            None => CheckError::Unreachable(what),
        }
    }

    /// What the broker tells of the topics of [`rights::on_topics`]; nothing where it is too old for that.
    pub(super) fn described(&self) -> Vec<Described> {
        let names: Vec<&str> = rights::on_topics(&self.settings).iter().map(|(name, _)| *name).collect();
        native::topics(self.reader.client(), &names, self.wait).unwrap_or_default()
    }

    fn missing_rights(&self, topics: &[Described]) -> Vec<String> {
        rights::all_missing(&self.settings, topics, self.group_is_forbidden())
    }

    /// Whether the broker refuses access to the group. False when it does not answer: joining the group will fail then.
    ///
    /// By reading a committed offset, which needs the same coordinator and the right to Describe, which Read implies. It is
    /// one of the clean topic, where there is none, so that no pending transaction delays the answer. The client's
    /// description of a group ends the process now and then (see [`native::topics`]'s module), and its older list of
    /// groups leaves out a forbidden group like one that does not exist.
    fn group_is_forbidden(&self) -> bool {
        let refused = |error: &KafkaError| {
            error.rdkafka_error_code() == Some(RDKafkaErrorCode::GroupAuthorizationFailed)
        };
        let deadline = clock::monotonic() + self.wait;
        while clock::monotonic() < deadline {
            let mut list = TopicPartitionList::new();
            list.add_partition(&self.settings.clean, 0);
            match native::committed(self.reader.client(), &list, SLICE) {
                Ok(_) => return false,
                Err(error) if refused(&error) => return true,
                Err(_) => {}
            }
            // A refusal to name the coordinator fails no call; it comes as an event.
            while let Some(event) = self.reader.poll(Duration::ZERO) {
                if event.is_err_and(|error| refused(&error)) {
                    return true;
                }
            }
        }
        false
    }

    pub(super) fn topics(&self) -> Result<Found, CheckError> {
        let settings = &self.settings;
        let (raw, replication) = self.topic(&settings.raw)?;
        Ok(Found {
            raw,
            clean: self.topic(&settings.clean)?.0,
            state: self.topic(&settings.state)?.0,
            aside: [&settings.dead_letter, &settings.duplicates]
                .into_iter()
                .flatten()
                .map(|name| Ok((name.clone(), self.topic(name)?.0)))
                .collect::<Result<_, _>>()?,
            replication,
        })
    }

    pub(super) fn topic(&self, name: &str) -> Result<(Shape, i32), CheckError> {
        let doing = format!("asking {} for topic {name}", self.settings.bootstrap_servers);
        let metadata = self.reader.fetch_metadata(Some(name), self.wait).map_err(|e| refuse(&doing, &e))?;
        let Some(topic) = metadata.topics().iter().find(|t| t.name() == name) else {
            return Ok((Shape::Missing, 1));
        };
        match topic.error().map(RDKafkaErrorCode::from) {
            None => {
                let replication = topic.partitions().first().map_or(1, |p| p.replicas().len());
                Ok((Shape::Partitions(topic.partitions().len()), i32::try_from(replication).unwrap_or(1)))
            }
            Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => {
                Ok((Shape::Missing, 1))
            }
            Some(RDKafkaErrorCode::TopicAuthorizationFailed) => Ok((Shape::Hidden, 1)),
            Some(code) => Err(refuse(&doing, &KafkaError::MetadataFetch(code))),
        }
    }

    fn configs(&self, found: &Found) -> Result<[HashMap<String, String>; 3], CheckError> {
        let settings = &self.settings;
        let mut configs = [HashMap::new(), HashMap::new(), HashMap::new()];
        let names = [&settings.raw, &settings.clean, &settings.state];
        for ((slot, name), shape) in configs.iter_mut().zip(names).zip(found.shapes()) {
            if shape.partitions().is_some() {
                *slot = self.topic_configs(name)?;
            }
        }
        Ok(configs)
    }

    /// The configuration of a topic; empty, with a warning, where the right to see it is missing.
    pub(super) fn topic_configs(&self, name: &str) -> Result<HashMap<String, String>, CheckError> {
        let doing = format!("reading the configuration of topic {name}");
        self.describe((ResourceSpecifier::Topic(name), Resource::Topic(name)), &doing)
    }

    fn describe(
        &self,
        (asked, resource): (ResourceSpecifier<'_>, Resource<'_>),
        doing: &str,
    ) -> Result<HashMap<String, String>, CheckError> {
        let options = AdminOptions::new().request_timeout(Some(self.wait));
        let answers = pollster::block_on(self.admin.describe_configs([&asked], &options))
            .map_err(|e| refuse(doing, &e))?;
        let entries = match answers.into_iter().next() {
            Some(Ok(ConfigResource { entries, .. })) => entries,
            Some(Err(_)) | None => Vec::new(),
        };
        // The client library does not hand over the refusal, but everything has a configuration.
        if entries.is_empty() {
            let right = rights::missing(&self.settings, Operation::DescribeConfigs, resource);
            tracing::warn!("{doing} is not possible, so it is not checked; dedupd works without: {right}");
        }
        Ok(entries.into_iter().filter_map(|e| Some((e.name, e.value?))).collect())
    }

    /// Limits of the broker that the configuration has to keep.
    fn broker_limits(&self) -> Result<(), CheckError> {
        let metadata = self
            .reader
            .fetch_metadata(Some(&self.settings.raw), self.wait)
            .map_err(|e| refuse("reading the broker's limits", &e))?;
        let Some(broker) = metadata.brokers().first() else { return Ok(()) };
        let asked = (ResourceSpecifier::Broker(broker.id()), Resource::Cluster);
        let limits = self.describe(asked, "reading the broker's limits")?;
        let problems = topics::limits(&self.settings, &limits);
        if problems.is_empty() { Ok(()) } else { Err(CheckError::Configuration(problems)) }
    }
}
