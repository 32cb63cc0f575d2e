//! The slices as sled has them.

use std::fmt::Display;
use std::sync::Arc;

use sled::IVec;

use super::entry::{Removal, SliceEntry};
use super::registry::SealedSlices;
use super::slices::{SealedSlice, SliceReadError, read_slice};
use crate::store::engine::Engine;
use crate::store::error::needs_operator;
use crate::store::keys;
use crate::store::open::OpenFailure;
use crate::store::verify::each_entry;

/// Reads and verifies all registered slices, and keeps none in memory: those of a window are read again when it is used. Also returns the numbers of
/// their files.
pub(in crate::store) fn read_all(
    engine: &Engine,
    report_progress: &dyn Fn(),
) -> Result<(SealedSlices, Vec<u32>), OpenFailure> {
    let (mut stored, mut unused) = (Vec::new(), Vec::new());
    let (mut files, mut count) = (Vec::new(), None);
    each_entry(&engine.slices, report_progress, |key, value| {
        if *key == *keys::SLICE_COUNT {
            count = Some(value);
        } else {
            unused.extend(StoredSlice::add(&mut stored, key, value));
        }
        Ok(())
    })?;
    for stored in &stored {
        files.push(read_registered(engine, stored, report_progress)?.number);
    }
    // A file without its entry would be deleted, and copies of its identities would be forwarded.
    if count.as_deref().unwrap_or(&counted(0)) != counted(files.len()) {
        return Err(
            format!("{} slices are registered, and that is not their stored number", files.len()).into()
        );
    }
    // Of slices whose removal was interrupted: a later one may have the same number.
    engine.remove_keys(&unused).map_err(|failure| OpenFailure::Unusable(failure.to_string()))?;
    Ok((SealedSlices::new(files.len()), files))
}

/// The stored form of a number of slices.
pub(super) fn counted(slices: usize) -> [u8; 8] {
    (slices as u64).to_be_bytes()
}

/// The stored entries of a slice.
pub(super) struct StoredSlice {
    pub key: IVec,
    value: IVec,
    /// Keys and values of what was removed from it.
    pub removals: Vec<(IVec, IVec)>,
}

impl StoredSlice {
    /// Adds the next entry of the slices' tree. Returns its key if it is a removal from no slice.
    pub fn add(slices: &mut Vec<Self>, key: IVec, value: IVec) -> Option<IVec> {
        if key.len() <= keys::SLICE {
            slices.push(Self { key, value, removals: Vec::new() });
            return None;
        }
        let Some(last) = slices.last_mut().filter(|last| key.starts_with(&last.key)) else {
            return Some(key);
        };
        last.removals.push((key, value));
        None
    }

    fn decode(&self) -> Option<SliceEntry> {
        let (mut entry, removals) = SliceEntry::decode(&self.key, &self.value)?;
        for (key, value) in &self.removals {
            entry.remove(Removal::decode(key, value)?);
        }
        (entry.removals() == removals).then_some(entry)
    }
}

/// Reads and verifies a registered slice.
pub(super) fn read_registered(
    engine: &Engine,
    stored: &StoredSlice,
    report_progress: &dyn Fn(),
) -> Result<SealedSlice, OpenFailure> {
    let (window, number) = keys::parse_slice(&stored.key).ok_or("the key of a slice is damaged")?;
    let bad = |cause: &dyn Display| format!("slice file {number} of journal {window}: {cause}");
    let entry = stored.decode().ok_or_else(|| bad(&"its entry is damaged"))?;
    let failed = |error| match error {
        SliceReadError::Io(cause) if needs_operator(&cause) => OpenFailure::Disk(cause),
        SliceReadError::Io(cause) => bad(&cause).into(),
        SliceReadError::Damaged(cause) => bad(&cause).into(),
    };
    let check = || {
        report_progress();
        Ok(())
    };
    let slice = read_slice(&engine.segments.path(number), check, failed)?;
    let (footer, binding) = (slice.footer(), &engine.binding);
    let is_ours = footer.window == window && footer.hash == binding.hash;
    if slice.footer_checksum() != entry.footer || !is_ours {
        return Err(bad(&"it is another slice than the registered one").into());
    }
    Ok(SealedSlice { number, slice: Arc::new(slice), entry })
}
