//! Where a source partition is read from.

use crate::dedupe::Offset;
use crate::ports::LogBounds;

/// The start offset of a partition; `None` if its log does not contain the position. `position` is the next offset to read;
/// without one the group has not read the partition, and nothing in it is skipped.
pub fn start(position: Option<Offset>, log: LogBounds) -> Option<Offset> {
    Some(position.unwrap_or(log.low)).filter(|start| (log.low..=log.high).contains(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_skipped() {
        let log = LogBounds { low: 10, stable: 20, high: 25 };
        assert_eq!(start(None, log), Some(10));
        for position in [10, 17, 20, 25] {
            assert_eq!(start(Some(position), log), Some(position));
        }
        for position in [0, 9, 26] {
            assert_eq!(start(Some(position), log), None);
        }
    }
}
