//! The limits on the windows of a worker, as applied with each commit.

use std::time::Duration;

use super::{Limit, Limits, Share};
use crate::dedupe::{Window, WindowBounds, slice_ids};
use crate::pipeline::journal::Journals;
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::time::is_due;

/// Longest interval between two measurements of the directory.
const MEASURE_INTERVAL: Duration = Duration::from_secs(10);
/// The directory is measured earlier if the owners written since would fill a 32nd of the limit: in a backlog they fill a small limit in less
/// than the interval.
const MEASURED_PART: u64 = 32;
/// Bytes on disk of an owner that is not sealed, rounded up.
pub(super) const UNSEALED_BYTES: u64 = 64;
/// How long removed ids may take to leave the disk: the next commits remove them, which is before the measurement
/// after next.
const SETTLE_TIME: Duration = Duration::from_secs(20);

/// The limit for each window when all together may have `most` identities: while they have fewer, each of them may take the rest.
fn most_of_each(most: u64, ids: Vec<u64>) -> u64 {
    if ids.iter().sum::<u64>() > most { common_limit(most, ids) } else { most }
}

/// The largest limit for each of some windows with which they have at most `most` identities together: the larger ones become smaller.
fn common_limit(most: u64, mut stored: Vec<u64>) -> u64 {
    stored.sort_unstable();
    let (mut rest, mut windows) = (most, stored.len() as u64);
    for ids in stored {
        let share = rest / windows;
        if ids > share || windows == 1 {
            return share.max(1);
        }
        (rest, windows) = (rest - ids, windows - 1);
    }
    u64::MAX
}

/// `count` multiplied by `to / of`; at least 1.
fn scaled(count: u64, to: u64, of: u64) -> u64 {
    u64::try_from(u128::from(count) * u128::from(to) / u128::from(of.max(1))).unwrap_or(u64::MAX).max(1)
}

/// Identities that are expected in the index of a window: twice the size of a slice when one begins to be sealed, and what arrives meanwhile.
fn most_unsealed(smallest: Option<u64>, window: &Window) -> u64 {
    let smallest = smallest.filter(|_| window.can_seal());
    smallest.map_or(u64::MAX, |smallest| slice_ids(smallest, window.ids()).saturating_mul(3))
}

/// The limits as applied with each commit.
#[derive(Debug, Default)]
pub(crate) struct Enforced {
    /// The share as last computed, with the number of windows.
    share: Option<(u64, Share)>,
    /// Whether the windows were nearly at the limit on ids when the bounds were last set.
    full: bool,
    disk: DiskBound,
}

impl Enforced {
    /// Whether the directory has to be measured now.
    pub fn disk_check_due(&mut self, options: &WorkerOptions, journals: &Journals, now: Duration) -> bool {
        let Some(most) = options.limits.max_disk else { return false };
        let written = journals.windows().map(|(.., window)| window.next_number()).sum();
        self.disk.due(written, most, now)
    }

    /// Processes a measurement of the directory's size.
    pub fn disk(&mut self, bytes: u64, options: &WorkerOptions, journals: &Journals, now: Duration) {
        let Some(most) = options.limits.most_on_disk() else { return };
        let stored = journals.windows().map(|(.., window)| window.stored_ids()).sum();
        self.disk.measured(bytes, most, stored, now);
    }

    /// Makes the next commit measure again: other state was deleted.
    pub fn measure_disk_again(&mut self) {
        self.disk.measured_at = None;
    }

    /// Sets the bounds of every window; its next commit applies them.
    pub fn apply(&mut self, options: &WorkerOptions, journals: &mut Journals) {
        let limits = &options.limits;
        let count = options.windows_of(journals);
        let each: Vec<u64> = journals.windows().map(|(.., window)| window.ids()).collect();
        let ids = each.iter().sum::<u64>();
        let share = self.share(limits, count);
        // Uneven traffic can make tables grow more than calculated. The limit is reduced in proportion to the memory of the tables, not
        // set by the ids stored now: memory is freed only when the last owners of the tables expire.
        let (grown, bytes) = (
            journals.windows().map(|(.., it)| it.memory_in_index()).sum(),
            share.bytes.saturating_mul(count),
        );
        let most = if grown > bytes { scaled(share.all, bytes, grown) } else { share.all };
        self.full = ids >= most / 16 * 15;
        let max_ids = most_of_each(most, each);
        let stored = journals.windows().map(|(.., window)| window.stored_ids());
        let max_stored = self.disk.most_ids.map_or(u64::MAX, |most| common_limit(most, stored.collect()));
        for window in journals.windows_mut() {
            let unsealed = most_unsealed(limits.smallest_slice, window);
            window.set_bounds(WindowBounds { max_ids, max_stored, unsealed });
        }
    }

    fn share(&mut self, limits: &Limits, count: u64) -> Share {
        match self.share {
            Some((of, share)) if of == count => share,
            _ => self.share.insert((count, limits.share(count))).1,
        }
    }

