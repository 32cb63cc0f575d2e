//! Mutexes whose content stays valid when a thread panics with the lock.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks although another thread panicked with the lock. That panic is reported and ends the process in order; one more, in the status
/// page or in a worker, would hide it.
pub(crate) trait Locked<T> {
    /// The locked content.
    fn locked(&self) -> MutexGuard<'_, T>;
}

impl<T> Locked<T> for Mutex<T> {
    fn locked(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
