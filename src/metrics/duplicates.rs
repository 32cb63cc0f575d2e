//! What the status page and `/status.json` show about duplicates.

use std::cmp::Reverse;

use serde::Serialize;

use super::labels::ContentLabel;

/// A duplicate and its owner.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DuplicateStatus {
    /// When its transaction was committed, epoch milliseconds.
    pub committed_ms: i64,
    /// Partition of the raw topic.
    pub partition: u32,
    /// Offset in it.
    pub offset: u64,
    /// Partition of the owner.
    pub owner_partition: u32,
    /// Offset of the owner in its partition.
    pub owner_offset: u64,
    /// The shortest window in which it is found, in seconds of stream time; `None` if a time is unknown.
    pub age_seconds: Option<f64>,
    /// How its content compares with that of the owner.
    pub content: ContentLabel,
}

/// A value of a source, and how often it was counted: between two bounds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ValueCount {
    /// Printable text of bounded length; `None` stands for records without a value.
    pub value: Option<String>,
    /// At least as often.
    pub least: u64,
    /// At most as often.
    pub most: u64,
}

/// The values with the highest counts, highest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct TopValues {
    /// At most [`TopValues::LISTED`].
    pub values: Vec<ValueCount>,
    /// No other value was counted more often.
    pub unlisted_most: u64,
}

impl TopValues {
    /// Most values of a list.
    pub const LISTED: usize = 20;

    /// Adds the counts of another worker. Where only one list has a value, the other worker may have counted it, too.
    fn add(&mut self, other: &Self) {
        let place =
            |values: &[ValueCount], of: &ValueCount| values.iter().position(|it| it.value == of.value);
        let mut more: Vec<_> =
            other.values.iter().filter(|it| place(&self.values, it).is_none()).cloned().collect();
        for it in &mut more {
            it.most += self.unlisted_most;
        }
        for known in &mut self.values {
            let of_other = place(&other.values, known).and_then(|at| other.values.get(at));
            known.least += of_other.map_or(0, |it| it.least);
            known.most += of_other.map_or(other.unlisted_most, |it| it.most);
        }
        self.values.append(&mut more);
        self.values.sort_by_key(|it| Reverse(it.most));
        self.unlisted_most += other.unlisted_most;
        if let Some(first) = self.values.get(Self::LISTED) {
            self.unlisted_most = self.unlisted_most.max(first.most);
        }
        self.values.truncate(Self::LISTED);
    }
}

/// The counts of a source of `insight.by` since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SourceStatus {
    /// The source.
    pub by: String,
    /// Of all duplicates whose owner is known.
    pub duplicates: TopValues,
    /// Of those with other content than their owner.
    pub conflicts: TopValues,
}

/// What a worker has found about single duplicates.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct DuplicatesStatus {
    /// The last duplicates whose owner is known, newest first; at most [`DuplicatesStatus::LISTED`].
    pub last: Vec<DuplicateStatus>,
    /// The sources of `insight.by`; empty before the first duplicate.
    pub sources: Vec<SourceStatus>,
}

impl DuplicatesStatus {
    /// Most duplicates of the list.
    pub const LISTED: usize = 10;

    /// All workers as one.
    pub fn of_all<'a>(workers: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut all = Self::default();
        for Self { last, sources } in workers {
            all.last.extend(last);
            for source in sources {
                match all.sources.iter_mut().find(|known| known.by == source.by) {
                    Some(known) => {
                        known.duplicates.add(&source.duplicates);
                        known.conflicts.add(&source.conflicts);
                    }
                    None => all.sources.push(source.clone()),
                }
            }
        }
        all.last.sort_by_key(|it| Reverse(it.committed_ms));
        all.last.truncate(Self::LISTED);
        all
    }
}

/// How many of the observed ages are in a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct AgeCount {
    /// Longer than the bound of the bucket before, and at most this, in seconds; infinite in the last bucket, which JSON shows as null.
    pub at_most_seconds: f64,
    /// Number of ages.
    pub count: u64,
}

/// A window that would have found a share of the duplicates that were found.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct NeededWindow {
    /// The share.
    pub percent: f64,
    /// The length: the upper bound of a bucket, at most the configured length. So it can be too long, and is never too short.
    pub seconds: f64,
}

/// What is known about the duplicates since the start.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct DuplicatesSummary {
    /// Raw records.
    pub records: u64,
    /// Duplicates among them, probable ones and conflicts included.
    pub duplicates: u64,
    /// Those with other content than their owner.
    pub conflicts: u64,
    /// Those that could not be compared with their owner.
    pub not_compared: u64,
    /// The configured length of the longest window, in seconds; 0 while unknown.
    pub window_seconds: f64,
    /// The observed ages of duplicates.
    pub ages: Vec<AgeCount>,
    /// For shares of which enough ages were observed.
    pub needed_windows: Vec<NeededWindow>,
    /// Single duplicates.
    #[serde(flatten)]
    pub status: DuplicatesStatus,
}

impl DuplicatesSummary {
    /// Number of observed ages.
    #[must_use]
    pub fn observed(&self) -> u64 {
        self.ages.iter().map(|it| it.count).sum()
    }
}

/// The counts of each bucket, from those of it and all buckets before.
pub(super) fn ages(cumulative: &[(f64, u64)]) -> Vec<AgeCount> {
    let before = std::iter::once(0).chain(cumulative.iter().map(|(_, count)| *count));
    let buckets = cumulative.iter().zip(before);
    buckets
        .map(|(&(at_most_seconds, count), before)| AgeCount {
            at_most_seconds,
            count: count.saturating_sub(before),
        })
        .collect()
}

