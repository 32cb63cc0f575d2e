//! What one worker may hold, and how the windows of its partitions share it: one a partition and kind.
//!
//! Memory is shared equally from the beginning, because a table cannot be made smaller: index and filters
//! of a window together keep within its share. The filters get what the index leaves, so their oldest
//! slices go first; when the index alone would be too large, the exact part becomes shorter.
//! The bound on the disk is kept by feedback: a directory that comes near it lowers the number of ids that
//! may be stored, by proportion.

use std::time::Duration;

use super::batch::Partitions;
use super::options::Options;
use crate::config::{Overflow, size_text};
use crate::dedupe::{BloomLimits, Bounds, Index, IndexBytes, Window, WindowLimits};

/// How often the directory is measured.
const MEASURE: Duration = Duration::from_secs(10);
/// How long what has been taken gets to leave the disk: with the next commits, before the look after the next.
const PATIENCE: Duration = Duration::from_secs(20);

/// A key of the configuration that can shorten the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limit {
    /// `window.max_ids`.
    Ids,
    /// `window.max_memory`.
    Memory,
    /// `state.max_disk`.
    Disk,
    /// None: the window was restored in part or begun anew, and becomes longer by itself.
    Past,
}

/// What one process may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Its workers, at least 1, which get equal shares.
    pub workers: u64,
    /// Most identities in the exact part of all windows.
    pub max_ids: u64,
    /// What happens then.
    pub when_full: Overflow,
    /// Most bytes of all indexes and filters.
    pub max_memory: Option<u64>,
    /// Most bytes of the directory.
    pub max_disk: Option<u64>,
}

/// What one window may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    /// Identities in the exact part: slots, when it evicts.
    pub ids: u64,
    /// The key that says so.
    pub because: Limit,
    /// Bytes of index and filters together.
    pub bytes: u64,
}

impl Limits {
    /// Most identities of one worker.
    fn ids_of_worker(&self) -> u64 {
        (self.max_ids / self.workers.max(1)).max(1)
    }

    /// An equal share for each of so many windows of one worker.
    pub(super) fn share(&self, windows: u64) -> Share {
        let count = windows.max(1).saturating_mul(self.workers.max(1));
        let by_count = (self.max_ids / count).max(1);
        let bytes = self.max_memory.map_or(u64::MAX, |bytes| bytes / count);
        let by_memory = match (self.max_memory, self.when_full) {
            (None, _) => u64::MAX,
            (_, Overflow::Shrink) => most(by_count, |ids| IndexBytes::of(ids, ids).peak <= bytes),
            (_, Overflow::Evict) => most(by_count, |ids| Index::bytes_of_slots(ids) <= bytes),
        };
        let because = if by_memory < by_count { Limit::Memory } else { Limit::Ids };
        Share { ids: by_count.min(by_memory), because, bytes }
    }

    /// An empty window, one of so many.
    pub(super) fn window(&self, wanted: WindowLimits, windows: u64) -> Window {
        let share = self.share(windows);
        let bloom = wanted.bloom.map(|bloom| BloomLimits { max_bytes: share.bytes, ..bloom });
        match self.when_full {
            // One partition alone may hold what others leave: the limit on the count is shared later.
            Overflow::Shrink => {
                let ids = if share.because == Limit::Ids { self.ids_of_worker() } else { share.ids };
                Window::new(WindowLimits { max_ids: ids, bloom, ..wanted })
            }
            Overflow::Evict => Window::evicting(WindowLimits { max_ids: share.ids, bloom, ..wanted }),
        }
    }

    /// Whether a window's table is not the one for its share: it has to be made anew. A smaller one is
    /// kept while it has half of what it might have.
    pub(super) fn misfits(&self, window: &Window, windows: u64) -> bool {
        let ids = self.share(windows).ids;
        // A table has whole buckets of eight slots.
        window.slots().is_some_and(|slots| slots >= ids + 8 || slots < ids / 2)
    }
}

/// The largest number up to `most` that fits.
fn most(most: u64, fits: impl Fn(u64) -> bool) -> u64 {
    if fits(most) {
        return most;
    }
    let (mut yes, mut no) = (1, most);
    while no - yes > 1 + yes / 1_000 {
        let middle = u64::midpoint(yes, no);
        if fits(middle) { yes = middle } else { no = middle }
    }
    yes
}

