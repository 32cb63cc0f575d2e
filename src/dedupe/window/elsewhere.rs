//! Copies of a record in other partitions: the look-up in their windows, and what its result means.
//!
//! Each partition has windows of its own. A [`TopicFilter`](super::TopicFilter) holds the identities of all of them, and
//! determines in which ones a record is looked up ([`Window::copy_of`]).
//!
//! The partitions of a backlog are not read evenly: a record can be decided after a copy with a later stream time. So a copy
//! counts when it arrived at most the length of the window before or after the times of the record ([`RecordTime`]). Of an owner
//! only the arrival is known: a late one does not count for a record that is more than a window behind that.

use super::positions::IndexKey;
use super::sealing::is_within;
use super::{Owners, RecordTime, Window};
use crate::dedupe::coordinates::Offset;
use crate::dedupe::identity::Identity;

/// The owner of an identity in the window of another partition; its 16 bytes were compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyOf {
    /// Its offset in that partition.
    pub offset: Offset,
    /// Latest stream time at which it can have arrived, epoch milliseconds; 0 while unknown.
    pub arrived_ms: i64,
}

impl Window {
    /// The owner, committed or pending, of an identity whose record is in another partition; while the time of that is unknown, every
    /// owner counts. Claims are not considered: they never drop a record.
    pub fn copy_of<O: Owners>(
        &self,
        time: RecordTime,
        key: &IndexKey,
        owners: &O,
    ) -> Result<Option<CopyOf>, O::Error> {
        let around = self.around(time);
        let found = self.owner_of(key, owners, |times| is_within(times, around))?;
        Ok(found.map(|(offset, arrived_ms)| CopyOf { offset, arrived_ms }))
    }

    /// The owner of an identity at or beyond the committed offset, found in local state.
    #[must_use]
    pub fn claim_of(&self, identity: Identity) -> Option<Offset> {
        self.claims.get(&identity).copied()
    }
}

#[cfg(test)]
mod tests;
