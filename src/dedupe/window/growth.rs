//! How the exact index grows: the capacity of its tables, and the memory that they allocate.

use super::table::SlotTable;

/// Capacity in entries of the first table of a window without any history: 5.5 KB.
pub(super) const SMALLEST: u64 = 512;
/// Capacity added to the expected number of ids: one part in 64. A window holds up to 1/256 more than its length,
/// because owners expire by marks. A table for exactly the expected number would fill up with owners that are about
/// to expire, and would be followed by one of twice its size.
const SLACK: u64 = 64;
/// One part in 256: the ids that a window holds beyond its length.
const HELD_SLACK: u64 = 256;
/// Bytes per id of the overflow map when a table is nearly full all the time. Measured with windows of 0.1 to 1 M ids
/// after five times their length.
const OVERFLOW_BYTES: f64 = 0.8;

/// Capacity of the table that follows a full one of `last` entries: what the window is expected to hold plus 1/64,
/// limited to 2 to 8 times `last`, then to 9/8 of `most`, the number of ids that the window may hold; at least 5/4 of
/// `last`.
pub(super) fn next_capacity(last: u64, expected: u64, most: u64) -> u64 {
    let roomy = expected.saturating_add(expected / SLACK);
    let wanted = roomy.clamp(last.saturating_mul(2), last.saturating_mul(8));
    wanted.min(most.saturating_add(most / 8)).max(last.saturating_add(last / 4))
}

/// Bytes that the index of one window allocates under even traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexBytes {
    /// In the steady state, from two windows after an empty start on.
    pub steady: u64,
    /// Peak, while the window fills for the first time and tables of increasing size exist side by side.
    pub peak: u64,
}

impl IndexBytes {
    /// For a window that holds `ids` identities when full, and may hold `most`.
    pub fn of(ids: u64, most: u64) -> Self {
        let ids = ids.min(most);
        let held = ids + ids / HELD_SLACK + 1;
        let (mut capacity, mut steady) = SlotTable::shape(SMALLEST);
        // For each table: the arrivals when it was opened, its bytes. The first one is dropped when the second one was
        // opened a full window ago.
        let mut tables = vec![(0, steady)];
        let (mut arrived, mut peak) = (0u64, steady);
        while capacity <= held {
            arrived = arrived.saturating_add(capacity);
            (capacity, steady) = SlotTable::shape(next_capacity(capacity, ids, most));
            tables.push((arrived, steady));
            let expired =
                tables.iter().skip(1).take_while(|(opened, _)| opened.saturating_add(held) <= arrived);
            tables.drain(..expired.count());
            peak = peak.max(tables.iter().map(|(_, bytes)| bytes).sum());
        }
        let full = capacity < ids + ids / 16;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a count")]
        let overflow = if full { (ids as f64 * OVERFLOW_BYTES) as u64 } else { 0 };
        Self { steady: steady + overflow, peak: peak + overflow }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_sized_for_the_window_is_not_followed_by_a_larger_one() {
        for ids in [100_000, 1_000_000, 250_000_000] {
            let bytes = IndexBytes::of(ids, u64::MAX);
            let bytes_per_id = bytes.steady as f64 / ids as f64;
            assert!(bytes_per_id < 12.0 && bytes.peak < bytes.steady * 2, "{ids}: {bytes:?}");
        }
    }

    #[test]
    fn the_next_capacity_is_within_its_limits() {
        assert_eq!(next_capacity(512, 64_000, u64::MAX), 4_096);
        assert_eq!(next_capacity(4_096, 64_000, 10_000), 11_250);
        assert_eq!(next_capacity(4_096, 10, u64::MAX), 8_192);
        assert_eq!(next_capacity(4_096, 64_000, 100), 5_120);
        assert_eq!(next_capacity(20_000, 64_000, u64::MAX), 65_000);
    }
}
