//! Start-up checks: the topics exist, match each other, and are configured so that the guarantee holds.

use std::time::Duration;

use dedupd_tokens::{self as tokens, Authenticated};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, ResourceSpecifier};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::client_config::Settings;
use super::closing::Closing;
use super::connection::error_text;
use super::connection::{self, ProblemCapture};
use super::creating::{Create, FoundTopics};
use super::error::failure;
use super::features::{self, ApiVersions};
use super::native::{self, Described};
use super::partitions::list_of;
use super::rights::{self, Operation, Resource};
use super::topics::{self, TopicConfig, TopicShape};
use crate::clock;
use crate::ports::Remedy;

/// Time limit of one request at the start; well below the time limit of a stop.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of one attempt to read an offset; the client's error events are read after each attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(200);
/// How long the events are read after an attempt.
const EVENT_WAIT: Duration = Duration::from_millis(20);

/// How long the reader's log is read for the versions of the APIs. They are in it when a broker has responded.
const VERSIONS_WAIT: Duration = Duration::from_millis(100);

/// The result of the checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// Partitions of the raw, clean and state topics.
    pub partitions: usize,
    /// Id of the cluster; `None` when the broker does not report it.
    pub cluster_id: Option<String>,
    /// Topic ids of raw, clean and state; `None` before Kafka 2.8.
    pub topic_ids: [Option<String>; 3],
    /// The smallest `max.message.bytes` of the topics that transactions write to, bytes; `None` when the broker reports none. The
    /// client has one limit for the batches of all topics.
    pub largest_batch: Option<u64>,
    /// `max.message.bytes` of the state topic, bytes; `None` when the broker does not report it.
    pub largest_state: Option<u64>,
    /// `retention.ms` of the state topic; `None` without a limit, or when the broker does not report it.
    pub state_retention: Option<Duration>,
    /// Findings that do not break the guarantee but that an operator should see.
    pub warnings: Vec<String>,
}

/// Why dedupd does not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// No broker responds; a retry may succeed. `run` and `rekey` retry, `check` ends with exit code 8.
    #[error("no broker answers: {0}")]
    Unreachable(String),
    /// A broker rejects the connection: certificates, user or password. A retry succeeds only after an operator
    /// corrects that (exit code 3).
    #[error("the connection is rejected: {0}")]
    Rejected(String),
    /// The configuration requires what this cluster does not allow (exit code 2).
    #[error("{}", .0.join("\n"))]
    Configuration(Vec<String>),
    /// Topics or permissions do not meet the requirements (exit code 3).
    #[error("{}", .0.join("\n"))]
    Refused(Vec<String>),
}

/// What the topics are checked against.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// Whether missing topics are created, with the partitions and replication of the raw topic.
    pub create: Create,
    /// The longest window: the state topic must retain its records at least as long.
    pub window: Duration,
    /// Whether ids come from the record's key only.
    pub key_is_id: bool,
}

/// The result of the checks, and what a validation has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checks {
    /// What the topics have in common.
    pub topology: Topology,
    /// What a start creates or changes, a sentence for each topic.
    pub planned: Vec<String>,
    /// Partitions that the state topic had before.
    pub state_partitions: usize,
}

/// Checks everything that must hold before the first record is processed.
pub fn check(settings: &Settings, wanted: Wanted, closing: &Closing) -> Result<Checks, CheckError> {
    let mut reader = settings.reader("read_committed");
    ApiVersions::request(&mut reader);
    let admin = TopicAdmin::with_reader(settings, reader, REQUEST_TIMEOUT)?;
    admin.checked(closing, |admin| admin.run_checks(wanted))
}

/// Describes, creates and grows topics, with clients of its own.
pub(super) struct TopicAdmin {
    pub settings: Settings,
    pub reader: Authenticated<BaseConsumer<ProblemCapture>>,
    pub admin: Authenticated<AdminClient<ProblemCapture>>,
    /// Time limit of one request.
    pub wait: Duration,
}

