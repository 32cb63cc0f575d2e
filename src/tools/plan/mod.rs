//! `dedupd plan`: the costs of a window, before it is deployed. Calculation only.
//!
//! Memory is computed from what the index and the filters allocate ([`crate::dedupe::IndexBytes`],
//! [`crate::dedupe::bloom::FilterShape`]). Disk, topic and times are computed from measured figures, each a named
//! constant with its source. Traffic is assumed to be even over time and over partitions.

mod command;
mod costs;
mod evicting;
mod fits;
mod fixed;
mod text;

use std::time::Duration;

use serde::Serialize;

use crate::dedupe::bloom::FilterShape;
use crate::dedupe::{BloomLimits, IndexBytes, OwnerIndex, SMALLEST_SLICE, SealedBytes, TopicFilter};
pub use command::command;
pub(crate) use costs::restore;
pub(crate) use evicting::Misses;
pub use evicting::{missed, remembered_in};
pub use fits::Fits;
pub use fixed::{buckets_overwritten, remembered};

/// Upper limit for the ids of a partition: far more than any memory holds.
const MAX_IDS: u64 = 1 << 50;

/// The kind of ids. It determines the probability of a collision, not the costs: an identity always has 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum IdKind {
    /// UUIDs, which are stored as they are.
    Uuid,
    /// Any other text, hashed to 128 bits.
    Text,
}

/// The traffic and the window to plan for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Workload {
    /// Records per second in the raw topic, all partitions in total.
    pub events_per_second: f64,
    /// Share of duplicates, from 0 to below 1.
    pub duplicates: f64,
    /// The kind of ids.
    pub ids: IdKind,
    /// How long ids are stored exactly.
    #[serde(serialize_with = "seconds")]
    pub exact: Duration,
    /// How long ids are kept in total, with Bloom filters after `exact`; `exact` if there are no filters.
    #[serde(serialize_with = "seconds")]
    pub bloom: Duration,
    /// Time slices of the Bloom part.
    pub slices: u32,
    /// False-positive rate of a lookup in the Bloom part.
    pub false_positive_rate: f64,
    /// Partitions of the raw topic.
    pub partitions: u32,
    /// Slots of all tables in total, if the window evicts (`window.max_ids`); `None` if it grows.
    pub slots: Option<u64>,
}

impl Workload {
    /// New ids per second, all partitions in total.
    fn new_ids(&self) -> f64 {
        self.events_per_second * (1.0 - self.duplicates)
    }

    /// New ids of one partition within `time`.
    fn ids_per_partition(&self, time: Duration) -> u64 {
        count(self.new_ids() * time.as_secs_f64() / f64::from(self.partitions.max(1))).min(MAX_IDS)
    }

    /// The longer of the two parts of the window.
    fn window(&self) -> Duration {
        self.exact.max(self.bloom)
    }

    fn limits(&self) -> BloomLimits {
        BloomLimits {
            exact: self.exact,
            bloom: self.window(),
            slices: self.slices,
            false_positive_rate: self.false_positive_rate,
            max_bytes: u64::MAX,
        }
    }
}

/// The costs of a window. Totals are for all partitions, however many processes share them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CapacityPlan {
    /// The load and the window that the costs are for.
    #[serde(rename = "asked")]
    pub workload: Workload,
    /// New ids per second.
    pub new_ids_per_second: f64,
    /// Ids in the exact part of the window.
    pub exact_ids: u64,
    /// Ids in the whole window.
    pub window_ids: u64,
    /// Memory of the windows of all partitions.
    pub memory: Memory,
    /// The filters of one partition; `None` without a Bloom part.
    pub filters: Option<PlannedFilters>,
    /// Bytes of the local state.
    pub disk_bytes: u64,
    /// Size and retention of the state topic.
    pub state_topic: StateTopic,
    /// Seconds until a process that has all partitions is ready again.
    pub restore: Restore,
    /// Maximum number of new records per day that the Bloom part drops as duplicates.
    pub false_drops_a_day: f64,
    /// Probability that any two different ids in the window have the same identity.
    pub collision: f64,
    /// What a window that evicts misses; `None` if it grows.
    pub misses: Option<Misses>,
    /// The alternative with fixed memory.
    pub fixed_memory: FixedMemory,
}

/// Memory of the windows of all partitions, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Of `exact_ids`, those in sealed slices once the window is full: with a filter in memory, and the rest on disk.
    pub sealed_ids: u64,
    /// The exact part, index and sealed slices, once the window is full.
    pub exact_bytes: u64,
    /// Peak of the exact part, while the window fills for the first time or a slice is written.
    pub exact_peak_bytes: u64,
    /// The Bloom filters, once the window is full.
    pub bloom_bytes: u64,
    /// Exact index and filters, once the window is full.
    pub total_bytes: u64,
    /// The filter over all windows, which topic scope needs in addition.
    pub topic_filter_bytes: u64,
}

/// The filters of one partition, as they are allocated.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PlannedFilters {
    /// Filters of a partition, one per slice.
    pub count: u32,
    /// Length of a slice, in seconds.
    pub slice_seconds: f64,
    /// Ids that a filter is sized for.
    pub ids: u64,
    /// Bytes of a filter.
    pub bytes: u64,
    /// 512-bit blocks of a filter.
    pub blocks: u64,
    /// Bits probed in the first block of an id, and as many in the second block if those are all set.
    pub probes: u32,
    /// Bits of memory per id, including headroom.
    pub bits_an_id: f64,
    /// Maximum number of filters probed by a lookup.
    pub consulted: u32,
    /// False-positive rate of a lookup at the expected fill; the configured rate is higher.
    pub expected_rate: f64,
}

