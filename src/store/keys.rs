//! Names of the trees, and keys. Keys are big endian, so that they sort by number.

use crate::dedupe::{Sequence, WindowId};

/// Tree of windows: window (u32) to its record ([`super::record`]), followed by the window's runs: window (u32), which names kind and journal,
/// and number of the first owner (u64) to a [`super::run::Run`].
pub(super) const RUNS: &str = "runs";
/// Tree of sealed slices: window (u32) and number of the file (u32) to a `SliceEntry`, followed by what was removed from the slice.
pub(super) const SLICES: &str = "slices";
/// Bytes of the key of a slice.
pub(super) const SLICE: usize = 8;
/// Key of the number of slices (u64) in their tree, written with every change of it. No window is a prefix of it.
pub(super) const SLICE_COUNT: &[u8] = b"num";
/// Key of the binding (JSON) in the default tree.
pub(super) const BINDING: &[u8] = b"binding";
/// Key of the secret key of the positions (16 bytes) in the default tree, written together with the first binding.
pub(super) const POSITIONS: &[u8] = b"positions";

/// The key of the run whose first owner has this number.
pub(super) fn run(window: WindowId, number: Sequence) -> [u8; 12] {
    let mut key = [0; 12];
    let (head, tail) = key.split_at_mut(4);
    head.copy_from_slice(&window.number().to_be_bytes());
    tail.copy_from_slice(&number.to_be_bytes());
    key
}

/// The key of a window's record.
pub(super) fn record(window: WindowId) -> [u8; 4] {
    window.number().to_be_bytes()
}

/// Window and number of the first owner of a run's key. `None` if it is not a run's key.
pub(super) fn parse_run(key: &[u8]) -> Option<(WindowId, Sequence)> {
    let (window, number) = key.split_first_chunk::<4>()?;
    let number = <[u8; 8]>::try_from(number).ok()?;
    Some((WindowId::numbered(u32::from_be_bytes(*window)), u64::from_be_bytes(number)))
}

/// Window of a record's key. `None` if it is not a record's key.
pub(super) fn parse_record(key: &[u8]) -> Option<WindowId> {
    <[u8; 4]>::try_from(key).ok().map(u32::from_be_bytes).map(WindowId::numbered)
}

/// The key of a slice.
pub(super) fn slice(window: WindowId, number: u32) -> [u8; SLICE] {
    let mut key = [0; SLICE];
    let (head, tail) = key.split_at_mut(4);
    head.copy_from_slice(&record(window));
    tail.copy_from_slice(&number.to_be_bytes());
    key
}

/// Window and number of a slice's key. `None` if it is not a slice's key.
pub(super) fn parse_slice(key: &[u8]) -> Option<(WindowId, u32)> {
    let (window, number) = key.split_first_chunk::<4>()?;
    Some((parse_record(window)?, u32::from_be_bytes(number.try_into().ok()?)))
}
