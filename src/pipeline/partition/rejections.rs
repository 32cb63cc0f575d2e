//! The records of a partition that the broker rejected, and when they are tried again.
//!
//! No rejection is final: it depends on a topic setting or a broker policy, and both can change meanwhile. So a
//! record that is rejected when sent alone is retried alone, with exponential backoff. Its partition pauses
//! meanwhile; the others continue.

use std::time::Duration;

use crate::dedupe::{Coordinates, Offset, PartitionId};
use crate::ports::OutputTopic;
use crate::units::duration_text;

/// The first delay; each later one is twice the previous.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// The longest delay.
const MAX_DELAY: Duration = Duration::from_mins(1);
/// Once the retries of one record are exhausted, further rejected records of that partition follow the policy
/// immediately for this long. Otherwise a topic with many such records would make no progress.
const NO_RETRIES_FOR: Duration = Duration::from_mins(10);

/// So many late arrivals at one place are no accident of the client: a batch there has its records in another order than their offsets. Records from
/// before a seek look the same if a damaged batch ends each reading before they arrive again: then only the number of readings distinguishes both.
const MOST_LATE: u32 = 20;

/// The rejected records of a partition. They outlive the abort of the transaction in which they were rejected.
#[derive(Debug, Default)]
pub struct Rejections {
    /// The lowest of the records rejected last. The records before it are sent first, without it; then it is sent alone.
    suspect: Option<Offset>,
    /// Most records of one transaction, while a rejected record is being isolated.
    limit: Option<usize>,
    /// The record that was rejected when sent alone, and is being retried.
    retry: Option<Retry>,
    /// The record whose retries are exhausted.
    exhausted: Option<(Offset, Refusal)>,
    /// Monotonic time at which the retries of a record were last exhausted.
    exhausted_at: Option<Duration>,
    /// The lowest record that arrived after one with a higher offset, and how many did since it last arrived in its order.
    late: Option<(Offset, u32)>,
}

/// Why a record is rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The topic that does not accept it.
    pub by: OutputTopic,
    pub error: String,
}

/// A record that was rejected when sent alone.
#[derive(Debug)]
struct Retry {
    offset: Offset,
    /// Number of rejections.
    attempts: usize,
    /// Monotonic time of the next attempt.
    next: Duration,
    /// Description for the status page.
    description: String,
}

impl Rejections {
    pub(crate) fn suspect(&mut self, first: Offset) {
        self.suspect = Some(first);
        self.limit = None;
    }

    /// Whether the open transaction has to be committed before the record at `offset`, because the record is suspected of being
    /// rejected. `is_open`: whether the transaction has records, of any partition: in a side topic they can share a batch.
    pub(crate) fn commits_before(&mut self, offset: Offset, is_open: bool) -> bool {
        if self.suspect.is_none_or(|suspect| offset < suspect) {
            return false;
        }
        // The commit doubles the limit, so that is set after it.
        if !is_open {
            (self.suspect, self.limit) = (None, Some(1));
        }
        is_open
    }

    /// A record has arrived after one with a higher offset, and is read again.
    pub(crate) fn note_late(&mut self, offset: Offset) {
        let (lowest, times) = self.late.unwrap_or((offset, 0));
        self.late = Some((lowest.min(offset), times + 1));
    }

    /// The record that was late is in its order: the client returned records that it had fetched before the seek.
    pub(crate) fn forget_late(&mut self) {
        self.late = None;
    }

    /// A record has arrived in its order, as it would not from such a batch.
    pub(crate) fn note_next(&mut self, offset: Offset) {
        self.late = self.late.filter(|(late, _)| *late != offset);
    }

    /// The record at or beyond `next` that always arrives after the one at `offset`, which therefore must not be processed.
    pub(crate) fn late_before(&self, next: Offset, offset: Offset) -> Option<Offset> {
        let (late, times) = self.late?;
        (times >= MOST_LATE && (next..offset).contains(&late)).then_some(late)
    }

    /// Whether the open transaction has to be committed now that it has this many records of the partition.
    pub(crate) fn limits(&self, records: usize) -> bool {
        self.limit.is_some_and(|limit| records >= limit)
    }

    /// Why the record at `offset` is rejected, when its retries are exhausted and the policy applies.
    pub(crate) fn exhausted(&self, offset: Offset) -> Option<&Refusal> {
        self.exhausted.as_ref().filter(|(at, _)| *at == offset).map(|(_, refusal)| refusal)
    }

    /// Whether rejected records follow the policy without retries. `now` is called only after a record was rejected.
    pub(crate) fn follow_policy_at_once(&self, now: impl FnOnce() -> Duration) -> bool {
        self.exhausted_at.is_some_and(|since| now().saturating_sub(since) < NO_RETRIES_FOR)
    }

