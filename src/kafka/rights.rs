//! What this client must be allowed to do, and how it is granted.

use std::fmt;

use rdkafka::error::RDKafkaErrorCode;

use super::client_config::Settings;
use super::native::Described;

/// What can be allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Reading records, or taking part in a group.
    Read,
    /// Writing records, or using a transactional id.
    Write,
    /// Creating a topic.
    Create,
    /// Adding partitions to a topic.
    Alter,
    /// Seeing the configuration of a topic or of the brokers.
    DescribeConfigs,
}

impl Operation {
    /// As `kafka-acls.sh` spells it.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "Read",
            Self::Write => "Write",
            Self::Create => "Create",
            Self::Alter => "Alter",
            Self::DescribeConfigs => "DescribeConfigs",
        }
    }
}

/// What a right is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resource<'a> {
    /// A topic.
    Topic(&'a str),
    /// The consumer group.
    Group(&'a str),
    /// Every transactional id that begins with the group's name and a dot.
    TransactionalIds(&'a str),
    /// The cluster.
    Cluster,
}

impl fmt::Display for Resource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topic(name) => write!(f, "topic {name}"),
            Self::Group(name) => write!(f, "group {name}"),
            Self::TransactionalIds(group) => write!(f, "transactional ids that begin with {group}."),
            Self::Cluster => f.write_str("the cluster"),
        }
    }
}

/// The command that grants a right.
pub(super) fn grant(settings: &Settings, operation: Operation, resource: Resource<'_>) -> String {
    let what = match resource {
        Resource::Topic(name) => format!("--topic {name}"),
        Resource::Group(name) => format!("--group {name}"),
        Resource::TransactionalIds(group) => {
            format!("--transactional-id {group}. --resource-pattern-type prefixed")
        }
        Resource::Cluster => "--cluster".to_owned(),
    };
    format!(
        "kafka-acls.sh --bootstrap-server {} --add --allow-principal User:NAME --operation {} {what}",
        settings.bootstrap_servers,
        operation.as_str()
    )
}

/// One sentence for a right that is missing.
pub(super) fn missing(settings: &Settings, operation: Operation, resource: Resource<'_>) -> String {
    format!(
        "the right to {} is missing on {resource}; as an administrator run {}, with the name of this client",
        operation.as_str(),
        grant(settings, operation, resource)
    )
}

/// Every topic with what must be allowed on it. READ on the clean and side topics is for the day on which a broker tears a
/// transaction: what of it is visible in the clean topic decides, and what is not in a side topic is written again.
pub(super) fn on_topics(settings: &Settings) -> Vec<(&str, &'static [Operation])> {
    use Operation::{Read, Write};
    let always: [(&str, &[Operation]); 3] =
        [(&settings.raw, &[Read]), (&settings.clean, &[Read, Write]), (&settings.state, &[Read, Write])];
    let aside = [&settings.dead_letter, &settings.duplicates].into_iter().flatten();
    always.into_iter().chain(aside.map(|name| (name.as_str(), &[Read, Write] as &[_]))).collect()
}

/// A sentence for each right that is missing, by what the broker reports about topics ([`on_topics`], in that
/// order), and whether it refuses access to the group. What it does not report is taken as allowed: the call that needs
/// it will fail with the same sentence.
pub(super) fn all_missing(
    settings: &Settings,
    topics: &[Described],
    group_is_forbidden: bool,
) -> Vec<String> {
    let forbidden = |described: &Described, operation| match (described.error, &described.allowed) {
        (Some(RDKafkaErrorCode::TopicAuthorizationFailed), _) => true,
        (_, Some(allowed)) => !allowed.contains(&operation),
        (_, None) => false,
    };
    let mut sentences = Vec::new();
    for ((name, operations), described) in on_topics(settings).into_iter().zip(topics) {
        let wanting = operations.iter().filter(|operation| forbidden(described, **operation));
        sentences.extend(wanting.map(|operation| missing(settings, *operation, Resource::Topic(name))));
    }
    if group_is_forbidden {
        sentences.push(missing(settings, Operation::Read, Resource::Group(&settings.group)));
    }
    sentences
}

/// What to say when a call fails for want of a right, where the code alone tells which.
pub(super) fn of_code(settings: &Settings, code: RDKafkaErrorCode) -> Option<String> {
    use RDKafkaErrorCode as C;
    let (operation, resource) = match code {
        C::GroupAuthorizationFailed => (Operation::Read, Resource::Group(&settings.group)),
        C::TransactionalIdAuthorizationFailed => {
            (Operation::Write, Resource::TransactionalIds(&settings.group))
        }
        _ => return None,
    };
    Some(missing(settings, operation, resource))
}
