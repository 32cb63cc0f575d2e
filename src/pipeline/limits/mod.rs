//! How much state one worker may hold, and how its windows share it: one window per journal and kind.
//!
//! A window may use what the others leave: the limits on count and memory apply to all windows together. Only if these hold more ids than
//! are allowed, or fit into the memory, the largest ones become smaller. Tables of fixed size have equal shares from the start.
//! The limit on disk space is enforced by feedback: when the size of the directory approaches it, the number of ids that may be stored is
//! reduced in proportion.

mod enforced;
pub mod shortened;
pub(crate) mod unheld;

use crate::config::Overflow;
use crate::dedupe::{FilterPart, IndexBytes, OwnerIndex, Positions, SealedBytes, Window, WindowLimits};
use crate::units::size_text;
pub(crate) use enforced::Enforced;
use enforced::UNSEALED_BYTES;

/// What can shorten the window: a configuration key or the past.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limit {
    /// `window.max_ids`.
    Ids,
    /// `window.max_memory`.
    Memory,
    /// `state.max_disk`.
    Disk,
    /// No key: the window was restored in part or restarted empty, and grows with time.
    Incomplete,
}

/// Limits of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Number of workers, at least 1; they get equal shares.
    pub workers: u64,
    /// Most identities in all windows.
    pub max_ids: u64,
    /// What happens when that limit is reached.
    pub when_full: Overflow,
    /// Most bytes of all indexes and filters.
    pub max_memory: Option<u64>,
    /// Most bytes of the state directory.
    pub max_disk: Option<u64>,
    /// Fewest identities of a sealed slice; `None`: nothing is sealed.
    pub smallest_slice: Option<u64>,
    /// The part of the windows that is in filters only.
    pub filtered: FilterPart,
}

/// Limits of one window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    /// Most identities; with eviction, the number of slots.
    pub ids: u64,
    /// The limit that determines `ids`.
    pub limit: Limit,
    /// Bytes of index and filters together.
    pub bytes: u64,
    /// Most identities of all windows of the worker.
    pub all: u64,
}

impl Limits {
    /// The value of `max_ids` without a limit: the index stores the distance between the numbers of owners in 38 bits.
    pub const UNLIMITED_IDS: u64 = 1 << 38;

    /// Most identities of one worker's windows.
    fn ids_of_worker(&self) -> u64 {
        (self.max_ids / self.workers.max(1)).max(1)
    }

    /// Bytes on disk beyond which the windows become shorter.
    pub(crate) fn most_on_disk(&self) -> Option<u64> {
        Some(self.max_disk? / 8 * SealedBytes::disk_eighths(self.smallest_slice.is_some()))
    }

    /// Most records of a transaction, whose owners fill half of the eighth of the disk that is reserved for growth between two measurements.
    pub fn records_by_disk(&self) -> usize {
        let most = self.max_disk.map_or(u64::MAX, |bytes| bytes / 16 / UNSEALED_BYTES / self.workers.max(1));
        usize::try_from(most).unwrap_or(usize::MAX).max(1)
    }

    /// The share of each window when one worker has `windows` of them.
    pub(crate) fn share(&self, windows: u64) -> Share {
        let count = windows.max(1).saturating_mul(self.workers.max(1));
        let by_count = (self.max_ids / count).max(1);
        let bytes = self.max_memory.map_or(u64::MAX, |bytes| bytes / count);
        let by_memory = match (self.max_memory, self.when_full) {
            (None, _) => u64::MAX,
            (_, Overflow::Shrink) => largest_fitting(by_count, |ids| self.bytes(ids) <= bytes),
            (_, Overflow::Evict) => largest_fitting(by_count, |ids| OwnerIndex::bytes_of_slots(ids) <= bytes),
        };
        if by_memory < by_count {
            let all = by_memory.saturating_mul(windows.max(1));
            return Share { ids: by_memory, limit: Limit::Memory, bytes, all };
        }
        Share { ids: by_count, limit: Limit::Ids, bytes, all: self.ids_of_worker() }
    }

    /// About how many identities fit into all windows of the process, if they are evenly distributed over `windows` of each worker.
    pub fn fitting(&self, windows: u64) -> u64 {
        self.share(windows).all.saturating_mul(self.workers.max(1))
    }

    /// Bytes of a window with this many identities.
    fn bytes(&self, ids: u64) -> u64 {
        let sealed = |smallest| SealedBytes::of(ids, self.filtered, smallest).peak();
        self.smallest_slice.map_or_else(|| IndexBytes::of(ids, ids).peak, sealed)
    }

