//! Costs of ids other than memory, from measured figures.

use std::time::Duration;

use super::{IdKind, Restore, StateTopic, Workload, count};
use crate::dedupe::{SMALLEST_SLICE, SealedBytes};

/// Bytes of local state per id in a moving window, including expired data that is not yet deleted.
/// `cargo bench --bench soak` prints it.
const DISK_BYTES_PER_ID: f64 = 21.0;
/// Bytes of a sealed id: 16, three or four for its owner, its part of the filter and of a page that is not full; and expired ids of
/// slices that are not deleted yet. `cargo bench --bench growth` prints it.
const SEALED_DISK_BYTES_PER_ID: f64 = 25.0;
/// Ids per second of sealed slices, whose filters alone are read. `cargo bench --bench growth` prints the time of a restart.
const REOPENED_SEALED_IDS_PER_SECOND: f64 = 100e6;
/// Bytes of an id in a block: 16, and a one-byte offset delta.
const BLOCK_BYTES_PER_ID: f64 = 17.0;
/// Bytes of a block in the state topic without its ids, from the formats: header and checksum 57, record
/// batch and record 71, key about 60, and the transaction marker 78.
const BLOCK_BYTES: f64 = 266.0;
/// Transactions per second while records arrive, with the default `batch.interval` of 100 ms.
const TRANSACTIONS_PER_SECOND: f64 = 10.0;
/// Ids per second from the local state into the exact index. `cargo bench --bench restore` prints it
/// ("reopened from the directory").
const REOPENED_IDS_PER_SECOND: f64 = 11e6;
/// Ids per second from the state topic, from the same bench ("restored from the state topic").
const RESTORED_IDS_PER_SECOND: f64 = 4.4e6;
/// Ids per second into Bloom filters at a false-positive rate of 1e-9. `cargo bench --bench bloom` prints it.
const BLOOM_IDS_PER_SECOND: f64 = 8e6;

pub(super) fn disk_bytes(window_ids: u64, sealed_ids: u64) -> u64 {
    let unsealed = window_ids.saturating_sub(sealed_ids) as f64;
    count(unsealed * DISK_BYTES_PER_ID + sealed_ids as f64 * SEALED_DISK_BYTES_PER_ID)
}

/// One block per partition and transaction with new ids, kept for the retention time.
pub(super) fn state_topic(asked: &Workload) -> StateTopic {
    let retention = retention(asked.window());
    let blocks = f64::from(asked.partitions) * TRANSACTIONS_PER_SECOND;
    let bytes_per_second = asked.new_ids() * BLOCK_BYTES_PER_ID + blocks.min(asked.new_ids()) * BLOCK_BYTES;
    StateTopic {
        bytes: count(bytes_per_second * retention.as_secs_f64()),
        retention_seconds: retention.as_secs(),
    }
}

/// The retention that `topics.create` sets: a quarter longer than the window, and at least a day longer.
fn retention(window: Duration) -> Duration {
    window.saturating_add((window / 4).max(Duration::from_hours(24)))
}

/// The times to load this many ids, with filters if `bloom`; otherwise old ones are sealed.
pub(crate) fn restore(window_ids: u64, bloom: bool) -> Restore {
    let sealed = if bloom { 0 } else { window_ids - SealedBytes::of(window_ids, 1, SMALLEST_SLICE).unsealed };
    restore_with((window_ids, sealed), bloom)
}

/// The times to load this many ids, of which so many are sealed, with filters if `bloom`.
pub(super) fn restore_with((window_ids, sealed_ids): (u64, u64), bloom: bool) -> Restore {
    let ids = window_ids as f64;
    let filters = if bloom { ids / BLOOM_IDS_PER_SECOND } else { 0.0 };
    let unsealed = window_ids.saturating_sub(sealed_ids) as f64;
    let sealed = sealed_ids as f64 / REOPENED_SEALED_IDS_PER_SECOND;
    Restore {
        local_seconds: unsealed / REOPENED_IDS_PER_SECOND + sealed + filters,
        state_topic_seconds: ids / RESTORED_IDS_PER_SECOND + filters,
    }
}

/// The birthday bound on 128 bits, for hashed ids; UUIDs are not hashed.
pub(super) fn collision(kind: IdKind, ids: u64) -> f64 {
    match kind {
        IdKind::Uuid => 0.0,
        IdKind::Text => (ids as f64).powi(2) / 2.0f64.powi(129),
    }
}
