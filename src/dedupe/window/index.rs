//! The exact index: maps an identity to the numbers that may own it, in about 10.7 bytes per id.
//!
//! It is a chain of tables, each for newer numbers than the previous one. Inserts go to the newest table. When
//! that is full, a larger one is opened; an old table is dropped when its last number expires. A number below
//! [`OwnerIndex::first_live`] counts as absent, so expiry only increases one number: slots of expired numbers are free for
//! new entries, without a sweep and without tombstones.
//!
//! A slot stores 26 bits of fingerprint, so a look-up returns *candidates*. The caller verifies a candidate
//! against the 16 bytes of the owner. Every live entry is found:
//! - a live slot is never overwritten: an entry whose two buckets are full goes to the overflow map;
//! - numbers are inserted in ascending order, so a table holds only numbers below the base of the next one;
//! - a table never moves its slots.

use std::ops::ControlFlow;

use super::growth::{SMALLEST, next_capacity};
use super::overflow::OverflowMap;
use super::positions::IndexKey;
use super::table::SlotTable;
use crate::dedupe::coordinates::Sequence;

mod evicting;

use evicting::Evicting;

/// Owners by identity, for the numbers from [`OwnerIndex::first_live`] on.
#[derive(Debug)]
pub struct OwnerIndex {
    /// In ascending order of their bases, all below the base of the newest table. The newest table has the base
    /// `Sequence::MAX` until its first owner is inserted.
    older: Vec<SlotTable>,
    newest: SlotTable,
    overflow: OverflowMap,
    first_live: Sequence,
    expected: u64,
    most: u64,
    /// Set for an index of one fixed table, in which the oldest owners are overwritten.
    evicting: Option<Evicting>,
}

impl Default for OwnerIndex {
    fn default() -> Self {
        Self {
            older: Vec::new(),
            newest: SlotTable::for_ids(SMALLEST, Sequence::MAX),
            overflow: OverflowMap::default(),
            first_live: 0,
            expected: u64::MAX,
            most: u64::MAX,
            evicting: None,
        }
    }
}

impl OwnerIndex {
    /// Sets the number of identities that the window is expected to hold once it is full, and the most that it may hold.
    /// Both determine the size of the next table.
    pub fn expect(&mut self, ids: u64, most: u64) {
        self.expected = ids;
        self.most = most;
    }

    /// Ensures that one table has capacity for `ids` further owners.
    pub fn reserve(&mut self, ids: u64) {
        if self.evicting.is_none() && ids > self.newest.capacity().saturating_sub(self.newest.live) {
            self.open(SlotTable::for_ids(ids.saturating_add(ids / 16), Sequence::MAX));
        }
    }

    /// Prefetches the memory that [`OwnerIndex::candidates`] reads.
    #[inline]
    pub fn prefetch(&self, key: &IndexKey) {
        self.newest.prefetch(key.position);
        for table in &self.older {
            table.prefetch(key.position);
        }
    }

    /// Visits the live numbers that may own the identity, the newest table first. The owner is always
    /// among them if it was inserted. Others are false candidates, in less than one of a million look-ups.
    #[inline]
    pub fn candidates<B>(
        &self,
        key: &IndexKey,
        mut visit: impl FnMut(Sequence) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        self.newest.candidates(key.position, self.first_live, &mut visit)?;
        for table in self.older.iter().rev() {
            table.candidates(key.position, self.first_live, &mut visit)?;
        }
        for number in self.overflow.owners_of(key) {
            if number >= self.first_live {
                visit(number)?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Inserts an owner. Numbers must ascend, except after removals.
    pub fn insert(&mut self, key: &IndexKey, number: Sequence) {
        debug_assert!(number >= self.first_live, "an owner is inserted below the window");
        if self.overwrite(key, number) {
            return;
        }
        if self.newest.may_begin_at(number) {
            self.newest.base = number;
        } else if self.newest.is_full() || (number >= self.newest.base && !self.newest.reaches(number)) {
            self.open(SlotTable::for_ids(self.next_capacity(), number));
        }
        self.newest.live += 1;
        let reached = self.newest.reaches(number);
        if !(reached && self.newest.insert(key.position, number, self.first_live)) {
            self.overflow.insert(key, number, self.first_live);
        }
    }

    /// Undoes one insert; returns false when the index does not hold this owner. In an evicting index the caller must
    /// undo the last insert first, and must not undo inserts from before [`OwnerIndex::commit`].
    pub fn remove(&mut self, key: &IndexKey, number: Sequence) -> bool {
        // Slots of expired owners are used again later, and do not count.
        let removed = number >= self.first_live
            && (self.newest.remove(key.position, number)
                || self.older.iter_mut().rev().any(|table| table.remove(key.position, number))
                || self.overflow.remove(key, number));
        if removed {
            let table = self.table_of(number);
            table.live = table.live.saturating_sub(1);
            self.restore_overwritten(number);
        }
        removed
    }

    /// Removes every owner. The next one has this number or a later one.
    pub fn clear(&mut self, first_live: Sequence) {
        let empty = self.slots().map_or_else(Self::default, Self::evicting);
        *self = Self { first_live, expected: self.expected, most: self.most, ..empty };
    }

    /// Expires the owners below `first_live`; `count` is their number.
    pub fn expire(&mut self, first_live: Sequence, count: u64) {
        self.first_live = self.first_live.max(first_live);
        let mut left = count;
        for table in self.older.iter_mut().chain([&mut self.newest]) {
            let expired = left.min(table.live);
            table.live -= expired;
            left -= expired;
        }
        debug_assert_eq!(left, 0, "more owners expire than the index holds");
        // No owner of a table is live when the base of the next table is at or below `first_live`.
        let nexts = self.older.iter().skip(1).chain([&self.newest]);
        let expired = nexts.take_while(|next| next.base <= self.first_live).count();
        self.older.drain(..expired.min(self.older.len()));
    }

    /// The lowest live number. Lower ones count as absent.
    pub fn first_live(&self) -> Sequence {
        self.first_live
    }

    /// Number of live owners.
    pub fn live(&self) -> u64 {
        self.older.iter().map(|table| table.live).sum::<u64>() + self.newest.live
    }

    /// Number of tables that a look-up visits.
    pub fn tables(&self) -> usize {
        self.older.len() + 1
    }

    /// Number of owners in the overflow map, including expired ones until they are cleaned up.
    pub fn overflowed(&self) -> usize {
        self.overflow.len()
    }

    /// Bytes allocated.
    pub fn memory_bytes(&self) -> usize {
        let tables = self.older.iter().chain([&self.newest]);
        tables.map(SlotTable::memory_bytes).sum::<usize>() + self.overflow.memory_bytes()
    }

    /// Makes `table` the newest one. The previous one is kept until its last owner expires.
    fn open(&mut self, table: SlotTable) {
        let full = std::mem::replace(&mut self.newest, table);
        if full.live > 0 {
            self.older.push(full);
        }
    }

    /// Capacity of the next table; that of the last one if it is not full but cannot represent the next number.
    fn next_capacity(&self) -> u64 {
        let last = self.newest.capacity();
        if self.newest.is_full() { next_capacity(last, self.expected, self.most) } else { last }
    }

    fn table_of(&mut self, number: Sequence) -> &mut SlotTable {
        if self.newest.base <= number {
            return &mut self.newest;
        }
        self.older.iter_mut().rev().find(|table| table.base <= number).unwrap_or(&mut self.newest)
    }
}
