//! The record of a window: its head and counts, written in the same transaction as its runs.
//!
//! Layout, little endian: version 7 (1 byte), number of runs, number of identities, number of the next owner, time of the window's clock in ms up to which
//! owners were dropped (8 bytes each), the head (56), where the sections of the partitions end (variable), CRC32C of the window (4 bytes)
//! and of everything before.
//!
//! A head: confirmed, state next, time of the clock in ms, time in ms before which identities may be missing, number of the last entry
//! (0: none) and of the last one that is committed (8 bytes each), CRCs of these entries (4 bytes each).
//!
//! The end of a section, as numbers in LEB128: the distance to the partition before, the offset, and the zigzag distance of its time
//! to that of the head. It is written with each transaction, for up to a thousand partitions and more.
//!
//! The counts make a hole detectable: an engine that lost a run in the middle still returns valid neighbours,
//! and a window with an undetected hole would let duplicates through.

use std::collections::BTreeMap;

use crate::dedupe::{EntryName, PartitionId, Sequence, WindowId, varint};
use crate::ports::{Covered, Head};

const VERSION: u8 = 7;
/// Bytes of a stored head without the ends of sections.
const HEAD_BYTES: usize = 6 * 8 + 2 * 4;

/// What a record has besides the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counts {
    /// Number of stored runs.
    pub runs: u64,
    /// Number of identities in them.
    pub identities: u64,
    /// [`crate::ports::Store::next_number`].
    pub next_number: Sequence,
    /// [`crate::ports::Store::missing_ms`].
    pub missing_ms: i64,
}

/// The stored form of the record of a window.
pub(super) fn encode(window: WindowId, head: &Head, counts: &Counts) -> Vec<u8> {
    let mut out = vec![VERSION];
    let fields = [counts.runs, counts.identities, counts.next_number, counts.missing_ms.cast_unsigned()];
    out.extend(fields.iter().flat_map(|field| field.to_le_bytes()));
    out.extend_from_slice(&encode_head(head));
    let mut before = 0;
    for (partition, end) in &head.covered {
        varint::push(&mut out, u64::from(partition - before));
        varint::push(&mut out, end.next);
        varint::push(&mut out, varint::zigzag(end.time_ms.wrapping_sub(head.time_ms)));
        before = *partition;
    }
    out.extend_from_slice(&checksum(window, &out).to_le_bytes());
    out
}

/// Decodes the stored form. `None` if it is damaged or has another version.
pub(super) fn decode(window: WindowId, bytes: &[u8]) -> Option<(Head, Counts)> {
    let (body, crc) = bytes.split_last_chunk()?;
    let (version, fields) = body.split_first()?;
    if *version != VERSION || u32::from_le_bytes(*crc) != checksum(window, body) {
        return None;
    }
    let (counts, fields) = fields.split_first_chunk::<{ 4 * 8 }>()?;
    let counts: &[[u8; 8]; 4] = counts.as_chunks().0.try_into().ok()?;
    let [runs, identities, next_number, missing] = counts.map(u64::from_le_bytes);
    let (head, mut ends) = fields.split_first_chunk()?;
    let mut head = decode_head(head);
    let mut partition: PartitionId = 0;
    while !ends.is_empty() {
        partition = partition.checked_add(u32::try_from(varint::take(&mut ends)?).ok()?)?;
        let (next, ahead) = (varint::take(&mut ends)?, varint::take(&mut ends)?);
        let time_ms = head.time_ms.wrapping_add(varint::unzigzag(ahead));
        head.covered.insert(partition, Covered { next, time_ms });
    }
    Some((head, Counts { runs, identities, next_number, missing_ms: missing.cast_signed() }))
}

/// The stored form of a head without the ends of sections.
pub(super) fn encode_head(head: &Head) -> [u8; HEAD_BYTES] {
    let [last_entry, confirmed_entry] =
        [head.last_entry, head.confirmed_entry].map(Option::unwrap_or_default);
    let fields: [u64; 6] = [
        head.confirmed,
        head.state_next,
        head.time_ms.cast_unsigned(),
        head.incomplete_ms.cast_unsigned(),
        last_entry.number,
        confirmed_entry.number,
    ];
    let fields = fields.into_iter().flat_map(u64::to_le_bytes);
    let crcs = [last_entry.crc, confirmed_entry.crc].into_iter().flat_map(u32::to_le_bytes);
    let mut out = [0; HEAD_BYTES];
    out.iter_mut().zip(fields.chain(crcs)).for_each(|(byte, field)| *byte = field);
    out
}

/// The head in its stored form, whose checksum is verified.
pub(super) fn decode_head(bytes: &[u8; HEAD_BYTES]) -> Head {
    let (fields, crcs) = bytes.split_at(6 * 8);
    let mut fields = fields.as_chunks().0.iter().map(|field| u64::from_le_bytes(*field));
    let mut crcs = crcs.as_chunks().0.iter().map(|crc| u32::from_le_bytes(*crc));
    let mut next = || fields.next().unwrap_or_default();
    let mut entry = |number| {
        let crc = crcs.next().unwrap_or_default();
        Some(EntryName { number, crc }).filter(|_| number > 0)
    };
    Head {
        confirmed: next(),
        state_next: next(),
        time_ms: next().cast_signed(),
        incomplete_ms: next().cast_signed(),
        last_entry: entry(next()),
        confirmed_entry: entry(next()),
        covered: BTreeMap::new(),
    }
}

fn checksum(window: WindowId, body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&window.number().to_le_bytes()), body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_detects_every_flipped_bit_and_the_wrong_journal() {
        let entry = |number, crc| Some(EntryName { number, crc });
        let covered = [(0, 300, 20), (7, u64::MAX, i64::MIN), (u32::MAX, 0, 0)];
        let end = |(partition, next, time_ms)| (partition, Covered { next, time_ms });
        let head = Head {
            confirmed: 7,
            state_next: 8,
            time_ms: 9,
            last_entry: entry(5, u32::MAX),
            confirmed_entry: entry(3, 2),
            incomplete_ms: -13,
            covered: covered.map(end).into(),
        };
        let counts = Counts { runs: 10, identities: 11, next_number: 12, missing_ms: -14 };
        let bytes = encode(3.into(), &head, &counts);
        assert_eq!(decode(3.into(), &bytes), Some((head.clone(), counts)));
        let bare = Head { last_entry: None, confirmed_entry: None, covered: BTreeMap::new(), ..head };
        assert_eq!(decode(3.into(), &encode(3.into(), &bare, &counts)), Some((bare, counts)));
        assert_eq!(decode(4.into(), &bytes), None);
        for at in 0..bytes.len() {
            assert_eq!(decode(3.into(), &bytes[..at]), None);
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                assert_eq!(decode(3.into(), &flipped), None, "bit {bit} of byte {at}");
            }
        }
    }

    /// It is written with each transaction.
    #[test]
    fn the_ends_of_a_thousand_partitions_need_ten_bytes_each() {
        let now_ms = 1_800_000_000_000;
        let end = |partition| {
            let partition_ms = i64::from(partition) * 1_000;
            (
                partition,
                Covered { next: 3_000_000_000 + u64::from(partition), time_ms: now_ms - partition_ms },
            )
        };
        let head = Head { time_ms: now_ms, covered: (0..1_024).map(end).collect(), ..Head::default() };
        let bytes = encode(0.into(), &head, &Counts::default());
        assert!(bytes.len() <= 10 * 1_024, "{} bytes", bytes.len());
    }
}
