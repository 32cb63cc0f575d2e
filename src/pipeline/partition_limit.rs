//! The partitions that exist in all topics: only these raw partitions may be processed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::dedupe::PartitionId;

/// Number of partitions that the clean and the state topic both have, as last seen. The group assigns a new partition
/// of a growing raw topic at once; it stays in `Locating` until the other topics have it too.
///
/// Written by the topic monitor, read by the workers. All clones share one number.
#[derive(Debug, Clone)]
pub struct PartitionLimit(Arc<AtomicU32>);

impl PartitionLimit {
    /// A limit of `partitions`: all partitions with lower numbers are covered.
    #[must_use]
    pub fn new(partitions: usize) -> Self {
        Self(Arc::new(AtomicU32::new(u32::try_from(partitions).unwrap_or(u32::MAX))))
    }

    /// Raises the limit to `partitions`; topics never shrink.
    pub fn raise(&self, partitions: usize) {
        self.0.fetch_max(u32::try_from(partitions).unwrap_or(u32::MAX), Ordering::Release);
    }

    /// Number of partitions that both topics have.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Whether the partition exists in both topics.
    #[must_use]
    pub fn covers(&self, partition: PartitionId) -> bool {
        partition < self.count()
    }
}
