//! A stream of identities: mostly new ones, some repeats of ids in the window. It computes repeats instead of storing ids.
#![allow(dead_code, reason = "each bench uses its own part")]

use dedupd::dedupe::Identity;

/// Which records repeat an id of the window.
#[derive(Clone, Copy, Debug)]
pub enum Repeats {
    /// One record in `one_in` repeats an id, uniformly distributed over the newest nine tenths of the window.
    Anywhere { one_in: u64 },
    /// A percentage of the records. Each power of two of distance, up to nine tenths of the window, is equally likely:
    /// most repeats come soon, like retries, and some very late.
    Soon { percent: u64 },
}

/// The stream. It is deterministic: two streams with the same parameters return the same records.
pub struct Stream {
    state: u64,
    pub made: u64,
    window: u64,
    repeats: Repeats,
}

impl Stream {
    /// `window` is the number of ids in the window. Until that many exist, repeats are taken from the existing ones.
    pub fn new(window: u64, repeats: Repeats) -> Self {
        Self { state: 1, made: 0, window, repeats }
    }

    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
    }

    pub fn fresh(&mut self) -> Identity {
        self.made += 1;
        numbered(self.made)
    }

    /// The next record's identity, and whether it repeats an id of the window.
    pub fn next(&mut self) -> (Identity, bool) {
        let (random, oldest) = (self.random(), self.window * 9 / 10);
        let age = match self.repeats {
            Repeats::Anywhere { one_in } => random.is_multiple_of(one_in).then(|| (random >> 8) % oldest),
            Repeats::Soon { percent } => (random % 100 < percent).then(|| {
                let powers = u64::from(oldest.ilog2());
                (self.random() % (2 << ((random >> 8) % powers))).min(oldest)
            }),
        };
        match age {
            Some(age) if self.made > 0 => (numbered(self.made - age.min(self.made - 1)), true),
            _ => (self.fresh(), false),
        }
    }
}

/// Like a version 7 UUID, except for the version and variant bits: a counter, followed by random bits.
pub fn numbered(number: u64) -> Identity {
    let low = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Identity(((u128::from(number) << 64) | u128::from(low)).to_be_bytes())
}
