//! Requests of the admin API to a running instance: where an id is, forgetting it, and the filter of the log.
//!
//! The requests go through a channel to the workers, each of which owns its partitions' state. A worker answers
//! between two transactions. What an operator has changed is logged by this module, which no filter of the log hides.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::clock::monotonic;
use crate::dedupe::{Coordinates, Identity, IdentityRule, JournalId, Offset, PartitionId};
use crate::locked::Locked;

/// Time limit for the workers' answers. Reading a large window's owners takes seconds.
pub(crate) const ANSWER: Duration = Duration::from_mins(1);

/// Replaces the filter of the log, and returns the new one.
type ReplaceFilter = dyn Fn(&str) -> Result<String, String> + Send + Sync;

/// The filter of the log, which can be replaced while the process runs.
#[derive(Clone)]
pub struct LogFilter(Arc<ReplaceFilter>);

impl LogFilter {
    /// A filter that `replace` replaces.
    pub fn new(replace: impl Fn(&str) -> Result<String, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(replace))
    }

    /// Replaces the filter by one in the syntax of `RUST_LOG`, or by that of the start if the text is empty. Returns the new
    /// filter. The error describes what is wrong with the text.
    pub fn replace(&self, text: &str) -> Result<String, String> {
        let filter = (self.0)(text)?;
        tracing::warn!(filter, "the filter of the log was replaced");
        Ok(filter)
    }
}

impl Default for LogFilter {
    fn default() -> Self {
        Self::new(|_| Err("the log has no filter".to_owned()))
    }
}

impl fmt::Debug for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogFilter(…)")
    }
}

/// The part of a window that contains an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WindowPart {
    /// The exact part, with an owner for each id.
    Exact,
    /// The filters of older slices, without owners.
    Bloom,
}

/// A record that owns an identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OwnerPlace {
    /// Number of its journal.
    pub journal: JournalId,
    /// Partition of the raw topic; `None` in a filter, which does not have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<PartitionId>,
    /// The kind of the record, if it has a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Offset of the record; `None` in a filter, which does not have it, and can contain an identity that no record has.
    pub offset: Option<Offset>,
    /// Stream time of its arrival in epoch milliseconds, in the precision in which it is stored; in a filter, that of its first record.
    pub time_ms: i64,
    /// The part of the window that contains it.
    pub part: WindowPart,
}

/// As in the log: `3@17`, with the kind if it has a name.
impl fmt::Display for OwnerPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.partition.zip(self.offset) {
            Some((partition, offset)) => write!(f, "{}", Coordinates { partition, offset })?,
            None => write!(f, "in a filter of journal {}", self.journal)?,
        }
        self.kind.as_ref().map_or(Ok(()), |kind| write!(f, " of kind {kind}"))
    }
}

/// The places of an identity, and the partitions that were searched.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// The identity as 32 hex digits.
    pub identity: String,
    /// The records that own it.
    pub places: Vec<OwnerPlace>,
    /// Partitions that were searched.
    pub looked_into: Vec<PartitionId>,
    /// Partitions of this process whose state is not loaded yet.
    pub not_ready: Vec<PartitionId>,
}

/// Maximum size of the body of a request, in bytes: an id and its JSON. The server closes the connection after the head of a larger one.
pub(crate) const MAX_BODY: usize = 64 * 1024;

/// The id of a request.
#[derive(Debug, Clone)]
pub enum AskedId {
    /// One text for each part of `identity.from`.
    Id(Vec<String>),
    /// What stands for an id.
    Identity(Identity),
}

impl AskedId {
    /// An identity as 32 hex digits.
    pub(crate) fn identity(text: &str) -> Option<Self> {
        text.parse().ok().map(Self::Identity)
    }
}

/// A request to one worker.
#[derive(Debug)]
pub struct Request {
    /// The identity of the id to find or to forget.
    pub identity: Identity,
    /// Restricts the request to this partition.
    pub partition: Option<PartitionId>,
    /// Whether the identity is forgotten.
    pub forget: bool,
    /// Receives the answer; dropped without one when the transaction failed.
    pub answer: SyncSender<Result<Answer, RequestError>>,
    /// Set when nobody waits for an answer any more. Such a request is not carried out: its requester has received an error.
    pub abandoned: Arc<AtomicBool>,
}

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// No worker can answer now.
    #[error("{0}")]
    Unavailable(String),
}

