//! A record that the broker rejects: isolated from the others, retried for a while, then handled by policy.
//!
//! No rejection is final: it depends on a topic setting or a broker policy, and both can change meanwhile. So a
//! record that is rejected when sent alone is retried alone, with exponential backoff. Its partition pauses
//! meanwhile; the others continue.

use std::time::Duration;

use super::error::{Fatal, WorkerError};
use super::options::OnRejected;
use super::partition::Partition;
use super::step::RawOf;
use super::worker::{Core, World};
use crate::clock::Clock;
use crate::dedupe::{Coordinates, Offset};
use crate::metrics::Outcome;
use crate::ports::{Reason, Record, RejectedRecords, Side};

/// The first delay; each later one is twice the previous.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// The longest delay.
const MAX_DELAY: Duration = Duration::from_mins(1);
/// Once the retries of one record are exhausted, further rejected records of that partition follow the policy
/// immediately for this long. Otherwise a topic with many such records would make no progress.
const NO_RETRIES_FOR: Duration = Duration::from_mins(10);

/// A record that was rejected when sent alone.
#[derive(Debug)]
pub struct Rejection {
    offset: Offset,
    /// Number of rejections.
    attempts: usize,
    /// Monotonic time of the next attempt.
    next: Duration,
    /// Description for the status page.
    description: String,
}

impl<W: World> Core<W> {
    /// The broker rejected records of a partition. The records before the lowest rejected one are sent next, without
    /// it; then that record is sent alone. When it is accepted, transactions grow again until the next rejection.
    pub(super) fn isolate_rejected(&mut self, rejected: RejectedRecords, error: &str) {
        let now = self.clock.elapsed();
        let Some(partition) = self.partitions.get_mut(rejected.partition) else { return };
        let records = partition.open.as_ref().map_or(1, |open| open.records);
        // The range of rejected offsets is not enough: the broker may have reported one record of a rejected batch
        // before the others.
        if records != 1 {
            partition.suspect = Some(rejected.first);
            partition.limit = None;
        } else if let Some(description) =
            partition.schedule_retry(rejected.first, now, self.options.poison_retry)
        {
            partition.limit = Some(1);
            tracing::warn!(
                "{description}; after the last attempt state.on_poison ({}) applies",
                self.options.on_poison.as_str()
            );
        } else {
            partition.rejected = Some((rejected.first, error.to_owned()));
            partition.limit = None;
        }
    }

    /// Whether the open transaction has to be committed before this record, because the record is suspected of being
    /// rejected.
    pub(super) fn commits_before(&mut self, at: Coordinates) -> bool {
        let Some(partition) = self.partitions.get_mut(at.partition).filter(|p| p.is_running()) else {
            return false;
        };
        if at.offset < partition.next || partition.suspect.is_none_or(|suspect| at.offset < suspect) {
            return false;
        }
        partition.suspect = None;
        partition.limit = Some(1);
        partition.open.as_ref().is_some_and(|open| open.records > 0)
    }

    /// Handles a record that the broker rejects according to the policy.
    pub(super) fn apply_rejection_policy(&mut self, record: &RawOf<'_, W>) -> Result<Outcome, WorkerError> {
        let at = record.coordinates();
        let error = self
            .partitions
            .get(at.partition)
            .and_then(|p| p.rejected.as_ref().map(|(_, error)| error.clone()))
            .unwrap_or_default();
        match self.options.on_poison {
            OnRejected::Stop => Err(Fatal::Operator(format!(
                "record {at} of topic {} cannot be written: {error}; change what the clean topic accepts \
                 (max.message.bytes, message.timestamp.after.max.ms), or set state.on_poison to dead_letter or drop",
                self.options.raw
            ))
            .into()),
            OnRejected::DeadLetter => {
                self.divert(Side::DeadLetter, record, &Reason::new("rejected", error))?;
                Ok(Outcome::DeadLetter)
            }
            OnRejected::Drop => Ok(Outcome::Rejected),
        }
    }
}

