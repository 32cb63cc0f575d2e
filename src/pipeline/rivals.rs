//! Another process with the same name in the group: the two replace each other again and again.

use std::time::Duration;

use crate::pipeline::error::Fatal;

/// A member replaced more often than this within [`PERIOD`] competes with another process. A single process can
/// replace itself: after an outage longer than its session timeout it rejoins, and the broker takes its own late
/// heartbeat for that of another process.
pub(crate) const REPLACED_MAX: usize = 4;
/// What is older is not counted.
const PERIOD: Duration = Duration::from_mins(1);

/// Monotonic times at which another process may have taken the place of this one.
#[derive(Debug, Default)]
pub(crate) struct Rivals(Vec<Duration>);

impl Rivals {
    /// Adds `now`. Returns whether there are more than `most` within [`PERIOD`].
    pub(crate) fn exceed(&mut self, most: usize, now: Duration) -> bool {
        self.0.retain(|before| now.saturating_sub(*before) < PERIOD);
        self.0.push(now);
        self.0.len() > most
    }
}

/// The end of a process whose last failure is `what`. `same` is what it has in common with the other one.
pub(crate) fn second_process(what: &str, same: &str) -> Fatal {
    Fatal::Fenced(format!(
        "{what}; this recurred several times within a minute: another process runs with the same {same}; give each process \
         its own group.instance"
    ))
}