pub(super) fn check_error(doing: &str, error: &KafkaError) -> CheckError {
    let failed = failure(doing, error);
    match failed.remedy {
        Remedy::Stop => CheckError::Refused(vec![failed.what]),
        // Whether it is retried is decided by the caller.
        _ => CheckError::Unreachable(match error.rdkafka_error_code() {
            Some(
                RDKafkaErrorCode::BrokerTransportFailure
                | RDKafkaErrorCode::OperationTimedOut
                | RDKafkaErrorCode::AllBrokersDown,
            ) => {
                format!("no answer while {doing}")
            }
            _ => format!("{} while {doing}", error_text(error)),
        }),
    }
}

impl TopicAdmin {
    pub(super) fn new(settings: &Settings, wait: Duration) -> Result<Self, CheckError> {
        Self::with_reader(settings, settings.reader("read_committed"), wait)
    }

    fn with_reader(settings: &Settings, reader: ClientConfig, wait: Duration) -> Result<Self, CheckError> {
        let create = |e: KafkaError| CheckError::Configuration(vec![error_text(&e)]);
        Ok(Self {
            settings: settings.clone(),
            reader: ProblemCapture::reader(reader).map_err(create)?,
            admin: tokens::create(&settings.base(), ProblemCapture::default()).map_err(create)?,
            wait,
        })
    }

    /// The result of checks after which the clients are closed.
    pub(super) fn checked<T>(
        self,
        closing: &Closing,
        check: impl FnOnce(&Self) -> Result<T, CheckError>,
    ) -> Result<T, CheckError> {
        let checked = check(&self).map_err(|error| match error {
            CheckError::Unreachable(what) => self.explain_unreachable(&what),
            other => other,
        });
        closing.close(self);
        checked
    }

    fn run_checks(&self, wanted: Wanted) -> Result<Checks, CheckError> {
        let mut found = self.topics()?;
        let state_partitions = found.state.partitions().unwrap_or(0);
        let has_configs = self.broker_limits()?;
        if wanted.create != Create::Never && found.can_be_completed() {
            found = self.create_missing(found, wanted.create, wanted.window)?;
            if topics::can_grow(&found.shapes())
                && self.group_has_committed(found.raw.partitions().unwrap_or(0))?
            {
                found = self.grow(found, wanted.create)?;
            }
        }
        let configs = if has_configs { self.configs(&found)? } else { Default::default() };
        let side = if has_configs { self.side_configs(&found)? } else { Vec::new() };
        let described = self.describe_topics();
        let mut findings = topics::check(&self.settings, &found.shapes(), &configs, &side, wanted);
        let required = rights::on_topics(&self.settings);
        let is_group_denied = self.is_group_denied();
        findings.problems.extend(rights::lacking(&self.settings, &required, &described, is_group_denied));
        // Afterwards, because it drops the events of the reader.
        let (problems, warnings) = self.missing_features(&described);
        findings.problems.extend(problems);
        findings.warnings.extend(warnings);
        findings.warnings.extend(self.empty_clean(&found));
        if !findings.problems.is_empty() {
            return Err(CheckError::Refused(findings.problems));
        }
        let mut ids = described.into_iter().map(|topic| topic.id);
        let [_, largest_clean, largest_state] = configs.each_ref().map(topics::largest_batch);
        let topology = Topology {
            partitions: found.raw.partitions().unwrap_or(0),
            cluster_id: self.reader.client().fetch_cluster_id(self.wait),
            topic_ids: std::array::from_fn(|_| ids.next().flatten()),
            largest_batch: [largest_clean, largest_state]
                .into_iter()
                .chain(side.iter().map(|(_, it)| topics::largest_batch(it)))
                .flatten()
                .min(),
            largest_state,
            state_retention: topics::retention(&configs[2]),
            warnings: findings.warnings,
        };
        Ok(Checks { topology, planned: found.planned, state_partitions })
    }

    /// The error for a broker that did not respond, with the reason when the client reported one.
    pub(super) fn explain_unreachable(&self, what: &str) -> CheckError {
        match connection::connection_problem(&self.reader, &self.settings.base()) {
            Some(problem) if problem.refused => CheckError::Rejected(problem.what),
            Some(problem) => CheckError::Unreachable(problem.what),
            None => CheckError::Unreachable(format!(
                "{what}; check that the brokers run, and that kafka.bootstrap_servers has their port for clients"
            )),
        }
    }

