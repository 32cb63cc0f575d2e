//! Reads whole slices.

use super::registry::registered_error;
use super::slices::{SealedSlice, SliceReadError};
use crate::dedupe::{Identity, SealedOwner, WindowId};
use crate::ports::{StoreError, VisitOwner};
use crate::store::owners::SledStore;
use crate::store::segments::Readers;

impl SledStore {
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
                self.scan_slice(slice, *window, &mut |identity, owner| visit(*window, identity, owner))?;
            }
        }
        Ok(())
    }

    /// Visits the owners in a slice that were not removed.
    fn scan_slice(
        &self,
        slice: &SealedSlice,
        window: WindowId,
        visit: &mut dyn FnMut(Identity, SealedOwner) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        // The visitor may use the store.
        let mut readers = Readers::default();
        let failed = |cause| registered_error(&self.engine, window, slice.number, &cause);
        let read = |at, bytes: &mut [u8]| {
            let read = readers.fill(&self.engine.segments, slice.number, at, bytes);
            read.map_err(|cause| failed(SliceReadError::Io(cause)))
        };
        let damaged = |cause| failed(SliceReadError::Damaged(cause));
        slice.slice.scan(0..=u64::MAX, read, damaged, |identity, owner| {
            if slice.has(identity, owner) { visit(identity, owner) } else { Ok(()) }
        })
    }
}
