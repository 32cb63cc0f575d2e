//! The speed of the connection to the broker, for histories that a test determines.

use std::time::Duration;

/// How long records and commits take. The default is a broker that takes no time of its own.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pace {
    /// Time from one acknowledged record to the next.
    pub record_time: Duration,
    /// Time that a commit takes, whatever its size.
    pub commit_time: Duration,
    /// Time to read a record of the state topic as evidence.
    pub evidence_time: Duration,
    /// No record is acknowledged before this time.
    pub stuck_until: Duration,
}

impl Pace {
    /// Whether records wait in the producer until it is drained.
    pub fn is_slow(self) -> bool {
        !self.record_time.is_zero()
    }
}
