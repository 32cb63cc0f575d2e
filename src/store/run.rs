//! Owners as they are stored: runs of them in files, and for each run an entry in sled.
//!
//! An owner in a file has 40 bytes, little endian: its identity (16), the partition (3) and offset (7) of its record, the stream time of that
//! partition in ms (6; with the highest bit, and an identity of zeros, if it was forgotten or undone), the digest of its content (4; 0: none),
//! and the CRC32C of these (4). So an owner is at the place that its number in the run gives, and can be read alone.
//!
//! An entry, little endian: file number (4), position in the file (8), CRC32C of the owners (4), count of owners (4), of those forgotten (4), number of the rule of the digests (4; 0: none), times of the
//! window's clock at the first and the last of them in ms (8 each), the head without this run (56), CRC32C of the key and everything before (4).
//! The key is the window and the number of the first owner.

use super::keys;
use super::record::{decode_head, encode_head};
use crate::dedupe::{Coordinates, Digest, Identity, Sequence, StoredOwner, WindowId};
use crate::ports::Head;

/// Most owners of a run: it is verified as a whole.
pub(super) const MOST_OWNERS: u32 = 4_096;
/// Bytes of an owner in a file.
pub const OWNER_BYTES: usize = 40;
/// Without the checksum.
const FIELD_BYTES: usize = 36;
const FORGOTTEN: u64 = 1 << 47;

