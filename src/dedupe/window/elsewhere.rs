//! Copies of a record in other partitions: which window to ask, and what its answer means.
//!
//! Each partition has windows of its own. A [`TopicFilter`] holds the identities of all of them, so only a record whose identity
//! passes it is looked up in the windows of the other partitions ([`Window::copy_of`]).
//!
//! The partitions of a backlog are not read evenly: a record can be decided after a copy with a later stream time. So a copy
//! counts when the two stream times differ by at most the length of the window, in either direction.

use std::time::Duration;

use super::bloom::{Bloom, BloomLimits};
use super::index::IndexKey;
use super::{Owners, Window};
use crate::dedupe::coordinates::Offset;
use crate::dedupe::identity::Identity;

/// What the window of another partition knows about an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyOf {
    /// The record at this offset has the identity; its 16 bytes were compared.
    Owner {
        /// Its offset in that partition.
        offset: Offset,
        /// Latest stream time at which it can have arrived, epoch milliseconds; 0 while unknown.
        arrived_ms: i64,
    },
    /// A filter beyond the exact part contains the identity.
    Filter {
        /// Start of the slice of that filter, stream time in epoch milliseconds.
        since_ms: i64,
    },
}

impl Window {
    /// The owner, committed or pending, of an identity whose record is in another partition, at the stream time `at_ms` of that
    /// partition; 0 while that is unknown, and then every owner counts. Claims are not considered: they never drop a record.
    pub fn copy_of<O: Owners>(
        &self,
        at_ms: i64,
        key: &IndexKey,
        owners: &O,
    ) -> Result<Option<CopyOf>, O::Error> {
        let (latest, oldest) = if at_ms > 0 {
            (at_ms.saturating_add(self.configured_ms()), at_ms.saturating_sub(self.exact_ms))
        } else {
            (i64::MAX, i64::MIN)
        };
        let oldest_pending =
            self.filters.as_ref().map_or(oldest, |filters| filters.oldest_ms(at_ms).min(oldest));
        let found = self.owner_of(key, owners, |is_pending, (first, last)| {
            first <= latest && last >= if is_pending { oldest_pending } else { oldest }
        })?;
        if let Some((offset, arrived_ms)) = found {
            return Ok(Some(CopyOf::Owner { offset, arrived_ms }));
        }
        let since_ms = self.filters.as_ref().and_then(|filters| {
            let now_ms = if at_ms > 0 { at_ms } else { self.time.ms() };
            filters.probably(key, now_ms, self.exact_from_ms(now_ms.saturating_sub(self.exact_ms)))
        });
        Ok(since_ms.map(|since_ms| CopyOf::Filter { since_ms }))
    }

    /// The owner of an identity at or beyond the committed offset, found in local state.
    #[must_use]
    pub fn claim_of(&self, identity: Identity) -> Option<Offset> {
        self.claims.get(&identity).copied()
    }
}

/// The rate at which an identity that is in no window passes the filter. It costs time only: at this rate, with 256 partitions,
/// one record in 256 is looked up in all of them without need.
const RATE: f64 = 1.0 / 256.0;
/// Slices of the filter. With the one that is partly expired they fill one grid, so a look-up reads adjacent cache lines.
const SLICES: u32 = 3;

/// The identities of all windows of all partitions, in about two bytes each. An identity that no window holds any more may still
/// pass; one that a window holds always passes.
#[derive(Debug)]
pub struct TopicFilter(Bloom);

impl TopicFilter {
    /// An empty filter for windows of at most this length.
    #[must_use]
    pub fn new(longest: Duration) -> Self {
        let mut bloom = Bloom::new(BloomLimits {
            exact: Duration::ZERO,
            // Owners that are restored from one block expire together, up to 1/32 later than each by itself.
            bloom: longest.saturating_add(longest / 16).max(Duration::from_millis(1)),
            slices: SLICES,
            false_positive_rate: RATE,
            max_bytes: u64::MAX,
        });
        bloom.set_horizon(0);
        Self(bloom)
    }

    /// Prefetches what a look-up reads and an insert writes.
    #[inline]
    pub fn prefetch(&self, key: &IndexKey) {
        self.0.prefetch(key);
        self.0.prefetch_insert(key);
    }

    /// Whether any window may hold the identity.
    #[must_use]
    #[inline]
    pub fn may_hold(&self, key: &IndexKey) -> bool {
        self.0.probably(key, &(i64::MIN..i64::MAX)).is_some()
    }

    /// Adds the identity of a record that arrived at this stream time of its partition, epoch milliseconds.
    #[inline]
    pub fn insert(&mut self, key: &IndexKey, arrived_ms: i64) {
        self.0.insert(key, arrived_ms);
    }

    /// Adds the identities of restored owners, each with the latest stream time at which it can have arrived.
    pub fn insert_all(&mut self, owners: impl IntoIterator<Item = (Identity, i64)>) {
        self.0.insert_all(owners);
    }

    /// Drops identities that are older than the longest window at this stream time, at which the windows expire too.
    pub fn expire(&mut self, horizon_ms: i64) {
        self.0.set_horizon(horizon_ms);
        self.0.expire(horizon_ms);
    }

    /// Bytes allocated.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.0.memory_bytes()
    }
}

#[cfg(test)]
mod tests;
