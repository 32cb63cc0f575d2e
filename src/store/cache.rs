//! Blocks read lately. Duplicates mostly follow their owner soon, and many in one block.

use std::collections::HashMap;
use std::mem;

use sled::IVec;

/// File and place of a block: no place is written twice, so nothing here is ever out of date.
type At = (u32, u64);

/// Blocks of two generations: what was asked for since the younger one began, and what was before.
#[derive(Default)]
pub(super) struct Cache {
    young: HashMap<At, IVec>,
    young_bytes: u64,
    old: HashMap<At, IVec>,
}

impl Cache {
    /// A block that is here.
    pub(super) fn get(&mut self, at: At, most_bytes: u64) -> Option<IVec> {
        if let Some(bytes) = self.young.get(&at) {
            return Some(bytes.clone());
        }
        let bytes = self.old.remove(&at)?;
        self.put(at, bytes.clone(), most_bytes);
        Some(bytes)
    }

    /// Keeps a block, among at most so many bytes of them and half as much again.
    pub(super) fn put(&mut self, at: At, bytes: IVec, most_bytes: u64) {
        if self.young_bytes >= most_bytes / 2 {
            self.old = mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        self.young_bytes += bytes.len() as u64;
        self.young.insert(at, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_stays_and_the_rest_goes() {
        let mut cache = Cache::default();
        let block = IVec::from(vec![7; 100]);
        for at in 0..1_000 {
            cache.put((1, at), block.clone(), 1_000);
            assert!(cache.get((1, 0), 1_000).is_some(), "asked for at {at}");
            assert!(cache.young.len() + cache.old.len() <= 10);
        }
        assert!(cache.get((1, 999), 1_000).is_some() && cache.get((1, 500), 1_000).is_none());
        assert!(cache.get((2, 999), 1_000).is_none(), "another file");
    }
}
