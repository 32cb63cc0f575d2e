//! The last minutes, for the charts of the status page.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;

/// Looks kept: with one every five seconds, ten minutes.
const LOOKS: usize = 121;

/// The counters at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Raw records decided and committed since the start.
    pub records: u64,
    /// Those of them that were duplicates, probable ones included.
    pub duplicates: u64,
    /// Offsets to the end of the raw topic, all partitions together; nothing while one does not know its own.
    pub lag: Option<u64>,
}

/// What happened between two looks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rates {
    /// Raw records a second.
    pub records: f64,
    /// Duplicates a second.
    pub duplicates: f64,
    /// Offsets to the end of the raw topic, at the later look; nothing when that was not known.
    pub lag: Option<u64>,
}

/// The last looks, the oldest first.
#[derive(Debug, Clone, Default)]
pub struct History {
    looks: VecDeque<(Duration, Totals)>,
}

impl History {
    /// Notes a look at the counters; `now` is time since the start.
    pub fn note(&mut self, now: Duration, totals: Totals) {
        self.looks.push_back((now, totals));
        while self.looks.len() > LOOKS {
            self.looks.pop_front();
        }
    }

    /// The rates between the looks, the oldest first.
    #[must_use]
    pub fn rates(&self) -> Vec<Rates> {
        let pairs = self.looks.iter().zip(self.looks.iter().skip(1));
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
    fn rates_are_what_came_between_two_looks_and_only_ten_minutes_are_kept() {
        let mut history = History::default();
        assert_eq!(history.rates(), []);
        for look in 0..500u64 {
            let totals = Totals { records: look * 100, duplicates: look * 10, lag: Some(look) };
            history.note(Duration::from_secs(look * 5), totals);
        }
        let rates = history.rates();
        assert_eq!(rates.len(), 120);
        assert_eq!(rates.last(), Some(&Rates { records: 20.0, duplicates: 2.0, lag: Some(499) }));
    }
}
