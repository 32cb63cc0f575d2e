//! Leader epochs: under which leader a part of a log was written.

use crate::dedupe::coordinates::Offset;

/// The leader epoch of one record of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Epoch {
    /// One past the offset of that record.
    pub next: Offset,
    /// The leader epoch of that record.
    pub number: i32,
}

impl Epoch {
    /// Whether a comparison by this epoch detects that the log was truncated before `offset`. The epoch of the record
    /// before `offset` does, and so does the epoch of a later record of the same log: in a log that was truncated
    /// before `offset` it ends there, and in one that was not it ends at or after `offset`. The epoch of an earlier
    /// record may have ended in between.
    pub fn covers(&self, offset: Offset) -> bool {
        self.next >= offset
    }
}