/// The windows that miss one of 100, 1,000 and 10,000 duplicates, each if as many ages were observed. The duplicates were found in a window of
/// `configured` seconds, or none is known.
pub(super) fn needed_windows(ages: &[AgeCount], configured: Option<f64>) -> Vec<NeededWindow> {
    let observed: u64 = ages.iter().map(|it| it.count).sum();
    let needed = |(percent, one_of): (f64, u64)| {
        let (mut found, missed) = (0, observed / one_of);
        let is_enough = |it: &&AgeCount| {
            found += it.count;
            found + missed >= observed
        };
        let bound = ages.iter().find(is_enough)?.at_most_seconds;
        Some(NeededWindow { percent, seconds: bound.min(configured.unwrap_or(f64::INFINITY)) })
    };
    let shares = [(99.0, 100), (99.9, 1_000), (99.99, 10_000)];
    shares.into_iter().filter(|(_, one_of)| observed >= *one_of).filter_map(needed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(buckets: &[(f64, u64)]) -> Vec<AgeCount> {
        buckets.iter().map(|&(at_most_seconds, count)| AgeCount { at_most_seconds, count }).collect()
    }

    #[test]
    fn a_needed_window_is_never_too_short() {
        let bounds = [1.0, 10.0, 60.0, 300.0, 3_600.0, f64::INFINITY];
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..300 {
            let longest = 10_f64.powf(random.f64() * 5.0);
            let number = random.usize(100..30_000);
            let mut samples: Vec<f64> = (0..number).map(|_| longest * random.f64().powi(4)).collect();
            samples.sort_by(f64::total_cmp);
            let at_most = |bound: f64| samples.partition_point(|age| *age <= bound) as u64;
            let ages = ages(&bounds.map(|bound| (bound, at_most(bound))));
            assert_eq!(ages.iter().map(|it| it.count).sum::<u64>(), number as u64);
            for configured in [None, Some(longest)] {
                let windows = needed_windows(&ages, configured);
                let shown = [100, 1_000, 10_000].into_iter().filter(|least| number >= *least).count();
                assert_eq!(windows.len(), shown, "{number} ages");
                for NeededWindow { percent, seconds } in windows {
                    let found = 100.0 * at_most(seconds) as f64 / number as f64;
                    assert!(found >= percent, "{seconds} s find {found} % of {number}, not {percent}");
                    // Not longer than necessary: the bucket before is too short.
                    let shorter = bounds.iter().rev().find(|bound| **bound < seconds).copied().unwrap_or(0.0);
                    let of_shorter = 100.0 * at_most(shorter) as f64 / number as f64;
                    assert!(of_shorter < percent, "{shorter} s find {of_shorter} %");
                }
            }
        }
    }

    #[test]
    fn a_share_needs_as_many_ages_as_one_miss_stands_for() {
        let windows = |few, many| {
            let ages = counted(&[(1.0, many), (60.0, few), (f64::INFINITY, 0)]);
            needed_windows(&ages, None).iter().map(|it| it.seconds).collect::<Vec<_>>()
        };
        assert_eq!(windows(0, 99), [0.0; 0]);
        assert_eq!(windows(1, 99), [1.0]);
        assert_eq!(windows(2, 98), [60.0]);
        assert_eq!(windows(1, 999), [1.0, 1.0]);
        assert_eq!(windows(2, 9_998), [1.0, 1.0, 60.0]);
        let longer = |configured| needed_windows(&counted(&[(f64::INFINITY, 100)]), configured);
        assert_eq!(longer(None), [NeededWindow { percent: 99.0, seconds: f64::INFINITY }]);
        assert_eq!(longer(Some(7.0)), [NeededWindow { percent: 99.0, seconds: 7.0 }]);
    }

    fn value(value: &str, least: u64, most: u64) -> ValueCount {
        ValueCount { value: Some(value.to_owned()), least, most }
    }

    #[test]
    fn the_bounds_of_several_workers_hold_for_values_that_one_of_them_does_not_list() {
        let mut one = TopValues { values: vec![value("a", 9, 10), value("b", 5, 5)], unlisted_most: 2 };
        one.add(&TopValues { values: vec![value("c", 7, 7), value("a", 4, 6)], unlisted_most: 3 });
        assert_eq!(one.values, [value("a", 13, 16), value("c", 7, 9), value("b", 5, 8)]);
        assert_eq!(one.unlisted_most, 5);
        let many: Vec<_> = (0..30).map(|at| value(&format!("v{at}"), 100 - at, 100 - at)).collect();
        let (first, second) = many.split_at(15);
        let list = |values: &[ValueCount]| TopValues { values: values.to_vec(), unlisted_most: 0 };
        let mut all = list(first);
        all.add(&list(second));
        assert_eq!((all.values.as_slice(), all.unlisted_most), (&many[..TopValues::LISTED], 80));
    }

    #[test]
    fn the_last_duplicates_of_all_workers_are_the_newest() {
        let at = |committed_ms, partition| DuplicateStatus {
            committed_ms,
            partition,
            offset: 0,
            owner_partition: 0,
            owner_offset: 0,
            age_seconds: None,
            content: ContentLabel::Equal,
        };
        let worker = |partition, times: &[i64]| DuplicatesStatus {
            last: times.iter().map(|ms| at(*ms, partition)).collect(),
            sources: Vec::new(),
        };
        let all =
            DuplicatesStatus::of_all(&[worker(0, &[9, 7, 1]), worker(1, &[10, 8, 6, 5, 4, 3, 2, 1, 1])]);
        let times: Vec<_> = all.last.iter().map(|it| it.committed_ms).collect();
        assert_eq!(times, [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]);
    }
}
