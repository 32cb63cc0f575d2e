//! Whether a partition has stalled: it delivers no records although its log has more.

use std::time::Duration;

use tracing::Value;

use crate::dedupe::Offset;
use crate::metrics::Stall;

/// How long a partition with more records may deliver none before it counts as stalled. A leader election takes a few seconds,
/// and a metadata update up to ten.
pub(crate) const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the partitions are compared with their logs.
pub(crate) const COMPARE_INTERVAL: Duration = Duration::from_secs(1);

/// The fetch position of a running partition at one point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fetching {
    /// The next offset to process.
    pub next: Offset,
    /// The high watermark in the last fetch response of the worker's own client, which may have had no records of the partition; `None`
    /// before the first response.
    pub fetched_end: Option<Offset>,
    /// The last stable offset as read by another client.
    pub log_end: Offset,
}

impl Fetching {
    /// Whether records are missing, and why: the client has not fetched what the log has, or has fetched it and does not
    /// deliver it.
    fn missing(self) -> Option<Stall> {
        if self.log_end <= self.next {
            None
        } else if self.fetched_end.is_none_or(|end| end < self.log_end) {
            Some(Stall::NotFetched)
        } else {
            Some(Stall::NotDelivered)
        }
    }

    /// Logs that a stalled partition is reassigned.
    pub(crate) fn log(self, partition: impl Value, stall: Stall) {
        let Self { next, fetched_end, log_end } = self;
        match stall {
            Stall::NotFetched => tracing::warn!(
                partition,
                next,
                fetched_end,
                log_end,
                "the client has stopped fetching a partition; reassigning it"
            ),
            // There may be only transaction markers and aborted records, which no fetch delivers.
            Stall::NotDelivered => tracing::info!(
                partition,
                next,
                log_end,
                "no records delivered although the log has more; refetching"
            ),
        }
    }
}

/// The time between two observations counts as this at most. If the worker was busy or the process was suspended for longer, the client
/// may have records that the worker has not polled.
const LONGEST_STEP: Duration = Duration::from_secs(2);

/// How long a partition has made no progress.
#[derive(Debug, Clone, Copy, Default)]
pub struct StallDetector {
    /// The fetch position when the stall began, and how long it has lasted.
    since: Option<(Fetching, Duration)>,
    /// Monotonic time of the last observation.
    observed: Option<Duration>,
    /// The next offset and the log end of the last reassignment, which brought no records if they are still the same. The log
    /// may hold only transaction markers and aborted records there, which no fetch delivers.
    last_reassigned: Option<(Offset, Offset)>,
    /// Reassignments since the next offset has changed.
    repeated: u32,
}

/// The timeout is doubled with each reassignment, this often at most. A reassignment discards the response in flight: over a slow link one can take
/// longer than the timeout, and would be discarded again and again.
const DOUBLINGS: u32 = 5;

impl StallDetector {
    /// Records the current fetch position. Returns the kind of stall when the partition has to be reassigned.
    pub fn observe(&mut self, now: Duration, seen: Fetching, patience: Duration) -> Option<Stall> {
        let missing = seen.missing();
        let step = now.saturating_sub(self.observed.replace(now).unwrap_or(now)).min(LONGEST_STEP);
        let since = self.since.filter(|(then, _)| {
            // A change means that a record or a new log end came from the fetcher, so it is alive.
            then.next == seen.next && then.fetched_end == seen.fetched_end && then.missing() == missing
        });
        let (then, waited) = since.map_or((seen, Duration::ZERO), |(then, waited)| (then, waited + step));
        self.since = Some((then, waited));
        if self.last_reassigned.is_some_and(|(next, _)| next != seen.next) {
            self.repeated = 0;
        }
        let stall = missing.filter(|_| waited >= patience * (1 << self.repeated.min(DOUBLINGS)))?;
        let place = (seen.next, then.log_end.max(seen.log_end));
        if stall == Stall::NotDelivered && self.last_reassigned == Some(place) {
            return None;
        }
        (self.since, self.last_reassigned) = (None, Some(place));
        self.repeated += 1;
        Some(stall)
    }

    /// Whether the client has fetched up to the end of the log, and has returned no record for this time. That does not prove that there is none.
    pub fn is_silent(&self, time: Duration) -> bool {
        self.since.is_some_and(|(seen, waited)| seen.missing() == Some(Stall::NotDelivered) && waited >= time)
    }

    /// Whether the log between the offset `next` and its `end` was fetched again, and that has brought no record for `patience`.
    pub fn is_unread(&self, next: Offset, end: Offset, patience: Duration) -> bool {
        self.last_reassigned == Some((next, end)) && self.is_silent(patience)
    }
}