impl Partition {
    /// Schedules the next attempt for a rejected record and returns its description; `None` when the retries are
    /// exhausted. The partition pauses until the attempt.
    fn schedule_retry(&mut self, offset: Offset, now: Duration, patience: Duration) -> Option<String> {
        let no_retries =
            self.retries_exhausted_at.is_some_and(|since| now.saturating_sub(since) < NO_RETRIES_FOR);
        let delays = retry_delays(if no_retries { Duration::ZERO } else { patience });
        let earlier = self.rejection.take().filter(|rejection| rejection.offset == offset);
        let attempts = earlier.map_or(0, |rejection| rejection.attempts) + 1;
        let Some(delay) = delays.get(attempts - 1) else {
            self.retries_exhausted_at = self.retries_exhausted_at.filter(|_| no_retries).or(Some(now));
            return None;
        };
        let description = format!(
            "record {} is rejected: attempt {attempts} of {}, next in {}",
            Coordinates { partition: self.id, offset },
            delays.len() + 1,
            humantime::format_duration(*delay)
        );
        self.rejection =
            Some(Rejection { offset, attempts, next: now + *delay, description: description.clone() });
        Some(description)
    }

    /// Whether the partition waits before the next attempt for a rejected record.
    #[must_use]
    pub fn rests(&self, now: Duration) -> bool {
        self.rejection.as_ref().is_some_and(|rejection| now < rejection.next)
    }

    /// Description of the rejected record and its next attempt.
    #[must_use]
    pub fn rejection(&self) -> Option<&str> {
        self.rejection.as_ref().map(|rejection| rejection.description.as_str())
    }

    /// Called after a commit: a commit beyond the rejected record means that the record was accepted.
    pub(super) fn note_accepted(&mut self) {
        if let Some(rejection) = self.rejection.take_if(|rejection| rejection.offset < self.committed) {
            let (partition, offset, attempt) = (self.id, rejection.offset, rejection.attempts + 1);
            tracing::info!(partition, offset, attempt, "rejected record accepted on retry");
        }
    }
}

/// The delays before each retry of a record; their sum is `patience`.
fn retry_delays(patience: Duration) -> Vec<Duration> {
    let (mut left, mut delay, mut all) = (patience, FIRST_DELAY, Vec::new());
    while !left.is_zero() {
        let next = delay.min(left);
        all.push(next);
        left = left.saturating_sub(next);
        delay = (delay * 2).min(MAX_DELAY);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn delays_grow_to_a_minute_and_sum_up_to_the_time_given() {
        let seconds = |patience| retry_delays(patience).iter().map(Duration::as_secs).collect::<Vec<_>>();
        assert_eq!(seconds(PATIENCE), [1, 2, 4, 8, 15]);
        assert!(seconds(Duration::ZERO).is_empty());
        assert_eq!(seconds(Duration::from_mins(5)), [1, 2, 4, 8, 16, 32, 60, 60, 60, 57]);
    }

    #[test]
    fn only_one_record_in_ten_minutes_is_retried() {
        let mut partition = Partition::assigned(3, Duration::ZERO);
        let mut now = Duration::from_secs(100);
        for attempt in 1..=5 {
            let description = partition.schedule_retry(7, now, PATIENCE).unwrap();
            assert!(
                description.starts_with(&format!("record 3@7 is rejected: attempt {attempt} of 6, next in ")),
                "{description}"
            );
            assert!(partition.rests(now));
            now += retry_delays(PATIENCE)[attempt - 1];
            assert!(!partition.rests(now));
        }
        assert_eq!(partition.schedule_retry(7, now, PATIENCE), None);
        assert_eq!(
            partition.schedule_retry(8, now + NO_RETRIES_FOR / 2, PATIENCE),
            None,
            "the next record is not retried"
        );
        assert!(
            partition.schedule_retry(9, now + NO_RETRIES_FOR, PATIENCE).is_some(),
            "a record that is not retried does not extend the period"
        );
    }

    #[test]
    fn attempts_are_counted_per_record() {
        let mut partition = Partition::assigned(0, Duration::ZERO);
        partition.schedule_retry(7, Duration::ZERO, PATIENCE).unwrap();
        partition.committed = 8;
        partition.note_accepted();
        assert_eq!(partition.rejection(), None);
        assert!(partition.schedule_retry(9, Duration::ZERO, PATIENCE).unwrap().contains("attempt 1 of 6"));
    }
}
