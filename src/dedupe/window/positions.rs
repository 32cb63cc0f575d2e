//! Where identities are in the index, the filters and the pages of slices.

use std::fmt;

use super::table::TablePosition;
use crate::dedupe::identity::Identity;

/// The positions of identities in one store: a keyed hash of the identity, SipHash-1-3 with 128 bits.
///
/// Ids are chosen by whoever writes records. With positions that can be computed, many ids could be given one position, and a
/// filter, a bucket or a page would have all of them. The key is random, and as secret as the state directory: it is part of no topic,
/// export, log or message. Identities are hashed again also because the bits of a UUID are not uniform.
#[derive(Clone, Copy)]
pub struct Positions {
    key: [u64; 2],
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
    #[must_use]
    pub fn keyed(key: [u8; 16]) -> Self {
        Self {
            key: words(key),
            #[cfg(test)]
            chosen: None,
        }
    }

    #[cfg(test)]
    pub(super) fn chosen(chosen: fn(Identity) -> (u64, u64)) -> Self {
        Self { chosen: Some(chosen), ..Self::keyed([0; 16]) }
    }

    /// An identity with its position.
    #[must_use]
    #[inline]
    pub fn key(self, identity: Identity) -> IndexKey {
        #[cfg(test)]
        if let Some(chosen) = self.chosen {
            let (first, second) = chosen(identity);
            return IndexKey { identity, position: TablePosition { first, second } };
        }
        let [first, second] = sip_hash(self.key, words(identity.0));
        IndexKey { identity, position: TablePosition { first, second } }
    }
}

/// An identity and its position, computed once per record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexKey {
    /// The 16 bytes that stand for the id.
    pub identity: Identity,
    pub(super) position: TablePosition,
}

/// Little endian.
#[inline]
fn words(bytes: [u8; 16]) -> [u64; 2] {
    let all = u128::from_le_bytes(bytes);
    #[expect(clippy::cast_possible_truncation, reason = "each half has 64 bits")]
    let halves = [all as u64, (all >> 64) as u64];
    halves
}

/// SipHash-1-3 with 128 bits of a message of 16 bytes. Each record needs one: that of `siphasher` takes 22 ns, this one 11.
#[inline]
fn sip_hash([key0, key1]: [u64; 2], message: [u64; 2]) -> [u64; 2] {
    const LENGTH: u64 = 16 << 56;
    let mut v = [
        key0 ^ 0x736f_6d65_7073_6575,
        key1 ^ 0x646f_7261_6e64_6f83,
        key0 ^ 0x6c79_6765_6e65_7261,
        key1 ^ 0x7465_6462_7974_6573,
    ];
    for word in [message[0], message[1], LENGTH] {
        v[3] ^= word;
        sip_round(&mut v);
        v[0] ^= word;
    }
    v[2] ^= 0xee;
    let first = finish(&mut v);
    v[1] ^= 0xdd;
    [first, finish(&mut v)]
}

#[inline]
fn finish(v: &mut [u64; 4]) -> u64 {
    (0..3).for_each(|_| sip_round(v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[inline]
fn sip_round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[2] = v[2].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[1]);
    v[0] = v[0].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use siphasher::sip128::SipHasher13;

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
