//! Names of the trees, and keys. Keys are big endian, so that they sort by offset.

use crate::dedupe::{KindId, Offset, PartitionId, WindowId};

/// Tree of windows: window (u32) to a [`super::record::WindowRecord`], followed by the window's runs: window (u32), which names kind and partition,
/// and first offset (u64) to a [`super::run::Run`].
pub(super) const RUNS: &str = "runs";
/// Tree of sealed slices: kind (u16), partition (u32, all ones: all partitions) and number of the file (u32) to a
/// `SliceEntry`, followed by what was removed from the slice.
pub(super) const SLICES: &str = "slices";
/// Bytes of the key of a slice.
pub(super) const SLICE: usize = 10;
/// Key of the number of slices (u64) in their tree, written with every change of it. The prefix of a group does not match it.
pub(super) const SLICE_COUNT: &[u8] = b"count";
/// Key of the binding (JSON) in the default tree.
pub(super) const BINDING: &[u8] = b"binding";
/// Key of the secret key of the positions (16 bytes) in the default tree, written together with the first binding.
pub(super) const POSITIONS: &[u8] = b"positions";

/// The key of the run that begins at `first`.
pub(super) fn run(window: WindowId, first: Offset) -> [u8; 12] {
    let mut key = [0; 12];
    let (head, tail) = key.split_at_mut(4);
    head.copy_from_slice(&window.number().to_be_bytes());
    tail.copy_from_slice(&first.to_be_bytes());
    key
}

/// The key of a window's record.
pub(super) fn record(window: WindowId) -> [u8; 4] {
    window.number().to_be_bytes()
}

/// Window and first offset of a run's key. `None` if it is not a run's key.
pub(super) fn parse_run(key: &[u8]) -> Option<(WindowId, Offset)> {
    let (window, first) = key.split_first_chunk::<4>()?;
    let first = <[u8; 8]>::try_from(first).ok()?;
    Some((WindowId::numbered(u32::from_be_bytes(*window)), u64::from_be_bytes(first)))
}

/// Window of a record's key. `None` if it is not a record's key.
pub(super) fn parse_record(key: &[u8]) -> Option<WindowId> {
    <[u8; 4]>::try_from(key).ok().map(u32::from_be_bytes).map(WindowId::numbered)
}

/// The key of a slice; `partition` is `None` for one that covers all partitions.
pub(super) fn slice(kind: KindId, partition: Option<PartitionId>, number: u32) -> [u8; SLICE] {
    let mut key = [0; SLICE];
    let fields = [
        &kind.number().to_be_bytes()[..],
        &partition.unwrap_or(u32::MAX).to_be_bytes(),
        &number.to_be_bytes(),
    ];
    key.iter_mut().zip(fields.into_iter().flatten()).for_each(|(byte, field)| *byte = *field);
    key
}

/// Kind, partition and number of a slice's key. `None` if it is not a slice's key.
pub(super) fn parse_slice(key: &[u8]) -> Option<(KindId, Option<PartitionId>, u32)> {
    let (kind, rest) = key.split_first_chunk()?;
    let (partition, number) = rest.split_first_chunk()?;
    let number = u32::from_be_bytes(number.try_into().ok()?);
    let partition = Some(u32::from_be_bytes(*partition)).filter(|partition| *partition != u32::MAX);
    Some((KindId::numbered(u16::from_be_bytes(*kind)), partition, number))
}
