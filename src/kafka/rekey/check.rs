//! The checks of `rekey` at the start.

use std::time::Duration;

use rdkafka::consumer::Consumer;

use crate::kafka::admin::{CheckError, TopicAdmin};
use crate::kafka::client_config::Settings;
use crate::kafka::closing::Closing;
use crate::kafka::native;
use crate::kafka::rights::{self, Operation};
use crate::kafka::topics::TopicShape;

/// Time limit of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// What is checked.
pub struct RekeyTopics<'a> {
    /// The topics to read: names, and regular expressions, whose topics are not checked.
    pub from: &'a [String],
    /// The topic to write.
    pub to: &'a str,
}

/// Checks that the named topics exist, and that this client has the permissions on them and on the group.
pub fn check_rekey(
    settings: &Settings,
    topics: &RekeyTopics<'_>,
    closing: &Closing,
) -> Result<(), CheckError> {
    let admin = TopicAdmin::new(settings, REQUEST_TIMEOUT)?;
    let checked = problems(&admin, topics);
    let checked = checked.map_err(|error| match error {
        CheckError::Unreachable(what) => admin.explain_unreachable(what),
        other => other,
    });
    closing.close(admin);
    match checked? {
        problems if problems.is_empty() => Ok(()),
        problems => Err(CheckError::Refused(problems)),
    }
}

fn problems(admin: &TopicAdmin, topics: &RekeyTopics<'_>) -> Result<Vec<String>, CheckError> {
    let names = topics.from.iter().map(String::as_str).filter(|name| !name.starts_with('^'));
    let mut wanted: Vec<(&str, &[Operation])> =
        names.map(|name| (name, &[Operation::Read] as &[_])).collect();
    wanted.push((topics.to, &[Operation::Write]));
    let mut problems = Vec::new();
    for (name, _) in &wanted {
        if admin.topic(name)?.0 == TopicShape::Missing {
            problems.push(missing(name, *name == topics.to));
        }
    }
    let names: Vec<&str> = wanted.iter().map(|(name, _)| *name).collect();
    let described = native::topics(admin.reader.client(), &names, admin.wait).unwrap_or_default();
    problems.extend(rights::lacking(&admin.settings, &wanted, &described, admin.is_group_denied()));
    Ok(problems)
}

fn missing(name: &str, is_target: bool) -> String {
    if is_target {
        return format!(
            "topic {name} (rekey.to) does not exist; create it, with as many partitions as the de-duplication needs \
             instances and workers at its peak: more partitions later move ids once"
        );
    }
    format!("topic {name} (rekey.from) does not exist; create it, or correct rekey.from")
}
