//! The topics of a running process, looked at now and then: raw may grow, and any may be created anew.

use std::time::Duration;

use super::admin::{CheckError, Found, Inquiry, Topology};
use super::client_config::Settings;
use super::topics::{self, Shape};

/// How long one question may take; several make a look, and a stop waits for the look to end.
const ANSWER: Duration = Duration::from_secs(2);
/// A topic counts as deleted after so many looks in a row that did not find it: a broker that has just
/// come up may not know it yet.
const ABSENT: u32 = 4;

/// Looks at the topics, by clients of its own: no worker waits for the answers.
pub struct TopicWatch {
    asking: Inquiry,
    /// Whether clean and state topic may be grown.
    create: bool,
    /// Topic ids of raw, clean and state at the start, where the broker has them.
    ids: [Option<String>; 3],
    /// Partitions of the raw topic as last seen.
    raw: usize,
    /// Partition counts beyond those of raw that were told already.
    told: Vec<(String, usize)>,
    /// Looks in a row that missed a topic.
    absent: u32,
}

/// What a look saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sight {
    /// How many partitions every topic has.
    pub reach: usize,
    /// How many partitions the raw topic has, as far as it was seen.
    pub raw: usize,
    /// What an operator should know.
    pub warnings: Vec<String>,
}

/// Why a look ends the process, or says nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookError {
    /// Nobody answered; the next look may say more.
    #[error("{0}")]
    Unanswered(String),
    /// The raw topic has grown, and the others cannot follow (exit code 3, as at the start).
    #[error("{0}")]
    LeftBehind(String),
    /// A topic is not the one that the process began with (exit code 6).
    #[error("{0}")]
    Replaced(String),
}

impl From<CheckError> for LookError {
    fn from(error: CheckError) -> Self {
        match error {
            CheckError::Unreachable(what) | CheckError::Rejected(what) => Self::Unanswered(what),
            refused @ (CheckError::Configuration(_) | CheckError::Refused(_)) => {
                Self::LeftBehind(refused.to_string())
            }
        }
    }
}

impl TopicWatch {
    /// Creates the clients; `start` is what the start-up check found, and `create` whether topics may be grown.
    pub fn new(settings: &Settings, start: &Topology, create: bool) -> Result<Self, CheckError> {
        Ok(Self {
            asking: Inquiry::new(settings, ANSWER)?,
            create,
            ids: start.topic_ids.clone(),
            raw: start.partitions,
            told: Vec::new(),
            absent: 0,
        })
    }

    /// Asks how the topics are now, and lets clean and state follow a raw topic that has grown.
    pub fn look(&mut self) -> Result<Sight, LookError> {
        let found = self.asking.topics()?;
        self.are_there(&found)?;
        self.are_the_same()?;
        let mut sight = Sight { reach: reach(&found), raw: self.raw, warnings: Vec::new() };
        let Some(raw) = found.raw.partitions() else { return Ok(sight) };
        let short = topics::short(&self.asking.settings, &found.shapes());
        if !short.is_empty() {
            if !self.create {
                return Err(LookError::LeftBehind(topics::left_behind(&self.asking.settings, raw, &short)));
            }
            self.asking.grow(&found)?;
            sight.reach = reach(&self.asking.topics()?);
        }
        if raw > self.raw {
            sight.warnings.push(topics::grown(&self.asking.settings.raw, self.raw, raw));
            self.raw = raw;
            sight.raw = raw;
        }
        sight.warnings.extend(self.wider(&found, raw));
        Ok(sight)
    }

    /// Nobody else notices a topic that was created anew: to the client a name is the topic.
    fn are_the_same(&mut self) -> Result<(), LookError> {
        let described = self.asking.described();
        for (role, (known, now)) in self.ids.iter_mut().zip(described).enumerate() {
            match (known.as_deref(), now.id) {
                (Some(was), Some(is)) if was != is => {
                    let what = topics::created_anew(&self.asking.settings, role, (was, &is));
                    return Err(LookError::Replaced(what));
                }
                (None, now) => *known = now,
                _ => {}
            }
        }
        Ok(())
    }

    /// Topics that somebody gave more partitions than raw has; each count is told once.
    fn wider(&mut self, found: &Found, raw: usize) -> Vec<String> {
        let settings = &self.asking.settings;
        let wider: Vec<(String, usize)> = [(&settings.clean, &found.clean), (&settings.state, &found.state)]
            .into_iter()
            .filter_map(|(name, shape)| Some((name.clone(), shape.partitions().filter(|n| *n > raw)?)))
            .collect();
        let fresh = wider.iter().filter(|it| !self.told.contains(it));
        let warnings = fresh.map(|(name, count)| topics::wider(settings, name, *count, raw)).collect();
        self.told = wider;
        warnings
    }

    fn are_there(&mut self, found: &Found) -> Result<(), LookError> {
        let settings = &self.asking.settings;
        let names = [&settings.raw, &settings.clean, &settings.state];
        let missing = names.into_iter().zip(found.shapes()).find(|(_, shape)| **shape == Shape::Missing);
        let Some((name, _)) = missing else {
            self.absent = 0;
            return Ok(());
        };
        self.absent += 1;
        let what = format!("topic {name} does not exist any more");
        if self.absent < ABSENT {
            return Err(LookError::Unanswered(what));
        }
        Err(LookError::Replaced(format!(
            "{what}: it was deleted while dedupd ran; find out who deleted it, create it again, and start"
        )))
    }
}

/// How many partitions both the clean and the state topic have.
fn reach(found: &Found) -> usize {
    let count = |shape: &Shape| shape.partitions().unwrap_or(0);
    count(&found.clean).min(count(&found.state))
}