    /// The broker's descriptions of the topics of [`rights::on_topics`]; empty when the broker is too old to return them.
    pub(super) fn describe_topics(&self) -> Vec<Described> {
        let names: Vec<&str> = rights::on_topics(&self.settings).iter().map(|(name, _)| *name).collect();
        native::topics(self.reader.client(), &names, self.wait).unwrap_or_default()
    }

    /// What the brokers lack, by the versions that the reader's log has reported, and by the ids of existing topics.
    fn missing_features(&self, described: &[Described]) -> (Vec<String>, Vec<String>) {
        let versions = || self.reader.context().versions.so_far();
        let deadline = clock::monotonic() + VERSIONS_WAIT;
        while versions().is_empty() && clock::monotonic() < deadline {
            drop(self.reader.poll(VERSIONS_WAIT / 10));
        }
        let has_ids = described.iter().all(|topic| topic.id.is_some() || topic.error.is_some());
        features::missing(&versions(), has_ids)
    }

    /// Whether the broker denies access to the group. False when it does not respond: joining the group fails then.
    ///
    /// The check reads a committed offset. That needs the same coordinator and the Describe permission, which Read implies.
    /// It reads an offset of the clean topic, where the group has none, so that no pending transaction delays the response.
    /// Other calls do not work: the client's description of a group sometimes ends the process (see the module of
    /// [`native::topics`]), and its older list of groups omits a group both when access is denied and when it does not exist.
    pub(super) fn is_group_denied(&self) -> bool {
        let denied = |error: &KafkaError| {
            error.rdkafka_error_code() == Some(RDKafkaErrorCode::GroupAuthorizationFailed)
        };
        let deadline = clock::monotonic() + self.wait;
        let list = list_of([(self.settings.clean.as_str(), 0)]);
        while clock::monotonic() < deadline {
            match native::committed(self.reader.client(), &list, ATTEMPT_TIMEOUT) {
                Ok(_) => return false,
                Err(error) if denied(&error) => return true,
                Err(_) => {}
            }
            // When the broker denies the coordinator lookup, no call fails; the error comes as an event.
            // A poll without time would end at the first of many log lines.
            while let Some(event) = self.reader.poll(EVENT_WAIT) {
                if event.is_err_and(|error| denied(&error)) {
                    return true;
                }
            }
        }
        false
    }

    pub(super) fn topics(&self) -> Result<FoundTopics, CheckError> {
        let settings = &self.settings;
        let (raw, replication) = self.topic(&settings.raw)?;
        Ok(FoundTopics {
            raw,
            clean: self.topic(&settings.clean)?.0,
            state: self.topic(&settings.state)?.0,
            side: [&settings.dead_letter, &settings.duplicates]
                .into_iter()
                .flatten()
                .map(|name| Ok((name.clone(), self.topic(name)?.0)))
                .collect::<Result<_, _>>()?,
            replication,
            planned: Vec::new(),
        })
    }

    pub(super) fn topic(&self, name: &str) -> Result<(TopicShape, i32), CheckError> {
        let doing =
            format!("requesting the metadata of topic {name} from {}", self.settings.bootstrap_servers);
        let metadata =
            self.reader.fetch_metadata(Some(name), self.wait).map_err(|e| check_error(&doing, &e))?;
        let Some(topic) = metadata.topics().iter().find(|t| t.name() == name) else {
            return Ok((TopicShape::Missing, 1));
        };
        match topic.error().map(RDKafkaErrorCode::from) {
            None => {
                let replication = topic.partitions().first().map_or(1, |p| p.replicas().len());
                Ok((
                    TopicShape::Partitions(topic.partitions().len()),
                    i32::try_from(replication).unwrap_or(1),
                ))
            }
            Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => {
                Ok((TopicShape::Missing, 1))
            }
            Some(RDKafkaErrorCode::TopicAuthorizationFailed) => Ok((TopicShape::Unauthorized, 1)),
            Some(code) => Err(check_error(&doing, &KafkaError::MetadataFetch(code))),
        }
    }

