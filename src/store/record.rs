//! The record of a window: its head and counts, written in the same transaction as its blocks.
//!
//! Layout, little endian: version 4 (1 byte), confirmed, state next, stream time in ms, the tail's next offset (all
//! ones: no tail) and CRC, number of forgets, number of blocks, number of identities, stream time in ms before which
//! identities may be missing, next offset and CRC of the last block at or before confirmed (8 bytes each), CRC32C of
//! the window (4 bytes) and of everything before. Version 3 lacks the last two numbers.
//!
//! The two counts make a hole detectable: an engine that lost a block in the middle still returns valid neighbours,
//! and a window with an undetected hole would let duplicates through.

use crate::dedupe::{Offset, WindowId};
use crate::ports::Head;

const VERSION: u8 = 4;
const BODY: usize = 1 + 8 * 11;
const PREVIOUS_VERSION: u8 = 3;
const PREVIOUS_BODY: usize = 1 + 8 * 9;
const NO_TAIL: u64 = u64::MAX;

/// A window's head, and the counts of its blocks and identities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Record {
    /// The head, as set by the caller.
    pub head: Head,
    /// Number of stored blocks.
    pub blocks: u64,
    /// Number of identities in them.
    pub identities: u64,
}

impl Record {
    /// Encodes the stored form.
    pub(super) fn encode(&self, window: WindowId) -> Vec<u8> {
        let mut out = Vec::with_capacity(BODY + 4);
        out.push(VERSION);
        out.extend_from_slice(&self.head.confirmed.to_le_bytes());
        out.extend_from_slice(&self.head.state_next.to_le_bytes());
        out.extend_from_slice(&self.head.stream_time_ms.to_le_bytes());
        put_tail(&mut out, self.head.tail);
        out.extend_from_slice(&self.head.forgets.to_le_bytes());
        out.extend_from_slice(&self.blocks.to_le_bytes());
        out.extend_from_slice(&self.identities.to_le_bytes());
        out.extend_from_slice(&self.head.incomplete_ms.to_le_bytes());
        put_tail(&mut out, self.head.confirmed_tail);
        out.extend_from_slice(&checksum(window, &out).to_le_bytes());
        out
    }

    /// Decodes the stored form. `None` if it is damaged or has another version.
    pub(super) fn decode(window: WindowId, bytes: &[u8]) -> Option<Self> {
        let (version, length) = match bytes.first()? {
            &PREVIOUS_VERSION => (PREVIOUS_VERSION, PREVIOUS_BODY),
            _ => (VERSION, BODY),
        };
        let (body, crc) = bytes.split_at_checked(length)?;
        let (found, fields) = body.split_first()?;
        let crc = u32::from_le_bytes(crc.try_into().ok()?);
        let (fields, _) = fields.as_chunks::<8>();
        let [
            confirmed,
            state_next,
            stream_time,
            tail_next,
            tail_crc,
            forgets,
            blocks,
            identities,
            incomplete,
            rest @ ..,
        ] = fields
        else {
            return None;
        };
        let confirmed_tail = if let [next, crc] = rest { tail_of(*next, *crc) } else { None };
        (*found == version && crc == checksum(window, body)).then(|| Self {
            head: Head {
                confirmed: u64::from_le_bytes(*confirmed),
                state_next: u64::from_le_bytes(*state_next),
                stream_time_ms: i64::from_le_bytes(*stream_time),
                tail: tail_of(*tail_next, *tail_crc),
                confirmed_tail,
                forgets: u64::from_le_bytes(*forgets),
                incomplete_ms: i64::from_le_bytes(*incomplete),
            },
            blocks: u64::from_le_bytes(*blocks),
            identities: u64::from_le_bytes(*identities),
        })
    }
}

fn put_tail(out: &mut Vec<u8>, tail: Option<(u32, Offset)>) {
    let (crc, next) = tail.unwrap_or((0, NO_TAIL));
    out.extend_from_slice(&next.to_le_bytes());
    out.extend_from_slice(&u64::from(crc).to_le_bytes());
}

fn tail_of(next: [u8; 8], crc: [u8; 8]) -> Option<(u32, Offset)> {
    let (next, crc) = (u64::from_le_bytes(next), u32::try_from(u64::from_le_bytes(crc)).ok()?);
    (next != NO_TAIL).then_some((crc, next))
}

fn checksum(window: WindowId, body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&window.number().to_le_bytes()), body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_the_previous_version_is_decoded() {
        let record = Record { head: Head { confirmed: 7, ..Head::default() }, blocks: 10, identities: 11 };
        let mut bytes = record.encode(3.into());
        bytes.truncate(PREVIOUS_BODY);
        bytes[0] = PREVIOUS_VERSION;
        bytes.extend_from_slice(&checksum(3.into(), &bytes).to_le_bytes());
        assert_eq!(Record::decode(3.into(), &bytes), Some(record));
    }

    #[test]
    fn decoding_detects_every_flipped_bit_and_the_wrong_partition() {
        let record = Record {
            head: Head {
                confirmed: 7,
                state_next: 8,
                stream_time_ms: -9,
                tail: Some((5, 6)),
                confirmed_tail: Some((3, 4)),
                forgets: 12,
                incomplete_ms: 13,
            },
            blocks: 10,
            identities: 11,
        };
        let bytes = record.encode(3.into());
        assert_eq!(Record::decode(3.into(), &bytes), Some(record));
        assert_eq!(Record::decode(4.into(), &bytes), None);
        for at in 0..bytes.len() {
            assert_eq!(Record::decode(3.into(), &bytes[..at]), None);
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                assert_eq!(Record::decode(3.into(), &flipped), None, "bit {bit} of byte {at}");
            }
        }
    }
}
