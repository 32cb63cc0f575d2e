//! History of the last ten minutes, for the charts of the status page.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;

/// Samples kept: ten minutes at one sample every 5 s.
const SAMPLES: usize = 121;

/// The counters at one point in time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Raw records processed and committed since the start.
    pub records: u64,
    /// Duplicates among them, probable ones included.
    pub duplicates: u64,
    /// Lag in offsets, summed over all partitions; `None` while the lag of one is unknown.
    pub lag: Option<u64>,
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

/// The last samples, oldest first.
#[derive(Debug, Clone, Default)]
pub struct History {
    samples: VecDeque<(Duration, Totals)>,
}

impl History {
    /// Adds a sample of the counters; `now` is the time since the start.
    pub fn note(&mut self, now: Duration, totals: Totals) {
        self.samples.push_back((now, totals));
        while self.samples.len() > SAMPLES {
            self.samples.pop_front();
        }
    }

    /// The rates between consecutive samples, oldest first.
    #[must_use]
    pub fn rates(&self) -> Vec<Rates> {
        let pairs = self.samples.iter().zip(self.samples.iter().skip(1));
        let rates = pairs.map(|((before, old), (after, new))| {
            let seconds = after.saturating_sub(*before).as_secs_f64().max(0.001);
            Rates {
                records: new.records.saturating_sub(old.records) as f64 / seconds,
                duplicates: new.duplicates.saturating_sub(old.duplicates) as f64 / seconds,
                lag: new.lag,
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
        let mut history = History::default();
        assert_eq!(history.rates(), []);
        for sample in 0..500u64 {
            let totals = Totals { records: sample * 100, duplicates: sample * 10, lag: Some(sample) };
            history.note(Duration::from_secs(sample * 5), totals);
        }
        let rates = history.rates();
        assert_eq!(rates.len(), 120);
        assert_eq!(rates.last(), Some(&Rates { records: 20.0, duplicates: 2.0, lag: Some(499) }));
    }
}
