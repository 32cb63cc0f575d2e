//! The verdict: the decision about a record.

use super::Owner;
use crate::dedupe::coordinates::Coordinates;

/// The decision about a record, by its identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Not seen inside the window: forward the record and store it as owner.
    New,
    /// This record itself is the owner of its identity, from an attempt that was not committed: forward it and store
    /// it as owner.
    Retry,
    /// Another record is the owner of the identity: drop this one.
    Duplicate {
        /// That record.
        owner: Owner,
    },
}

/// The owner rule for the record at `at`. `known` is the identity's owner in the window (committed, or earlier in
/// the open transaction), `claim` is its owner in local state that was not committed.
///
/// A claim never drops a record. The record at a claimed place was not committed. Either it is read again (and is then
/// the `Retry`), or it has been removed from the log (compacted, truncated), and this record may be the last copy.
pub fn decide(at: Coordinates, known: Option<Owner>, claim: Option<Coordinates>) -> Verdict {
    match (known, claim) {
        (Some(owner), _) if owner.at != at => Verdict::Duplicate { owner },
        (Some(_), _) => Verdict::Retry,
        (None, Some(claimed)) if claimed == at => Verdict::Retry,
        (None, _) => Verdict::New,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedupe::identity::Digest;
    use crate::dedupe::identity::Identity;

    #[test]
    fn only_a_known_owner_at_another_place_makes_a_duplicate() {
        let at = |partition, offset| Coordinates { partition, offset };
        let owner = |partition, offset| Owner {
            at: at(partition, offset),
            time_ms: 1,
            identity: Identity([7; 16]),
            digest: Digest::NONE,
        };
        let decided = |known, claim| decide(at(1, 7), known, claim);
        assert_eq!(decided(None, None), Verdict::New);
        assert_eq!(decided(Some(owner(1, 7)), None), Verdict::Retry);
        for other in [owner(1, 3), owner(0, 7)] {
            assert_eq!(decided(Some(other), None), Verdict::Duplicate { owner: other });
            assert_eq!(decided(Some(other), Some(at(1, 7))), Verdict::Duplicate { owner: other });
        }
        assert_eq!(decided(None, Some(at(1, 7))), Verdict::Retry);
        for claim in [at(1, 3), at(1, 9), at(0, 7)] {
            assert_eq!(decided(None, Some(claim)), Verdict::New);
        }
    }
}
