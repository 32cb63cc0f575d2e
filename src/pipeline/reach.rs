//! How far the topics reach: which raw partitions may be worked on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::dedupe::PartitionId;

/// How many partitions the clean and the state topic both have, as last seen. The group hands out a new
/// partition of a growing raw topic at once; until the other topics have it too, it waits.
///
/// Written by whoever watches the topics, read by the workers. Cloning gives the same number.
#[derive(Debug, Clone)]
pub struct Reach(Arc<AtomicU32>);

impl Reach {
    /// So many partitions, all with numbers below that.
    #[must_use]
    pub fn new(partitions: usize) -> Self {
        Self(Arc::new(AtomicU32::new(u32::try_from(partitions).unwrap_or(u32::MAX))))
    }

    /// Now there are so many; topics never shrink.
    pub fn raise(&self, partitions: usize) {
        self.0.fetch_max(u32::try_from(partitions).unwrap_or(u32::MAX), Ordering::Release);
    }

    /// Whether the partition is there in every topic.
    #[must_use]
    pub fn covers(&self, partition: PartitionId) -> bool {
        partition < self.0.load(Ordering::Acquire)
    }
}
