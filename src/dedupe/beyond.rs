//! The part of a window beyond the exact one: filters, and which blocks it takes to build them again.
//!
//! What always holds:
//! - Only committed owners are in the filters, each under the first stream time of its block. That is
//!   what a block tells when it is read again, so filters that are rebuilt to the same [`Layout`] are the same, bit for bit.
//! - Blocks from [`Beyond::first_needed`] on are all it takes to rebuild them.
//! - Bits cannot be taken back. When owners are forgotten that are in the filters, these are *stale*:
//!   they could call a record seen that was not, and have to be rebuilt before the next record.

use std::collections::{HashSet, VecDeque};

use super::bloom::{Bloom, BloomLimits, Layout};
use super::index::Look;
use super::{Identity, Offset};

/// One partition's filters.
#[derive(Debug)]
pub(super) struct Beyond {
    limits: BloomLimits,
    bloom: Bloom,
    /// Slices by number, the oldest first, each with the first owner in it.
    slices: VecDeque<(i64, Offset)>,
    /// One past the highest owner in the filters.
    end: Offset,
    stale: bool,
    /// Identities that were taken back: their bits are still set, and mean nothing until the identity
    /// comes again. Few, because an operator names each; gone when the filters are built anew.
    forgotten: HashSet<Identity>,
}

impl Beyond {
    pub fn new(limits: BloomLimits) -> Self {
        Self {
            limits,
            bloom: Bloom::new(limits),
            slices: VecDeque::new(),
            end: 0,
            stale: false,
            forgotten: HashSet::new(),
        }
    }

    pub fn limits(&self) -> &BloomLimits {
        &self.limits
    }

    pub fn bloom(&self) -> &Bloom {
        &self.bloom
    }

    /// Makes filters that are still empty come to stand as they stood.
    pub fn follow(&mut self, layout: &Layout) {
        self.bloom.follow(layout);
    }

    #[inline]
    pub fn prefetch(&self, look: &Look) {
        self.bloom.prefetch(look);
    }

    /// Stream time at `now_ms` of the oldest arrival that is remembered.
    pub fn oldest_ms(&self, now_ms: i64) -> i64 {
        self.bloom.asked(now_ms).start
    }

    /// The beginning of the slice that probably holds the identity, if any asked at `now_ms` does.
    /// What arrived since `exact_from_ms` is in the exact part, and not asked for.
    pub fn probably(&self, look: &Look, now_ms: i64, exact_from_ms: i64) -> Option<i64> {
        let asked = self.bloom.asked(now_ms);
        let since_ms = self.bloom.probably(look, &(asked.start..exact_from_ms.max(asked.end)))?;
        (!self.forgotten.contains(&look.identity)).then_some(since_ms)
    }

    /// Takes in committed owners, by rising offset, of a block that begins at `time_ms`.
    pub fn insert(&mut self, owners: impl Iterator<Item = (Offset, Identity)>, time_ms: i64) {
        let slice = time_ms.div_euclid(self.limits.slice_ms());
        let (slices, end, forgotten) = (&mut self.slices, &mut self.end, &mut self.forgotten);
        let filed = owners.map(|(owner, identity)| {
            if !forgotten.is_empty() {
                forgotten.remove(&identity);
            }
            if slices.back().is_none_or(|(last, _)| *last < slice) {
                slices.push_back((slice, owner));
            }
            *end = owner + 1;
            (identity, time_ms)
        });
        self.bloom.insert_all(filed);
    }

    /// Drops the slices that ended before the window.
    pub fn expire(&mut self, now_ms: i64) {
        if now_ms <= 0 {
            return;
        }
        self.bloom.expire(now_ms);
        // What came before any time was known counts as of now.
        if let Some(first) = self.slices.front_mut().filter(|(slice, _)| *slice <= 0) {
            first.0 = now_ms.div_euclid(self.limits.slice_ms());
        }
        let oldest = self.oldest_ms(now_ms);
        let length = self.limits.slice_ms();
        while self.slices.len() > 1
            && self.slices.pop_front_if(|(slice, _)| (*slice + 1).saturating_mul(length) <= oldest).is_some()
        {
        }
    }

    /// Sets the limit on the memory of the filters.
    pub fn set_max_bytes(&mut self, max_bytes: u64) {
        self.limits.max_bytes = max_bytes;
        self.bloom.set_max_bytes(max_bytes);
    }

    /// Forgets the oldest slices until the rest keeps within the limit on memory and holds at most
    /// `most_ids`. When a single slice is too much for that, the blocks of its first owners may go, up to
    /// `first_live` of the exact part: what is remembered of them ends with the process.
    pub fn shrink(&mut self, most_ids: u64, first_live: Offset) {
        self.bloom.shrink(most_ids);
        let length = self.limits.slice_ms();
        let oldest = self.bloom.oldest_slice_ms().map(|ms| ms.div_euclid(length));
        while self.slices.len() > 1
            && self.slices.pop_front_if(|(slice, _)| oldest.is_none_or(|oldest| *slice < oldest)).is_some()
        {
        }
        let too_much = self.bloom.ids() > most_ids;
        if let Some(last) = self.slices.front_mut().filter(|_| too_much) {
            last.1 = last.1.max(first_live);
        }
    }

    /// Identities in the filters.
    pub fn ids(&self) -> u64 {
        self.bloom.ids()
    }

    /// How far back from `now_ms` the filters reach, in ms: as asked, or less when memory did not do.
    pub fn reach_ms(&self, now_ms: i64) -> i64 {
        let asked = now_ms.saturating_sub(self.oldest_ms(now_ms));
        // Owners are filed under the first time of their block, and may have come as much later as it spans.
        let span = i64::try_from(self.limits.exact.as_millis() / 32).unwrap_or(i64::MAX);
        let latest = self.bloom.forgotten_ms().map(|forgotten| forgotten.saturating_add(span));
        let reach = latest.map_or(asked, |latest| now_ms.saturating_sub(latest));
        reach.clamp(0, asked)
    }

    /// Stream time of the latest owner that was forgotten for want of room, if it would still count at `now_ms`.
    pub fn lost_ms(&self, now_ms: i64) -> Option<i64> {
        self.bloom.forgotten_ms().filter(|ms| *ms >= self.oldest_ms(now_ms))
    }

    /// Takes over what was forgotten before a restart.
    pub fn inherit_lost(&mut self, lost_ms: Option<i64>) {
        self.bloom.inherit_forgotten(lost_ms);
    }

    /// The lowest offset whose block it takes to rebuild the filters.
    pub fn first_needed(&self) -> Offset {
        self.slices.front().map_or(self.end, |(_, first)| *first)
    }

    /// The identity is taken back, all of its owners.
    pub fn forget(&mut self, identity: Identity) {
        self.forgotten.insert(identity);
    }

    /// Owners at or beyond `from` are forgotten.
    pub fn truncate(&mut self, from: Offset) {
        self.stale |= from < self.end;
    }

    pub fn is_stale(&self) -> bool {
        self.stale
    }

    /// Empties the filters, to be filled again.
    pub fn clear(&mut self) {
        let (forgotten, layout) = (self.bloom.forgotten_ms(), self.bloom.layout());
        *self = Self::new(self.limits);
        if let Some(layout) = layout {
            self.follow(&layout);
        }
        self.bloom.inherit_forgotten(forgotten);
    }
}
