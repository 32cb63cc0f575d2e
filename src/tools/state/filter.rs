//! Exports the filters of one slice for other programs. docs/state-format.md describes how to query them.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde::Serialize;

use super::error::StateError;
use super::spelling::utc;
use super::standing::load;
use crate::dedupe::{Bloom, PartitionId, WindowLimits};
use crate::ports::Store;
use crate::store::Binding;

/// The filters of a slice, with everything that is needed to query them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SliceFilters {
    /// Version of this format, 1.
    pub format: u32,
    /// Partition of the raw topic.
    pub partition: PartitionId,
    /// Name of the raw topic.
    pub raw: String,
    /// The hash that computes identities from ids: `xxh3`, or `siphash:` and the key id.
    pub identity_hash: String,
    /// Seed of the XXH3-128 that computes positions from an identity.
    pub position_seed: u64,
    /// Start of the slice of stream time, in epoch milliseconds.
    pub start_ms: i64,
    /// End of the slice, exclusive, in epoch milliseconds.
    pub end_ms: i64,
    /// The slice's filters. Each id of the slice is in one of them.
    pub filters: Vec<FilterBits>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FilterBits {
    /// Number of blocks of 512 bits.
    pub blocks: u64,
    /// Bits drawn per identity in each of its two blocks.
    pub draws: u32,
    /// Number of identities in it.
    pub ids: u64,
    /// The probability that it contains an absent identity.
    pub false_positive_rate: f64,
    /// The blocks, 64 bytes each, in base64.
    pub bits: String,
}

/// Builds the filters of one slice of a partition from the stored owners, like a start does. The slice starts at
/// `start_ms` (epoch milliseconds).
pub fn filters_of(
    (store, binding): (&impl Store, &Binding),
    limits: WindowLimits,
    partition: PartitionId,
    start_ms: i64,
) -> Result<SliceFilters, StateError> {
    let no_filter = |what: String| StateError::NoFilter(what);
    let bloom = limits.bloom.ok_or_else(|| {
        no_filter(
            "there are no filters, because window.bloom is not longer than window.exact; use the instance's settings"
                .to_owned(),
        )
    })?;
    let head = store
        .head(partition.into())?
        .ok_or_else(|| no_filter(format!("the state has no partition {partition}")))?;
    let window = load(store, binding.hash, partition.into(), head, limits)?;
    let copies = window.bloom().map(|bloom| bloom.copies(start_ms)).unwrap_or_default();
    if copies.is_empty() {
        let slices = window.bloom().map(Bloom::slices).unwrap_or_default();
        let starts: Vec<_> = slices.iter().map(|slice| utc(slice.start_ms)).collect();
        return Err(no_filter(format!(
            "partition {partition} has no slice that starts at {}; its slices start at {}",
            utc(start_ms),
            if starts.is_empty() { "none".to_owned() } else { starts.join(", ") }
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
