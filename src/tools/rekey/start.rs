//! Where a source partition is read from.

use crate::config::OnGap;
use crate::dedupe::Offset;
use crate::ports::LogBounds;

/// A start offset, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartOffset {
    /// At this offset.
    At(Offset),
    /// At this offset, because the log does not contain the position; `gap` offsets were deleted before they were read.
    Behind { offset: Offset, gap: u64 },
    /// The log does not contain the position, and `group.on_gap` is `stop`.
    Refused,
}

/// The start offset of a partition. `position` is the next offset to read; without one the group has not read the partition,
/// and nothing in it is skipped.
pub fn start(position: Option<Offset>, log: LogBounds, on_gap: OnGap) -> StartOffset {
    match position {
        None => StartOffset::At(log.low),
        Some(position) if (log.low..=log.high).contains(&position) => StartOffset::At(position),
        Some(_) if on_gap == OnGap::Stop => StartOffset::Refused,
        // A log that ends before the position was truncated or recreated. What is repeated is dropped by the next stage.
        Some(position) => StartOffset::Behind { offset: log.low, gap: log.low.saturating_sub(position) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_skipped_except_an_accepted_gap() {
        let log = LogBounds { low: 10, stable: 20, high: 25 };
        for on_gap in [OnGap::Stop, OnGap::Accept] {
            assert_eq!(start(None, log, on_gap), StartOffset::At(10));
            for position in [10, 17, 20, 25] {
                assert_eq!(start(Some(position), log, on_gap), StartOffset::At(position));
            }
        }
        for position in [0, 9, 26] {
            assert_eq!(start(Some(position), log, OnGap::Stop), StartOffset::Refused);
        }
        assert_eq!(start(Some(4), log, OnGap::Accept), StartOffset::Behind { offset: 10, gap: 6 });
        assert_eq!(start(Some(26), log, OnGap::Accept), StartOffset::Behind { offset: 10, gap: 0 });
    }
}
