//! The checks of `rekey` at the start.

use std::time::Duration;

use rdkafka::consumer::Consumer;

use crate::kafka::acceptance::shortfalls;
use crate::kafka::admin::{CheckError, TopicAdmin};
use crate::kafka::client_config::Settings;
use crate::kafka::closing::Closing;
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
}

/// Checks that the topics exist that are read, except those of regular expressions, and the target `settings.clean`, and that this client has the permissions on them and on the group.
pub fn check_rekey(
    settings: &Settings,
    from: &[String],
    closing: &Closing,
) -> Result<RekeyChecks, CheckError> {
    let admin = TopicAdmin::new(settings, REQUEST_TIMEOUT)?;
    let (problems, checks) = admin.checked(closing, |admin| findings(admin, from))?;
    if problems.is_empty() { Ok(checks) } else { Err(CheckError::Refused(problems)) }
}

fn findings(admin: &TopicAdmin, from: &[String]) -> Result<(Vec<String>, RekeyChecks), CheckError> {
    let names = from.iter().map(String::as_str).filter(|name| !name.starts_with('^'));
    let mut wanted: Vec<(&str, &[Operation])> =
        names.map(|name| (name, &[Operation::Read] as &[_])).collect();
    let to = admin.settings.clean.as_str();
    wanted.push((to, &[Operation::Write]));
    let mut problems = Vec::new();
    for (name, _) in &wanted {
        if admin.topic(name)?.0 == TopicShape::Missing {
            problems.push(missing(name, *name == to));
        }
    }
    let names: Vec<&str> = wanted.iter().map(|(name, _)| *name).collect();
    let described = native::topics(admin.reader.client(), &names, admin.wait).unwrap_or_default();
    problems.extend(rights::lacking(&admin.settings, &wanted, &described, admin.is_group_denied()));
    let checks = if problems.is_empty() { compared(admin, &names) } else { RekeyChecks::default() };
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
            RekeyChecks { warnings: all.collect(), largest_batch: largest_batch(target) }
        }
        Ok([]) => RekeyChecks::default(),
        Err(error) => {
            let error: &CheckError = error;
            let warnings = vec![format!("the target topic is not compared with the source topics: {error}")];
            RekeyChecks { warnings, largest_batch: None }
        }
    }
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
