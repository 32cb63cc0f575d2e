//! The slices as sled has them.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;

use sled::IVec;

use super::entry::{Removal, SliceEntry};
use super::group::{SealedSlice, SliceGroup, SliceReadError, read_slice};
use super::registry::SealedSlices;
use crate::store::engine::Engine;
use crate::store::error::needs_operator;
use crate::store::keys;
use crate::store::open::OpenFailure;
use crate::store::verify::each_entry;

/// Reads and verifies all registered slices. Keeps them in memory if all partitions share them; otherwise those of a window are read again when it
/// is used. Also returns the numbers of their files.
pub(in crate::store) fn read_all(
    engine: &Engine,
    report_progress: &dyn Fn(),
) -> Result<(SealedSlices, Vec<u32>), OpenFailure> {
    let mut groups: HashMap<SliceGroup, Vec<Arc<SealedSlice>>> = HashMap::new();
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
        let (group, slice) = read_registered(engine, stored, report_progress)?;
        files.push(slice.number);
        if group.partition.is_none() {
            groups.entry(group).or_default().push(Arc::new(slice));
        }
    }
    // A file without its entry would be deleted, and copies of its identities would be forwarded. Earlier versions stored no number.
    if count.is_some_and(|count| *count != counted(files.len())) {
        return Err(
            format!("{} slices are registered, and that is not their stored number", files.len()).into()
        );
    }
    // Of slices whose removal was interrupted: a later one may have the same number.
    engine.remove_keys(&unused).map_err(|failure| OpenFailure::Unusable(failure.to_string()))?;
    for slices in groups.values_mut() {
        slices.sort_by_key(|slice| slice.entry.order);
    }
    let groups = groups.into_iter().map(|(group, slices)| (group, Arc::new(slices.into()))).collect();
    Ok((SealedSlices::new(groups, files.len()), files))
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
) -> Result<(SliceGroup, SealedSlice), OpenFailure> {
    let key = &stored.key;
    let (kind, partition, number) = keys::parse_slice(key).ok_or("the key of a slice is damaged")?;
    let bad = |cause: &dyn Display| format!("slice file {number} of kind {}: {cause}", kind.number());
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
    let (footer, is_shared) = (slice.footer(), engine.binding.shares_slices == Some(true));
    let is_ours =
        footer.kind == kind && footer.hash == engine.binding.hash && partition.is_none() == is_shared;
    if slice.footer_checksum() != entry.footer || !is_ours {
        return Err(bad(&"it is another slice than the registered one").into());
    }
    Ok((SliceGroup { kind, partition }, SealedSlice::new(number, Arc::new(slice), entry)))
}
