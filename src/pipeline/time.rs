//! The arrival time of records: the monotonic clock, started at the wall clock.

use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{Anchor, TimeSource, resume};
use crate::pipeline::partition::Partition;
use crate::units::duration_text;

/// Clocks that differ by less are considered equal, ms.
const AGREE_MS: i64 = 1_000;
/// A larger step of the wall clock is logged, ms.
const STEP_MS: i64 = 60_000;

/// Whether `every` has passed since `last`, or there was no last time; if so, sets `last` to `now`. Monotonic times.
pub(crate) fn is_due(last: &mut Option<Duration>, now: Duration, every: Duration) -> bool {
    let is_due = last.is_none_or(|last| now.saturating_sub(last) >= every);
    if is_due {
        *last = Some(now);
    }
    is_due
}

/// The worker's time.
#[derive(Debug)]
pub(crate) struct Time {
    anchor: Anchor,
    /// How far the wall clock was ahead of this clock when that was last logged, ms.
    logged_ms: i64,
}

impl Time {
    pub fn start(clock: &impl Clock) -> Self {
        Self { anchor: Anchor::new(clock.wall_ms(), clock.elapsed()), logged_ms: 0 }
    }

    /// Epoch milliseconds; wrong by as much as the wall clock was when the process started.
    pub fn now_ms(&self, clock: &impl Clock) -> i64 {
        self.anchor.now_ms(clock.elapsed())
    }

    /// How far this clock is ahead of the wall clock, ms; logs a step of the wall clock.
    pub fn ahead_ms(&mut self, clock: &impl Clock) -> i64 {
        let ahead = self.now_ms(clock).saturating_sub(clock.wall_ms());
        let stepped = ahead.saturating_neg();
        if stepped.abs_diff(self.logged_ms) > STEP_MS.unsigned_abs() {
            self.logged_ms = stepped;
            tracing::warn!(
                step = direction(stepped),
                "the clock of this machine stepped; windows continue by the monotonic clock, so no id expires earlier or \
                 later because of it; check the time synchronisation"
            );
        }
        ahead
    }
}

impl Partition {
    /// Continues the clock of a partition after it was located. `now_ms`: the worker's clock, epoch milliseconds.
    pub(crate) fn resume_time(&mut self, now_ms: i64, source: TimeSource) {
        self.ahead_ms = resume(source, self.time.ms(), now_ms, self.ahead_of_wall_ms);
        if self.ahead_ms.abs() > STEP_MS {
            tracing::warn!(
                partition = self.id,
                "the clock of this machine is {} the stream time of the partition: its window continues from that stream time, \
                 and downtime counts as far as it is known; check the clock",
                if self.ahead_ms > 0 { "behind" } else { "too far ahead of" }
            );
        }
    }
}

/// How far a partition's clock is ahead of the wall clock, for the checkpoint: ms, 0 when they agree.
pub(crate) fn ahead_of_wall_ms(source: TimeSource, ahead_ms: i64) -> i64 {
    if source == TimeSource::Arrival && ahead_ms.abs() > AGREE_MS { ahead_ms } else { 0 }
}

fn direction(ms: i64) -> String {
    let duration = duration_text(Duration::from_secs(ms.unsigned_abs() / 1_000));
    if ms > 0 { format!("forward by {duration}") } else { format!("back by {duration}") }
}
