//! What ids cost outside of memory, by figures that were measured.

use std::time::Duration;

use super::{IdKind, Question, Restore, StateTopic, count};

/// Bytes of local state an id while a window rolls on, what has expired and is not yet deleted included.
/// `cargo bench --bench soak` prints it.
const DISK_BYTES_AN_ID: f64 = 21.0;
/// Bytes of an id in a block: 16, and a one-byte offset delta.
const BLOCK_BYTES_AN_ID: f64 = 17.0;
/// Bytes of a block of the state topic beside its ids, by the formats: header and checksum 57, record
/// batch and record 71, key about 60, and the transaction's marker 78.
const BLOCK_BYTES: f64 = 266.0;
/// Transactions a second while records come, with the default `batch.interval` of 100 ms.
const TRANSACTIONS_A_SECOND: f64 = 10.0;
/// Ids a second from the local state into the exact index. `cargo bench --bench restore` prints it
/// ("reopened from the directory").
const REOPENED_IDS_A_SECOND: f64 = 11e6;
/// Ids a second from the state topic, by the same bench ("restored from the state topic").
const RESTORED_IDS_A_SECOND: f64 = 4.4e6;
/// Ids a second into Bloom filters at a rate of 1e-9. `cargo bench --bench bloom` prints it.
const BLOOM_IDS_A_SECOND: f64 = 8e6;

pub(super) fn disk_bytes(window_ids: u64) -> u64 {
    count(window_ids as f64 * DISK_BYTES_AN_ID)
}

/// A block for each partition and transaction that has new ids, kept for the retention.
pub(super) fn state_topic(asked: &Question) -> StateTopic {
    let retention = retention(asked.window());
    let blocks = f64::from(asked.partitions) * TRANSACTIONS_A_SECOND;
    let bytes_a_second = asked.new_ids() * BLOCK_BYTES_AN_ID + blocks.min(asked.new_ids()) * BLOCK_BYTES;
    StateTopic {
        bytes: count(bytes_a_second * retention.as_secs_f64()),
        retention_seconds: retention.as_secs(),
    }
}

/// The retention that `topics.create` gives: a quarter longer than the window, at least a day longer.
fn retention(window: Duration) -> Duration {
    window.saturating_add((window / 4).max(Duration::from_hours(24)))
}

pub(super) fn restore(window_ids: u64, bloom: bool) -> Restore {
    let ids = window_ids as f64;
    let filters = if bloom { ids / BLOOM_IDS_A_SECOND } else { 0.0 };
    Restore {
        local_seconds: ids / REOPENED_IDS_A_SECOND + filters,
        state_topic_seconds: ids / RESTORED_IDS_A_SECOND + filters,
    }
}

/// The birthday bound on 128 bits, for ids that are hashed; UUIDs stand for themselves.
pub(super) fn collision(kind: IdKind, ids: u64) -> f64 {
    match kind {
        IdKind::Uuid => 0.0,
        IdKind::Text => (ids as f64).powi(2) / 2.0f64.powi(129),
    }
}
