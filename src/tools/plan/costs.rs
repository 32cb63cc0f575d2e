//! Costs of ids other than memory, from measured figures.

use std::time::Duration;

use super::{IdKind, Restore, StateTopic, Workload, count};
use crate::dedupe::{FilterPart, SMALLEST_SLICE, SealedBytes, Window};

/// Memory of a process with one worker beside its windows, as `app::memory` reserves it.
const PROCESS_BYTES: u64 = 320 << 20;
/// Bytes of local state per id in a moving window, including expired data that is not yet deleted.
/// `cargo bench --bench soak` prints it.
const DISK_BYTES_PER_ID: f64 = 45.0;
/// Bytes of a sealed id: 16, four for its digest, five or six for its owner and its time, its part of the filter and of a page that is not full; and expired ids of
/// slices that are not deleted yet. `cargo bench --bench growth` prints it.
const SEALED_DISK_BYTES_PER_ID: f64 = 31.0;
/// Bytes per second of the filters of sealed slices, which alone are read. `cargo bench --bench growth` prints the time of a restart.
const REOPENED_FILTER_BYTES_PER_SECOND: f64 = 340e6;
/// Bytes of an id in a block: 16, four of its digest, and the distances of its offset and its time, one or two each.
const BLOCK_BYTES_PER_ID: f64 = 23.0;
/// Bytes of a partition in an entry: its section in the end record 46, and the start of its owners in a block.
const SECTION_BYTES: f64 = 50.0;
/// Bytes of an entry without that: record batch 61, end record with its key 98, a block without its ids with its key 105, and the transaction
/// marker 78.
const ENTRY_BYTES: f64 = 342.0;
/// Transactions per second while records arrive, with the default `batch.interval` of 100 ms.
const TRANSACTIONS_PER_SECOND: f64 = 10.0;
/// Ids per second from the local state into the exact index. `cargo bench --bench restore` prints it
/// ("reopened from the directory").
const REOPENED_IDS_PER_SECOND: f64 = 11e6;
/// Ids per second from the state topic, from the same bench ("restored from the state topic").
const RESTORED_IDS_PER_SECOND: f64 = 4.4e6;

/// Most records of a transaction, with the default `batch.max_records`. So many are read at a time after a restart.
const TRANSACTION_RECORDS: u64 = 500_000;

/// Bytes of the open transaction in a window that has `ids` ids, besides their index. It is a part of [`PROCESS_BYTES`].
pub(super) fn transaction(ids: u64) -> u64 {
    // A list grows to the next power of two.
    ids.min(TRANSACTION_RECORDS).next_power_of_two().saturating_mul(Window::PENDING_BYTES as u64)
}

/// The memory limit that leaves this much for windows.
pub(super) fn memory_limit(windows: u64) -> u64 {
    windows.saturating_add(windows / 4).saturating_add(PROCESS_BYTES)
}

/// `sealed`: what is in slices.
pub(super) fn disk_bytes(window_ids: u64, sealed: Option<&SealedBytes>) -> u64 {
    let (unsealed, filtered) = sealed.map_or((window_ids, 0), |sealed| (sealed.unsealed, sealed.filtered));
    let with_owners = window_ids.saturating_sub(unsealed).saturating_sub(filtered) as f64;
    let in_filters = sealed.map_or(0, |sealed| sealed.filters) as f64;
    count(unsealed as f64 * DISK_BYTES_PER_ID + with_owners * SEALED_DISK_BYTES_PER_ID + in_filters)
}

/// One entry per transaction with new ids, and in it a section for each partition, kept for the retention time. In topic scope.
pub(super) fn state_topic(asked: &Workload) -> StateTopic {
    let retention = retention(asked.window());
    let sections = f64::from(asked.partitions) * TRANSACTIONS_PER_SECOND;
    let bytes_per_second = asked.new_ids() * BLOCK_BYTES_PER_ID
        + sections.min(asked.new_ids()) * SECTION_BYTES
        + TRANSACTIONS_PER_SECOND.min(asked.new_ids()) * ENTRY_BYTES;
    StateTopic {
        bytes: count(bytes_per_second * retention.as_secs_f64()),
        retention_seconds: retention.as_secs(),
    }
}

/// The retention that `topics.create` sets: a quarter longer than the window, and at least a day longer.
fn retention(window: Duration) -> Duration {
    window.saturating_add((window / 4).max(Duration::from_hours(24)))
}

/// The times to load this many ids, all of them with owners.
pub(crate) fn restore(window_ids: u64) -> Restore {
    let sealed = SealedBytes::of(window_ids, FilterPart::NONE, SMALLEST_SLICE);
    restore_with(window_ids, Some(&sealed))
}

/// The times to load this many ids. `sealed`: what is in slices.
pub(super) fn restore_with(window_ids: u64, sealed: Option<&SealedBytes>) -> Restore {
    let unsealed = sealed.map_or(window_ids, |sealed| sealed.unsealed) as f64;
    let filters = sealed.map_or(0, |sealed| sealed.slices.saturating_add(sealed.filters)) as f64;
    Restore {
        local_seconds: unsealed / REOPENED_IDS_PER_SECOND + filters / REOPENED_FILTER_BYTES_PER_SECOND,
        state_topic_seconds: window_ids as f64 / RESTORED_IDS_PER_SECOND,
    }
}

/// The birthday bound on 128 bits, for hashed ids; UUIDs are not hashed.
pub(super) fn collision(kind: IdKind, ids: u64) -> f64 {
    match kind {
        IdKind::Uuid => 0.0,
        IdKind::Text => (ids as f64).powi(2) / 2.0f64.powi(129),
    }
}