/// Size and retention of the state topic, for all partitions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StateTopic {
    /// Bytes of one replica.
    pub bytes: u64,
    /// Its `retention.ms`, in seconds.
    pub retention_seconds: u64,
}

/// Time until a restarted process decides again, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Restore {
    /// From the local state.
    pub local_seconds: f64,
    /// From the state topic, if the local state is lost.
    pub state_topic_seconds: f64,
}

/// The size of a table of fixed size whose oldest entries are overwritten, for the duration of the exact part:
/// for an inverse Bloom filter (an id has one bucket of one slot), and for dedupd's own table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct FixedMemory {
    /// Buckets so that an id of that age is still stored with 90 %.
    pub buckets_for_90_percent: u64,
    /// Buckets so that an id of that age is still stored with 99 %.
    pub buckets_for_99_percent: u64,
    /// Slots for 90 % of dedupd's table, with two buckets of eight slots per id: `window.max_ids` with eviction.
    pub slots_for_90_percent: u64,
    /// The same table, slots for 99 %.
    pub slots_for_99_percent: u64,
}

impl CapacityPlan {
    /// The costs for this input.
    #[must_use]
    pub fn of(asked: Workload) -> Self {
        let partitions = u64::from(asked.partitions.max(1));
        let (exact_ids, window_ids) =
            (asked.ids_per_partition(asked.exact), asked.ids_per_partition(asked.window()));
        let filters = PlannedFilters::of(&asked);
        let memory = Memory::of(&asked);
        Self {
            new_ids_per_second: asked.new_ids(),
            exact_ids: exact_ids.saturating_mul(partitions),
            window_ids: window_ids.saturating_mul(partitions),
            memory,
            filters,
            disk_bytes: costs::disk_bytes(window_ids.saturating_mul(partitions), memory.sealed_ids),
            state_topic: costs::state_topic(&asked),
            restore: costs::restore_with(
                (window_ids.saturating_mul(partitions), memory.sealed_ids),
                filters.is_some(),
            ),
            false_drops_a_day: filters
                .map_or(0.0, |_| asked.new_ids() * 86_400.0 * asked.false_positive_rate),
            collision: costs::collision(asked.ids, window_ids.saturating_mul(partitions)),
            misses: asked.slots.map(|slots| Misses::of(&asked, slots)),
            fixed_memory: FixedMemory {
                buckets_for_90_percent: remembered(0.9, exact_ids.saturating_mul(partitions)),
                buckets_for_99_percent: remembered(0.99, exact_ids.saturating_mul(partitions)),
                slots_for_90_percent: remembered_in(0.9, exact_ids.saturating_mul(partitions)),
                slots_for_99_percent: remembered_in(0.99, exact_ids.saturating_mul(partitions)),
            },
            workload: asked,
        }
    }
}

impl Memory {
    fn of(asked: &Workload) -> Self {
        let partitions = u64::from(asked.partitions.max(1));
        let slots = |slots: u64| OwnerIndex::bytes_of_slots((slots / partitions).max(1));
        let fixed = asked.slots.map(slots).map(|bytes| IndexBytes { steady: bytes, peak: bytes });
        let index = fixed.unwrap_or_else(|| IndexBytes::of(asked.ids_per_partition(asked.exact), u64::MAX));
        let bloom_bytes = shape(asked).map_or(0, |shape| shape.bytes.saturating_mul(partitions));
        let ids = asked.ids_per_partition(asked.window()).saturating_mul(partitions).min(MAX_IDS);
        let sealed = (asked.slots.is_none() && shape(asked).is_none())
            .then(|| SealedBytes::of(ids, partitions, SMALLEST_SLICE));
        let all = |bytes: u64| bytes.saturating_mul(partitions);
        let exact_bytes = sealed.map_or(all(index.steady), |sealed| sealed.steady());
        Self {
            sealed_ids: sealed.map_or(0, |sealed| ids - sealed.unsealed),
            exact_bytes,
            exact_peak_bytes: sealed.map_or(all(index.peak), |sealed| sealed.peak()),
            bloom_bytes,
            total_bytes: exact_bytes.saturating_add(bloom_bytes),
            topic_filter_bytes: TopicFilter::bytes_for(sealed.map_or(ids, |sealed| sealed.unsealed)),
        }
    }
}

impl PlannedFilters {
    fn of(asked: &Workload) -> Option<Self> {
        let shape = shape(asked)?;
        let ids = asked.ids_per_partition(slice(asked)).max(1) * u64::from(shape.filters);
        Some(Self {
            count: shape.filters,
            slice_seconds: slice(asked).as_secs_f64(),
            ids: shape.ids_a_filter,
            bytes: shape.blocks.saturating_mul(64),
            blocks: shape.blocks,
            probes: shape.bits,
            bits_an_id: shape.bytes as f64 * 8.0 / ids as f64,
            consulted: shape.consulted,
            expected_rate: shape.expected_rate,
        })
    }
}

/// The filters of a partition; `None` without a Bloom part.
fn shape(asked: &Workload) -> Option<FilterShape> {
    let bloom = asked.bloom > asked.exact;
    bloom.then(|| FilterShape::of(&asked.limits(), asked.ids_per_partition(slice(asked))))
}

fn slice(asked: &Workload) -> Duration {
    Duration::from_millis(asked.limits().slice_ms().unsigned_abs())
}

/// Rounds up and saturates; NaN becomes 0.
fn count(value: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    let count = value.ceil() as u64;
    count
}

fn seconds<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}
