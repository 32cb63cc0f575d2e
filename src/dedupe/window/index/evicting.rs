//! The index of a window that evicts the oldest owners instead of growing: one table, allocated once.
//!
//! Invariants:
//! - Memory is that of the table, for any traffic.
//! - Inserts undone in reverse order, before [`OwnerIndex::commit`], leave the table as it was: the owners
//!   that they overwrote are restored. So an abort leaves no trace.

use super::OwnerIndex;
use crate::dedupe::coordinates::Sequence;
use crate::dedupe::window::positions::IndexKey;
use crate::dedupe::window::table::SlotTable;
use crate::dedupe::window::table::evicting::Overwritten;

/// Owners overwritten since the last [`OwnerIndex::commit`], in order.
#[derive(Debug, Default)]
pub(super) struct Evicting {
    overwritten: Vec<Overwritten>,
    /// Owners that are too far below the newest number for the table's number range.
    out_of_range: Vec<Sequence>,
}

impl OwnerIndex {
    /// An index with a fixed number of `slots` slots of 8 bytes. When both buckets of an identity are full, the
    /// oldest owner in them is overwritten.
    pub fn evicting(slots: u64) -> Self {
        Self { newest: SlotTable::of_slots(slots), evicting: Some(Evicting::default()), ..Self::default() }
    }

    /// Bytes that [`OwnerIndex::evicting`] allocates.
    pub fn bytes_of_slots(slots: u64) -> u64 {
        SlotTable::bytes_of_slots(slots)
    }

    /// Number of slots of an evicting index; `None` for one that grows.
    pub fn slots(&self) -> Option<u64> {
        self.evicting.as_ref().map(|_| self.newest.slots())
    }

    /// Makes the inserts since the last call final. Visits the owners that they overwrote.
    pub fn commit(&mut self, visit: impl FnMut(Sequence)) {
        if let Some(Evicting { overwritten, out_of_range }) = &mut self.evicting {
            overwritten.drain(..).map(|old| old.owner).chain(out_of_range.drain(..)).for_each(visit);
        }
    }

    /// Inserts by overwriting; returns false when this index grows instead.
    pub(super) fn overwrite(&mut self, key: &IndexKey, number: Sequence) -> bool {
        let Some(evicting) = &mut self.evicting else { return false };
        if self.newest.may_begin_at(number) {
            self.newest.base = number;
        } else if !self.newest.reaches(number) {
            let before = evicting.out_of_range.len();
            self.newest.rebase(number, self.first_live, &mut evicting.out_of_range);
            let removed = (evicting.out_of_range.len() - before) as u64;
            self.newest.live = self.newest.live.saturating_sub(removed);
        }
        match self.newest.overwrite(key.position, number, self.first_live) {
            Some(old) => evicting.overwritten.push(old),
            None => self.newest.live += 1,
        }
        true
    }

    /// After the insert at `number` was undone: restores the owner that it had overwritten, if any.
    pub(super) fn restore_overwritten(&mut self, number: Sequence) {
        let Some(evicting) = &mut self.evicting else { return };
        if let Some(old) = evicting.overwritten.pop_if(|old| old.by == number) {
            self.newest.restore_overwritten(&old);
            self.newest.live += 1;
        }
    }
}
