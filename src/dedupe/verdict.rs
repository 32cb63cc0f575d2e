//! What becomes of a record, in one place.

use super::Offset;

/// What the window says of a record's identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Not seen inside the window: forward it, and remember it.
    New,
    /// This very record is known as the first of its identity, from an attempt that was not
    /// committed: forward it, and remember it.
    Retry,
    /// Another record carried the identity first: drop it.
    Duplicate {
        /// Offset of that record, in the same partition.
        owner: Offset,
    },
    /// A filter of the window beyond the exact part has the identity: seen before, or, at the configured
    /// rate, not.
    Probable {
        /// Beginning of the slice that has it, stream time in ms since the epoch.
        since_ms: i64,
    },
}

/// The rule: `known` is the identity's owner in the window (committed, or earlier in the open
/// transaction), `claim` its owner in local state at or beyond the committed offset.
///
/// A claim is never a reason to drop. The record at a claimed offset was not committed, so it
/// either comes again itself (and is then the `Retry`), or it is gone from the log (compacted,
/// truncated) and the copy at hand may be the last one there is.
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
