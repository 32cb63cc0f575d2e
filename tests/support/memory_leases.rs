//! Leases of the store in memory: each window has one holder, the handle that took it last.

use super::*;

/// Which handle holds each window.
#[derive(Debug, Default)]
pub struct Leases {
    handles: u64,
    holders: BTreeMap<WindowId, u64>,
}

impl MemoryStore {
    /// A handle for another worker, which can change only windows that it has taken.
    #[must_use]
    pub fn another(&self) -> Self {
        let mut another = self.clone();
        let leases = &mut self.lock().leases;
        leases.handles += 1;
        another.id = Some(leases.handles);
        another
    }

    fn holds(&self, window: WindowId) -> bool {
        self.id.is_none() || self.lock().leases.holders.get(&window).copied() == self.id
    }

    pub fn if_held<T>(&self, window: WindowId, read: T) -> Result<T, StoreError> {
        if self.holds(window) { Ok(read) } else { Err(StoreError::LeaseLost(window)) }
    }

    pub fn take(&self, window: WindowId, is_free_only: bool) -> bool {
        let held = self.holds(window);
        let (mut contents, Some(id)) = (self.lock(), self.id) else { return true };
        let holders = &mut contents.leases.holders;
        let takes = !is_free_only || !holders.contains_key(&window);
        if takes {
            holders.insert(window, id);
        }
        held || (is_free_only && takes)
    }

    pub fn release(&self, window: WindowId) {
        if self.holds(window) {
            self.lock().leases.holders.remove(&window);
        }
    }

    /// Ends the task if another handle has taken its window.
    pub fn end_if_lost(&mut self) {
        let lost = self.task.as_ref().is_some_and(|task| !self.holds(task.window));
        self.task.take_if(|_| lost);
    }
}
