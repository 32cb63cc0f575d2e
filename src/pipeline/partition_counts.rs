//! The partitions that exist in all topics, and in raw: only those that exist in all of them may be processed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::dedupe::PartitionId;

/// Number of partitions that the clean and the state topic both have, as last seen. The group assigns a new partition
/// of a growing raw topic at once; it stays in `Locating` until the other topics have it too.
///
/// Written by the topic monitor, and the number for raw by the workers too. All clones share the numbers.
#[derive(Debug, Clone, Default)]
pub struct PartitionCounts {
    shared: Arc<AtomicU32>,
    raw: Arc<AtomicU32>,
}

impl PartitionCounts {
    /// A limit of `partitions`: all partitions with lower numbers are covered.
    pub fn new(partitions: usize) -> Self {
        let limit = Self::default();
        limit.raise(partitions);
        limit
    }

    /// Raises the limit to `partitions`; topics never shrink.
    pub fn raise(&self, partitions: usize) {
        self.shared.fetch_max(u32::try_from(partitions).unwrap_or(u32::MAX), Ordering::Release);
    }

    /// Notes that raw has this number of partitions.
    pub fn note_raw(&self, partitions: usize) {
        self.raw.fetch_max(u32::try_from(partitions).unwrap_or(u32::MAX), Ordering::Release);
    }

    /// Number of partitions of raw; 0 before it was noted.
    pub fn raw(&self) -> u32 {
        self.raw.load(Ordering::Acquire)
    }

    /// Number of partitions that both topics have.
    pub fn count(&self) -> u32 {
        self.shared.load(Ordering::Acquire)
    }

    /// Whether the partition exists in both topics.
    pub fn covers(&self, partition: PartitionId) -> bool {
        partition < self.count()
    }
}