    /// An empty window of a worker that has `windows` of them.
    pub(crate) fn window(&self, configured: WindowLimits, positions: Positions, windows: u64) -> Window {
        let share = self.share(windows);
        match self.when_full {
            // It may use what the others leave: `Enforced::apply` bounds the sum.
            Overflow::Shrink => Window::new(WindowLimits { max_ids: share.all, ..configured }, positions),
            Overflow::Evict => Window::evicting(WindowLimits { max_ids: share.ids, ..configured }, positions),
        }
    }

    /// Whether the size of a window's table no longer fits its share, so that the table has to be rebuilt. A smaller
    /// table is kept while it has at least half of its share.
    pub(crate) fn needs_other_table(&self, window: &Window, windows: u64) -> bool {
        let ids = self.share(windows).ids;
        // Table sizes are multiples of eight slots, one bucket.
        window.slots().is_some_and(|slots| slots >= ids + 8 || slots < ids / 2)
    }
}

/// The largest number up to `most` for which `fits` holds, within 0.1 %.
fn largest_fitting(most: u64, fits: impl Fn(u64) -> bool) -> u64 {
    if fits(most) {
        return most;
    }
    let (mut fitting, mut too_large) = (1, most);
    while too_large - fitting > 1 + fitting / 1_000 {
        let middle = u64::midpoint(fitting, too_large);
        if fits(middle) { fitting = middle } else { too_large = middle }
    }
    fitting
}

impl Limit {
    /// The configuration key and its value, as `key = value`.
    pub(crate) fn setting(self, limits: &Limits) -> String {
        let size = |bytes: Option<u64>| format!("\"{}\"", size_text(bytes.unwrap_or(0)));
        match self {
            Self::Ids => format!("window.max_ids = {}", limits.max_ids),
            Self::Memory => format!("window.max_memory = {}", size(limits.max_memory)),
            Self::Disk => format!("state.max_disk = {}", size(limits.max_disk)),
            Self::Incomplete => "the window was restored in part or restarted empty".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LIMITS: Limits = Limits {
        workers: 1,
        max_ids: 1_000_000,
        when_full: Overflow::Shrink,
        max_memory: None,
        max_disk: None,
        smallest_slice: None,
        filtered: FilterPart::NONE,
    };

    #[test]
    fn memory_bounds_the_ids_of_a_partition_by_what_its_index_takes() {
        let share = Share { ids: 250_000, limit: Limit::Ids, bytes: u64::MAX, all: 1_000_000 };
        assert_eq!(LIMITS.share(4), share);
        let limits = Limits { max_memory: Some(8 << 20), ..LIMITS };
        let share = limits.share(4);
        assert_eq!((share.limit, share.bytes, share.all), (Limit::Memory, 2 << 20, share.ids * 4));
        assert_eq!(limits.fitting(4), share.all);
        assert!(IndexBytes::of(share.ids, share.ids).peak <= 2 << 20 && share.ids > 60_000, "{share:?}");
        let slots = Limits { when_full: Overflow::Evict, ..limits }.share(4).ids;
        assert!(OwnerIndex::bytes_of_slots(slots) <= 2 << 20 && slots > 240_000, "{slots}");
        let of_two = Limits { workers: 2, ..limits };
        assert_eq!(of_two.share(2), Share { all: share.ids * 2, ..share });
        assert_eq!(of_two.fitting(2), share.all);
    }

    #[test]
    fn without_a_limit_on_ids_memory_alone_bounds_the_windows() {
        let sealing = Limits {
            max_ids: Limits::UNLIMITED_IDS,
            max_memory: Some(2 << 30),
            smallest_slice: Some(crate::dedupe::SMALLEST_SLICE),
            ..LIMITS
        };
        let (one, even) = (sealing.fitting(1), sealing.fitting(64));
        assert!(one > 500_000_000, "{one}");
        // Smaller windows have smaller slices, and each has room to build one.
        assert!(even > 300_000_000, "{even} in 64 windows");
    }

    #[test]
    fn a_table_is_rebuilt_when_its_share_has_changed() {
        let limits = Limits { when_full: Overflow::Evict, max_ids: 12_000, ..LIMITS };
        let configured = WindowLimits {
            exact: Duration::from_hours(1),
            max_ids: 1,
            time: crate::dedupe::TimeSource::Record,
            bloom: None,
        };
        let positions = Positions::keyed([0; 16]);
        let window = limits.window(configured, positions, 3);
        assert_eq!(window.slots(), Some(4_000));
        assert_eq!(
            [1, 2, 3, 4].map(|count| limits.needs_other_table(&window, count)),
            [true, false, false, true]
        );
        assert!(!LIMITS.needs_other_table(&LIMITS.window(configured, positions, 1), 50));
    }
}
