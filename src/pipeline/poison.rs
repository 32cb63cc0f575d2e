//! A record that the broker refuses: found among the others, tried again for a while, then left to policy.
//!
//! No refusal is final: behind each stands a setting of the topic or a policy of the broker, and both can change
//! meanwhile. So a record that is refused alone is tried again, alone, with growing pauses, in which its partition
//! rests and the others go on.

use std::time::Duration;

use super::options::OnPoison;
use super::partition::Partition;
use super::step::RawOf;
use super::trouble::{Fatal, Trouble};
use super::worker::{Core, World};
use crate::clock::Clock;
use crate::dedupe::{Coordinates, Offset};
use crate::metrics::Outcome;
use crate::ports::{Reason, Record, Refused, Side};

/// The first pause; each is twice the last.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest.
const LONGEST: Duration = Duration::from_mins(1);
/// Once a record was tried in vain, the next ones of its partition go by policy at once, for so long: a topic with
/// many of them would stand still otherwise.
const SPENT: Duration = Duration::from_mins(10);

/// A record that was refused though it was alone.
#[derive(Debug)]
pub struct Refusal {
    offset: Offset,
    /// How often.
    attempts: usize,
    /// Monotonic time before which it is not tried again.
    next: Duration,
    /// For the status.
    told: String,
}

impl<W: World> Core<W> {
    /// The broker refused records of a partition. The lowest of them is sent alone next, those before it without it;
    /// when it is accepted, transactions grow again, until one is refused once more.
    pub(super) fn narrow(&mut self, refused: Refused, said: &str) {
        let now = self.clock.elapsed();
        let Some(partition) = self.partitions.get_mut(refused.partition) else { return };
        let taken = partition.open.as_ref().map_or(1, |open| open.records);
        // Not by the range alone: of a refused batch one record may be known before the others.
        if taken != 1 {
            partition.suspect = Some(refused.first);
            partition.limit = None;
        } else if let Some(told) = partition.again(refused.first, now, self.options.poison_retry) {
            partition.limit = Some(1);
            tracing::warn!("{told}; then it goes by state.on_poison ({})", self.options.on_poison.as_str());
        } else {
            partition.poison = Some((refused.first, said.to_owned()));
            partition.limit = None;
        }
    }

    /// Whether the open transaction has to be committed before this record, because it is suspect.
    pub(super) fn parts_before(&mut self, at: Coordinates) -> bool {
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

    /// A record that the broker refused, by policy.
    pub(super) fn set_aside(&mut self, record: &RawOf<'_, W>) -> Result<Outcome, Trouble> {
        let at = record.coordinates();
        let said = self
            .partitions
            .get(at.partition)
            .and_then(|p| p.poison.as_ref().map(|(_, said)| said.clone()))
            .unwrap_or_default();
        match self.options.on_poison {
            OnPoison::Stop => Err(Fatal::Operator(format!(
                "record {at} of topic {} cannot be written: {said}; change what the clean topic accepts \
                 (max.message.bytes, message.timestamp.after.max.ms), or set state.on_poison to dead_letter or drop",
                self.options.raw
            ))
            .into()),
            OnPoison::DeadLetter => {
                self.divert(Side::DeadLetter, record, &Reason::new("refused", said))?;
                Ok(Outcome::DeadLetter)
            }
            OnPoison::Drop => Ok(Outcome::Refused),
        }
    }
}

impl Partition {
    /// Whether the record is to be tried again, and if so, what there is to say; it rests until then.
    fn again(&mut self, offset: Offset, now: Duration, patience: Duration) -> Option<String> {
        let spent = self.gave_up.is_some_and(|since| now.saturating_sub(since) < SPENT);
        let pauses = pauses(if spent { Duration::ZERO } else { patience });
        let known = self.refusal.take().filter(|refusal| refusal.offset == offset);
        let attempts = known.map_or(0, |refusal| refusal.attempts) + 1;
        let Some(pause) = pauses.get(attempts - 1) else {
            self.gave_up = self.gave_up.filter(|_| spent).or(Some(now));
            return None;
        };
        let told = format!(
            "record {} is refused: attempt {attempts} of {}, next in {}",
            Coordinates { partition: self.id, offset },
            pauses.len() + 1,
            humantime::format_duration(*pause)
        );
        self.refusal = Some(Refusal { offset, attempts, next: now + *pause, told: told.clone() });
        Some(told)
    }

    /// Whether it waits before a refused record is tried again.
    #[must_use]
    pub fn rests(&self, now: Duration) -> bool {
        self.refusal.as_ref().is_some_and(|refusal| now < refusal.next)
    }

    /// What it waits for then.
    #[must_use]
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_ref().map(|refusal| refusal.told.as_str())
    }

    /// A commit went beyond the refused record: it was accepted after all.
    pub(super) fn note_accepted(&mut self) {
        if let Some(refusal) = self.refusal.take_if(|refusal| refusal.offset < self.committed) {
            let (partition, offset, attempt) = (self.id, refusal.offset, refusal.attempts + 1);
            tracing::info!(partition, offset, attempt, "a record that was refused is accepted");
        }
    }
}

/// The pauses before a record is tried again; together they are `patience`.
fn pauses(patience: Duration) -> Vec<Duration> {
    let (mut left, mut pause, mut all) = (patience, PAUSE, Vec::new());
    while !left.is_zero() {
        let next = pause.min(left);
        all.push(next);
        left = left.saturating_sub(next);
        pause = (pause * 2).min(LONGEST);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn pauses_grow_to_a_minute_and_fill_the_time_given() {
        let seconds = |patience| pauses(patience).iter().map(Duration::as_secs).collect::<Vec<_>>();
        assert_eq!(seconds(PATIENCE), [1, 2, 4, 8, 15]);
        assert!(seconds(Duration::ZERO).is_empty());
        assert_eq!(seconds(Duration::from_mins(5)), [1, 2, 4, 8, 16, 32, 60, 60, 60, 57]);
    }

    #[test]
    fn patience_is_for_one_record_in_ten_minutes() {
        let mut partition = Partition::assigned(3, Duration::ZERO);
        let mut now = Duration::from_secs(100);
        for attempt in 1..=5 {
            let told = partition.again(7, now, PATIENCE).unwrap();
            assert!(
                told.starts_with(&format!("record 3@7 is refused: attempt {attempt} of 6, next in ")),
                "{told}"
            );
            assert!(partition.rests(now));
            now += pauses(PATIENCE)[attempt - 1];
            assert!(!partition.rests(now));
        }
        assert_eq!(partition.again(7, now, PATIENCE), None);
        assert_eq!(partition.again(8, now + SPENT / 2, PATIENCE), None, "the next one goes at once");
        assert!(partition.again(9, now + SPENT, PATIENCE).is_some(), "what goes at once does not prolong it");
    }

    #[test]
    fn another_record_begins_anew() {
        let mut partition = Partition::assigned(0, Duration::ZERO);
        partition.again(7, Duration::ZERO, PATIENCE).unwrap();
        partition.committed = 8;
        partition.note_accepted();
        assert_eq!(partition.refusal(), None);
        assert!(partition.again(9, Duration::ZERO, PATIENCE).unwrap().contains("attempt 1 of 6"));
    }
}
