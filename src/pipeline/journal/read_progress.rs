//! The progress of reading the state of a journal, from the local store or from the state topic.

use std::time::Duration;

use crate::dedupe::JournalId;

/// How often the progress is logged.
const LOG_INTERVAL: Duration = Duration::from_secs(5);

/// How long a load or restore has taken so far, and how much it has read.
#[derive(Debug, Default)]
pub struct ReadProgress {
    /// Monotonic time of its start.
    pub since: Duration,
    /// Monotonic time of the last log message.
    logged: Duration,
    /// Number of identities read.
    pub ids: u64,
}

impl ReadProgress {
    /// Nothing is read yet.
    pub fn start(now: Duration) -> Self {
        Self { since: now, logged: now, ids: 0 }
    }

    /// Logs it when that is due. `share` is the fraction that was read, in 0..=1.
    pub fn log(&mut self, now: Duration, journal: JournalId, what: &str, share: f64) {
        if now.saturating_sub(self.logged) >= LOG_INTERVAL {
            self.logged = now;
            tracing::info!(journal, ids = self.ids, "{what}, {:.0} % read", share * 100.0);
        }
    }
}
