//! Reads whole slices.

use super::registry::registered_error;
use super::slices::SliceReadError;
use crate::dedupe::WindowId;
use crate::ports::{StoreError, VisitOwner};
use crate::store::owners::SledStore;
use crate::store::segments::Readers;

impl SledStore {
    /// Visits the owners in the slices of some windows that were not removed.
    pub(in crate::store) fn scan_slices(
        &self,
        windows: &[WindowId],
        visit: VisitOwner<'_>,
    ) -> Result<(), StoreError> {
        for window in windows {
            let slices = self.slices_of(*window);
            // They may not have been read.
            self.engine.check()?;
            for slice in slices.iter() {
                // The visitor may use the store.
                let mut readers = Readers::default();
                let failed = |cause| registered_error(&self.engine, *window, slice.number, &cause);
                let read = |at, bytes: &mut [u8]| {
                    let read = readers.fill(&self.engine.segments, slice.number, at, bytes);
                    read.map_err(|cause| failed(SliceReadError::Io(cause)))
                };
                let damaged = |cause| failed(SliceReadError::Damaged(cause));
                slice.slice.scan(0..=u64::MAX, read, damaged, |identity, owner| {
                    if slice.has(identity, owner) { visit(*window, identity, owner) } else { Ok(()) }
                })?;
            }
        }
        Ok(())
    }
}