/// Why a partition does not continue at its next offset, and what to do.
pub(crate) fn no_record(next: Offset, end: Offset) -> String {
    format!(
        "the client returns no record from offset {next} on, although the log ends at {end}: it cannot read what is there. \
         kafka-dump-log.sh --deep-iteration --files SEGMENT on the leader shows it; to skip it, stop dedupd, and set the group's \
         offset for the partition behind it with kafka-consumer-groups.sh --reset-offsets"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: fn(u64) -> Duration = Duration::from_secs;

    fn at(next: Offset, fetched_end: Option<Offset>, log_end: Offset) -> Fetching {
        Fetching { next, fetched_end, log_end }
    }

    /// The stalls that are reported by one check per second, each with its second.
    fn stalls(stall: &mut StallDetector, from: u64, seconds: u64, seen: Fetching) -> Vec<(u64, Stall)> {
        let check = |second| Some((second, stall.observe(SECOND(second), seen, STALL_TIMEOUT)?));
        (from..from + seconds).filter_map(check).collect()
    }

    #[test]
    fn a_partition_without_lag_is_never_stalled() {
        let mut stall = StallDetector::default();
        assert_eq!(stalls(&mut stall, 0, 1_000, at(10, Some(10), 10)), []);
        // The log end is read rarely, so the fetcher can be ahead of it.
        assert_eq!(stalls(&mut stall, 2_000, 1_000, at(20, Some(20), 10)), []);
        // The log is empty, so there is nothing to fetch.
        assert_eq!(stalls(&mut stall, 4_000, 1_000, at(0, None, 0)), []);
    }

    #[test]
    fn a_partition_that_is_not_fetched_is_reassigned_repeatedly() {
        for fetched_end in [None, Some(10)] {
            let mut stall = StallDetector::default();
            let stalled = stalls(&mut stall, 0, 100, at(10, fetched_end, 11));
            // The timeout restarts with the check after each reassignment, and is twice as long.
            assert_eq!(stalled, [30, 91].map(|second| (second, Stall::NotFetched)));
        }
    }

    #[test]
    fn a_slow_partition_is_not_stalled() {
        let mut stall = StallDetector::default();
        for second in 0..1_000 {
            // One record in 29 seconds, with thousands waiting.
            let next = second / 29;
            assert_eq!(stall.observe(SECOND(second), at(next, Some(9_000), 9_000), STALL_TIMEOUT), None);
        }
        for second in 1_000..2_000 {
            // Only markers and aborted records: the log end moves, and the client receives it.
            let end = 10_000 + second / 20;
            assert_eq!(stall.observe(SECOND(second), at(100, Some(end), end - 1), STALL_TIMEOUT), None);
        }
    }

    #[test]
    fn a_partition_is_not_stalled_while_the_worker_does_not_poll() {
        let mut stall = StallDetector::default();
        let lag = at(10, Some(20), 20);
        assert_eq!(stalls(&mut stall, 0, 20, lag), []);
        // The process was suspended for an hour.
        assert_eq!(stalls(&mut stall, 3_600, 30, lag), [(3_609, Stall::NotDelivered)]);
        let mut stall = StallDetector::default();
        for second in (0..300).step_by(20) {
            assert_eq!(stall.observe(SECOND(second), lag, STALL_TIMEOUT), None, "each iteration takes 20 s");
        }
        assert_eq!(stall.observe(SECOND(300), lag, STALL_TIMEOUT), Some(Stall::NotDelivered));
    }

    #[test]
    fn a_transaction_marker_at_the_log_end_causes_one_reassignment() {
        let mut stall = StallDetector::default();
        let marker = at(10, Some(11), 11);
        assert_eq!(stalls(&mut stall, 0, 60, marker), [(30, Stall::NotDelivered)]);
        let is_unread = |stall: &StallDetector| stall.is_unread(10, 11, STALL_TIMEOUT);
        assert!(!is_unread(&stall));
        assert_eq!(stalls(&mut stall, 60, 1_000, marker), []);
        assert!(is_unread(&stall));
        // One more transaction causes one more reassignment.
        let two = at(10, Some(13), 13);
        assert_eq!(stalls(&mut stall, 1_000, 1_000, two), [(1_060, Stall::NotDelivered)]);
        // A record that was really missing has been fetched by the reassignment.
        assert_eq!(stalls(&mut stall, 2_000, 1_000, at(13, Some(13), 13)), []);
    }

    #[test]
    fn a_response_that_takes_longer_than_the_timeout_arrives_after_some_reassignments() {
        let mut stall = StallDetector::default();
        // Each reassignment discards the response in flight, and the next one takes 50 s more.
        let (mut second, mut arrives, mut reassigned) = (0, 50, 0);
        while second < arrives {
            let seen = at(10, None, 100 + second);
            if stall.observe(SECOND(second), seen, STALL_TIMEOUT).is_some() {
                (reassigned, arrives) = (reassigned + 1, arrives + 50);
            }
            second += 1;
        }
        assert_eq!((reassigned, arrives), (2, 150));
    }

    #[test]
    fn the_timeout_starts_with_the_lag_and_not_with_the_last_record() {
        let mut stall = StallDetector::default();
        assert_eq!(stalls(&mut stall, 0, 3_600, at(10, Some(10), 10)), []);
        assert_eq!(stalls(&mut stall, 3_600, 31, at(10, Some(10), 12)), [(3_630, Stall::NotFetched)]);
    }
}
