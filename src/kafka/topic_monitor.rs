//! Periodic checks of the topics while the process runs: raw may grow, and any topic may be deleted or recreated.

use std::time::Duration;

use super::admin::{CheckError, TopicAdmin, Topology};
use super::client_config::Settings;
use super::creating::{Create, FoundTopics};
use super::topics::{self, TopicShape};
use crate::config::Scope;

/// Time limit of one request. A check sends several requests, and a stop waits until the check ends.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// A topic counts as deleted when this many consecutive checks do not find it: a broker that has just started may not have
/// its metadata yet.
pub(super) const ABSENT_CHECKS: u32 = 4;

/// Checks the topics with clients of its own, so no worker waits for the responses.
pub struct TopicMonitor {
    admin: TopicAdmin,
    /// Whether partitions may be added to the clean and the state topic.
    create: bool,
    /// Where an id counts once.
    scope: Scope,
    /// Topic ids of raw, clean and state at the start; `None` until the broker reports them.
    ids: [Option<String>; 3],
    /// Partitions of the raw topic at the last check.
    raw: usize,
    /// Topics with more partitions than raw, with the counts that a warning was returned for.
    reported: Vec<(String, usize)>,
    /// Consecutive checks that did not find a topic.
    absent: u32,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicState {
    /// Number of partitions that both the clean and the state topic have.
    pub shared: usize,
    /// Number of partitions of the raw topic; the last known number when the broker did not report it.
    pub raw: usize,
    /// Findings that an operator should see.
    pub warnings: Vec<String>,
}

/// Why a check failed, or must end the process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    /// No broker responded; the next check may succeed.
    #[error("{0}")]
    Unreachable(String),
    /// The raw topic has grown, and partitions cannot be added to the other topics (exit code 3, as at the start).
    #[error("{0}")]
    CannotGrow(String),
    /// A topic is not the same as at the start of the process (exit code 6).
    #[error("{0}")]
    Replaced(String),
}

impl From<CheckError> for TopicError {
    fn from(error: CheckError) -> Self {
        match error {
            CheckError::Unreachable(what) | CheckError::Rejected(what) => Self::Unreachable(what),
            refused @ (CheckError::Configuration(_) | CheckError::Refused(_)) => {
                Self::CannotGrow(refused.to_string())
            }
        }
    }
}

impl TopicMonitor {
    /// Creates the clients. `start` is the result of the start-up checks; `create` allows adding partitions. `scope` is where an
    /// id counts once.
    pub fn new(
        settings: &Settings,
        start: &Topology,
        create: bool,
        scope: Scope,
    ) -> Result<Self, CheckError> {
        Ok(Self {
            admin: TopicAdmin::new(settings, REQUEST_TIMEOUT)?,
            create,
            scope,
            ids: start.topic_ids.clone(),
            raw: start.partitions,
            reported: Vec::new(),
            absent: 0,
        })
    }

    /// Checks the topics, and adds partitions to clean and state when the raw topic has grown.
    pub fn check(&mut self) -> Result<TopicState, TopicError> {
        let mut found = self.admin.topics()?;
        self.check_existence(&found)?;
        self.check_ids()?;
        let mut state = TopicState { shared: shared(&found), raw: self.raw, warnings: Vec::new() };
        let Some(raw) = found.raw.partitions() else { return Ok(state) };
        let too_small = topics::too_few_partitions(&self.admin.settings, &found.shapes());
        if !too_small.is_empty() {
            if !self.create {
                let what = topics::growth_problem(&self.admin.settings, raw, &too_small);
                return Err(TopicError::CannotGrow(what));
            }
            found = self.admin.grow(found, Create::Perform)?;
            state.shared = shared(&found);
        }
        if raw > self.raw {
            state.warnings.push(topics::growth_warning(&self.admin.settings.raw, self.raw, raw, self.scope));
            self.raw = raw;
            state.raw = raw;
        }
        state.warnings.extend(self.extra_partitions(&found, raw));
        Ok(state)
    }

    /// Detects recreated topics by their ids. The client does not detect them, because it identifies a topic by name only.
    fn check_ids(&mut self) -> Result<(), TopicError> {
        let described = self.admin.describe_topics();
        for (role, (known, now)) in self.ids.iter_mut().zip(described).enumerate() {
            match (known.as_deref(), now.id) {
                (Some(was), Some(is)) if was != is => {
                    let what = topics::recreated(&self.admin.settings, role, was, &is);
                    return Err(TopicError::Replaced(what));
                }
                (None, now) => *known = now,
                _ => {}
            }
        }
        Ok(())
    }

    /// Warnings for topics with more partitions than raw; one for each new count.
    fn extra_partitions(&mut self, found: &FoundTopics, raw: usize) -> Vec<String> {
        let settings = &self.admin.settings;
        let larger: Vec<(String, usize)> = [(&settings.clean, &found.clean), (&settings.state, &found.state)]
            .into_iter()
            .filter_map(|(name, shape)| Some((name.clone(), shape.partitions().filter(|n| *n > raw)?)))
            .collect();
        let new = larger.iter().filter(|it| !self.reported.contains(it));
        let warnings =
            new.map(|(name, count)| topics::extra_partitions(settings, name, *count, raw)).collect();
        self.reported = larger;
        warnings
    }

    fn check_existence(&mut self, found: &FoundTopics) -> Result<(), TopicError> {
        let settings = &self.admin.settings;
        let names = [&settings.raw, &settings.clean, &settings.state];
        let missing = found.shapes().into_iter().position(|shape| *shape == TopicShape::Missing);
        let Some((role, name)) = missing.and_then(|role| Some((role, names.get(role)?))) else {
            self.absent = 0;
            return Ok(());
        };
        self.absent += 1;
        if self.absent < ABSENT_CHECKS {
            return Err(TopicError::Unreachable(format!("topic {name} does not exist any more")));
        }
        Err(TopicError::Replaced(topics::deleted(settings, role)))
    }
}

/// Number of partitions that both the clean and the state topic have.
fn shared(found: &FoundTopics) -> usize {
    let count = |shape: &TopicShape| shape.partitions().unwrap_or(0);
    count(&found.clean).min(count(&found.state))
}
