//! A cache of blocks that were read recently. Duplicates mostly arrive soon after their owner, and many of them
//! have their owners in the same block.

use std::collections::HashMap;
use std::mem;

use sled::IVec;

/// File number and byte position of a block. No position is written twice, so a cached block is never stale.
type Location = (u32, u64);

/// Blocks of two generations: those looked up since the younger generation began, and those before it. A block is
/// cached only after [`CACHE_AFTER`] look-ups, which are counted until then.
#[derive(Default)]
pub(super) struct Cache {
    young: HashMap<Location, Slot>,
    young_bytes: u64,
    old: HashMap<Location, Slot>,
}

/// Look-ups before a block is cached. Reading and checking a whole block takes roughly as long as reading this many
/// single identities.
const CACHE_AFTER: u8 = 16;
/// Approximate memory of one slot without its block, in bytes.
const SLOT_BYTES: u64 = 64;

#[derive(Clone)]
enum Slot {
    /// Number of look-ups so far.
    Counted(u8),
    Block(IVec),
}

/// Result of a cache look-up.
pub(super) enum Cached {
    /// Not cached, and not looked up often enough to be cached.
    Skip,
    /// Not cached; the caller should read it and insert it.
    Load,
    Hit(IVec),
}

impl Cache {
    /// Looks up a block and counts the look-up.
    pub(super) fn look_up(&mut self, at: Location, max_bytes: u64) -> Cached {
        if !self.young.contains_key(&at) {
            let slot = self.old.remove(&at).unwrap_or(Slot::Counted(0));
            self.insert(at, slot, max_bytes);
        }
        match self.young.get_mut(&at) {
            Some(Slot::Block(bytes)) => Cached::Hit(bytes.clone()),
            Some(Slot::Counted(times)) if *times < CACHE_AFTER => {
                *times += 1;
                Cached::Skip
            }
            _ => Cached::Load,
        }
    }

    /// Caches a block. The cache holds at most 1.5 times `max_bytes`.
    pub(super) fn put(&mut self, at: Location, bytes: IVec, max_bytes: u64) {
        self.insert(at, Slot::Block(bytes), max_bytes);
    }

    fn insert(&mut self, at: Location, slot: Slot, max_bytes: u64) {
        if self.young_bytes >= max_bytes / 2 {
            self.old = mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        self.young_bytes += match &slot {
            Slot::Counted(_) => SLOT_BYTES,
            Slot::Block(bytes) => SLOT_BYTES + bytes.len() as u64,
        };
        self.young.insert(at, slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_hit(cache: &mut Cache, at: Location) -> bool {
        matches!(cache.look_up(at, 1_000), Cached::Hit(_))
    }

    #[test]
    fn looked_up_blocks_stay_cached_and_others_are_evicted() {
        let mut cache = Cache::default();
        let block = IVec::from(vec![7; 36]);
        for at in 0..1_000 {
            cache.put((1, at), block.clone(), 1_000);
            assert!(is_hit(&mut cache, (1, 0)), "look-up after inserting {at}");
            assert!(cache.young.len() + cache.old.len() <= 12);
        }
        assert!(
            is_hit(&mut cache, (1, 999)) && !is_hit(&mut cache, (1, 500)) && !is_hit(&mut cache, (2, 999))
        );
    }

    #[test]
    fn a_block_is_cached_only_after_repeated_look_ups() {
        let mut cache = Cache::default();
        let look_ups_until_load = |cache: &mut Cache| {
            (0..100).find(|_| matches!(cache.look_up((1, 0), 1_000), Cached::Load)).unwrap()
        };
        assert_eq!(look_ups_until_load(&mut cache), CACHE_AFTER);
        (1..100).for_each(|at| drop(cache.look_up((1, at), 1_000)));
        assert_eq!(look_ups_until_load(&mut cache), CACHE_AFTER, "the count was evicted");
    }
}
