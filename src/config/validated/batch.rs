//! Limits of a transaction.

use std::time::Duration;

use crate::config::as_typed::TypedBatch;
use crate::config::reading::Reading;
use crate::config::units::duration_text;

/// Limits of a transaction: the first limit that is reached ends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Maximum number of records, at least 1.
    pub max_records: usize,
    /// Maximum number of bytes of keys and values, at least 1 KiB.
    pub max_bytes: u64,
    /// Maximum time since the first record. Shorter than the transaction timeout.
    pub interval: Duration,
    /// When the broker aborts a transaction. Shorter than the session timeout.
    pub transaction_timeout: Duration,
}

/// A larger value is taken for a typing error.
const MOST_RECORDS: u64 = 10_000_000;

pub(super) fn validate(typed: &TypedBatch, reading: &mut Reading<'_>) -> Option<Batch> {
    let max_records = reading.whole("batch.max_records", typed.max_records.as_deref(), 1..=MOST_RECORDS);
    let max_bytes = reading.bytes("batch.max_bytes", typed.max_bytes.as_deref(), 1 << 10);
    let millisecond = Duration::from_millis(1);
    let interval = reading.duration("batch.interval", typed.interval.as_deref(), millisecond);
    let second = Duration::from_secs(1);
    let timeout = reading.duration("batch.transaction_timeout", typed.transaction_timeout.as_deref(), second);
    if let (Some(interval), Some(timeout)) = (interval, timeout)
        && interval >= timeout
    {
        let what = format!(
            "is not below batch.transaction_timeout = \"{}\", so every transaction would time out",
            duration_text(timeout)
        );
        let remedy = "lower it, or raise batch.transaction_timeout";
        reading.reject("batch.interval", Some(&duration_text(interval)), &what, remedy);
    }
    Some(Batch {
        max_records: usize::try_from(max_records?).ok()?,
        max_bytes: max_bytes?,
        interval: interval?,
        transaction_timeout: timeout?,
    })
}
