//! The index of a window that forgets instead of growing: one table, made once.
//!
//! What always holds:
//! - Memory is that of the table, whatever comes.
//! - Inserts that are taken back in reverse order, before [`Index::settle`], leave the table as it
//!   was: what they overwrote is put back. So an abort leaves no trace.

use super::{Index, Look};
use crate::dedupe::Offset;
use crate::dedupe::growth::next_capacity;
use crate::dedupe::table::Table;
use crate::dedupe::table::evicting::Overwritten;

/// What was overwritten since the inserts were settled, in order.
#[derive(Debug, Default)]
pub(super) struct Evicting {
    overwritten: Vec<Overwritten>,
    /// Owners too far back for the table's offsets.
    left_behind: Vec<Offset>,
}

impl Index {
    /// An index of `slots` slots of 8 bytes, for ever. Where both buckets of an identity are full, the
    /// oldest owner in them is overwritten.
    #[must_use]
    pub fn evicting(slots: u64) -> Self {
        Self { newest: Table::of_slots(slots), evicting: Some(Evicting::default()), ..Self::default() }
    }

    /// Bytes that [`Index::evicting`] allocates.
    #[must_use]
    pub fn bytes_of_slots(slots: u64) -> u64 {
        Table::bytes_of_slots(slots)
    }

    /// Slots of an index that evicts; `None` of one that grows.
    #[must_use]
    pub fn slots(&self) -> Option<u64> {
        self.evicting.as_ref().map(|_| self.newest.slots())
    }

    /// The inserts since the last call are there to stay. Visits the owners that they overwrote.
    pub fn settle(&mut self, visit: impl FnMut(Offset)) {
        if let Some(Evicting { overwritten, left_behind }) = &mut self.evicting {
            overwritten.drain(..).map(|gone| gone.owner).chain(left_behind.drain(..)).for_each(visit);
        }
    }

    /// Bytes allocated, and those of the table that comes next if the newest one is nearly full.
    #[must_use]
    pub fn bytes_ahead(&self) -> u64 {
        let soon = self.evicting.is_none() && self.newest.live >= self.newest.capacity() / 4 * 3;
        let next = next_capacity(self.newest.capacity(), self.expected, self.most);
        self.memory_bytes() as u64 + if soon { Table::shape(next).1 } else { 0 }
    }

    /// Inserts by overwriting; false when this index grows instead.
    pub(super) fn overwrite(&mut self, look: &Look, offset: Offset) -> bool {
        let Some(evicting) = &mut self.evicting else { return false };
        if self.newest.may_begin_at(offset) {
            self.newest.base = offset;
        } else if !self.newest.reaches(offset) {
            let before = evicting.left_behind.len();
            self.newest.rebase(offset, self.first_live, &mut evicting.left_behind);
            let gone = (evicting.left_behind.len() - before) as u64;
            self.newest.live = self.newest.live.saturating_sub(gone);
        }
        match self.newest.overwrite(look.position, offset, self.first_live) {
            Some(gone) => evicting.overwritten.push(gone),
            None => self.newest.live += 1,
        }
        true
    }

    /// After an insert was taken back: puts back what it had overwritten, if anything.
    pub(super) fn put_back(&mut self, offset: Offset) {
        let Some(evicting) = &mut self.evicting else { return };
        if let Some(gone) = evicting.overwritten.pop_if(|gone| gone.by == offset) {
            self.newest.put_back(&gone);
            self.newest.live += 1;
        }
    }
}
