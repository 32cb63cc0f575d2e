//! Whether the broker is reachable, and the log messages about that.

use std::time::Duration;

use crate::ports::{Failure, Remedy};

/// Retried failures are logged only after failing for this long: finding the group coordinator can take a second.
const RETRY_GRACE: Duration = Duration::from_secs(2);
/// Interval between log messages about two retried failures. The same one is logged once.
const RETRY_LOG_INTERVAL: Duration = Duration::from_secs(5);

/// What the last calls to the broker have shown.
#[derive(Debug)]
pub(super) struct Reachability {
    not_ready: Option<String>,
    /// Monotonic time of the last logged failure.
    logged: Option<Duration>,
    /// Monotonic time since which every call has failed.
    failing_since: Option<Duration>,
    /// The failure that was logged last, until a call succeeds.
    open: Option<String>,
    /// A failure was logged that waits for the broker, until its end is logged.
    is_away: bool,
}

impl Default for Reachability {
    fn default() -> Self {
        let not_ready = Some("connects to the broker".to_owned());
        Self { not_ready, logged: None, failing_since: None, open: None, is_away: false }
    }
}

impl Reachability {
    /// Why the worker is not ready.
    pub fn not_ready(&self) -> Option<String> {
        self.not_ready.clone()
    }

    /// A call to the broker succeeded. Returns whether the worker was not ready before.
    pub fn succeeded(&mut self) -> bool {
        self.failing_since = None;
        let was_not_ready = self.not_ready.take().is_some();
        if was_not_ready {
            self.open = None;
            if std::mem::take(&mut self.is_away) {
                tracing::info!("the broker is reachable");
            }
        }
        was_not_ready
    }

    /// Logs a failure and sets the reason for not being ready. Retried failures are throttled in the log. Returns whether
    /// the reason is a new one.
    pub fn failed(&mut self, failed: &Failure, now: Duration) -> bool {
        let since = *self.failing_since.get_or_insert(now);
        let within_grace = now.saturating_sub(since) < RETRY_GRACE;
        let recent = self.logged.is_some_and(|last| now.saturating_sub(last) < RETRY_LOG_INTERVAL);
        let text = failed.to_string();
        let is_repeated = self.open.as_ref() == Some(&text);
        let quiet = failed.remedy == Remedy::Retry && (within_grace || recent || is_repeated);
        if !quiet {
            tracing::warn!("{text}");
            self.logged = Some(now);
            self.open = Some(text);
            self.is_away |= failed.remedy == Remedy::Retry;
        }
        // Only a retry of the same call waits for the broker; other remedies act first.
        let waits = if failed.remedy == Remedy::Retry { "waits for the broker: " } else { "" };
        let reason = Some(format!("{waits}{failed}"));
        let is_new = self.not_ready != reason;
        self.not_ready = reason;
        is_new
    }
}
