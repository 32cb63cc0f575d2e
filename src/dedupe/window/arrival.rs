//! Arrival time that tolerates a wrong wall clock.
//!
//! Stream time must advance at the rate of real time; its absolute value matters less. Within a process it follows the
//! monotonic clock ([`Anchor`]), which a step of the wall clock does not affect. Across a restart only the wall clock
//! shows the length of the downtime, and it may have been wrong before the restart or be wrong now ([`resume`]).

use std::time::Duration;

use super::stream_time::{MOST_AHEAD_MS, TimeSource};

/// Longest downtime that is accepted as real, in ms: 30 days. After a longer one Kafka has usually deleted the group's
/// offsets and the unread records, so a longer difference more likely means a wrong clock.
const MAX_DOWNTIME_MS: i64 = 30 * 24 * 3_600 * 1_000;

/// A reading of the wall clock and of the monotonic clock at the same moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Anchor {
    wall_ms: i64,
    elapsed: Duration,
}

impl Anchor {
    /// `wall_ms` (epoch milliseconds) and `elapsed` (monotonic clock) are read at the same moment.
    pub fn new(wall_ms: i64, elapsed: Duration) -> Self {
        Self { wall_ms, elapsed }
    }

    /// Epoch milliseconds at this monotonic time. Later steps of the wall clock have no effect.
    pub fn now_ms(&self, elapsed: Duration) -> i64 {
        let since = elapsed.saturating_sub(self.elapsed).as_millis();
        self.wall_ms.saturating_add(i64::try_from(since).unwrap_or(i64::MAX))
    }
}

/// How far, in ms, a resumed partition's own clock is ahead of `now_ms`. `stream_ms` is its stream time when it stopped.
/// `previous_ahead_ms` is how far its clock was ahead of the wall clock then; 0 when they agreed.
///
/// With arrival time there are two candidates: the previous difference, and none. The one with the shorter downtime
/// applies: too little keeps ids longer, too much would forget them early. When neither is plausible (stream time would
/// go back, or forward by more than 30 days) the clock continues at `stream_ms`. With record time `now_ms` only limits
/// timestamps in the future; the partition's clock is moved only if otherwise every record would exceed that limit.
pub fn resume(source: TimeSource, stream_ms: i64, now_ms: i64, previous_ahead_ms: i64) -> i64 {
    let behind = stream_ms.saturating_sub(now_ms);
    match source {
        _ if stream_ms <= 0 => 0,
        TimeSource::Record if behind > 2 * MOST_AHEAD_MS => behind - MOST_AHEAD_MS,
        TimeSource::Record => 0,
        TimeSource::Arrival => {
            let passed = |ahead: i64| Some((ahead.saturating_sub(behind), ahead));
            let plausible = |(passed, _): &(i64, i64)| (0..=MAX_DOWNTIME_MS).contains(passed);
            let candidates = [0, previous_ahead_ms].into_iter().filter_map(passed).filter(plausible);
            candidates.min().map_or(behind, |(_, ahead)| ahead)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: i64 = 1_700_000_000_000;
    const MINUTE: i64 = 60_000;
    const DAY: i64 = 24 * 60 * MINUTE;
    const YEAR: i64 = 365 * DAY;

    #[test]
    fn inside_a_process_time_runs_with_the_monotonic_clock() {
        let anchor = Anchor::new(T, Duration::from_secs(100));
        assert_eq!(anchor.now_ms(Duration::from_secs(100)), T);
        assert_eq!(anchor.now_ms(Duration::from_secs(160)), T + MINUTE);
        assert_eq!(anchor.now_ms(Duration::ZERO), T, "never back");
        assert_eq!(Anchor::new(i64::MAX, Duration::ZERO).now_ms(Duration::MAX), i64::MAX);
    }

    /// Stream time right after the resumption, less what it was.
    fn passed(source: TimeSource, now_ms: i64, previous_ahead_ms: i64) -> i64 {
        now_ms + resume(source, T, now_ms, previous_ahead_ms) - T
    }

    #[test]
    fn downtime_up_to_30_days_counts_as_elapsed_time() {
        let by = |now_ms| passed(TimeSource::Arrival, now_ms, 0);
        assert_eq!(
            [0, 1, MINUTE, 3 * DAY, 30 * DAY].map(|down| by(T + down)),
            [0, 1, MINUTE, 3 * DAY, 30 * DAY]
        );
        assert_eq!(
            [31 * DAY, YEAR, 60 * YEAR].map(|step| by(T + step)),
            [0; 3],
            "not downtime: the clock is wrong"
        );
        assert_eq!(
            [1, MINUTE, DAY, YEAR].map(|step| by(T - step)),
            [0; 4],
            "continues at the previous stream time"
        );
    }

    #[test]
    fn a_clock_that_was_wrong_before_the_restart_is_corrected() {
        let by = |now_ms, previous_ahead_ms| passed(TimeSource::Arrival, now_ms, previous_ahead_ms);
        // The wall clock was set forward or back while the process ran, and still is.
        assert_eq!(by(T + DAY + MINUTE, -DAY), MINUTE);
        assert_eq!(by(T - DAY + MINUTE, DAY), MINUTE);
        assert_eq!(by(T - 50 * YEAR + MINUTE, 50 * YEAR), MINUTE);
        // The wall clock was wrong and has been corrected since.
        assert_eq!(by(T + MINUTE, -YEAR), MINUTE);
        assert_eq!(by(T + MINUTE, YEAR), MINUTE);
        assert_eq!(by(T + MINUTE, DAY), MINUTE, "the shortest plausible downtime");
    }

    #[test]
    fn record_time_is_limited_by_a_clock_that_may_be_behind() {
        let by = |now_ms| resume(TimeSource::Record, T, now_ms, 0);
        assert_eq!(
            [T, T + YEAR, T - MOST_AHEAD_MS].map(by),
            [0; 3],
            "records may be old, and ahead by a little"
        );
        assert_eq!(by(T - YEAR), YEAR - MOST_AHEAD_MS, "a timestamp far in the future gains nothing");
        assert_eq!(resume(TimeSource::Record, 0, T, 0), 0, "no stream time yet");
    }
}
