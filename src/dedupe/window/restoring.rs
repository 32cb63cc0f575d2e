//! Owners that are restored from blocks, and owners that are undone.

use super::Window;
use crate::dedupe::coordinates::Offset;
use crate::dedupe::format::{BlockError, BlockView};

impl Window {
    /// Reserves capacity for `ids` owners before they are restored.
    pub fn reserve(&mut self, ids: u64) {
        let wanted = ids.min(self.bounds.max_ids.saturating_add(self.max_owners_per_mark()));
        self.index.reserve(wanted);
    }

    /// Restores the owners below `below` from a block and returns their number. Blocks must come in the order in
    /// which they were written. Owners already held at or beyond the block's first offset are replaced. Stream time is
    /// set from the block. Expiry applies, so a restored owner may be dropped at once.
    pub fn restore(&mut self, view: &BlockView<'_>, below: Offset) -> Result<u64, BlockError> {
        self.restore_between(view, (view.header.first, below))
    }

    /// As [`Window::restore`], from a block of the store that has the window's sealed slices: an owner that is sealed is left out.
    pub fn load(&mut self, view: &BlockView<'_>, below: Offset) -> Result<u64, BlockError> {
        let sealed = if self.has_sealed() { self.index.first_live() } else { 0 };
        if view.header.next <= sealed {
            return Ok(0);
        }
        self.restore_between(view, (view.header.first.max(sealed), below))
    }

    fn restore_between(
        &mut self,
        view: &BlockView<'_>,
        (from, below): (Offset, Offset),
    ) -> Result<u64, BlockError> {
        debug_assert!(self.pending.is_empty(), "a block is restored inside a transaction");
        let header = &view.header;
        if from >= below {
            return Ok(0);
        }
        if from < self.next {
            self.truncate(from);
        }
        let (times, most) = ((header.time_first_ms, header.time_last_ms), self.max_owners_per_mark());
        // The memory accesses of a whole block overlap.
        let mut restored = Vec::with_capacity(view.count());
        view.for_each(|owner, identity| {
            if (from..below).contains(&owner) {
                restored.push((owner, self.key(identity)));
            }
        })?;
        for (owner, key) in &restored {
            self.index.insert(key, *owner);
            self.marks.add(*owner, times, most);
        }
        self.commit_evicted();
        self.time.set(if header.next <= below { header.time_last_ms } else { header.time_first_ms });
        self.next = header.next.min(below);
        self.expire();
        Ok(restored.len() as u64)
    }

    /// Removes every owner at or beyond `from`, including pending and sealed ones, and returns the number of committed ones that were
    /// in the index. The store removes the sealed ones ([`Window::seal`]). Scans the whole index: for recovery, not for every batch.
    pub fn truncate(&mut self, from: Offset) -> u64 {
        self.abort();
        let removed = self.index.remove_from(from);
        self.marks.truncate(from, removed);
        self.first_live = self.first_live.min(from);
        self.first_needed = self.first_needed.min(from);
        self.next = self.next.min(from);
        removed
    }
}
