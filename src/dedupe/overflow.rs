//! Owners that found no slot in a table: few, and kept by their whole identity.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::index::SEED;
use super::{Identity, Offset};

/// A map, so that nothing is ever overwritten by chance.
///
/// An identity can have several owners here: one that has become too old, and a newer one that may
/// be taken back together with the stream time that made the other too old. The newest stands in
/// the map, the others aside, where nearly always there is nothing.
#[derive(Debug, Default)]
pub(super) struct Overflow {
    owners: HashMap<Key, Offset, BuildHasherDefault<Ready>>,
    aside: Vec<(Identity, Offset)>,
    clean_at: usize,
}

impl Overflow {
    /// The owners of an identity, expired ones among them.
    #[inline]
    pub fn owners_of(&self, identity: Identity) -> impl Iterator<Item = Offset> {
        let newest = self.owners.get(&Key(identity)).copied();
        let aside = if newest.is_some() { self.aside.as_slice() } else { &[] };
        let aside = aside.iter().filter(move |(other, _)| *other == identity).map(|(_, owner)| *owner);
        newest.into_iter().chain(aside)
    }

    /// Adds an owner. What lies below `first_live` is cleaned out each time the map has doubled,
    /// which costs O(1) an insert.
    pub fn insert(&mut self, identity: Identity, offset: Offset, first_live: Offset) {
        if self.owners.len() >= self.clean_at {
            self.owners.retain(|_, owner| *owner >= first_live);
            self.aside.retain(|(_, owner)| *owner >= first_live);
            self.clean_at = self.owners.len() * 2 + 1_024;
        }
        if let Some(older) = self.owners.insert(Key(identity), offset) {
            self.aside.push((identity, older));
        }
    }

    /// Takes back an owner; false when it is not here.
    pub fn remove(&mut self, identity: Identity, offset: Offset) -> bool {
        if self.owners.get(&Key(identity)) == Some(&offset) {
            self.owners.remove(&Key(identity));
            self.promote(identity);
            return true;
        }
        let place = self.aside.iter().position(|held| *held == (identity, offset));
        place.map(|place| self.aside.swap_remove(place)).is_some()
    }

    /// Takes out every owner at or beyond `from`, and gives them.
    pub fn remove_from(&mut self, from: Offset) -> Vec<Offset> {
        let mut gone: Vec<_> =
            self.aside.extract_if(.., |(_, owner)| *owner >= from).map(|(_, owner)| owner).collect();
        let newest: Vec<_> = self.owners.extract_if(|_, owner| *owner >= from).collect();
        for (Key(identity), owner) in newest {
            gone.push(owner);
            self.promote(identity);
        }
        gone
    }

    /// Puts the newest owner that stands aside into the map.
    fn promote(&mut self, identity: Identity) {
        let aside = self.aside.iter().enumerate().filter(|(_, (other, _))| *other == identity);
        if let Some((place, _)) = aside.max_by_key(|(_, (_, owner))| *owner) {
            let (_, owner) = self.aside.swap_remove(place);
            self.owners.insert(Key(identity), owner);
        }
    }

    /// Owners held, expired ones included until they are cleaned out.
    pub fn len(&self) -> usize {
        self.owners.len() + self.aside.len()
    }

    pub fn memory_bytes(&self) -> usize {
        // One control byte a bucket, and a map is at most 7/8 full.
        self.owners.capacity() * 8 / 7 * (size_of::<(Key, Offset)>() + 1)
            + self.aside.capacity() * size_of::<(Identity, Offset)>()
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Key(Identity);

impl Hash for Key {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(xxh3_64_with_seed(&self.0.0, SEED));
    }
}

/// Hands on a hash that is already one.
#[derive(Default)]
struct Ready(u64);

impl Hasher for Ready {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    #[inline]
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_owner_returns_when_the_newer_ones_are_taken_back() {
        let id = Identity([7; 16]);
        for order in [[20, 30], [30, 20]] {
            let mut overflow = Overflow::default();
            for owner in [10, 20, 30] {
                overflow.insert(id, owner, 0);
            }
            assert_eq!(overflow.owners_of(id).count(), 3);
            for owner in order {
                assert!(overflow.remove(id, owner));
            }
            assert_eq!(overflow.owners_of(id).collect::<Vec<_>>(), [10]);
        }
    }

    #[test]
    fn a_sweep_keeps_the_owners_before_it() {
        let id = Identity([7; 16]);
        let mut overflow = Overflow::default();
        for owner in [10, 20, 30] {
            overflow.insert(id, owner, 0);
        }
        let mut gone = overflow.remove_from(20);
        gone.sort_unstable();
        assert_eq!(gone, [20, 30]);
        assert_eq!(overflow.owners_of(id).collect::<Vec<_>>(), [10]);
    }
}