    /// Schedules the next attempt for a rejected record and returns its description; `None` when the retries are
    /// exhausted. The partition pauses until the attempt.
    pub(crate) fn schedule_retry(
        &mut self,
        at: Coordinates,
        now: Duration,
        patience: Duration,
        why: &str,
    ) -> Option<String> {
        let no_retries = self.follow_policy_at_once(|| now);
        let delays = retry_delays(if no_retries { Duration::ZERO } else { patience });
        let earlier = self.retry.take().filter(|retry| retry.offset == at.offset);
        let attempts = earlier.map_or(0, |retry| retry.attempts) + 1;
        let Some(delay) = delays.get(attempts - 1) else {
            self.exhausted_at = self.exhausted_at.filter(|_| no_retries).or(Some(now));
            return None;
        };
        let description = format!(
            "record {at} is rejected: attempt {attempts} of {}, next in {}",
            delays.len() + 1,
            duration_text(*delay)
        );
        let next = now + *delay;
        self.retry =
            Some(Retry { offset: at.offset, attempts, next, description: format!("{description}: {why}") });
        self.limit = Some(1);
        Some(description)
    }

    pub(crate) fn exhaust(&mut self, offset: Offset, refusal: Refusal) {
        self.exhausted = Some((offset, refusal));
        self.limit = None;
    }

    /// Whether the partition waits before the next attempt for a rejected record.
    pub fn waits(&self, now: Duration) -> bool {
        self.retry.as_ref().is_some_and(|retry| now < retry.next)
    }

    /// Description of the rejected record and its next attempt.
    pub fn retry(&self) -> Option<&str> {
        self.retry.as_ref().map(|retry| retry.description.as_str())
    }

    /// Called after a commit of a partition: transactions grow again. A commit beyond the rejected record means that the record
    /// was accepted.
    pub(crate) fn committed(&mut self, partition: PartitionId, committed: Offset) {
        self.limit = self.limit.and_then(|limit| (limit < 1 << 20).then_some(limit * 2));
        self.late = self.late.filter(|(late, _)| *late >= committed);
        if let Some(retry) = self.retry.take_if(|retry| retry.offset < committed) {
            let (offset, attempt) = (retry.offset, retry.attempts + 1);
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

    fn at(offset: Offset) -> Coordinates {
        Coordinates { partition: 3, offset }
    }

    #[test]
    fn only_one_record_in_ten_minutes_is_retried() {
        let mut rejections = Rejections::default();
        let mut now = Duration::from_secs(100);
        for attempt in 1..=5 {
            let description = rejections.schedule_retry(at(7), now, PATIENCE, "policy").unwrap();
            assert!(
                description.starts_with(&format!("record 3@7 is rejected: attempt {attempt} of 6, next in ")),
                "{description}"
            );
            assert!(rejections.waits(now));
            now += retry_delays(PATIENCE)[attempt - 1];
            assert!(!rejections.waits(now));
        }
        assert_eq!(rejections.schedule_retry(at(7), now, PATIENCE, "policy"), None);
        assert_eq!(
            rejections.schedule_retry(at(8), now + NO_RETRIES_FOR / 2, PATIENCE, "policy"),
            None,
            "the next record is not retried"
        );
        assert!(
            rejections.schedule_retry(at(9), now + NO_RETRIES_FOR, PATIENCE, "policy").is_some(),
            "a record that is not retried does not extend the period"
        );
    }

    #[test]
    fn attempts_are_counted_per_record() {
        let mut rejections = Rejections::default();
        rejections.schedule_retry(at(7), Duration::ZERO, PATIENCE, "policy").unwrap();
        rejections.committed(3, 8);
        assert_eq!(rejections.retry(), None);
        assert!(
            rejections
                .schedule_retry(at(9), Duration::ZERO, PATIENCE, "policy")
                .unwrap()
                .contains("attempt 1 of 6")
        );
    }

    #[test]
    fn a_record_that_never_arrives_in_its_order_is_not_passed() {
        let mut rejections = Rejections::default();
        (1..MOST_LATE).for_each(|_| rejections.note_late(5));
        assert_eq!(rejections.late_before(3, 7), None);
        rejections.note_late(6);
        let late = |rejections: &Rejections| {
            [(3, 7), (3, 5), (6, 7)].map(|(next, at)| rejections.late_before(next, at))
        };
        assert_eq!(late(&rejections), [Some(5), None, None]);
        rejections.committed(3, 5);
        assert_eq!(late(&rejections), [Some(5), None, None]);
        rejections.note_next(5);
        assert_eq!(late(&rejections), [None; 3]);
    }

    #[test]
    fn a_suspected_record_is_sent_alone_after_the_records_before_it() {
        let mut rejections = Rejections::default();
        rejections.suspect(5);
        assert!(!rejections.commits_before(4, true) && !rejections.limits(100));
        assert!(rejections.commits_before(5, true), "the records before it are committed without it");
        assert!(!rejections.commits_before(5, false) && rejections.limits(1));
        rejections.committed(3, 6);
        assert_eq!([1, 2].map(|records| rejections.limits(records)), [false, true]);
    }
}
