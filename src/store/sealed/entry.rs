//! What sled stores of a slice: how it is verified, and what has been removed from it.
//!
//! Layout, little endian: version 2 (1 byte), CRC32C of the file's footer (4), order (8), count of ends (4), each with partition (4) and offset (8),
//! count of forgotten owners (4), each with partition (4) and offset (8), count of forgotten identities (4), each with 16 bytes, CRC32C of
//! the key and everything before (4).

use std::collections::{BTreeMap, BTreeSet};

use crate::dedupe::{Coordinates, Identity, Offset, PartitionId};

const VERSION: u8 = 2;

type PartitionOffset = (PartitionId, Offset);

/// The stored state of a slice.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::store) struct SliceEntry {
    /// CRC32C of the footer. It distinguishes the file from another one with the same name.
    pub footer: u32,
    /// Its place among the slices of its group: ascending numbers. In this order the owners of each partition ascend, which the
    /// arrival times of all partitions together need not do.
    pub order: u64,
    /// Partitions whose owners at or beyond an offset were removed.
    pub ends: BTreeMap<PartitionId, Offset>,
    /// Owners that were forgotten.
    pub forgotten: BTreeSet<Coordinates>,
    /// Identities that were forgotten, in a slice without owners.
    pub forgotten_ids: BTreeSet<Identity>,
}

impl SliceEntry {
    /// The stored form, below this key.
    pub fn encode(&self, key: &[u8]) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.footer.to_le_bytes());
        out.extend_from_slice(&self.order.to_le_bytes());
        let ends = self.ends.iter().map(|(partition, end)| (*partition, *end));
        push_pairs(ends.collect(), &mut out);
        push_pairs(self.forgotten.iter().map(|owner| (owner.partition, owner.offset)).collect(), &mut out);
        out.extend_from_slice(&u32::try_from(self.forgotten_ids.len()).unwrap_or(u32::MAX).to_le_bytes());
        self.forgotten_ids.iter().for_each(|identity| out.extend_from_slice(&identity.0));
        out.extend_from_slice(&checksum(key, &out).to_le_bytes());
        out
    }

    /// Decodes the stored form. `None` if it is damaged or has another version.
    pub fn decode(key: &[u8], bytes: &[u8]) -> Option<Self> {
        let (body, crc) = bytes.split_last_chunk()?;
        let (version, rest) = body.split_first()?;
        if u32::from_le_bytes(*crc) != checksum(key, body) || *version != VERSION {
            return None;
        }
        let (footer, rest) = rest.split_first_chunk()?;
        let (order, rest) = rest.split_first_chunk()?;
        let (ends, rest) = pairs(rest)?;
        let (forgotten, rest) = pairs(rest)?;
        let (count, rest) = rest.split_first_chunk()?;
        let (identities, []) = rest.as_chunks() else { return None };
        let forgotten = forgotten.into_iter().map(|(partition, offset)| Coordinates { partition, offset });
        (identities.len() == u32::from_le_bytes(*count) as usize).then(|| Self {
            footer: u32::from_le_bytes(*footer),
            order: u64::from_le_bytes(*order),
            ends: ends.into_iter().collect(),
            forgotten: forgotten.collect(),
            forgotten_ids: identities.iter().map(|bytes| Identity(*bytes)).collect(),
        })
    }
}

fn push_pairs(pairs: Vec<PartitionOffset>, out: &mut Vec<u8>) {
    out.extend_from_slice(&u32::try_from(pairs.len()).unwrap_or(u32::MAX).to_le_bytes());
    for (partition, offset) in pairs {
        out.extend_from_slice(&partition.to_le_bytes());
        out.extend_from_slice(&offset.to_le_bytes());
    }
}

fn pairs(bytes: &[u8]) -> Option<(Vec<PartitionOffset>, &[u8])> {
    let (count, rest) = bytes.split_first_chunk()?;
    let (fields, rest) =
        rest.split_at_checked(usize::try_from(u32::from_le_bytes(*count)).ok()?.checked_mul(12)?)?;
    let pair = |field: &[u8; 12]| {
        let (partition, offset) = field.split_first_chunk()?;
        Some((u32::from_le_bytes(*partition), u64::from_le_bytes(offset.try_into().ok()?)))
    };
    Some((fields.as_chunks().0.iter().map(pair).collect::<Option<_>>()?, rest))
}

fn checksum(key: &[u8], body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(key), body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_detects_every_flipped_bit_and_the_wrong_key() {
        let entry = SliceEntry {
            footer: 0xdead_beef,
            order: 1 << 40,
            ends: BTreeMap::from([(3, 70), (4, u64::MAX)]),
            forgotten: BTreeSet::from([Coordinates { partition: 3, offset: 60 }]),
            forgotten_ids: BTreeSet::from([Identity([7; 16])]),
        };
        let bytes = entry.encode(b"key");
        assert_eq!(SliceEntry::decode(b"key", &bytes), Some(entry));
        assert_eq!(SliceEntry::decode(b"kez", &bytes), None);
        for at in 0..bytes.len() {
            assert_eq!(SliceEntry::decode(b"key", &bytes[..at]), None);
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                assert_eq!(SliceEntry::decode(b"key", &flipped), None, "bit {bit} of byte {at}");
            }
        }
    }
}
