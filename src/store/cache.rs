//! Blocks read lately. Duplicates mostly follow their owner soon, and many in one block.

use std::collections::HashMap;
use std::mem;

use sled::IVec;

/// File and place of a block: no place is written twice, so nothing here is ever out of date.
type At = (u32, u64);

/// Blocks of two generations: what was asked for since the younger one began, and what was before. A block comes in
/// only when it was asked for [`WORTH`] times, and is counted until then.
#[derive(Default)]
pub(super) struct Cache {
    young: HashMap<At, Known>,
    young_bytes: u64,
    old: HashMap<At, Known>,
}

/// Reading and checking a whole block takes as long as reading single identities so many times, roughly.
const WORTH: u8 = 16;
/// What a count takes up, roughly.
const COUNT_BYTES: u64 = 64;

#[derive(Clone)]
enum Known {
    /// How often it was asked for.
    Asked(u8),
    Here(IVec),
}

/// What the cache has to say of a block.
pub(super) enum Said {
    /// It is not here, and not worth it.
    Not,
    /// It is not here, and should be.
    Wanted,
    /// It is here.
    Here(IVec),
}

impl Cache {
    /// What is known of a block, which has been asked for once more.
    pub(super) fn ask(&mut self, at: At, most_bytes: u64) -> Said {
        if !self.young.contains_key(&at) {
            let known = self.old.remove(&at).unwrap_or(Known::Asked(0));
            self.keep(at, known, most_bytes);
        }
        match self.young.get_mut(&at) {
            Some(Known::Here(bytes)) => Said::Here(bytes.clone()),
            Some(Known::Asked(times)) if *times < WORTH => {
                *times += 1;
                Said::Not
            }
            _ => Said::Wanted,
        }
    }

    /// Keeps a block, among at most so many bytes of them and half as much again.
    pub(super) fn put(&mut self, at: At, bytes: IVec, most_bytes: u64) {
        self.keep(at, Known::Here(bytes), most_bytes);
    }

    fn keep(&mut self, at: At, known: Known, most_bytes: u64) {
        if self.young_bytes >= most_bytes / 2 {
            self.old = mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        self.young_bytes += match &known {
            Known::Asked(_) => COUNT_BYTES,
            Known::Here(bytes) => COUNT_BYTES + bytes.len() as u64,
        };
        self.young.insert(at, known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(cache: &mut Cache, at: At) -> bool {
        matches!(cache.ask(at, 1_000), Said::Here(_))
    }

    #[test]
    fn what_is_asked_for_stays_and_the_rest_goes() {
        let mut cache = Cache::default();
        let block = IVec::from(vec![7; 36]);
        for at in 0..1_000 {
            cache.put((1, at), block.clone(), 1_000);
            assert!(here(&mut cache, (1, 0)), "asked for at {at}");
            assert!(cache.young.len() + cache.old.len() <= 12);
        }
        assert!(here(&mut cache, (1, 999)) && !here(&mut cache, (1, 500)) && !here(&mut cache, (2, 999)));
    }

    #[test]
    fn a_block_is_wanted_when_it_is_asked_for_often() {
        let mut cache = Cache::default();
        let often =
            |cache: &mut Cache| (0..100).find(|_| matches!(cache.ask((1, 0), 1_000), Said::Wanted)).unwrap();
        assert_eq!(often(&mut cache), WORTH);
        (1..100).for_each(|at| drop(cache.ask((1, at), 1_000)));
        assert_eq!(often(&mut cache), WORTH, "that was long ago");
    }
}
