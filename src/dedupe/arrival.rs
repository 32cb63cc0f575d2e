//! What time it is when the clock of the machine cannot be believed.
//!
//! Stream time has to run at the pace of real time; where it begins matters less. Inside a process it therefore runs
//! with the monotonic clock ([`Anchor`]), which no step of the wall clock reaches. Across a restart only the wall clock
//! can tell how long nothing ran, and it may have been wrong before or be wrong now ([`resume`]).

use std::time::Duration;

use super::stream_time::{MOST_AHEAD_MS, TimeSource};

/// Nothing is taken to have stood still for longer, in ms: 30 days. By then Kafka has usually deleted the group's offsets
/// and the records that were to be read, so a clock that says so is more likely wrong.
const LONGEST_STANDSTILL_MS: i64 = 30 * 24 * 3_600 * 1_000;

/// The wall clock as it stood once, and the monotonic clock at that moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Anchor {
    wall_ms: i64,
    elapsed: Duration,
}

impl Anchor {
    /// What both clocks say now.
    #[must_use]
    pub fn new(wall_ms: i64, elapsed: Duration) -> Self {
        Self { wall_ms, elapsed }
    }

    /// Ms since the epoch at this monotonic time, whatever has become of the wall clock.
    #[must_use]
    pub fn now_ms(&self, elapsed: Duration) -> i64 {
        let since = elapsed.saturating_sub(self.elapsed).as_millis();
        self.wall_ms.saturating_add(i64::try_from(since).unwrap_or(i64::MAX))
    }
}

/// What a partition's own clock is ahead of `now_ms`, when its stream time stood at `stream_ms` as it was left.
/// `told_ms` is what that clock was then ahead of the wall clock, 0 when they agreed.
///
/// By arrival, of the readings that are possible the one counts that says the least time has passed: too little keeps ids
/// for longer, too much would forget them. When none is possible (stream time would go back, or forward by more than
/// 30 days) the clock goes on from where it stood. By record time `now_ms` only says what is too far in the
/// future, and the partition's clock is moved only where all records would be.
#[must_use]
pub fn resume(source: TimeSource, stream_ms: i64, now_ms: i64, told_ms: i64) -> i64 {
    let behind = stream_ms.saturating_sub(now_ms);
    match source {
        _ if stream_ms <= 0 => 0,
        TimeSource::Record if behind > 2 * MOST_AHEAD_MS => behind - MOST_AHEAD_MS,
        TimeSource::Record => 0,
        TimeSource::Arrival => {
            let passed = |ahead: i64| Some((ahead.saturating_sub(behind), ahead));
            let possible = |(passed, _): &(i64, i64)| (0..=LONGEST_STANDSTILL_MS).contains(passed);
            let readings = [0, told_ms].into_iter().filter_map(passed).filter(possible);
            readings.min().map_or(behind, |(_, ahead)| ahead)
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
    fn passed(source: TimeSource, now_ms: i64, told_ms: i64) -> i64 {
        now_ms + resume(source, T, now_ms, told_ms) - T
    }

    #[test]
    fn a_standstill_counts_as_long_as_it_can_be_one() {
        let by = |now_ms| passed(TimeSource::Arrival, now_ms, 0);
        assert_eq!(
            [0, 1, MINUTE, 3 * DAY, 30 * DAY].map(|down| by(T + down)),
            [0, 1, MINUTE, 3 * DAY, 30 * DAY]
        );
        assert_eq!(
            [31 * DAY, YEAR, 60 * YEAR].map(|step| by(T + step)),
            [0; 3],
            "no standstill: the clock is wrong"
        );
        assert_eq!([1, MINUTE, DAY, YEAR].map(|step| by(T - step)), [0; 4], "goes on from where it stood");
    }

    #[test]
    fn a_clock_that_was_wrong_before_is_reckoned_with() {
        let by = |now_ms, told_ms| passed(TimeSource::Arrival, now_ms, told_ms);
        // The wall clock was put forward by a day, or back, while the process ran, and has stayed so.
        assert_eq!(by(T + DAY + MINUTE, -DAY), MINUTE);
        assert_eq!(by(T - DAY + MINUTE, DAY), MINUTE);
        assert_eq!(by(T - 50 * YEAR + MINUTE, 50 * YEAR), MINUTE);
        // It was, and has been put right since.
        assert_eq!(by(T + MINUTE, -YEAR), MINUTE);
        assert_eq!(by(T + MINUTE, YEAR), MINUTE);
        assert_eq!(by(T + MINUTE, DAY), MINUTE, "the least that may have passed");
    }

    #[test]
    fn record_time_is_cut_by_a_clock_that_may_be_behind() {
        let by = |now_ms| resume(TimeSource::Record, T, now_ms, 0);
        assert_eq!(
            [T, T + YEAR, T - MOST_AHEAD_MS].map(by),
            [0; 3],
            "records may be old, and ahead by a little"
        );
        assert_eq!(by(T - YEAR), YEAR - MOST_AHEAD_MS, "a poisoned timestamp gains nothing by it");
        assert_eq!(resume(TimeSource::Record, 0, T, 0), 0, "nothing is known yet");
    }
}
