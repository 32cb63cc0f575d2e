//! `dedupd plan`: the costs of a window, before it is deployed. Calculation only.
//!
//! Memory is computed from what the index and the filters allocate ([`SealedBytes`]). Disk, topic and times are computed from measured figures, each a named
//! constant with its source. Traffic is assumed to be even over time and over partitions.

mod ages;
mod command;
mod costs;
mod evicting;
mod fits;
mod fixed;
mod text;

use std::time::Duration;

use serde::Serialize;

use crate::dedupe::{FILTERS, FilterBits, FilterPart, OwnerIndex, SMALLEST_SLICE, SealedBytes};
pub use ages::{MeasuredAges, SHARES, WindowAdvice, WindowCosts};
pub use command::command;
pub(crate) use costs::restore;
pub(crate) use evicting::Misses;
pub use evicting::{missed, remembered_in};
pub use fits::Fits;
pub use fixed::remembered;

/// Upper limit for the ids of a window: far more than any memory holds.
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
    /// How long ids are stored with their owners.
    #[serde(serialize_with = "seconds")]
    pub exact: Duration,
    /// How long ids are kept in total, in filters only after `exact`; `exact` if there are no filters.
    #[serde(serialize_with = "seconds")]
    pub bloom: Duration,
    /// False-positive rate of a lookup in these filters.
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

    /// New ids within `time`, all partitions in total.
    fn ids_within(&self, time: Duration) -> u64 {
        count(self.new_ids() * time.as_secs_f64()).min(MAX_IDS)
    }

    /// Of these ids, those that the windows hold at most at a time.
    fn held(&self, ids: u64) -> u64 {
        self.slots.map_or(ids, |slots| slots.min(ids))
    }

    /// The longer of the two parts of the window.
    fn window(&self) -> Duration {
        self.exact.max(self.bloom)
    }

    /// The part in filters only; `None` without.
    fn filtered(&self) -> Option<FilterPart> {
        let bits = FilterBits::at_rate(self.false_positive_rate);
        let exact = self.exact.as_secs_f64() / self.window().as_secs_f64();
        (self.bloom > self.exact).then(|| FilterPart::new(bits, exact))
    }

    /// One of so many windows that have all ids in equal parts, once it is full; `None` if they evict.
    fn sealed(&self, windows: u64) -> Option<SealedBytes> {
        let ids = self.ids_within(self.window()) / windows.max(1);
        let filtered = self.filtered().unwrap_or(FilterPart::NONE);
        self.slots.is_none().then(|| SealedBytes::of(ids, filtered, SMALLEST_SLICE))
    }
}

/// The costs of a window. Totals are for all partitions, in topic scope.
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
    /// Memory of the window.
    pub memory: Memory,
    /// The filters without owners; `None` when all ids have owners.
    pub filters: Option<PlannedFilters>,
    /// Bytes of the local state.
    pub disk_bytes: u64,
    /// Size and retention of the state topic.
    pub state_topic: StateTopic,
    /// Seconds until a process that has all partitions is ready again.
    pub restore: Restore,
    /// Maximum number of new records per day that these filters drop as duplicates.
    pub false_drops_a_day: f64,
    /// Probability that any two different ids in the window have the same identity.
    pub collision: f64,
    /// What a window that evicts misses; `None` if it grows.
    pub misses: Option<Misses>,
    /// The alternative with fixed memory.
    pub fixed_memory: FixedMemory,
}

/// Memory of the window, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Ids in sealed slices once the window is full: with a filter in memory, and their owners on disk.
    pub sealed_ids: u64,
    /// The exact part, index and sealed slices, once the window is full.
    pub exact_bytes: u64,
    /// Peak of the exact part, while the window fills for the first time or a slice is written.
    pub exact_peak_bytes: u64,
    /// The filters without owners, once the window is full.
    pub bloom_bytes: u64,
    /// Exact index and filters, once the window is full.
    pub total_bytes: u64,
    /// The same of the windows of all partitions, in partition scope.
    pub partition_scope_bytes: u64,
    /// The ids of the largest open transaction, which are in addition in memory until it is committed.
    pub transaction_bytes: u64,
    /// `window.max_memory` with which the window has its length.
    pub window_bytes: u64,
    /// Memory limit of the container or service unit, from which `window.max_memory` follows, with one worker.
    pub limit_bytes: u64,
}

/// Filters without owners.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PlannedFilters {
    /// Time over which the ids of a filter arrive, at least, in seconds.
    pub span_seconds: f64,
    /// Number of ids in filters.
    pub ids: u64,
    /// Bits of memory per id.
    pub bits_an_id: f64,
    /// False-positive rate of a lookup in a full window; the configured rate is higher.
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
        let (exact_ids, window_ids) = (asked.ids_within(asked.exact), asked.ids_within(asked.window()));
        let filters = PlannedFilters::of(&asked);
        let (memory, sealed) = (Memory::of(&asked), asked.sealed(1));
        Self {
            new_ids_per_second: asked.new_ids(),
            exact_ids,
            window_ids,
            memory,
            filters,
            disk_bytes: costs::disk_bytes(window_ids, sealed.as_ref()),
            state_topic: costs::state_topic(&asked),
            restore: costs::restore_with(window_ids, sealed.as_ref()),
            false_drops_a_day: filters
                .map_or(0.0, |_| asked.new_ids() * 86_400.0 * asked.false_positive_rate),
            collision: costs::collision(asked.ids, window_ids),
            misses: asked.slots.map(|slots| Misses::of(&asked, slots)),
            fixed_memory: FixedMemory {
                buckets_for_90_percent: remembered(0.9, exact_ids),
                buckets_for_99_percent: remembered(0.99, exact_ids),
                slots_for_90_percent: remembered_in(0.9, exact_ids),
                slots_for_99_percent: remembered_in(0.99, exact_ids),
            },
            workload: asked,
        }
    }
}

impl Memory {
    fn of(asked: &Workload) -> Self {
        let ids = asked.ids_within(asked.window());
        let sealed = asked.sealed(1);
        let table = OwnerIndex::bytes_of_slots(asked.slots.unwrap_or(0));
        let [exact_bytes, exact_peak_bytes] = sealed.map_or([table; 2], |sealed| {
            [sealed.steady(), sealed.peak()].map(|bytes| bytes - sealed.filters)
        });
        let bloom_bytes = sealed.map_or(0, |sealed| sealed.filters);
        let partitions = u64::from(asked.partitions.max(1));
        let of_partition = asked.sealed(partitions).map_or(table / partitions, |sealed| sealed.steady());
        let window_bytes = exact_peak_bytes.saturating_add(bloom_bytes);
        Self {
            sealed_ids: sealed.map_or(0, |sealed| ids.saturating_sub(sealed.unsealed + sealed.filtered)),
            exact_bytes,
            exact_peak_bytes,
            bloom_bytes,
            total_bytes: exact_bytes.saturating_add(bloom_bytes),
            partition_scope_bytes: of_partition.saturating_mul(partitions),
            transaction_bytes: costs::transaction(ids),
            window_bytes,
            limit_bytes: costs::memory_limit(window_bytes),
        }
    }
}

impl PlannedFilters {
    fn of(asked: &Workload) -> Option<Self> {
        let (part, sealed) = (asked.filtered()?, asked.sealed(1)?);
        Some(Self {
            span_seconds: asked.window().as_secs_f64() / FILTERS as f64,
            ids: sealed.filtered,
            bits_an_id: sealed.filters as f64 * 8.0 / sealed.filtered.max(1) as f64,
            expected_rate: part.bits.expected_rate(),
        })
    }
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
