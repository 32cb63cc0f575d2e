//! One slice's filters for programs outside: docs/state-format.md says how to ask them.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde::Serialize;

use super::error::StateError;
use super::spelling::utc;
use super::standing::load;
use crate::dedupe::{Bloom, PartitionId, WindowLimits};
use crate::ports::Store;
use crate::store::Binding;

/// The filters of a slice and all that it takes to ask them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SliceFilters {
    /// Version of this form, 1.
    pub format: u32,
    /// Partition of the raw topic.
    pub partition: PartitionId,
    /// The raw topic.
    pub raw: String,
    /// The hash that makes an identity of an id: `xxh3`, or `siphash:` and the name of the key.
    pub identity_hash: String,
    /// Seed of the XXH3-128 that makes positions of an identity.
    pub position_seed: u64,
    /// The slice of stream time, ms since the epoch, the end exclusive.
    pub start_ms: i64,
    /// Its end.
    pub end_ms: i64,
    /// Its filters; an id of the slice is in one of them.
    pub filters: Vec<FilterBits>,
}

/// One filter.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FilterBits {
    /// Blocks of 512 bits.
    pub blocks: u64,
    /// Draws for an identity in each of its two blocks.
    pub draws: u32,
    /// Identities in it.
    pub ids: u64,
    /// The chance that an absent identity passes.
    pub false_positive_rate: f64,
    /// The blocks, 64 bytes each, in base64.
    pub bits: String,
}

/// The filters of the slice of a partition that begins at `start_ms`, built from its blocks as a start does.
pub fn filters_of(
    (store, binding): (&impl Store, &Binding),
    limits: WindowLimits,
    partition: PartitionId,
    start_ms: i64,
) -> Result<SliceFilters, StateError> {
    let none = |what: String| StateError::NoFilter(what);
    let bloom = limits.bloom.ok_or_else(|| {
        none("there are no filters: window.bloom is not longer than window.exact; set it as the instance has it".to_owned())
    })?;
    let head =
        store.head(partition)?.ok_or_else(|| none(format!("the state has no partition {partition}")))?;
    let window = load(store, partition, head, limits)?;
    let copies = window.bloom().map(|bloom| bloom.copies(start_ms)).unwrap_or_default();
    if copies.is_empty() {
        let slices = window.bloom().map(Bloom::slices).unwrap_or_default();
        let there: Vec<_> = slices.iter().map(|slice| utc(slice.start_ms)).collect();
        return Err(none(format!(
            "partition {partition} has no slice that begins at {}; it has {}",
            utc(start_ms),
            if there.is_empty() { "none".to_owned() } else { there.join(", ") }
        )));
    }
    Ok(SliceFilters {
        format: 1,
        partition,
        raw: binding.raw.clone(),
        identity_hash: binding.hash_text(),
        position_seed: crate::dedupe::index::SEED,
        start_ms,
        end_ms: start_ms.saturating_add(bloom.slice_ms()),
        filters: copies
            .into_iter()
            .map(|copy| FilterBits {
                blocks: copy.blocks,
                draws: copy.bits,
                ids: copy.ids,
                false_positive_rate: copy.false_positive_rate,
                bits: BASE64_STANDARD.encode(&copy.bytes),
            })
            .collect(),
    })
}