/// `count`, by the ratio of two sizes; at least 1.
fn scaled(count: u64, to: u64, of: u64) -> u64 {
    u64::try_from(u128::from(count) * u128::from(to) / u128::from(of.max(1))).unwrap_or(u64::MAX).max(1)
}

/// The limits as they are applied, commit by commit.
#[derive(Debug, Default)]
pub(super) struct Enforced {
    /// The share as last computed, and for how many windows.
    share: Option<(u64, Share)>,
    /// Whether the windows held about as many ids as they may when the bounds were last set.
    full: bool,
    disk: DiskBound,
}

impl Enforced {
    /// Whether the directory should be measured now.
    pub fn wants_disk(&mut self, options: &Options, now: Duration) -> bool {
        options.limits.max_disk.is_some() && self.disk.due(now)
    }

    /// The directory has this size.
    pub fn disk(&mut self, bytes: u64, options: &Options, partitions: &Partitions, now: Duration) {
        let Some(bound) = options.limits.max_disk else { return };
        let stored = partitions.windows().map(Window::stored_ids).sum();
        self.disk.measured(bytes, bound, stored, now);
    }

    /// Sets the bounds of every window; its next commit applies them. Below the limit on the count a
    /// partition may hold what it likes, above it each gets an equal share.
    pub fn apply(&mut self, options: &Options, partitions: &mut Partitions) {
        let limits = &options.limits;
        let count = options.windows_of(partitions);
        let ids = partitions.windows().map(Window::ids).sum::<u64>();
        let share = self.share(limits, count);
        self.full = ids >= limits.ids_of_worker() / 16 * 15;
        let crowded = ids > limits.ids_of_worker() || share.because == Limit::Memory;
        let max_ids = if crowded { share.ids } else { limits.ids_of_worker() };
        let max_stored = self.disk.most_ids.map_or(u64::MAX, |most| (most / count.max(1)).max(1));
        for window in partitions.windows_mut() {
            let index = window.index_bytes_ahead();
            let filter_bytes = share.bytes.saturating_sub(index);
            // Uneven traffic can make tables grow otherwise than was reckoned with. By proportion, and not
            // by what is held now: memory comes back only when the tables' last owners expire.
            let grown = window.memory_in_index();
            let max_ids = if grown > share.bytes { scaled(max_ids, share.bytes, grown) } else { max_ids };
            window.set_bounds(Bounds { max_ids, max_stored, filter_bytes });
        }
    }

    fn share(&mut self, limits: &Limits, count: u64) -> Share {
        match self.share {
            Some((of, share)) if of == count => share,
            _ => self.share.insert((count, limits.share(count))).1,
        }
    }

    /// Which limit has made this window shorter than it was asked to be, or put gaps into it.
    pub fn in_force(&self, window: &Window, limits: &Limits) -> Option<Limit> {
        let share = self.share.map(|(_, share)| share)?;
        let (asked, exact) = (window.asked().as_secs_f64(), window.exact().as_secs_f64());
        // What is known of time is known to a mark, 1/256 of the window.
        let shorter = |seconds: f64, wanted: f64| seconds < wanted * (1.0 - 1.0 / 128.0);
        let exact_shorter = shorter(window.exact_seconds(), exact);
        if window.is_short_by_note() && shorter(window.effective_seconds(), asked) {
            return Some(Limit::Past);
        }
        if exact_shorter || shorter(window.effective_seconds(), asked) {
            // After a restart the bound on the disk has not bitten yet, and the window is still as short.
            let other = if exact_shorter { share.because } else { Limit::Memory };
            let excluded =
                other == Limit::Ids && !self.full || other == Limit::Memory && limits.max_memory.is_none();
            let by_disk = self.disk.most_ids.is_some() || limits.max_disk.is_some() && excluded;
            return Some(if by_disk { Limit::Disk } else { other });
        }
        (window.evicted_share() > 0.0).then_some(share.because)
    }
}

/// How many ids may be stored, so that the directory keeps within its bound.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct DiskBound {
    /// Most ids of all partitions of this worker; `None` while the bound is not reached.
    most_ids: Option<u64>,
    looked: Option<Duration>,
    lowered: Option<Duration>,
}

