//! The bounds of the logs of partitions that are about to start, requested for all of them together.
//!
//! A worker with a thousand partitions starts them at the same time. A request for each of them, one after the other, would
//! take most of the time of a start.
//!
//! The bounds are compared with the committed offset C, so they must not be older than the response with C: a log end from
//! before that could be below C. They are discarded whenever C is read ([`StartBounds::clear`]). What remains is the same as
//! a response that takes long, at most [`MAX_AGE`].

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{JournalId, PartitionId};
use crate::pipeline::REQUEST_TIMEOUT;
use crate::pipeline::access::Access;
use crate::pipeline::error::WorkerError;
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::partition::partitions::Partitions;
use crate::pipeline::ports::WorkerPorts;
use crate::ports::{Failure, Isolation, LogBounds, LogId, LogReads, Remedy, Source, StateItem};

/// How long a response is used: as long as the topic monitor takes to detect a recreated topic. A much shorter time would make
/// a slow broker answer for all partitions again and again.
const MAX_AGE: Duration = Duration::from_secs(5);
/// How long partitions are requested one by one after a common request has failed: a partition without a leader must not
/// delay the others. Short, because a broker that has just started may only have been slow.
const APART: Duration = Duration::from_secs(3);

/// Responses about the raw and the state logs.
#[derive(Debug, Default)]
pub(crate) struct StartBounds {
    raw: Answers,
    state: Answers,
    /// Whether the journals of the other scope were found empty.
    has_one_scope: bool,
}

#[derive(Debug, Default)]
struct Answers {
    /// Monotonic time of the request.
    requested: Duration,
    bounds: BTreeMap<PartitionId, LogBounds>,
    /// Monotonic time until which partitions are requested one by one.
    apart_until: Duration,
}

impl StartBounds {
    /// Discards all responses, because C was read.
    pub fn clear(&mut self) {
        self.raw.bounds.clear();
        self.state.bounds.clear();
    }
}

impl<W: WorkerPorts> Access<'_, W> {
    /// The bounds of the raw log of a partition that is about to start. Fails when raw was recreated.
    pub(crate) fn raw_bounds(&mut self, id: PartitionId) -> Result<LogBounds, WorkerError> {
        let now = self.ctx.clock.elapsed();
        let (partitions, options) = (&self.ctx.partitions, &self.ctx.options);
        let request = |ids: &[PartitionId]| request_raw::<W>(self.source, options, ids);
        self.start_bounds.raw.get(id, now, || starting(partitions, options), request)
    }

    /// The bounds of a journal that is about to be read.
    pub(crate) fn state_bounds(&mut self, journal: JournalId) -> Result<LogBounds, WorkerError> {
        let now = self.ctx.clock.elapsed();
        let (partitions, options, log) = (&self.ctx.partitions, &self.ctx.options, &self.ctx.log);
        let journals = || options.journals_of(starting(partitions, options)).into_iter().collect();
        self.start_bounds.state.get(journal, now, journals, |ids| {
            let logs: Vec<LogId> = ids.iter().copied().map(LogId::state).collect();
            Ok(log.bounds(&logs, REQUEST_TIMEOUT)?)
        })
    }

    /// Fails when a journal of the other scope has records, which a restore in this scope does not read: a group that has lost its offsets
    /// would write all of raw again.
    pub(crate) fn check_other_scope(&mut self) -> Result<(), WorkerError> {
        let options = &self.ctx.options;
        if self.start_bounds.has_one_scope {
            return Ok(());
        }
        let all = self.ctx.all_partitions().into_iter();
        let journals: Vec<PartitionId> = all.filter(|id| (*id == 0) != options.is_topic_wide()).collect();
        let logs: Vec<LogId> = journals.iter().copied().map(LogId::state).collect();
        let bounds = self.ctx.log.bounds(&logs, REQUEST_TIMEOUT)?;
        let last =
            |log: &LogBounds| log.low.max(log.stable.saturating_sub(options.evidence_records))..log.stable;
        let ends = journals.into_iter().zip(bounds.iter().map(last)).filter(|(_, range)| !range.is_empty());
        for item in self.ctx.log.records(&ends.collect::<Vec<_>>(), Isolation::Committed, REQUEST_TIMEOUT)? {
            let StateItem::Record { partition, offset, key: Some(key), .. } = item else { continue };
            let what =
                || format!("topic {} partition {partition} offset {offset} was written", options.state);
            options.same_scope(key.is_topic_wide, what)?;
        }
        self.start_bounds.has_one_scope = true;
        Ok(())
    }
}