    fn configs(&self, found: &FoundTopics) -> Result<[TopicConfig; 3], CheckError> {
        let settings = &self.settings;
        let mut configs: [TopicConfig; 3] = Default::default();
        let names = [&settings.raw, &settings.clean, &settings.state];
        for ((slot, name), shape) in configs.iter_mut().zip(names).zip(found.shapes()) {
            if shape.exists() {
                *slot = self.topic_configs(name)?;
            }
        }
        Ok(configs)
    }

    /// The configurations of the side topics, as far as the broker reports them. No check requires them.
    fn side_configs(&self, found: &FoundTopics) -> Result<Vec<(String, TopicConfig)>, CheckError> {
        let existing = found.side.iter().filter(|(_, shape)| shape.exists());
        existing.map(|(name, _)| Ok((name.clone(), self.config_if_allowed(name)?))).collect()
    }

    /// The configuration of a topic; empty when the broker does not report it.
    pub(super) fn config_if_allowed(&self, name: &str) -> Result<TopicConfig, CheckError> {
        Ok(self.describe(ResourceSpecifier::Topic(name), None)?.unwrap_or_default())
    }

    /// The configuration of a topic; empty, with a warning, when the `DescribeConfigs` permission or API is missing.
    pub(super) fn topic_configs(&self, name: &str) -> Result<TopicConfig, CheckError> {
        let described = self.describe(ResourceSpecifier::Topic(name), Some(Resource::Topic(name)))?;
        Ok(described.unwrap_or_default())
    }

    /// `None` when the brokers do not support `DescribeConfigs`. Warns when the configuration of `resource` is missing.
    fn describe(
        &self,
        specifier: ResourceSpecifier<'_>,
        resource: Option<Resource<'_>>,
    ) -> Result<Option<TopicConfig>, CheckError> {
        let doing = match specifier {
            ResourceSpecifier::Topic(name) => format!("reading the configuration of topic {name}"),
            _ => "reading the broker's limits".to_owned(),
        };
        let options = AdminOptions::new().request_timeout(Some(self.wait));
        let results = match pollster::block_on(self.admin.describe_configs([&specifier], &options)) {
            Err(KafkaError::AdminOp(RDKafkaErrorCode::UnsupportedFeature)) => {
                tracing::warn!(
                    check = doing,
                    "the brokers do not support DescribeConfigs; the check is skipped, and dedupd works without it"
                );
                return Ok(None);
            }
            results => results.map_err(|e| check_error(&doing, &e))?,
        };
        let entries = match results.into_iter().next() {
            Some(Ok(ConfigResource { entries, .. })) => entries,
            Some(Err(_)) | None => Vec::new(),
        };
        // The client library returns no errors here, but every resource has a configuration.
        if let Some(resource) = resource.filter(|_| entries.is_empty()) {
            let missing = rights::missing(&self.settings, Operation::DescribeConfigs, resource);
            tracing::warn!(
                check = doing,
                if_denied = %missing,
                "the broker returned no configuration: it denies access to it, or does not know a new topic yet; the check \
                 is skipped, and dedupd works without it"
            );
        }
        Ok(Some(entries.into_iter().filter_map(|e| Some((e.name, e.value?))).collect()))
    }

    /// Checks the configuration against the limits of the broker. False when the brokers do not support
    /// `DescribeConfigs`: topics need not be described.
    fn broker_limits(&self) -> Result<bool, CheckError> {
        let metadata = self
            .reader
            .fetch_metadata(Some(&self.settings.raw), self.wait)
            .map_err(|e| check_error("reading the broker's limits", &e))?;
        let Some(broker) = metadata.brokers().first() else { return Ok(true) };
        let limits = self.describe(ResourceSpecifier::Broker(broker.id()), Some(Resource::Cluster))?;
        let Some(limits) = limits else { return Ok(false) };
        let problems = topics::limits(&self.settings, &limits);
        if problems.is_empty() { Ok(true) } else { Err(CheckError::Configuration(problems)) }
    }
}
