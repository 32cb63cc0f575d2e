//! Which slices are merged into one.
//!
//! An identity that is new is looked up in each slice, some 7 ns for each, so there should be few. Merging writes identities again. With these
//! numbers a window of steady traffic, which has 24 slices, hardly merges any; while it fills, each identity is written about 1.6 times, and
//! twice if slices are smaller parts of it because they have the largest size.

use std::ops::{Range, RangeInclusive};

use crate::dedupe::MERGED_PART;

/// Most slices of a window before some are merged.
const MOST: usize = 24;
/// Slices that are merged at a time.
const RUN: RangeInclusive<usize> = 3..=8;

/// The slices to merge, by their number of identities, and by how many of those still count. A slice in which most do not count is
/// written again.
pub(super) fn to_merge(slices: &[(u64, u64)]) -> Option<Range<usize>> {
    let mostly_dead = slices.iter().position(|(ids, live)| *live < ids / 2);
    if let Some(at) = mostly_dead.filter(|at| slices.get(*at).is_some_and(|(_, live)| *live > 0)) {
        return Some(at..at + 1);
    }
    if slices.len() <= MOST {
        return None;
    }
    let live = |run: &[(u64, u64)]| run.iter().map(|(_, live)| live).sum::<u64>();
    let most = live(slices) / MERGED_PART;
    let runs = RUN.flat_map(|length| (0..=slices.len() - length).map(move |at| at..at + length));
    // The fewest identities for the slices that are saved, squared: a long run costs more now, and its identities are merged less often.
    runs.min_by_key(|run| {
        let ids = live(slices.get(run.clone()).unwrap_or_default());
        let saved = run.len() as u128 - 1;
        (ids > most, (u128::from(ids) << 16) / (saved * saved))
    })
}

/// How many of the oldest slices become a filter: those that end before a stream time, if their owners arrived over a long enough time. A
/// filter cannot be merged later, and there should be few.
pub(super) fn to_filter(times_ms: &[(i64, i64)], before_ms: i64, span_ms: i64) -> usize {
    let (mut first, mut last) = (i64::MAX, i64::MIN);
    let ended = times_ms.iter().take_while(|(_, last_ms)| *last_ms < before_ms);
    let mut spans = ended.map(|(first_ms, last_ms)| {
        (first, last) = (first.min(*first_ms), last.max(*last_ms));
        last - first
    });
    spans.position(|span| span >= span_ms).map_or(0, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_slices_stay_as_they_are() {
        assert_eq!(to_merge(&[(10, 10); MOST]), None);
        assert_eq!(to_merge(&[(10, 5), (10, 10)]), None);
    }

    #[test]
    fn the_smallest_neighbours_are_merged() {
        let mut slices = vec![(100, 100); 19];
        slices.extend([(5, 5); 6]);
        assert_eq!(to_merge(&slices), Some(19..25));
        // A shorter run, where six neighbours have a large one among them.
        slices.splice(21..21, [(100, 100)]);
        assert_eq!(to_merge(&slices), Some(22..26));
    }

    #[test]
    fn a_merged_slice_has_at_most_a_fifth_of_the_identities() {
        assert_eq!(to_merge(&[(10, 10); 25]), Some(0..5), "six have more than a fifth");
        assert_eq!(to_merge(&[(10, 10); 40]), Some(0..8), "eight have a fifth");
    }

    #[test]
    fn a_slice_that_is_mostly_dropped_is_written_again() {
        assert_eq!(to_merge(&[(10, 10), (10, 4)]), Some(1..2));
        assert_eq!(to_merge(&[(10, 0), (10, 10)]), None, "it is removed as a whole");
    }

    #[test]
    fn slices_that_are_old_enough_wait_for_a_filter_of_some_length() {
        let times = [(0, 10), (11, 20), (15, 30), (31, 40)];
        assert_eq!(to_filter(&times, 31, 25), 3);
        assert_eq!(to_filter(&times, 31, 20), 2);
        assert_eq!(to_filter(&times, 31, 31), 0, "too short");
        assert_eq!(to_filter(&times, 30, 25), 0, "the third one is not old enough");
        assert_eq!(to_filter(&times, 5, 0), 0);
        assert_eq!(to_filter(&[], 100, 0), 0);
    }

    /// Seals and merges until a window has 1,000 million identities. Each seal adds one in `parts` of what the window has, as `slice_ids`
    /// determines, and at most `largest`. Returns how often an identity is written, on average.
    fn fill(parts: u64, largest: u64) -> f64 {
        let (mut slices, mut written, mut total) = (Vec::<(u64, u64)>::new(), 0, 100_000u64);
        while total < 1_000_000_000 {
            let new = (total / parts).min(largest);
            slices.push((new, new));
            (written, total) = (written + new, total + new);
            while let Some(run) = to_merge(&slices) {
                let sum: u64 = slices.drain(run.clone()).map(|(ids, _)| ids).sum();
                slices.insert(run.start, (sum, sum));
                written += sum;
                assert!(sum <= total / MERGED_PART, "{sum} of {total}");
            }
            assert!(slices.len() <= MOST);
        }
        written as f64 / total as f64
    }

    #[test]
    fn a_filling_window_writes_each_identity_at_most_twice() {
        let (by_part, by_size) = (fill(24, u64::MAX), fill(24, 1 << 23));
        assert!(by_part < 1.7 && by_size < 2.1, "{by_part:.2} {by_size:.2}");
    }

    /// A standby copy makes smaller slices.
    #[test]
    fn a_filling_copy_writes_each_identity_once_more() {
        let (by_part, by_size) = (fill(96, u64::MAX), fill(96, 1 << 21));
        assert!(by_part < 2.5 && by_size < 3.2, "{by_part:.2} {by_size:.2}");
    }
}
