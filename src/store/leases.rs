//! Partition leases: several workers share one store, and each window has one holder at a time.
//!
//! A worker may learn late that the group has assigned its window to another worker of the same process. Its
//! further writes would corrupt the local state of the new holder. The group rejects its transactions, and this
//! module rejects its writes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use super::index::WindowIndex;
use super::owners::SledStore;
use crate::dedupe::WindowId;
use crate::locked::Locked;
use crate::ports::{Sealing, StoreError};

/// One window, shared by all handles: it may move from one worker to another and back.
#[derive(Debug)]
pub(super) struct SharedWindow {
    /// Id of the handle that holds it. Locked while the holder writes, so that another handle takes the window only between two
    /// writes.
    holder: Mutex<Option<u64>>,
    /// Locked while it is used, and never while a visitor runs.
    pub index: Mutex<WindowIndex>,
}

impl SharedWindow {
    /// No handle holds it.
    pub(super) fn new(index: WindowIndex) -> Arc<Self> {
        Arc::new(Self { holder: Mutex::default(), index: Mutex::new(index) })
    }
}

impl SledStore {
    fn holds(&self, holder: Option<u64>) -> bool {
        self.id.is_none() || self.id == holder
    }

    pub(super) fn take(&self, window: WindowId) -> bool {
        let shared = self.shared(window);
        let mut holder = shared.holder.locked();
        let holds = self.holds(*holder);
        *holder = self.id.or(*holder);
        holds
    }

    pub(super) fn take_free(&self, window: WindowId) -> bool {
        let shared = self.shared(window);
        let mut holder = shared.holder.locked();
        *holder = holder.or(self.id);
        self.holds(*holder)
    }

    pub(super) fn release(&mut self, window: WindowId) {
        let shared = self.shared(window);
        let mut holder = shared.holder.locked();
        if self.holds(*holder) {
            // Another handle may delete the files.
            self.readers.get_mut().close();
            self.sealing.close_files();
            self.engine.unload_parts(window);
            *holder = holder.filter(|_| self.id.is_none());
        }
    }

    /// Calls `run` while no other handle can take one of these windows, with the first of them that this handle does not hold.
    fn with_leases<T>(
        &mut self,
        windows: &[WindowId],
        run: impl FnOnce(&mut Self, Option<WindowId>) -> T,
    ) -> T {
        // Each once, and in the same order in all handles: otherwise they could wait for each other.
        let windows: BTreeSet<WindowId> = windows.iter().copied().collect();
        let shared: Vec<_> = windows.iter().map(|window| self.shared(*window)).collect();
        let held: Vec<_> = shared.iter().map(|shared| shared.holder.locked()).collect();
        let lost = windows.iter().zip(&held).find(|(_, holder)| !self.holds(***holder));
        run(self, lost.map(|(window, _)| *window))
    }

    /// Calls `write` if this handle holds these windows.
    pub(super) fn write<T>(
        &mut self,
        windows: &[WindowId],
        write: impl FnOnce(&mut Self) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.with_leases(windows, |store, lost| match lost {
            Some(window) => Err(StoreError::LeaseLost(window)),
            None => write(store),
        })
    }

    /// Discards a read, also a failed one, if another worker has taken the window: it may have changed it meanwhile.
    pub(super) fn if_held<T>(&self, window: WindowId, read: T) -> Result<T, StoreError> {
        let holder = *self.shared(window).holder.locked();
        if self.holds(holder) { Ok(read) } else { Err(StoreError::LeaseLost(window)) }
    }

    /// Ends the task if another handle has taken its window, which cannot be taken while its slice is registered.
    pub(super) fn poll_held(&mut self) -> Result<Sealing, StoreError> {
        let window = self.sealing.window.take();
        let polled = self.with_leases(window.as_slice(), |store, lost| {
            if lost.is_some() {
                store.sealing.end(&store.engine);
            }
            store.poll_task()
        });
        if matches!(polled, Ok(Sealing::Busy | Sealing::Done(_))) {
            self.sealing.window = window;
        }
        polled
    }
}
