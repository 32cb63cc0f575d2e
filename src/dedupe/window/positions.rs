//! Where identities are in the index, the filters and the pages of slices.

use std::fmt;

use siphasher::sip128::SipHasher13;

use super::table::TablePosition;
use crate::dedupe::identity::Identity;

/// The positions of identities in one store: a keyed hash of the identity, SipHash-1-3 with 128 bits.
///
/// The producers of records choose the ids. With positions that can be computed, many ids could be given one position, and a
/// filter, a bucket or a page would have all of them. The key is random, and as secret as the state directory: it is part of no topic,
/// export, log or message. Identities are hashed again also because the bits of a UUID are not uniform.
#[derive(Clone, Copy)]
pub struct Positions {
    key: [u8; 16],
    /// Positions that a test chooses, because ids cannot.
    #[cfg(test)]
    chosen: Option<fn(Identity) -> (u64, u64)>,
}

/// Without the key.
impl fmt::Debug for Positions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Positions")
    }
}

impl Positions {
    /// The positions for a secret key.
    pub fn keyed(key: [u8; 16]) -> Self {
        Self {
            key,
            #[cfg(test)]
            chosen: None,
        }
    }

    #[cfg(test)]
    pub(super) fn chosen(chosen: fn(Identity) -> (u64, u64)) -> Self {
        Self { chosen: Some(chosen), ..Self::keyed([0; 16]) }
    }

    /// An identity with its position.
    #[inline]
    pub fn key(self, identity: Identity) -> IndexKey {
        #[cfg(test)]
        if let Some(chosen) = self.chosen {
            let (first, second) = chosen(identity);
            return IndexKey { identity, position: TablePosition { first, second } };
        }
        let hash = SipHasher13::new_with_key(&self.key).hash(&identity.0);
        IndexKey { identity, position: TablePosition { first: hash.h1, second: hash.h2 } }
    }
}

/// An identity and its position, computed once per record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexKey {
    /// The 16 bytes that stand for the id.
    pub identity: Identity,
    pub(super) position: TablePosition,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_position_is_sip_hash(key in any::<[u8; 16]>(), identity in any::<[u8; 16]>()) {
            let position = Positions::keyed(key).key(Identity(identity)).position;
            let hash = SipHasher13::new_with_key(&key).hash(&identity);
            prop_assert_eq!((position.first, position.second), (hash.h1, hash.h2));
        }
    }

    #[test]
    fn the_key_is_not_shown() {
        assert_eq!(format!("{:?}", Positions::keyed(*b"0123456789abcdef")), "Positions");
    }
}
