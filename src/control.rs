//! What an operator may ask of a running instance: where an identity is, and to take it back.
//!
//! The questions go to the workers, each of which owns its partitions' state, through a channel; a worker
//! answers between two transactions.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::clock::monotonic;
use crate::dedupe::{Identity, IdentityRule, Offset, PartitionId};

/// How long the workers have for an answer. Reading a large window's blocks takes seconds.
const ANSWER: Duration = Duration::from_mins(1);

/// Which part of a window holds an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// The exact one.
    Exact,
    /// The filters beyond it.
    Bloom,
}

/// A record that an identity belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Partition of the raw topic.
    pub partition: PartitionId,
    /// The kind of its record, if it has a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Offset of the record; `None` when a filter has the identity by chance and no record had it.
    pub offset: Option<Offset>,
    /// Stream time of its arrival in ms since the epoch, as precisely as it is kept.
    pub time_ms: i64,
    /// Which part of the window holds it.
    pub part: Part,
    /// Beginning of the slice that it is filed in, stream time in ms; `None` without filters.
    pub slice_ms: Option<i64>,
}

/// What was found, and where it was looked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// The identity as 32 hex digits.
    pub identity: String,
    /// The records that it belongs to.
    pub places: Vec<Place>,
    /// Partitions that were looked into.
    pub looked_into: Vec<PartitionId>,
    /// Partitions of this process whose state is not in memory yet.
    pub not_ready: Vec<PartitionId>,
}

/// A question to one worker.
#[derive(Debug)]
pub struct Asked {
    /// The identity.
    pub identity: Identity,
    /// Only this partition.
    pub partition: Option<PartitionId>,
    /// Take it back.
    pub forget: bool,
    /// Where the answer goes; dropped without one when the transaction failed.
    pub answer: SyncSender<Answer>,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The question makes no sense.
    #[error("{0}")]
    Question(String),
    /// Nobody can answer now.
    #[error("{0}")]
    Unavailable(String),
}

/// Asks the workers.
#[derive(Debug, Clone)]
pub struct Control {
    rule: IdentityRule,
    workers: Vec<Sender<Asked>>,
}

impl Control {
    /// A control, and what each of so many workers listens to.
    #[must_use]
    pub fn new(rule: IdentityRule, workers: usize) -> (Self, Vec<Receiver<Asked>>) {
        let (workers, listening) = (0..workers).map(|_| channel()).unzip();
        (Self { rule, workers }, listening)
    }

    /// Asks all workers for the id with these texts, one for each part of `identity.from`, and waits.
    pub fn ask(
        &self,
        texts: &[String],
        partition: Option<PartitionId>,
        forget: bool,
    ) -> Result<Answer, Refusal> {
        let identity = self.rule.identify_texts(texts).ok_or_else(|| {
            Refusal::Question(format!(
                "give the id once for each of the {} parts of identity.from, none of them empty",
                self.rule.parts()
            ))
        })?;
        let (answer, answers) = sync_channel(self.workers.len());
        for worker in &self.workers {
            let asked = Asked { identity, partition, forget, answer: answer.clone() };
            worker.send(asked).map_err(|_| Refusal::Unavailable("the worker has ended".to_owned()))?;
        }
        drop(answer);
        self.collect(identity, &answers)
    }

    fn collect(&self, identity: Identity, answers: &Receiver<Answer>) -> Result<Answer, Refusal> {
        let mut all = Answer { identity: identity.to_string(), ..Answer::default() };
        let deadline: Instant = monotonic() + ANSWER;
        for _ in &self.workers {
            match answers.recv_timeout(deadline.saturating_duration_since(monotonic())) {
                Ok(one) => {
                    all.places.extend(one.places);
                    all.looked_into.extend(one.looked_into);
                    all.not_ready.extend(one.not_ready);
                }
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Refusal::Unavailable(format!(
                        "a worker did not answer within {} s; see /readyz, and ask again",
                        ANSWER.as_secs()
                    )));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Refusal::Unavailable(
                        "the transaction failed, the log says why; what was asked may or may not have been done: ask again"
                            .to_owned(),
                    ));
                }
            }
        }
        Ok(all)
    }
}
