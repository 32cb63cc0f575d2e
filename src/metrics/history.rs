//! History of the last ten minutes, for the charts and the figures of the status page.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Serialize;

use crate::locked::Locked;

/// Samples kept: ten minutes at one sample every 5 s.
const SAMPLES: usize = 121;

/// The counters at one point in time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Totals {
    /// Raw records processed and committed since the start.
    pub records: u64,
    /// Duplicates among them, probable ones included.
    pub duplicates: u64,
    /// Lag in offsets, summed over all partitions; `None` while the lag of one is unknown.
    pub lag: Option<u64>,
    /// By upper bound in seconds, the forwarded records with at most this latency; the last bound is infinite.
    pub latency: Vec<(f64, u64)>,
}

impl Totals {
    /// What was counted since an earlier time.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |at: usize| earlier.latency.get(at).map_or(0, |(_, count)| *count);
        let latency = self.latency.iter().enumerate();
        Self {
            records: self.records.saturating_sub(earlier.records),
            duplicates: self.duplicates.saturating_sub(earlier.duplicates),
            lag: self.lag,
            latency: latency.map(|(at, (bound, all))| (*bound, all.saturating_sub(before(at)))).collect(),
        }
    }

    /// The bound below which this share of the latencies is, in seconds; `None` without forwarded records.
    #[must_use]
    pub fn latency_seconds(&self, quantile: f64) -> Option<f64> {
        let (_, all) = self.latency.last().filter(|(_, all)| *all > 0)?;
        let is_reached = |(_, count): &&(f64, u64)| *count as f64 >= *all as f64 * quantile;
        self.latency.iter().find(is_reached).map(|(bound, _)| *bound)
    }
}

/// The rates between two samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rates {
    /// Raw records per second.
    pub records: f64,
    /// Duplicates per second.
    pub duplicates: f64,
    /// Lag in offsets at the later sample; `None` when it was unknown.
    pub lag: Option<u64>,
}

/// The last samples, oldest first. Clones share the same list.
#[derive(Debug, Clone, Default)]
pub struct History(Arc<Mutex<VecDeque<(Duration, Totals)>>>);

impl History {
    /// Adds a sample of the counters; `now` is the time since the start.
    pub fn note(&self, now: Duration, totals: Totals) {
        let mut samples = self.0.locked();
        samples.push_back((now, totals));
        if samples.len() > SAMPLES {
            samples.pop_front();
        }
    }

    /// What was counted since the oldest sample.
    #[must_use]
    pub fn last_minutes(&self) -> Totals {
        let samples = self.0.locked();
        let both = samples.front().zip(samples.back());
        both.map(|((_, oldest), (_, newest))| newest.since(oldest)).unwrap_or_default()
    }

    /// The rates between consecutive samples, oldest first.
    #[must_use]
    pub fn rates(&self) -> Vec<Rates> {
        let samples = self.0.locked();
        let pairs = samples.iter().zip(samples.iter().skip(1));
        let rates = pairs.map(|((before, old), (after, new))| {
            let (seconds, counted) = (after.saturating_sub(*before).as_secs_f64().max(0.001), new.since(old));
            Rates {
                records: counted.records as f64 / seconds,
                duplicates: counted.duplicates as f64 / seconds,
                lag: counted.lag,
            }
        });
        rates.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_differences_of_samples_and_only_ten_minutes_are_kept() {
        let history = History::default();
        assert_eq!(history.rates(), []);
        for sample in 0..500u64 {
            let latency = vec![(0.1, sample * 9), (f64::INFINITY, sample * 10)];
            let totals =
                Totals { records: sample * 100, duplicates: sample * 10, lag: Some(sample), latency };
            history.note(Duration::from_secs(sample * 5), totals);
        }
        let rates = history.rates();
        assert_eq!(rates.len(), 120);
        assert_eq!(rates.last(), Some(&Rates { records: 20.0, duplicates: 2.0, lag: Some(499) }));
        let last = history.last_minutes();
        assert_eq!((last.records, last.duplicates), (12_000, 1_200));
        assert_eq!((last.latency_seconds(0.9), last.latency_seconds(0.99)), (Some(0.1), Some(f64::INFINITY)));
        let none = Totals::default();
        assert_eq!(none.latency_seconds(0.5), None);
        assert_eq!(History::default().last_minutes(), none);
    }
}
