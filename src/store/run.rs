//! Owners as they are stored: runs of them in files, and for each run an entry in sled.
//!
//! An owner in a file has 24 bytes: its identity (16), and its offset (8, little endian; with the highest bit, and an identity of zeros, if it was forgotten). So
//! an owner is at the place that its number in the run gives.
//!
//! An entry, little endian: file number (4), position in the file (8), CRC32C of the owners (4), one past the last covered offset (8), number of the
//! first owner (8), count of owners (4), of those forgotten (4), stream time at the first and the last of them in ms (8 each), the head without this run
//! (80), CRC32C of the key and everything before (4). The key is the window and the first covered offset.

use super::keys;
use super::record::{decode_head, encode_head};
use crate::dedupe::{Identity, Offset, Sequence, StoredOwner, WindowId};
use crate::ports::Head;

/// Most owners of a run: it is verified as a whole.
pub(super) const MOST_OWNERS: u32 = 4_096;
/// Bytes of an owner in a file.
pub const OWNER_BYTES: usize = 24;
const FORGOTTEN: u64 = 1 << 63;

/// Consecutive owners of one window; at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    /// The first offset that it covers.
    pub first: Offset,
    /// One past the last one.
    pub next: Offset,
    /// Number of its first owner.
    pub number: Sequence,
    /// How many owners it has.
    pub owners: u32,
    /// How many of them were forgotten.
    pub forgotten: u32,
    /// The stream times between which they arrived, epoch milliseconds.
    pub times_ms: (i64, i64),
    /// Number of the file.
    pub file: u32,
    /// Byte position in the file.
    pub at: u64,
    /// CRC32C of the owners.
    pub crc: u32,
    /// A head of the window that is valid without this run and those behind it.
    pub base: Head,
}

impl Run {
    /// Bytes in the file.
    pub(super) fn bytes(&self) -> usize {
        self.owners as usize * OWNER_BYTES
    }

    /// One past the number of its last owner.
    pub(super) fn end(&self) -> Sequence {
        self.number + Sequence::from(self.owners)
    }

    /// One past its last byte in the file.
    pub(super) fn file_end(&self) -> u64 {
        self.at + self.bytes() as u64
    }

    /// Identities that were not forgotten.
    pub(super) fn identities(&self) -> u64 {
        u64::from(self.owners - self.forgotten)
    }

    /// Byte position of an owner in the file.
    pub(super) fn place_of(&self, number: Sequence) -> u64 {
        self.at + (number - self.number) * OWNER_BYTES as u64
    }

    /// This run with these owners instead: fewer, or some of them forgotten. Also returns their stored form.
    pub(super) fn with(self, owners: &[StoredOwner]) -> (Self, Vec<u8>) {
        let bytes = encoded(owners.iter().copied());
        let mut run = Self { owners: 0, forgotten: forgotten_of(owners), crc: 0, ..self };
        run.extend(&bytes);
        (run, bytes)
    }

    /// Adds encoded owners at its end.
    pub(super) fn extend(&mut self, owners: &[u8]) {
        self.owners += u32::try_from(owners.len() / OWNER_BYTES).unwrap_or(u32::MAX);
        self.crc = crc32c::crc32c_append(self.crc, owners);
    }