/// Sends requests to the workers.
#[derive(Debug, Clone)]
pub struct Control {
    rule: IdentityRule,
    /// The channel to each worker; `None` before it starts.
    workers: Arc<Vec<Mutex<Option<Sender<Request>>>>>,
}

impl Control {
    /// A control of this number of workers, none of which has started.
    #[must_use]
    pub fn new(rule: IdentityRule, workers: usize) -> Self {
        let workers = (0..workers).map(|_| Mutex::default()).collect();
        Self { rule, workers: Arc::new(workers) }
    }

    /// The requests to a worker that starts. They replace those to its predecessor, which has ended.
    #[must_use]
    pub fn connect(&self, worker: usize) -> Receiver<Request> {
        let (sender, receiver) = channel();
        if let Some(place) = self.workers.get(worker) {
            *place.locked() = Some(sender);
        }
        receiver
    }

    /// Sends a request to all workers and waits for the answers.
    pub fn ask(
        &self,
        asked: &AskedId,
        partition: Option<PartitionId>,
        forget: bool,
    ) -> Result<Answer, RequestError> {
        let identity = self.identity(asked)?;
        let (answer, answers) = sync_channel(self.workers.len());
        let abandoned: Arc<AtomicBool> = Arc::default();
        for worker in self.workers.iter() {
            let (answer, abandoned) = (answer.clone(), Arc::clone(&abandoned));
            let asked = Request { identity, partition, forget, answer, abandoned };
            let worker = worker.locked();
            let is_sent = worker.as_ref().is_some_and(|worker| worker.send(asked).is_ok());
            if !is_sent {
                let why = "no worker runs: this instance is a spare, is starting, or has ended; see /readyz";
                return Err(RequestError::Unavailable(why.to_owned()));
            }
        }
        drop(answer);
        let answer = self.collect(identity, &answers);
        abandoned.store(true, Ordering::Release);
        if let (true, AskedId::Id(texts)) = (forget, asked) {
            log_forgotten(texts, &answer);
        }
        answer
    }

    fn identity(&self, asked: &AskedId) -> Result<Identity, RequestError> {
        let texts = match asked {
            AskedId::Identity(identity) => return Ok(*identity),
            AskedId::Id(texts) => texts,
        };
        self.rule.identify_texts(texts).ok_or_else(|| {
            RequestError::Invalid(format!(
                "give the id once for each of the {} parts of identity.from; only a part with (optional) may be empty",
                self.rule.parts()
            ))
        })
    }

    fn collect(
        &self,
        identity: Identity,
        answers: &Receiver<Result<Answer, RequestError>>,
    ) -> Result<Answer, RequestError> {
        let mut all = Answer { identity: identity.to_string(), ..Answer::default() };
        let deadline: Instant = monotonic() + ANSWER;
        for _ in self.workers.iter() {
            match answers.recv_timeout(deadline.saturating_duration_since(monotonic())) {
                Ok(one) => {
                    let one = one?;
                    all.places.extend(one.places);
                    all.looked_into.extend(one.looked_into);
                    all.not_ready.extend(one.not_ready);
                }
                Err(RecvTimeoutError::Timeout) => {
                    return Err(RequestError::Unavailable(format!(
                        "a worker did not answer within {} s; check /readyz, then retry",
                        ANSWER.as_secs()
                    )));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(RequestError::Unavailable(
                        "the transaction failed, see the log for the reason; the id may or may not be forgotten: retry"
                            .to_owned(),
                    ));
                }
            }
        }
        Ok(all)
    }
}

/// Leaves a trail of an id that an operator has forgotten, in the form that `dedupd audit --forgotten` reads.
fn log_forgotten(texts: &[String], answer: &Result<Answer, RequestError>) {
    // A JSON array has no line breaks, so it needs no further escapes.
    let id = serde_json::json!(texts);
    match answer {
        Ok(Answer { identity, places, .. }) if !places.is_empty() => {
            tracing::info!(%id, identity, "id forgotten by a request of the admin API");
        }
        Ok(_) => {}
        Err(why) => tracing::warn!(%id, %why, "a request to forget an id failed"),
    }
}
