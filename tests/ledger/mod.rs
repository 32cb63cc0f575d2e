//! A complete store of committed entries, shared by the tests of windows.
#![allow(dead_code, missing_docs, reason = "each test binary uses its own part")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use dedupd::dedupe::{
    Block, Bloom, BloomLimits, FilterLayout, HashKind, Identity, Offset, Owners, TimeSource, Window,
    WindowLimits,
};

/// The start of stream time, in epoch milliseconds.
pub const T: i64 = 1_700_000_000_000;

/// An exact window of one hour, and Bloom filters for seven.
pub fn limits(false_positive_rate: f64) -> WindowLimits {
    let exact = Duration::from_hours(1);
    let bloom = BloomLimits {
        exact,
        bloom: Duration::from_hours(7) + exact / 32,
        slices: 7,
        false_positive_rate,
        max_bytes: u64::MAX,
    };
    WindowLimits { exact, max_ids: u64::MAX, time: TimeSource::Record, bloom: Some(bloom) }
}

pub fn id(number: u64) -> Identity {
    Identity(u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_be_bytes())
}

#[derive(Default)]
pub struct Ledger {
    pub owners: BTreeMap<Offset, Identity>,
    pub blocks: Vec<Vec<u8>>,
    /// The filter layout in the checkpoint of the last commit.
    pub layout: Option<FilterLayout>,
}

impl Ledger {
    /// Commits pending entries, and returns the first offset whose block is still needed.
    pub fn commit(&mut self, window: &mut Window, next: Offset) -> Offset {
        self.layout = window.bloom().and_then(Bloom::layout);
        self.owners.extend(window.pending().iter().copied());
        let blocks = window.blocks(HashKind::Xxh3, 0.into(), window.next()..next, 1_000);
        self.blocks.extend(blocks.iter().map(Block::encode));
        window.commit(next)
    }
}

impl Owners for Ledger {
    type Error = Infallible;
    fn identity_of(&self, owner: Offset) -> Result<Option<Identity>, Infallible> {
        Ok(self.owners.get(&owner).copied())
    }
}