    /// The stored form.
    pub(super) fn encode(&self, window: WindowId) -> Vec<u8> {
        let mut out: Vec<u8> = [
            &self.file.to_le_bytes()[..],
            &self.at.to_le_bytes(),
            &self.crc.to_le_bytes(),
            &self.next.to_le_bytes(),
            &self.number.to_le_bytes(),
            &self.owners.to_le_bytes(),
            &self.forgotten.to_le_bytes(),
            &self.times_ms.0.to_le_bytes(),
            &self.times_ms.1.to_le_bytes(),
            &encode_head(&self.base),
        ]
        .concat();
        let crc = crc32c::crc32c_append(crc32c::crc32c(&keys::run(window, self.first)), &out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes the stored form of the run that begins at `first`. `None` if it is damaged.
    pub(super) fn decode(window: WindowId, first: Offset, bytes: &[u8]) -> Option<Self> {
        let (fields, crc) = bytes.split_last_chunk()?;
        let computed = crc32c::crc32c_append(crc32c::crc32c(&keys::run(window, first)), fields);
        if u32::from_le_bytes(*crc) != computed {
            return None;
        }
        let (file, fields) = fields.split_first_chunk()?;
        let (at, fields) = fields.split_first_chunk()?;
        let (crc, fields) = fields.split_first_chunk()?;
        let (next, fields) = fields.split_first_chunk()?;
        let (number, fields) = fields.split_first_chunk()?;
        let (owners, fields) = fields.split_first_chunk()?;
        let (forgotten, fields) = fields.split_first_chunk()?;
        let (first_ms, fields) = fields.split_first_chunk()?;
        let (last_ms, base) = fields.split_first_chunk()?;
        let run = Self {
            first,
            next: u64::from_le_bytes(*next),
            number: u64::from_le_bytes(*number),
            owners: u32::from_le_bytes(*owners),
            forgotten: u32::from_le_bytes(*forgotten),
            times_ms: (i64::from_le_bytes(*first_ms), i64::from_le_bytes(*last_ms)),
            file: u32::from_le_bytes(*file),
            at: u64::from_le_bytes(*at),
            crc: u32::from_le_bytes(*crc),
            base: decode_head(base.try_into().ok()?),
        };
        let is_valid =
            (1..=MOST_OWNERS).contains(&run.owners) && run.forgotten <= run.owners && first < run.next;
        is_valid.then_some(run)
    }

    /// Whether these are the bytes of its owners.
    pub(super) fn has_bytes(&self, bytes: &[u8]) -> bool {
        crc32c::crc32c(bytes) == self.crc && bytes.len() == self.bytes()
    }

    /// The owners in bytes that were read, if they are those that were written.
    pub(super) fn verified(&self, bytes: &[u8]) -> Result<Vec<StoredOwner>, String> {
        if !self.has_bytes(bytes) {
            let computed = crc32c::crc32c(bytes);
            return Err(format!(
                "checksum mismatch of the owners: stored {:08x}, computed {computed:08x}",
                self.crc
            ));
        }
        let owners: Vec<StoredOwner> = bytes.as_chunks().0.iter().map(decoded).collect();
        let covered = self.first..self.next;
        let is_ordered = owners.is_sorted_by(|a, b| a.offset < b.offset)
            && owners.iter().all(|owner| covered.contains(&owner.offset));
        if is_ordered && forgotten_of(&owners) == self.forgotten {
            Ok(owners)
        } else {
            Err("its owners are out of order".to_owned())
        }
    }
}

/// How many owners were forgotten.
fn forgotten_of(owners: &[StoredOwner]) -> u32 {
    let forgotten = owners.iter().filter(|owner| owner.identity.is_none());
    u32::try_from(forgotten.count()).unwrap_or(u32::MAX)
}

/// The stored form of owners.
pub(super) fn encoded(owners: impl IntoIterator<Item = StoredOwner>) -> Vec<u8> {
    let owners = owners.into_iter();
    let mut out = Vec::with_capacity(owners.size_hint().0 * OWNER_BYTES);
    for StoredOwner { offset, identity } in owners {
        let (Identity(bytes), mark) = identity.map_or((Identity([0; 16]), FORGOTTEN), |it| (it, 0));
        out.extend_from_slice(&bytes);
        out.extend_from_slice(&(offset | mark).to_le_bytes());
    }
    out
}

/// The owner in its stored form.
pub(super) fn decoded(bytes: &[u8; OWNER_BYTES]) -> StoredOwner {
    let (identity, offset) = bytes.split_at(16);
    let offset = offset.first_chunk().map_or(0, |offset| u64::from_le_bytes(*offset));
    let identity = identity.first_chunk().copied().filter(|_| offset & FORGOTTEN == 0).map(Identity);
    StoredOwner { offset: offset & !FORGOTTEN, identity }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::dedupe::{EntryName, Tail};

    fn run() -> (Run, Vec<u8>) {
        let owners = [
            StoredOwner { offset: 7, identity: Some(Identity([3; 16])) },
            StoredOwner { offset: 9, identity: None },
        ];
        let bytes = encoded(owners);
        let tail = Some(Tail { entry: EntryName { number: 2, crc: 1 }, next: 3, from: None });
        let mut run = Run {
            first: 5,
            next: 12,
            number: 40,
            owners: 0,
            forgotten: 1,
            times_ms: (-1, i64::MAX),
            file: u32::MAX,
            at: 96,
            crc: 0,
            base: Head { confirmed: 4, tail, confirmed_tail: tail, ..Head::default() },
        };
        run.extend(&bytes);
        (run, bytes)
    }

    #[test]
    fn an_entry_reads_back_and_any_changed_bit_is_damage() {
        let (run, _) = run();
        let entry = run.encode(9.into());
        assert_eq!(Run::decode(9.into(), 5, &entry), Some(run));
        assert_eq!((Run::decode(8.into(), 5, &entry), Run::decode(9.into(), 6, &entry)), (None, None));
        for bit in 0..entry.len() * 8 {
            let mut damaged = entry.clone();
            *damaged.get_mut(bit / 8).unwrap() ^= 1 << (bit % 8);
            assert_eq!(Run::decode(9.into(), 5, &damaged), None, "bit {bit}");
        }
    }

    #[test]
    fn owners_read_back_and_any_changed_bit_is_damage() {
        let (run, bytes) = run();
        let owners = run.verified(&bytes).unwrap();
        assert_eq!(encoded(owners), bytes);
        assert_eq!((run.place_of(41), run.end(), run.identities()), (96 + 24, 42, 1));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            *damaged.get_mut(bit / 8).unwrap() ^= 1 << (bit % 8);
            assert!(run.verified(&damaged).is_err(), "bit {bit}");
        }
        assert!(run.verified(bytes.get(24..).unwrap()).is_err());
        assert!(Run { next: 9, ..run }.verified(&bytes).is_err(), "an owner beyond the covered offsets");
    }
}
