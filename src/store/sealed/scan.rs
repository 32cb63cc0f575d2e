//! Reads whole slices.

use std::collections::HashSet;
use std::ops::Range;

use super::group::{SealedSlice, SliceReadError};
use super::registry::registered_error;
use crate::dedupe::{Coordinates, Identity, Offset, SlicePartition, WindowId};
use crate::ports::{StoreError, VisitOwner};
use crate::store::owners::SledStore;
use crate::store::segments::Readers;

impl SledStore {
    pub(in crate::store) fn scan_slices(
        &self,
        windows: &[WindowId],
        range: &Range<Offset>,
        visit: VisitOwner<'_>,
    ) -> Result<(), StoreError> {
        let groups: HashSet<_> = windows.iter().map(|window| self.engine.group_of(*window)).collect();
        for group in groups {
            let of_group: HashSet<_> =
                windows.iter().filter(|window| self.engine.group_of(**window) == group).collect();
            let slices = self.slices_of(group.window());
            // They may not have been read.
            self.engine.check()?;
            for slice in slices.iter() {
                let is_wanted = |of: &SlicePartition| {
                    let offsets = slice.offsets(of.partition).unwrap_or_default();
                    of_group.contains(&group.kind.window(of.partition))
                        && offsets.start.max(range.start) < offsets.end.min(range.end)
                };
                if !slice.partitions().iter().any(is_wanted) {
                    continue;
                }
                self.scan_slice(slice, group.window(), &mut |identity, owner| {
                    let window = group.kind.window(owner.partition);
                    let is_wanted = of_group.contains(&window) && range.contains(&owner.offset);
                    if is_wanted { visit(window, owner.offset, identity) } else { Ok(()) }
                })?;
            }
        }
        Ok(())
    }

    /// Visits the owners in a slice that were not removed.
    fn scan_slice(
        &self,
        slice: &SealedSlice,
        window: WindowId,
        visit: &mut dyn FnMut(Identity, Coordinates) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        // The visitor may use the store.
        let mut readers = Readers::default();
        let failed = |cause| registered_error(&self.engine, window, slice.number, &cause);
        let read = |at, bytes: &mut [u8]| {
            let read = readers.fill(&self.engine.segments, (slice.number, at), bytes);
            read.map_err(|cause| failed(SliceReadError::Io(cause)))
        };
        let damaged = |cause| failed(SliceReadError::Damaged(cause));
        slice.slice.scan(0..=u64::MAX, read, damaged, |identity, owner| {
            if slice.has(owner) { visit(identity, owner) } else { Ok(()) }
        })
    }
}