impl Answers {
    /// The bounds of one partition, from a request for all partitions of `starting` that is not too old.
    fn get(
        &mut self,
        id: PartitionId,
        now: Duration,
        starting: impl FnOnce() -> Vec<PartitionId>,
        request: impl Fn(&[PartitionId]) -> Result<Vec<LogBounds>, WorkerError>,
    ) -> Result<LogBounds, WorkerError> {
        if now.saturating_sub(self.requested) >= MAX_AGE {
            self.bounds.clear();
        }
        if !self.bounds.contains_key(&id) && now >= self.apart_until {
            let starting = starting();
            match request(&starting) {
                Ok(bounds) => {
                    self.requested = now;
                    self.bounds = starting.into_iter().zip(bounds).collect();
                }
                Err(failed) if failed.is_grave() => return Err(failed),
                Err(_) => self.apart_until = now + APART,
            }
        }
        match self.bounds.get(&id) {
            Some(bounds) => Ok(*bounds),
            None => single(id, request(&[id])?),
        }
    }
}

fn single(id: PartitionId, bounds: Vec<LogBounds>) -> Result<LogBounds, WorkerError> {
    let what = || format!("the log bounds of partition {id} are missing in the response; retrying");
    Ok(bounds.into_iter().next().ok_or_else(|| Failure::new(Remedy::Retry, what()))?)
}

/// Requests the bounds of these raw logs now. Fails when raw was recreated: also a log that holds the committed offset may be
/// that of another topic.
pub(crate) fn request_raw<W: WorkerPorts>(
    source: &W::Source,
    options: &WorkerOptions,
    ids: &[PartitionId],
) -> Result<Vec<LogBounds>, WorkerError> {
    if let Some(known) = &options.raw_id {
        options.same_raw(Some(known), source.topic_id(REQUEST_TIMEOUT).as_deref())?;
    }
    Ok(source.bounds(ids, REQUEST_TIMEOUT)?)
}

/// The partitions that do not run yet and exist in all topics.
fn starting(partitions: &Partitions, options: &WorkerOptions) -> Vec<PartitionId> {
    partitions.ids(|partition| !partition.is_started && options.partition_counts.covers(partition.id))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    /// Requests of the bounds of partitions, of which number 3 has no leader while `fails`.
    struct Leaders {
        requests: RefCell<Vec<usize>>,
        fails: bool,
    }

    impl Leaders {
        fn get(
            &self,
            answers: &mut Answers,
            id: PartitionId,
            now: Duration,
        ) -> Result<LogBounds, WorkerError> {
            answers.get(
                id,
                now,
                || (0..8).collect(),
                |ids| {
                    self.requests.borrow_mut().push(ids.len());
                    if self.fails && ids.contains(&3) {
                        return Err(Failure::new(Remedy::Retry, "no leader".to_owned()).into());
                    }
                    let bounds =
                        |id: &PartitionId| LogBounds { low: 0, stable: u64::from(*id), high: u64::from(*id) };
                    Ok(ids.iter().map(bounds).collect())
                },
            )
        }
    }

    #[test]
    fn all_starting_partitions_are_requested_together_until_the_response_is_old_or_discarded() {
        let (mut bounds, leaders) =
            (StartBounds::default(), Leaders { requests: RefCell::default(), fails: false });
        let high = |bounds: &mut StartBounds, id, now| {
            leaders.get(&mut bounds.state, id, now).map(|it| it.high).ok()
        };
        assert_eq!([0, 5, 7].map(|id| high(&mut bounds, id, MS(10))), [Some(0), Some(5), Some(7)]);
        assert_eq!(high(&mut bounds, 2, MS(5_009)), Some(2));
        assert_eq!(leaders.requests.take(), [8]);
        assert_eq!(high(&mut bounds, 2, MS(5_010)), Some(2), "five seconds later");
        bounds.clear();
        assert_eq!(high(&mut bounds, 2, MS(5_011)), Some(2), "after C was read");
        assert_eq!(leaders.requests.take(), [8, 8]);
    }

    #[test]
    fn a_partition_without_a_leader_does_not_delay_the_others() {
        let (mut answers, leaders) =
            (Answers::default(), Leaders { requests: RefCell::default(), fails: true });
        assert!(leaders.get(&mut answers, 2, MS(0)).is_ok());
        assert!(leaders.get(&mut answers, 3, MS(1)).is_err());
        assert!(leaders.get(&mut answers, 4, MS(2_999)).is_ok());
        assert_eq!(leaders.requests.take(), [8, 1, 1, 1]);
        assert!(leaders.get(&mut answers, 4, MS(3_000)).is_ok());
        assert_eq!(leaders.requests.take(), [8, 1]);
    }
}
