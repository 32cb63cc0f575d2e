//! The checks of `rekey` at the start.

use std::time::Duration;

use rdkafka::consumer::Consumer;

use crate::kafka::acceptance::shortfalls;
use crate::kafka::admin::{CheckError, TopicAdmin};
use crate::kafka::client_config::Settings;
use crate::kafka::closing::Closing;
use crate::kafka::creating::{Create, Model};
use crate::kafka::native;
use crate::kafka::rights::{self, Operation};
use crate::kafka::topics::{TopicShape, largest_batch};

/// Time limit of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// What the checks have found.
#[derive(Default)]
pub struct RekeyChecks {
    /// Findings that an operator should see.
    pub warnings: Vec<String>,
    /// `max.message.bytes` of the target, bytes; `None` when the broker does not report it.
    pub largest_batch: Option<u64>,
    /// What a start creates, when the brokers only validate it.
    pub planned: Option<String>,
}

/// Checks that the topics exist that are read, except those of regular expressions, and the target `settings.clean`, and that this client
/// has the permissions on them and on the group. Creates the target if it is missing and that is configured.
pub fn check_rekey(
    settings: &Settings,
    from: &[String],
    create: Create,
    closing: &Closing,
) -> Result<RekeyChecks, CheckError> {
    let admin = TopicAdmin::new(settings, REQUEST_TIMEOUT)?;
    let (problems, checks) = admin.checked(closing, |admin| findings(admin, from, create))?;
    if problems.is_empty() { Ok(checks) } else { Err(CheckError::Refused(problems)) }
}

fn findings(
    admin: &TopicAdmin,
    from: &[String],
    create: Create,
) -> Result<(Vec<String>, RekeyChecks), CheckError> {
    let names = from.iter().map(String::as_str).filter(|name| !name.starts_with('^'));
    let mut wanted: Vec<(&str, &[Operation])> =
        names.map(|name| (name, &[Operation::Read] as &[_])).collect();
    let to = admin.settings.clean.as_str();
    wanted.push((to, &[Operation::Write]));
    let (mut problems, mut sources, mut planned) = (Vec::new(), Vec::new(), None);
    for (name, _) in &wanted {
        match admin.topic(name)? {
            (TopicShape::Missing, _) if *name != to => problems.push(missing_source(name)),
            // The last one, so all sources are known.
            (TopicShape::Missing, _) => match model(&sources).filter(|_| create != Create::Never) {
                Some(model) if problems.is_empty() => planned = admin.create_target(&model, create)?,
                // It is created when the other sources exist.
                Some(_) => {}
                None => problems.push(missing_target(to, create)),
            },
            (TopicShape::Partitions(partitions), replication) => {
                sources.push(Model { source: (*name).to_owned(), partitions, replication });
            }
            _ => {}
        }
    }
    if planned.is_some() {
        // The target does not exist yet.
        wanted.pop();
    }
    let names: Vec<&str> = wanted.iter().map(|(name, _)| *name).collect();
    let described = native::topics(admin.reader.client(), &names, admin.wait).unwrap_or_default();
    problems.extend(rights::lacking(&admin.settings, &wanted, &described, admin.is_group_denied()));
    let checks = if problems.is_empty() && planned.is_none() {
        compared(admin, &names)
    } else {
        RekeyChecks { planned, ..RekeyChecks::default() }
    };
    Ok((problems, checks))
}

/// Compares the sources with the last of the topics. A failure is a warning: `rekey` works without it.
fn compared(admin: &TopicAdmin, names: &[&str]) -> RekeyChecks {
    let configs: Result<Vec<_>, _> =
        names.iter().map(|name| Ok((*name, admin.config_if_allowed(name)?))).collect();
    match configs.as_deref() {
        Ok([sources @ .., (to, target)]) => {
            let servers = &admin.settings.bootstrap_servers;
            let all = sources.iter().flat_map(|(from, source)| shortfalls(servers, to, target, from, source));
            RekeyChecks { warnings: all.collect(), largest_batch: largest_batch(target), planned: None }
        }
        Ok([]) => RekeyChecks::default(),
        Err(error) => {
            let error: &CheckError = error;
            let warnings = vec![format!("the target topic is not compared with the source topics: {error}")];
            RekeyChecks { warnings, ..RekeyChecks::default() }
        }
    }
}

/// The source topic with the most partitions, which a created target resembles.
fn model(sources: &[Model]) -> Option<Model> {
    sources.iter().max_by_key(|it| it.partitions).cloned()
}

fn missing_source(name: &str) -> String {
    format!("topic {name} (rekey.from) does not exist; create it, or correct rekey.from")
}

fn missing_target(name: &str, create: Create) -> String {
    let why = if create == Create::Never {
        ""
    } else {
        ", and rekey.from names no existing topic whose settings it can have"
    };
    format!(
        "topic {name} (rekey.to) does not exist{why}; create it, with as many partitions as the de-duplication needs \
         instances and workers at its peak: more partitions later move ids once"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_of_a_target_is_the_source_with_the_most_partitions() {
        let source = |name: &str, partitions| Model { source: name.to_owned(), partitions, replication: 3 };
        assert_eq!(model(&[]), None);
        let found = model(&[source("a", 3), source("b", 12), source("c", 6)]);
        assert_eq!(found, Some(source("b", 12)));
        assert!(missing_target("t", Create::Perform).contains("names no existing topic"));
        assert!(!missing_target("t", Create::Never).contains("names no existing topic"));
    }
}
