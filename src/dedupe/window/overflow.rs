//! Owners for which both buckets of a table were full. They are few, and stored with their whole identity.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use super::positions::IndexKey;
use crate::dedupe::coordinates::Sequence;
use crate::dedupe::identity::Identity;

/// A map by whole identity, so that a collision of fingerprints overwrites nothing.
///
/// An identity can have several owners here: one that has become too old, and a newer one that an abort may
/// undo together with the stream time that made the other too old. The newest owner is in the map, the others
/// are in `older`, which is nearly always empty.
#[derive(Debug, Default)]
pub(super) struct OverflowMap {
    owners: HashMap<IndexKey, Sequence, BuildHasherDefault<PositionHasher>>,
    older: Vec<(Identity, Sequence)>,
    clean_at: usize,
}

impl OverflowMap {
    /// The owners of an identity, including expired ones.
    #[inline]
    pub fn owners_of(&self, key: &IndexKey) -> impl Iterator<Item = Sequence> {
        let (identity, newest) = (key.identity, self.owners.get(key).copied());
        let older = if newest.is_some() { self.older.as_slice() } else { &[] };
        let older = older.iter().filter(move |(other, _)| *other == identity).map(|(_, owner)| *owner);
        newest.into_iter().chain(older)
    }

    /// Inserts an owner. Owners below `first_live` are removed each time the map has doubled, which costs amortised
    /// O(1) per insert.
    pub fn insert(&mut self, key: &IndexKey, number: Sequence, first_live: Sequence) {
        if self.owners.len() >= self.clean_at {
            self.owners.retain(|_, owner| *owner >= first_live);
            self.older.retain(|(_, owner)| *owner >= first_live);
            self.clean_at = self.owners.len() * 2 + 1_024;
        }
        if let Some(previous) = self.owners.insert(*key, number) {
            self.older.push((key.identity, previous));
        }
    }

    /// Removes an owner; returns false when it is not here.
    pub fn remove(&mut self, key: &IndexKey, number: Sequence) -> bool {
        if self.owners.get(key) == Some(&number) {
            self.owners.remove(key);
            self.promote(key);
            return true;
        }
        let place = self.older.iter().position(|held| *held == (key.identity, number));
        place.map(|place| self.older.swap_remove(place)).is_some()
    }

    /// Moves the newest of the identity's owners in `older` into the map.
    fn promote(&mut self, key: &IndexKey) {
        let older = self.older.iter().enumerate().filter(|(_, (other, _))| *other == key.identity);
        if let Some((place, _)) = older.max_by_key(|(_, (_, owner))| *owner) {
            let (_, owner) = self.older.swap_remove(place);
            self.owners.insert(*key, owner);
        }
    }

    /// Number of owners, including expired ones until they are removed.
    pub fn len(&self) -> usize {
        self.owners.len() + self.older.len()
    }

    pub fn memory_bytes(&self) -> usize {
        // One control byte per bucket, and a map is at most 7/8 full.
        self.owners.capacity() * 8 / 7 * (size_of::<(IndexKey, Sequence)>() + 1)
            + self.older.capacity() * size_of::<(Identity, Sequence)>()
    }
}

impl Hash for IndexKey {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.position.second);
    }
}

/// The hash of a key: a part of its position, which is a hash with a secret key.
#[derive(Default)]
struct PositionHasher(u64);

impl Hasher for PositionHasher {
    fn write(&mut self, _bytes: &[u8]) {}

    #[inline]
    fn write_u64(&mut self, position: u64) {
        self.0 = position;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedupe::window::positions::Positions;

    #[test]
    fn an_older_owner_is_found_again_when_the_newer_ones_are_removed() {
        let id = &Positions::keyed([1; 16]).key(Identity([7; 16]));
        for order in [[20, 30], [30, 20]] {
            let mut overflow = OverflowMap::default();
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
}
