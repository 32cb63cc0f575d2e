//! Leader epochs: which leader wrote a part of a log.

use crate::dedupe::Offset;

/// Under which leader a partition's log was written up to an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Epoch {
    /// One past the record that it was read from.
    pub next: Offset,
    /// The leader epoch of that record.
    pub number: i32,
}

impl Epoch {
    /// Whether comparing by this epoch shows that the log was cut before `offset`. The epoch of the record before `offset`
    /// does, and so does that of a later record of the same log: in a log that was cut before `offset` it ends there, and in
    /// one that was not it ends at or after `offset`. That of an earlier record may have ended in between.
    #[must_use]
    pub fn covers(&self, offset: Offset) -> bool {
        self.next >= offset
    }
}
