//! The limits of the Bloom part, and the figures derived from them.

use std::ops::Range;
use std::time::Duration;

use super::sizing::Shares;

/// Filters side by side in a grid: with eight live slices, a look-up reads two ranges of 256 bytes.
/// One range of 512 bytes would be as fast, but would double the memory for one window when the traffic changes.
const WIDTH: usize = 4;

/// How long the Bloom part holds identities, at which false-positive rate, and in how much memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BloomLimits {
    /// Length of the exact part. Filters are not queried for younger arrivals.
    pub exact: Duration,
    /// How long identities are held, in stream time; longer than `exact`.
    pub bloom: Duration,
    /// Number of slices into which `bloom` is divided, at least 1.
    pub slices: u32,
    /// Probability that an absent identity passes a look-up as a whole; from 1e-15 to below 1.
    pub false_positive_rate: f64,
    /// Most bytes of this partition's filters. When the filters need more, the oldest ones are dropped first.
    pub max_bytes: u64,
}

impl BloomLimits {
    /// Length of a slice, in ms, at least 1.
    #[must_use]
    pub fn slice_ms(&self) -> i64 {
        let slices = i64::from(self.slices.max(1));
        ms(self.bloom).saturating_add(slices - 1).checked_div(slices).unwrap_or(1).max(1)
    }

    /// The slice of an arrival at this stream time: its start and end, in epoch milliseconds.
    #[must_use]
    pub fn slice_at(&self, time_ms: i64) -> Range<i64> {
        let length = self.slice_ms();
        let begin = time_ms.div_euclid(length).saturating_mul(length);
        begin..begin.saturating_add(length)
    }

    /// Most slices that one look-up queries: those that overlap the time between `bloom` and `exact`.
    #[must_use]
    pub fn consulted(&self) -> u32 {
        let span = ms(self.bloom).saturating_sub(ms(self.exact)).max(0);
        let slices = span.unsigned_abs().div_ceil(self.slice_ms().unsigned_abs());
        u32::try_from(slices).unwrap_or(u32::MAX).saturating_add(1)
    }

    /// Number of live slices: those of the window, and one that is partly expired.
    #[must_use]
    pub fn alive(&self) -> u32 {
        self.slices.max(1).saturating_add(1)
    }

    /// Columns of a grid: at most four, with the live slices evenly spread over the grids.
    #[must_use]
    pub fn width(&self) -> usize {
        let alive = usize::try_from(self.alive()).unwrap_or(WIDTH);
        alive.div_ceil(alive.div_ceil(WIDTH))
    }

    /// How the false-positive rate is divided among filters.
    #[must_use]
    pub fn shares(&self) -> Shares {
        Shares::new(self.false_positive_rate, self.consulted())
    }
}

/// A duration in ms, the unit of stream time.
pub(super) fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(exact_hours: u64, bloom_hours: u64, slices: u32) -> BloomLimits {
        BloomLimits {
            exact: Duration::from_hours(exact_hours),
            bloom: Duration::from_hours(bloom_hours),
            slices,
            false_positive_rate: 1e-9,
            max_bytes: u64::MAX,
        }
    }

    /// Most slices that overlap the queried time, counted at every minute of a slice.
    fn counted(limits: &BloomLimits) -> u32 {
        let (slice, bloom, exact) = (limits.slice_ms(), ms(limits.bloom), ms(limits.exact));
        let at = |now: i64| {
            let begins = (-2..60).map(|back: i64| (now.div_euclid(slice) - back) * slice);
            begins
                .filter(|begin| *begin < now - exact && begin + slice > now - bloom && *begin <= now)
                .count()
        };
        let most = (0..=slice / 60_000).map(|minute| at(1_700_000_000_000 + minute * 60_000)).max();
        u32::try_from(most.unwrap()).unwrap()
    }

    #[test]
    fn consulted_is_the_most_slices_that_overlap_the_queried_time() {
        for (limits, consulted) in [
            (limits(24, 168, 7), 7),
            (limits(0, 168, 7), 8),
            (limits(24, 720, 7), 8),
            (limits(1, 24, 24), 24),
            (limits(23, 24, 3), 2),
        ] {
            assert_eq!(limits.consulted(), consulted, "{limits:?}");
            assert!(counted(&limits) <= consulted, "{limits:?}: {}", counted(&limits));
        }
    }

    #[test]
    fn grids_hold_the_live_slices_without_waste() {
        for (slices, width) in [(1, 2), (2, 3), (3, 4), (4, 3), (7, 4), (11, 4), (12, 4)] {
            assert_eq!(limits(0, 24, slices).width(), width, "{slices} slices");
        }
    }
}
