//! The record of a window: its head and counts, written in the same transaction as its runs.
//!
//! Layout, little endian: version 6 (1 byte), the head, number of runs, number of identities, stream time in ms up to which owners were
//! dropped (8 bytes each), CRC32C of the window (4 bytes) and of everything before.
//!
//! A head: confirmed, state next, stream time in ms, stream time in ms before which identities may be missing; next offset (all ones: none), number
//! and CRC of the last entry, and of the last one at or before confirmed (8 bytes each).
//!
//! The two counts make a hole detectable: an engine that lost a run in the middle still returns valid neighbours,
//! and a window with an undetected hole would let duplicates through.

use crate::dedupe::{EntryName, Tail, WindowId};
use crate::ports::Head;

const VERSION: u8 = 6;
const HEAD_FIELDS: usize = 10;
/// Bytes of a stored head.
pub(super) const HEAD_BYTES: usize = 8 * HEAD_FIELDS;
const BODY: usize = 1 + HEAD_BYTES + 3 * 8;
const NO_TAIL: u64 = u64::MAX;

/// A window's head, and the counts of its runs and identities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct WindowRecord {
    /// The head, as set by the caller.
    pub head: Head,
    /// Number of stored runs.
    pub runs: u64,
    /// Number of identities in them.
    pub identities: u64,
    /// [`crate::ports::Store::missing_ms`].
    pub missing_ms: i64,
}

impl WindowRecord {
    /// Encodes the stored form.
    pub(super) fn encode(&self, window: WindowId) -> Vec<u8> {
        let mut out = Vec::with_capacity(BODY + 4);
        out.push(VERSION);
        out.extend_from_slice(&encode_head(&self.head));
        let fields = [self.runs, self.identities, self.missing_ms.cast_unsigned()];
        out.extend(fields.iter().flat_map(|field| field.to_le_bytes()));
        out.extend_from_slice(&checksum(window, &out).to_le_bytes());
        out
    }

    /// Decodes the stored form. `None` if it is damaged or has another version.
    pub(super) fn decode(window: WindowId, bytes: &[u8]) -> Option<Self> {
        let (body, crc) = bytes.split_at_checked(BODY)?;
        let (version, fields) = body.split_first()?;
        let crc = u32::from_le_bytes(crc.try_into().ok()?);
        if *version != VERSION || crc != checksum(window, body) {
            return None;
        }
        let (head, fields) = fields.split_first_chunk()?;
        let fields: &[[u8; 8]; 3] = fields.as_chunks().0.try_into().ok()?;
        let [runs, identities, missing] = fields.map(u64::from_le_bytes);
        Some(Self { head: decode_head(head), runs, identities, missing_ms: missing.cast_signed() })
    }
}

/// The stored form of a head.
pub(super) fn encode_head(head: &Head) -> [u8; HEAD_BYTES] {
    let Head { confirmed, state_next, stream_time_ms, tail, confirmed_tail, incomplete_ms } = *head;
    let [next, number, crc] = tail_fields(tail);
    let [confirmed_next, confirmed_number, confirmed_crc] = tail_fields(confirmed_tail);
    let fields: [u64; HEAD_FIELDS] = [
        confirmed,
        state_next,
        stream_time_ms.cast_unsigned(),
        incomplete_ms.cast_unsigned(),
        next,
        number,
        crc,
        confirmed_next,
        confirmed_number,
        confirmed_crc,
    ];
    let mut out = [0; HEAD_BYTES];
    out.as_chunks_mut().0.iter_mut().zip(fields).for_each(|(bytes, field)| *bytes = field.to_le_bytes());
    out
}

/// The head in its stored form, whose checksum is verified.
pub(super) fn decode_head(bytes: &[u8; HEAD_BYTES]) -> Head {
    let mut fields = bytes.as_chunks().0.iter().map(|field| u64::from_le_bytes(*field));
    let mut next = || fields.next().unwrap_or_default();
    Head {
        confirmed: next(),
        state_next: next(),
        stream_time_ms: next().cast_signed(),
        incomplete_ms: next().cast_signed(),
        tail: tail_of([next(), next(), next()]),
        confirmed_tail: tail_of([next(), next(), next()]),
    }
}

fn tail_fields(tail: Option<Tail>) -> [u64; 3] {
    tail.map_or([NO_TAIL, 0, 0], |tail| [tail.next, tail.entry.number, tail.entry.crc.into()])
}

fn tail_of([next, number, crc]: [u64; 3]) -> Option<Tail> {
    let entry = EntryName { number, crc: u32::try_from(crc).ok()? };
    Some(Tail { entry, next, from: None }).filter(|_| next != NO_TAIL)
}

fn checksum(window: WindowId, body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&window.number().to_le_bytes()), body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_detects_every_flipped_bit_and_the_wrong_partition() {
        let tail = |next, number, crc| Some(Tail { entry: EntryName { number, crc }, next, from: None });
        let record = WindowRecord {
            head: Head {
                confirmed: 7,
                state_next: 8,
                stream_time_ms: -9,
                tail: tail(6, 5, u32::MAX),
                confirmed_tail: tail(4, 3, 2),
                incomplete_ms: 13,
            },
            runs: 10,
            identities: 11,
            missing_ms: -14,
        };
        let bytes = record.encode(3.into());
        assert_eq!(WindowRecord::decode(3.into(), &bytes), Some(record));
        let without_tails =
            WindowRecord { head: Head { tail: None, confirmed_tail: None, ..record.head }, ..record };
        assert_eq!(WindowRecord::decode(3.into(), &without_tails.encode(3.into())), Some(without_tails));
        assert_eq!(WindowRecord::decode(4.into(), &bytes), None);
        for at in 0..bytes.len() {
            assert_eq!(WindowRecord::decode(3.into(), &bytes[..at]), None);
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                assert_eq!(WindowRecord::decode(3.into(), &flipped), None, "bit {bit} of byte {at}");
            }
        }
    }
}
