//! The time that partitions go by: the monotonic clock, from where the wall clock stood.

use std::time::Duration;

use super::worker::{Core, World};
use crate::clock::Clock;
use crate::config::duration_text;
use crate::dedupe::{Anchor, PartitionId, TimeSource, Windows, resume};

/// Clocks that differ by less agree, ms.
const AGREE_MS: i64 = 1_000;
/// A step of the wall clock by more is told, ms.
const STEP_MS: i64 = 60_000;

/// The worker's time.
#[derive(Debug)]
pub(super) struct Time {
    anchor: Anchor,
    /// What the wall clock was ahead of it when that was told last, ms.
    told_ms: i64,
}

impl Time {
    pub fn start(clock: &impl Clock) -> Self {
        Self { anchor: Anchor::new(clock.wall_ms(), clock.elapsed()), told_ms: 0 }
    }

    /// Ms since the epoch, unless the wall clock was wrong when the process began.
    pub fn now_ms(&self, clock: &impl Clock) -> i64 {
        self.anchor.now_ms(clock.elapsed())
    }

    /// What this is ahead of the wall clock; tells of a step.
    pub fn ahead_ms(&mut self, clock: &impl Clock) -> i64 {
        let ahead = self.now_ms(clock).saturating_sub(clock.wall_ms());
        let stepped = ahead.saturating_neg();
        if stepped.abs_diff(self.told_ms) > STEP_MS.unsigned_abs() {
            self.told_ms = stepped;
            tracing::warn!(
                "the clock of this machine was put {}; windows go on by the monotonic clock, so nothing is forgotten or \
                 kept for it. Have a look at its time synchronisation",
                direction(stepped)
            );
        }
        ahead
    }
}

impl<W: World> Core<W> {
    /// A partition's state was read: its clock goes on from there.
    pub(super) fn resume_time(&mut self, id: PartitionId) {
        let (now_ms, source) = (self.time.now_ms(&self.clock), self.options.kinds.time());
        let Some(partition) = self.partitions.get_mut(id) else { return };
        let stream_ms = partition.windows.as_ref().map_or(0, Windows::stream_time_ms);
        partition.ahead_ms = resume(source, stream_ms, now_ms, partition.ahead_of_wall_ms);
        if partition.ahead_ms.abs() > STEP_MS {
            tracing::warn!(
                partition = id,
                "the clock of this machine is {} of what the partition has seen: its window goes on from there, and the \
                 time that nothing ran counts as far as it is known. Have a look at the clock",
                if partition.ahead_ms > 0 { "behind" } else { "too far ahead" }
            );
        }
    }
}

/// What a checkpoint says of a partition's clock: by how much it is ahead of the wall clock, 0 when they agree.
pub(super) fn told(source: TimeSource, (time_ahead_ms, ahead_ms): (i64, i64)) -> i64 {
    let ahead = time_ahead_ms.saturating_add(ahead_ms);
    if source == TimeSource::Arrival && ahead.abs() > AGREE_MS { ahead } else { 0 }
}

fn direction(ms: i64) -> String {
    let length = duration_text(Duration::from_secs(ms.unsigned_abs() / 1_000));
    if ms > 0 { format!("forward by {length}") } else { format!("back by {length}") }
}
