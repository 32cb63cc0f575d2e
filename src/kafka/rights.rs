//! The permissions that this client requires, and the commands that grant them.

use std::fmt;

use rdkafka::error::RDKafkaErrorCode;

use super::client_config::Settings;
use super::native::Described;

/// An operation that requires a permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Read records, or join a group.
    Read,
    /// Write records, or use a transactional id.
    Write,
    Create,
    /// Add partitions to a topic.
    Alter,
    /// Read the configuration of a topic or of the brokers.
    DescribeConfigs,
}

impl Operation {
    /// The name in `kafka-acls.sh`.
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

/// The resource of a permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resource<'a> {
    Topic(&'a str),
    Group(&'a str),
    /// Every transactional id that starts with the group's name and a dot.
    TransactionalIds(&'a str),
    Cluster,
}

impl fmt::Display for Resource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topic(name) => write!(f, "topic {name}"),
            Self::Group(name) => write!(f, "group {name}"),
            Self::TransactionalIds(group) => write!(f, "transactional ids that start with {group}."),
            Self::Cluster => f.write_str("the cluster"),
        }
    }
}

/// The command that grants a permission.
fn grant_command(settings: &Settings, operation: Operation, resource: Resource<'_>) -> String {
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

/// One sentence for a missing permission.
pub(super) fn missing(settings: &Settings, operation: Operation, resource: Resource<'_>) -> String {
    format!(
        "the {} permission is missing on {resource}; as an administrator run {}, with the name of this client",
        operation.as_str(),
        grant_command(settings, operation, resource)
    )
}

/// Every topic with the required operations. Read on the clean and side topics is needed when a broker tears a transaction:
/// the records that are visible in the clean topic decide how it is settled, and records that are missing in a side topic
/// are written again.
pub(super) fn on_topics(settings: &Settings) -> Vec<(&str, &'static [Operation])> {
    use Operation::{Read, Write};
    let always: [(&str, &[Operation]); 3] =
        [(&settings.raw, &[Read]), (&settings.clean, &[Read, Write]), (&settings.state, &[Read, Write])];
    let side = [&settings.dead_letter, &settings.duplicates].into_iter().flatten();
    always.into_iter().chain(side.map(|name| (name.as_str(), &[Read, Write] as &[_]))).collect()
}

/// One sentence for each missing permission. `wanted` are topics with the required operations, and `topics` the broker's descriptions of
/// them, in that order. A permission that the broker does not report counts as granted: the call that needs it fails later with the same
/// sentence.
pub(super) fn lacking(
    settings: &Settings,
    wanted: &[(&str, &[Operation])],
    topics: &[Described],
    is_group_denied: bool,
) -> Vec<String> {
    let denied = |described: &Described, operation| match (described.error, &described.allowed) {
        (Some(RDKafkaErrorCode::TopicAuthorizationFailed), _) => true,
        (_, Some(allowed)) => !allowed.contains(&operation),
        (_, None) => false,
    };
    let mut sentences = Vec::new();
    for ((name, operations), described) in wanted.iter().zip(topics) {
        let lacking = operations.iter().filter(|operation| denied(described, **operation));
        sentences.extend(lacking.map(|operation| missing(settings, *operation, Resource::Topic(name))));
    }
    if is_group_denied {
        sentences.push(missing(settings, Operation::Read, Resource::Group(&settings.group)));
    }
    sentences
}

/// The sentence for an error code that identifies the missing permission; `None` for other codes.
pub(super) fn missing_for_code(settings: &Settings, code: RDKafkaErrorCode) -> Option<String> {
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
