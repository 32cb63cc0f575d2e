//! The progress of a worker, for the supervisor.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the steps of a worker: iterations, and within an iteration everything that shows that a call has returned. When the
/// count stops growing, the worker is in a call that does not return. An iteration may take long as long as it advances.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<AtomicU64>);

impl Progress {
    /// Counts a step. Called by the worker, and by what waits to start it.
    pub(crate) fn advance(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of steps so far.
    pub fn steps(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
