//! What a comparison of leader epochs shows.

use crate::dedupe::Offset;

/// What the client found when the position of a partition was outside of its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truncation {
    /// The log differs from the one that was read from this offset on.
    At(Offset),
    /// The leader epochs do not show where the log was truncated.
    Unknown,
}