    /// Which limit makes this window shorter than configured, or has removed ids inside it.
    pub fn active_limit(&self, window: &Window, limits: &Limits) -> Option<Limit> {
        let share = self.share.map(|(_, share)| share)?;
        let configured = window.configured().as_secs_f64();
        // Times are known with a resolution of one mark, 1/256 of the window.
        let shorter = |seconds: f64, of: f64| seconds < of * (1.0 - 1.0 / 128.0);
        if shorter(window.effective_seconds(), configured) {
            if window.is_short_by_note() {
                return Some(Limit::Incomplete);
            }
            // After a restart the limit on disk space has not taken effect yet, but the window is still shortened by
            // it.
            let by_disk = self.disk.most_ids.is_some() || limits.max_disk.is_some() && !self.full;
            // A limit that is not configured any more had removed ids.
            let is_past = share.limit == Limit::Ids && limits.max_ids == Limits::UNLIMITED_IDS;
            return Some(match share.limit {
                _ if by_disk => Limit::Disk,
                _ if is_past => Limit::Incomplete,
                limit => limit,
            });
        }
        (window.evicted_share() > 0.0).then_some(share.limit)
    }
}

/// The number of ids that may be stored without exceeding the limit on disk space.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct DiskBound {
    /// Most ids of all windows of this worker; `None` while the limit is not reached.
    most_ids: Option<u64>,
    measured_at: Option<Duration>,
    /// Numbers of owners given out when the directory was last measured.
    written: u64,
    lowered_at: Option<Duration>,
}

impl DiskBound {
    fn due(&mut self, written: u64, max_disk: u64, now: Duration) -> bool {
        let grown = written.abs_diff(self.written).saturating_mul(UNSEALED_BYTES) >= max_disk / MEASURED_PART;
        let due = is_due(&mut self.measured_at, now, if grown { Duration::ZERO } else { MEASURE_INTERVAL });
        self.written = if due { written } else { self.written };
        due
    }

    fn measured(&mut self, bytes: u64, most: u64, stored: u64, now: Duration) {
        let waited = self.lowered_at.is_none_or(|last| now.saturating_sub(last) >= SETTLE_TIME);
        if bytes > most && waited {
            self.most_ids = Some(scaled(stored, most / 14 * 13, bytes));
            self.lowered_at = Some(now);
        } else if bytes < most / 7 * 6 {
            // There is space again: raise the limit by 1/16 per measurement, until it no longer restricts anything.
            let most = self.most_ids.map(|most| most.saturating_add(most / 16 + 1));
            self.most_ids = most.filter(|most| *most < stored.saturating_mul(2));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_may_use_what_the_others_leave() {
        assert_eq!(most_of_each(1_000, vec![900, 10, 10]), 1_000, "one has nearly all, and all fit");
        assert_eq!(most_of_each(1_000, vec![900, 100, 100]), 800, "the largest one makes room");
        assert_eq!(most_of_each(1_000, vec![900, 600, 100]), 450);
        assert_eq!(most_of_each(1_000, Vec::new()), 1_000);
    }

    #[test]
    fn a_limit_on_all_windows_shortens_the_largest_ones() {
        assert_eq!(common_limit(93, vec![10, 50, 20, 20]), 43, "the others stay as they are");
        assert_eq!(common_limit(60, vec![40, 0, 50, 10]), 25);
        assert_eq!(common_limit(2, vec![40, 50, 10]), 1);
        assert_eq!(common_limit(100, vec![10, 20]), 90, "the largest one may grow into the rest");
        assert_eq!(common_limit(7, vec![100]), 7);
        assert_eq!(common_limit(7, Vec::new()), u64::MAX);
    }

    #[test]
    fn a_too_large_directory_reduces_the_ids_until_it_has_shrunk() {
        let (mut bound, at) = (DiskBound::default(), Duration::from_secs);
        let due = |bound: &mut DiskBound, written, seconds| bound.due(written, 64 * 32 * 100, at(seconds));
        assert!(due(&mut bound, 7, 0) && !due(&mut bound, 7, 9) && due(&mut bound, 7, 10));
        assert!(!due(&mut bound, 106, 11) && due(&mut bound, 107, 11), "100 owners fill the part");
        assert!(!due(&mut bound, 107, 20) && due(&mut bound, 0, 20), "other windows have other numbers");
        bound.measured(14_000, 14_000, 500, at(10));
        assert_eq!(bound.most_ids, None);
        bound.measured(15_000, 14_000, 600, at(20));
        assert_eq!(bound.most_ids, Some(520), "for 13,000 bytes");
        // The removed ids have not left the disk yet.
        bound.measured(15_000, 14_000, 520, at(30));
        assert_eq!(bound.most_ids, Some(520));
        bound.measured(20_000, 14_000, 520, at(40));
        assert_eq!(bound.most_ids, Some(338));
        bound.measured(12_500, 14_000, 338, at(200));
        assert_eq!(bound.most_ids, Some(338), "between six sevenths of it and all of it nothing changes");
        (0..40).for_each(|look| bound.measured(8_000, 14_000, 300, at(210 + look)));
        assert_eq!(bound.most_ids, None);
    }
}
