//! A page: the unit in which a slice file is read.
//!
//! | bytes | field |
//! |---|---|
//! | 4 | CRC32C of the number of the file in its footer (8), the number of the page (8), and the bytes after this field |
//! | 2 | count of entries |
//! | count × entry | the identity (16), index of the owner's partition (0 to 3), its distance from the first offset (1 to 8), 0 for an unknown time or one more than its distance from the earliest (0 to 8), its digest (0 or 4; 0: none) |
//! | rest | zero |

use super::{KnownOwner, OwnerLayout, SliceError};
use crate::dedupe::identity::Identity;

/// Bytes of a page: what a file system reads at once.
pub const PAGE_BYTES: usize = 4_096;
const CRC_BYTES: usize = 4;
const HEADER_BYTES: usize = CRC_BYTES + 2;

/// The verified bytes of a page.
#[derive(Debug, Clone, Copy)]
pub struct SlicePage<'a> {
    layout: &'a OwnerLayout,
    entries: &'a [u8],
}

impl<'a> SlicePage<'a> {
    /// Number of entries of a full page: 104 to 240.
    pub fn capacity(layout: &OwnerLayout) -> usize {
        (PAGE_BYTES - HEADER_BYTES) / layout.entry_bytes()
    }

    /// What the checksum of a page begins with: a page at another place, or of another file, is damaged.
    pub fn place(file: u64, page: usize) -> u32 {
        let numbers = [file, page as u64].map(u64::to_le_bytes);
        crc32c::crc32c(numbers.as_flattened())
    }

    /// Appends the page of at most [`SlicePage::capacity`] entries at a [`SlicePage::place`] to `out`.
    pub fn encode(
        layout: &OwnerLayout,
        place: u32,
        entries: impl ExactSizeIterator<Item = (Identity, KnownOwner)>,
        out: &mut Vec<u8>,
    ) -> Result<(), SliceError> {
        let count = u16::try_from(entries.len()).ok().filter(|_| entries.len() <= Self::capacity(layout));
        let count = count.ok_or(SliceError::Inconsistent("more entries than a page holds"))?;
        let mut page = Vec::with_capacity(PAGE_BYTES);
        page.extend_from_slice(&[0; CRC_BYTES]);
        page.extend_from_slice(&count.to_le_bytes());
        for (identity, owner) in entries {
            page.extend_from_slice(&identity.0);
            if !layout.push(owner, &mut page) {
                return Err(SliceError::Inconsistent("an owner outside of what the slice covers"));
            }
        }
        page.resize(PAGE_BYTES, 0);
        let crc = crc32c::crc32c_append(place, page.get(CRC_BYTES..).unwrap_or_default());
        if let Some(field) = page.first_chunk_mut() {
            *field = crc.to_le_bytes();
        }
        out.append(&mut page);
        Ok(())
    }

    /// Verifies the bytes of the page at a [`SlicePage::place`].
    pub fn parse(bytes: &'a [u8], layout: &'a OwnerLayout, place: u32) -> Result<Self, SliceError> {
        let truncated = SliceError::Truncated("a page");
        let bytes = bytes.get(..PAGE_BYTES).ok_or_else(|| truncated.clone())?;
        let (crc, rest) = bytes.split_first_chunk().ok_or_else(|| truncated.clone())?;
        let (found, computed) = (u32::from_le_bytes(*crc), crc32c::crc32c_append(place, rest));
        if found != computed {
            return Err(SliceError::Checksum { what: "a page", found, computed });
        }
        let (count, rest) = rest.split_first_chunk().ok_or_else(|| truncated.clone())?;
        let bytes = usize::from(u16::from_le_bytes(*count)) * layout.entry_bytes();
        let entries = rest.get(..bytes).ok_or(SliceError::Inconsistent("more entries than a page holds"))?;
        Ok(Self { layout, entries })
    }

    /// The entries, in the order of their positions.
    pub fn entries(self) -> impl Iterator<Item = Result<(Identity, KnownOwner), SliceError>> + 'a {
        self.entries.chunks_exact(self.layout.entry_bytes()).map(move |entry| {
            let (identity, owner) = entry.split_first_chunk().ok_or(SliceError::Truncated("an entry"))?;
            let owner = self.layout.read(owner);
            Ok((
                Identity(*identity),
                owner.ok_or(SliceError::Inconsistent("an owner outside of what the slice covers"))?,
            ))
        })
    }

    /// Number of entries.
    pub fn count(&self) -> usize {
        self.entries.len() / self.layout.entry_bytes()
    }

    /// The owners of an identity. Entries are searched from the one at `expected` in both directions; the entries of one identity are
    /// consecutive.
    pub fn owners_of(
        self,
        identity: Identity,
        expected: usize,
    ) -> impl Iterator<Item = Result<KnownOwner, SliceError>> + 'a {
        // One comparison of a number, and not of bytes.
        let wanted = u128::from_ne_bytes(identity.0);
        let bytes = self.layout.entry_bytes();
        let entry = move |at: usize| self.entries.get(at * bytes..(at + 1) * bytes);
        let is_wanted = move |at: &usize| {
            entry(*at).and_then(|entry| entry.first_chunk()).map(|it| u128::from_ne_bytes(*it))
                == Some(wanted)
        };
        let around =
            (0..self.count()).flat_map(move |by| [expected.checked_add(by), expected.checked_sub(by + 1)]);
        let found = around.flatten().find(is_wanted);
        let first = found.and_then(|at| (0..=at).rev().take_while(is_wanted).last());
        let places = first.into_iter().flat_map(|at| at..).take_while(is_wanted);
        places.map(move |at| {
            let owner = entry(at).and_then(|entry| entry.get(16..)).and_then(|owner| self.layout.read(owner));
            owner.ok_or(SliceError::Inconsistent("an owner outside of what the slice covers"))
        })
    }
}