/// Consecutive owners of one window; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    /// Number of its first owner.
    pub number: Sequence,
    /// How many owners it has.
    pub owners: u32,
    /// How many of them were forgotten or undone.
    pub forgotten: u32,
    /// The rule of the digests; 0 without any.
    pub rule: u32,
    /// The times of the window's clock between which they arrived, epoch milliseconds.
    pub times_ms: (i64, i64),
    /// Number of the file.
    pub file: u32,
    /// Byte position in the file.
    pub at: u64,
    /// CRC32C of the owners.
    pub crc: u32,
    /// A head of the window that is valid without the owners from its `confirmed` on. It has no `covered`.
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
    pub(super) fn with(&self, owners: &[StoredOwner]) -> (Self, Vec<u8>) {
        let mut run = Self { owners: 0, forgotten: 0, crc: 0, ..self.clone() };
        let bytes = run.extend(owners);
        (run, bytes)
    }

    /// Adds owners at its end. Returns their stored form.
    pub(super) fn extend(&mut self, owners: &[StoredOwner]) -> Vec<u8> {
        if self.rule == 0 {
            self.rule = rule_of(owners);
        }
        let bytes: Vec<u8> = owners.iter().flat_map(|owner| encoded(owner, self.rule)).collect();
        self.owners += u32::try_from(owners.len()).unwrap_or(u32::MAX);
        self.forgotten += forgotten_of(owners);
        self.crc = crc32c::crc32c_append(self.crc, &bytes);
        bytes
    }

    /// The stored form.
    pub(super) fn encode(&self, window: WindowId) -> Vec<u8> {
        let mut out: Vec<u8> = [
            &self.file.to_le_bytes()[..],
            &self.at.to_le_bytes(),
            &self.crc.to_le_bytes(),
            &self.owners.to_le_bytes(),
            &self.forgotten.to_le_bytes(),
            &self.rule.to_le_bytes(),
            &self.times_ms.0.to_le_bytes(),
            &self.times_ms.1.to_le_bytes(),
            &encode_head(&self.base),
        ]
        .concat();
        let crc = crc32c::crc32c_append(crc32c::crc32c(&keys::run(window, self.number)), &out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes the stored form of the run that begins at `number`. `None` if it is damaged.
    pub(super) fn decode(window: WindowId, number: Sequence, bytes: &[u8]) -> Option<Self> {
        let (fields, crc) = bytes.split_last_chunk()?;
        let computed = crc32c::crc32c_append(crc32c::crc32c(&keys::run(window, number)), fields);
        if u32::from_le_bytes(*crc) != computed {
            return None;
        }
        let (file, fields) = fields.split_first_chunk()?;
        let (at, fields) = fields.split_first_chunk()?;
        let (crc, fields) = fields.split_first_chunk()?;
        let (owners, fields) = fields.split_first_chunk()?;
        let (forgotten, fields) = fields.split_first_chunk()?;
        let (rule, fields) = fields.split_first_chunk()?;
        let (first_ms, fields) = fields.split_first_chunk()?;
        let (last_ms, base) = fields.split_first_chunk()?;
        let run = Self {
            number,
            owners: u32::from_le_bytes(*owners),
            forgotten: u32::from_le_bytes(*forgotten),
            rule: u32::from_le_bytes(*rule),
            times_ms: (i64::from_le_bytes(*first_ms), i64::from_le_bytes(*last_ms)),
            file: u32::from_le_bytes(*file),
            at: u64::from_le_bytes(*at),
            crc: u32::from_le_bytes(*crc),
            base: decode_head(base.try_into().ok()?),
        };
        let is_valid = (1..=MOST_OWNERS).contains(&run.owners)
            && run.forgotten <= run.owners
            && number.checked_add(run.owners.into()).is_some();
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
        let owners: Vec<StoredOwner> =
            bytes.as_chunks().0.iter().map(|owner| decoded(owner, self.rule)).collect();
        if forgotten_of(&owners) == self.forgotten {
            Ok(owners)
        } else {
            Err("another number of them was forgotten".to_owned())
        }
    }
}

/// How many owners were forgotten.
fn forgotten_of(owners: &[StoredOwner]) -> u32 {
    let forgotten = owners.iter().filter(|owner| owner.identity.is_none());
    u32::try_from(forgotten.count()).unwrap_or(u32::MAX)
}

/// The rule of owners that are stored together.
pub(super) fn rule_of(owners: &[StoredOwner]) -> u32 {
    Digest::rule_of(owners.iter().map(|owner| owner.digest))
}

/// The stored form of an owner in a run with this rule.
fn encoded(owner: &StoredOwner, rule: u32) -> [u8; OWNER_BYTES] {
    let (Identity(identity), mark) = owner.identity.map_or((Identity([0; 16]), FORGOTTEN), |it| (it, 0));
    let [p0, p1, p2, _] = owner.at.partition.to_le_bytes();
    let [o0, o1, o2, o3, o4, o5, o6, _] = owner.at.offset.to_le_bytes();
    let [t0, t1, t2, t3, t4, t5, ..] = (owner.time_ms.cast_unsigned() | mark).to_le_bytes();
    let [d0, d1, d2, d3] = owner.digest.in_group(rule).to_le_bytes();
    let mut fields = [0; FIELD_BYTES];
    let place = [p0, p1, p2, o0, o1, o2, o3, o4, o5, o6, t0, t1, t2, t3, t4, t5, d0, d1, d2, d3];
    fields.iter_mut().zip(identity.into_iter().chain(place)).for_each(|(byte, field)| *byte = field);
    let crc = crc32c::crc32c(&fields).to_le_bytes();
    let mut out = [0; OWNER_BYTES];
    out.iter_mut().zip(fields.into_iter().chain(crc)).for_each(|(byte, field)| *byte = field);
    out
}

/// Whether these are the bytes of an owner, as they were written.
pub(super) fn is_intact(owner: &[u8; OWNER_BYTES]) -> bool {
    owner.split_last_chunk().is_some_and(|(fields, crc)| crc32c::crc32c(fields).to_le_bytes() == *crc)
}

/// The owner in its stored form, in a run with this rule.
pub(super) fn decoded(bytes: &[u8; OWNER_BYTES], rule: u32) -> StoredOwner {
    let [
        identity @ ..,
        p0,
        p1,
        p2,
        o0,
        o1,
        o2,
        o3,
        o4,
        o5,
        o6,
        t0,
        t1,
        t2,
        t3,
        t4,
        t5,
        d0,
        d1,
        d2,
        d3,
        _,
        _,
        _,
        _,
    ] = *bytes;
    let at = Coordinates {
        partition: u32::from_le_bytes([p0, p1, p2, 0]),
        offset: u64::from_le_bytes([o0, o1, o2, o3, o4, o5, o6, 0]),
    };
    let time = u64::from_le_bytes([t0, t1, t2, t3, t4, t5, 0, 0]);
    let identity = Some(Identity(identity)).filter(|_| time & FORGOTTEN == 0);
    let digest = Digest::stored(rule, u32::from_le_bytes([d0, d1, d2, d3]));
    StoredOwner { at, time_ms: (time & !FORGOTTEN).cast_signed(), identity, digest }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::dedupe::EntryName;

    const LARGEST: StoredOwner = StoredOwner {
        at: Coordinates { partition: (1 << 24) - 1, offset: (1 << 56) - 1 },
        time_ms: (1 << 47) - 1,
        identity: None,
        digest: Digest::NONE,
    };

    fn run() -> (Run, Vec<u8>) {
        let last_entry = Some(EntryName { number: 2, crc: 1 });
        let run = Run {
            number: 40,
            owners: 0,
            forgotten: 0,
            rule: 0,
            times_ms: (-1, i64::MAX),
            file: u32::MAX,
            at: 96,
            crc: 0,
            base: Head { confirmed: 4, last_entry, confirmed_entry: last_entry, ..Head::default() },
        };
        let at = Coordinates { partition: 1, offset: 0x0203_0405_0607 };
        run.with(&[
            StoredOwner {
                at,
                time_ms: 0x0809,
                identity: Some(Identity([3; 16])),
                digest: Digest::stored(7, 0x0504_0302),
            },
            LARGEST,
        ])
    }

    #[test]
    fn an_entry_reads_back_and_any_changed_bit_is_damage() {
        let (run, _) = run();
        let entry = run.encode(9.into());
        assert_eq!(Run::decode(9.into(), 40, &entry), Some(run));
        assert_eq!((Run::decode(8.into(), 40, &entry), Run::decode(9.into(), 41, &entry)), (None, None));
        for bit in 0..entry.len() * 8 {
            let mut damaged = entry.clone();
            *damaged.get_mut(bit / 8).unwrap() ^= 1 << (bit % 8);
            assert_eq!(Run::decode(9.into(), 40, &damaged), None, "bit {bit}");
        }
    }

    #[test]
    fn owners_read_back_and_any_changed_bit_is_damage() {
        let (run, bytes) = run();
        let owners = run.verified(&bytes).unwrap();
        assert_eq!((owners.get(1), run.with(&owners)), (Some(&LARGEST), (run.clone(), bytes.clone())));
        let golden = [1, 0, 0, 7, 6, 5, 4, 3, 2, 0, 9, 8, 0, 0, 0, 0, 2, 3, 4, 5];
        assert_eq!(bytes.get(..36).unwrap(), [&[3; 16][..], &golden].concat());
        assert_eq!((run.place_of(41), run.end(), run.identities()), (96 + 40, 42, 1));
        assert!(bytes.as_chunks().0.iter().all(is_intact));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            *damaged.get_mut(bit / 8).unwrap() ^= 1 << (bit % 8);
            assert!(run.verified(&damaged).is_err(), "bit {bit}");
            let intact = damaged.as_chunks().0.iter().filter(|owner| is_intact(owner));
            assert_eq!(intact.count(), 1, "bit {bit}");
        }
        assert!(run.verified(bytes.get(40..).unwrap()).is_err());
    }
}
