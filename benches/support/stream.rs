//! Identities as they come: mostly new ones, some of the window's again. Without memory of its own.
#![allow(dead_code, reason = "each bench uses its own part")]

use dedupd::dedupe::Identity;

/// Which records repeat an id of the window.
#[derive(Clone, Copy, Debug)]
pub enum Repeats {
    /// One record in so many, an id from anywhere in the newest nine tenths of the window.
    Anywhere { one_in: u64 },
    /// Of a hundred records so many; each power of two of distance, up to the length of the window, is as
    /// likely as any other: most copies come soon, as retries do, and some very late.
    Soon { percent: u64 },
}

/// The stream. Two with the same beginning give the same records.
pub struct Stream {
    state: u64,
    pub made: u64,
    window: u64,
    repeats: Repeats,
}

impl Stream {
    /// `window` is in ids; before as many were made, repeats come from those that there are.
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

    /// The next record's identity, and whether it is one of the window's again.
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

/// Version 7 UUIDs in all but the variant bits: a counter in front, random bits behind.
pub fn numbered(number: u64) -> Identity {
    let low = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Identity(((u128::from(number) << 64) | u128::from(low)).to_be_bytes())
}