impl DiskBound {
    fn due(&mut self, now: Duration) -> bool {
        let due = self.looked.is_none_or(|last| now.saturating_sub(last) >= MEASURE);
        if due {
            self.looked = Some(now);
        }
        due
    }

    fn measured(&mut self, bytes: u64, bound: u64, stored: u64, now: Duration) {
        let waited = self.lowered.is_none_or(|last| now.saturating_sub(last) >= PATIENCE);
        // The directory grows until the look after the next: an eighth is left for that.
        if bytes > bound / 8 * 7 && waited {
            self.most_ids = Some(scaled(stored, bound / 16 * 13, bytes));
            self.lowered = Some(now);
        } else if bytes < bound / 4 * 3 {
            // There is room again: up by 1/16 a look, until nothing hangs on it any more.
            let most = self.most_ids.map(|most| most.saturating_add(most / 16 + 1));
            self.most_ids = most.filter(|most| *most < stored.saturating_mul(2));
        }
    }
}

impl Limit {
    /// The key of the configuration and its value, as `key = value`.
    pub(super) fn told(self, limits: &Limits) -> String {
        let size = |bytes: Option<u64>| format!("\"{}\"", size_text(bytes.unwrap_or(0)));
        match self {
            Self::Ids => format!("window.max_ids = {}", limits.max_ids),
            Self::Memory => format!("window.max_memory = {}", size(limits.max_memory)),
            Self::Disk => format!("state.max_disk = {}", size(limits.max_disk)),
            Self::Past => "the window was restored in part or begun anew".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        workers: 1,
        max_ids: 1_000_000,
        when_full: Overflow::Shrink,
        max_memory: None,
        max_disk: None,
    };

    #[test]
    fn memory_bounds_the_ids_of_a_partition_by_what_its_index_takes() {
        assert_eq!(LIMITS.share(4), Share { ids: 250_000, because: Limit::Ids, bytes: u64::MAX });
        let limits = Limits { max_memory: Some(8 << 20), ..LIMITS };
        let share = limits.share(4);
        assert_eq!((share.because, share.bytes), (Limit::Memory, 2 << 20));
        assert!(IndexBytes::of(share.ids, share.ids).peak <= 2 << 20 && share.ids > 60_000, "{share:?}");
        let slots = Limits { when_full: Overflow::Evict, ..limits }.share(4).ids;
        assert!(Index::bytes_of_slots(slots) <= 2 << 20 && slots > 240_000, "{slots}");
        assert_eq!(Limits { workers: 2, ..limits }.share(2), limits.share(4));
    }

    #[test]
    fn a_table_is_made_anew_when_its_share_has_changed() {
        let limits = Limits { when_full: Overflow::Evict, max_ids: 12_000, ..LIMITS };
        let wanted = WindowLimits {
            exact: Duration::from_hours(1),
            max_ids: 1,
            time: crate::dedupe::TimeSource::Record,
            bloom: None,
        };
        let window = limits.window(wanted, 3);
        assert_eq!(window.slots(), Some(4_000));
        assert_eq!([1, 2, 3, 4].map(|count| limits.misfits(&window, count)), [true, false, false, true]);
        assert!(!LIMITS.misfits(&LIMITS.window(wanted, 1), 50));
    }

    #[test]
    fn a_directory_too_large_costs_ids_until_it_has_shrunk() {
        let (mut bound, at) = (DiskBound::default(), Duration::from_secs);
        assert!(bound.due(at(0)) && !bound.due(at(9)) && bound.due(at(10)));
        bound.measured(14_000, 16_000, 500, at(10));
        assert_eq!(bound.most_ids, None);
        bound.measured(15_000, 16_000, 600, at(20));
        assert_eq!(bound.most_ids, Some(520), "for 13,000 bytes");
        // What is taken has not left the disk yet.
        bound.measured(15_000, 16_000, 520, at(30));
        assert_eq!(bound.most_ids, Some(520));
        bound.measured(20_000, 16_000, 520, at(40));
        assert_eq!(bound.most_ids, Some(338));
        bound.measured(12_500, 16_000, 338, at(200));
        assert_eq!(
            bound.most_ids,
            Some(338),
            "between three quarters and seven eighths of it nothing changes"
        );
        (0..40).for_each(|look| bound.measured(8_000, 16_000, 300, at(210 + look)));
        assert_eq!(bound.most_ids, None);
    }
}
