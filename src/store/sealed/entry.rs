//! What sled stores of a slice: how it is verified, and what has been removed from it.
//!
//! An entry, little endian: version 4 (1 byte), CRC32C of the file's footer (4), number of removals (4), CRC32C of the key and everything before (4).
//!
//! Each removal has an entry of its own, so that a slice can have any number of them. Its key is that of the slice, followed by: a partition (4, big endian)
//! whose owners at or beyond the offset (8) in the value were undone; or an identity (16) that was forgotten. The value ends with the CRC32C of the key and
//! everything before (4).

use std::collections::{BTreeMap, BTreeSet};

use crate::dedupe::{Identity, Offset, PartitionId};
use crate::store::keys;

const VERSION: u8 = 4;

/// The stored state of a slice.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::store) struct SliceEntry {
    /// CRC32C of the footer. It distinguishes the file from another one with the same name.
    pub footer: u32,
    /// Partitions whose owners at or beyond an offset were undone.
    pub ends: BTreeMap<PartitionId, Offset>,
    /// Identities that were forgotten.
    pub forgotten: BTreeSet<Identity>,
}

/// Something that was removed from a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum Removal {
    /// The owners of a partition at or beyond an offset.
    End(PartitionId, Offset),
    /// An identity.
    Identity(Identity),
}

impl SliceEntry {
    /// The stored form, below this key, with so many removals.
    pub fn encode(&self, key: &[u8], removals: u32) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.footer.to_le_bytes());
        out.extend_from_slice(&removals.to_le_bytes());
        with_checksum(key, out)
    }

    /// Decodes the stored form, without what was removed, and the number of removals. `None` if it is damaged or has another version.
    pub fn decode(key: &[u8], bytes: &[u8]) -> Option<(Self, u32)> {
        let (version, rest) = verified(key, bytes)?.split_first()?;
        let (footer, removals) = rest.split_first_chunk().filter(|_| *version == VERSION)?;
        let entry = Self { footer: u32::from_le_bytes(*footer), ..Self::default() };
        Some((entry, u32::from_le_bytes(removals.try_into().ok()?)))
    }

    /// Number of removals.
    pub fn removals(&self) -> u32 {
        u32::try_from(self.ends.len() + self.forgotten.len()).unwrap_or(u32::MAX)
    }

    /// What was removed since it was as `before`.
    pub fn removed_since<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = Removal> + 'a {
        let ends = self.ends.iter().filter(|(partition, end)| before.ends.get(partition) != Some(end));
        let identities = self.forgotten.difference(&before.forgotten);
        let ends = ends.map(|(partition, end)| Removal::End(*partition, *end));
        ends.chain(identities.copied().map(Removal::Identity))
    }

    /// Notes a removal. Returns whether it is a further one, and does not replace an end.
    pub fn remove(&mut self, removal: Removal) -> bool {
        match removal {
            Removal::End(partition, end) => self.ends.insert(partition, end).is_none(),
            Removal::Identity(identity) => self.forgotten.insert(identity),
        }
    }
}

impl Removal {
    /// The key and the value, for a slice with this key.
    pub fn encode(self, slice: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let (mut key, mut value) = (slice.to_vec(), Vec::new());
        match self {
            Self::End(partition, end) => {
                key.extend_from_slice(&partition.to_be_bytes());
                value.extend_from_slice(&end.to_le_bytes());
            }
            Self::Identity(Identity(bytes)) => key.extend_from_slice(&bytes),
        }
        let value = with_checksum(&key, value);
        (key, value)
    }

    /// Decodes a key and a value. `None` if they are damaged.
    pub fn decode(key: &[u8], value: &[u8]) -> Option<Self> {
        let (removed, value) = (key.get(keys::SLICE..)?, verified(key, value)?);
        if value.is_empty() {
            return Some(Self::Identity(Identity(removed.try_into().ok()?)));
        }
        let (partition, end) = (removed.try_into().ok()?, value.try_into().ok()?);
        Some(Self::End(u32::from_be_bytes(partition), u64::from_le_bytes(end)))
    }
}

fn with_checksum(key: &[u8], mut body: Vec<u8>) -> Vec<u8> {
    let crc = crc32c::crc32c_append(crc32c::crc32c(key), &body);
    body.extend_from_slice(&crc.to_le_bytes());
    body
}

fn verified<'a>(key: &[u8], bytes: &'a [u8]) -> Option<&'a [u8]> {
    let (body, crc) = bytes.split_last_chunk()?;
    let computed = crc32c::crc32c_append(crc32c::crc32c(key), body);
    (u32::from_le_bytes(*crc) == computed).then_some(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_detects_every_flipped_bit_and_the_wrong_key() {
        let removals = [Removal::End(3, 70), Removal::End(4, u64::MAX), Removal::Identity(Identity([7; 16]))];
        let empty = SliceEntry { footer: 0xdead_beef, ..SliceEntry::default() };
        let mut entry = empty.clone();
        assert!(removals.iter().all(|removal| entry.remove(*removal)) && !entry.remove(removals[2]));
        assert_eq!(
            (entry.removed_since(&empty).collect::<Vec<_>>(), entry.removals()),
            (removals.to_vec(), 3)
        );
        let slice = [9; keys::SLICE];
        let bytes = entry.encode(&slice, 3);
        assert_eq!(SliceEntry::decode(&slice, &bytes), Some((empty, 3)));
        let is_entry = |key: &[u8], bytes: &[u8]| SliceEntry::decode(key, bytes).is_some();
        detects_damage(&slice, &bytes, is_entry);
        for removal in removals {
            let (key, value) = removal.encode(&slice);
            assert_eq!(Removal::decode(&key, &value), Some(removal));
            detects_damage(&key, &value, |key, value| Removal::decode(key, value).is_some());
        }
    }

    fn detects_damage(key: &[u8], bytes: &[u8], is_valid: impl Fn(&[u8], &[u8]) -> bool) {
        let flipped = |bytes: &[u8], bit: usize| {
            let mut bytes = bytes.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes
        };
        assert!((0..key.len() * 8).all(|bit| !is_valid(&flipped(key, bit), bytes)));
        assert!((0..bytes.len() * 8).all(|bit| !is_valid(key, &flipped(bytes, bit))));
        assert!((0..bytes.len()).all(|at| !is_valid(key, &bytes[..at])));
    }
}
