//! The owners of an identity, from the running instance.

use std::fmt;
use std::io;
use std::time::Duration;

use serde::Deserialize;

use super::OwnerFound;
use crate::app::ExitError;
use crate::cli::Exit;
use crate::config::Config;
use crate::dedupe::{Coordinates, Identity};
use crate::http::Token;
use crate::tools::health::{self, AdminAnswer, OwnerAnswer};

/// For each read of the status.
const STATUS: Duration = Duration::from_secs(3);

/// What an instance shows about itself.
#[derive(Debug, Deserialize)]
struct InstanceStatus {
    about: AboutInstance,
    /// The fingerprint of its identity rule; none before it has started, or of an earlier release.
    identity_rule: Option<String>,
    #[serde(default)]
    role: String,
    active_instance: Option<String>,
}

#[derive(Debug, Deserialize)]
struct AboutInstance {
    group: String,
    instance: String,
    raw: String,
}

impl fmt::Display for InstanceStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AboutInstance { group, instance, raw } = &self.about;
        let rule = self.identity_rule.as_deref().unwrap_or("not known");
        write!(f, "instance {instance} of group {group}, which reads topic {raw} with identity rule {rule}")
    }
}

/// `None` for an owner in a filter, which does not have its place.
fn found(owner: OwnerAnswer) -> Option<OwnerFound> {
    let at = Coordinates { partition: owner.partition?, offset: owner.offset? };
    Some(OwnerFound { at, kind: owner.kind, time_ms: owner.time_ms, counts: true })
}

/// Who is asked, and for what.
pub(super) struct Question<'a> {
    pub config: &'a Config,
    /// The fingerprint of the configured rule.
    pub rule: String,
    /// The content of `http.token_file`.
    pub token: Option<&'a Token>,
    pub identity: Identity,
    /// The partition of the record.
    pub partition: u32,
}

/// Who has answered.
pub(super) enum Answered {
    /// The instance with this name.
    Instance(String, Vec<OwnerFound>),
    /// Nobody, or another one, for this reason.
    Nobody(String),
}

impl Question<'_> {
    /// Asks the instance at `http.listen`, if it has the same raw topic, group and identity rule. Fails when it has, and does not know the owners.
    pub(super) fn ask(&self) -> Result<Answered, ExitError> {
        let listen = self.config.http.listen;
        let body = match health::ask(listen, "/status.json", None, None, STATUS) {
            Ok((_, body)) => body,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => String::new(),
            Err(error) => {
                return Ok(Answered::Nobody(format!("no instance answers at http://{listen} ({error})")));
            }
        };
        let Ok(status) = serde_json::from_str::<InstanceStatus>(&body) else {
            return Ok(Answered::Nobody(format!("what answers at http://{listen} is not dedupd")));
        };
        if let Some(other) = self.other(&status) {
            return Ok(Answered::Nobody(other));
        }
        let by = format!("instance {} at http://{listen}", status.about.instance);
        let owners =
            self.owners(&status).map_err(|(exit, why)| ExitError::new(exit, format!("{by} {why}")))?;
        Ok(Answered::Instance(by, owners))
    }

    /// Why what it answers is not about this record.
    fn other(&self, status: &InstanceStatus) -> Option<String> {
        let (group, raw) = (&self.config.group.id, self.config.topics.raw.as_str());
        let is_same = status.about.group == *group
            && status.about.raw == raw
            && status.identity_rule.as_ref() == Some(&self.rule);
        (!is_same).then(|| {
            format!(
                "another one answers at http://{}: {status}; expected one of group {group}, topic {raw} and identity rule {}: give \
                 its address with --listen, or the configuration of the one that answers",
                self.config.http.listen, self.rule
            )
        })
    }

    fn owners(&self, status: &InstanceStatus) -> Result<Vec<OwnerFound>, (Exit, String)> {
        let Some(token) = self.token else {
            let why = "runs, and is asked only with a token: set http.token_file for it and for this command, or stop it";
            return Err((Exit::Usage, why.to_owned()));
        };
        let path = format!("/state?identity={}", self.identity);
        let (listen, token) = (self.config.http.listen, Some(token.secret()));
        let (code, body) = health::ask(listen, &path, token, None, health::ADMIN_PATIENCE)
            .map_err(|error| (Exit::No, format!("does not answer: {error}; see its log, then retry")))?;
        let answer: AdminAnswer = serde_json::from_str(&body).map_err(|error| {
            (Exit::No, format!("gave an answer that cannot be read: {error}; is it of another release?"))
        })?;
        match answer.owners {
            Some(owners) if answer.looked_into.contains(&self.partition) => {
                Ok(owners.into_iter().filter_map(found).collect())
            }
            _ => Err(self.refusal(&code, status, answer)),
        }
    }

    /// Why an answer names no owners.
    fn refusal(&self, code: &str, status: &InstanceStatus, answer: AdminAnswer) -> (Exit, String) {
        let partition = self.partition;
        if let Some(why) = health::refused_token(code, self.config.http.token_file.as_deref()) {
            return (Exit::Usage, why);
        }
        let why = match answer.error {
            _ if status.role == "spare" => {
                let active = status.active_instance.as_deref().unwrap_or("not known");
                format!(
                    "is a spare and has no partition: ask the active instance, which is {active}, with --listen"
                )
            }
            Some(error) => format!("cannot look up the owners: {error}"),
            _ if answer.not_ready.contains(&partition) => {
                format!(
                    "has not restored the state of partition {partition} yet: retry when /readyz says ready"
                )
            }
            _ => format!("does not have partition {partition}: ask the instance that has it, with --listen"),
        };
        (Exit::No, why)
    }
}
