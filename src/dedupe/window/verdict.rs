//! The verdict: the decision about a record.

use crate::dedupe::coordinates::Offset;

/// The decision about a record, by its identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Not seen inside the window: forward the record and store it as owner.
    New,
    /// This record itself is the owner of its identity, from an attempt that was not committed: forward it and store
    /// it as owner.
    Retry,
    /// Another record is the owner of the identity: drop this one.
    Duplicate {
        /// Offset of the owner, in the same partition.
        owner: Offset,
    },
}

/// The owner rule for the record at offset `at`. `known` is the identity's owner in the window (committed, or earlier in
/// the open transaction), `claim` is its owner in local state at or beyond the committed offset.
///
/// A claim never drops a record. The record at a claimed offset was not committed. Either it is read again (and is then
/// the `Retry`), or it has been removed from the log (compacted, truncated), and this record may be the last copy.
#[must_use]
pub fn decide(at: Offset, known: Option<Offset>, claim: Option<Offset>) -> Verdict {
    match (known, claim) {
        (Some(owner), _) if owner != at => Verdict::Duplicate { owner },
        (Some(_), _) => Verdict::Retry,
        (None, Some(owner)) if owner == at => Verdict::Retry,
        (None, _) => Verdict::New,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_known_owner_at_another_offset_makes_a_duplicate() {
        assert_eq!(decide(7, None, None), Verdict::New);
        assert_eq!(decide(7, Some(7), None), Verdict::Retry);
        assert_eq!(decide(7, Some(3), None), Verdict::Duplicate { owner: 3 });
        assert_eq!(decide(7, Some(3), Some(7)), Verdict::Duplicate { owner: 3 });
        assert_eq!(decide(7, None, Some(7)), Verdict::Retry);
        assert_eq!(decide(7, None, Some(3)), Verdict::New);
        assert_eq!(decide(7, None, Some(9)), Verdict::New);
    }
}
