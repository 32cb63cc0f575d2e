//! A complete store of committed entries, shared by the tests of windows.
#![allow(dead_code, missing_docs, reason = "each test binary uses its own part")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use dedupd::dedupe::{
    Block, BloomPart, FilterBits, HashKind, Identity, Offset, Owners, TimeSource, Window, WindowLimits,
};

/// The start of stream time, in epoch milliseconds.
pub const T: i64 = 1_700_000_000_000;

/// A window of seven hours, the last of them exact.
pub fn limits(false_positive_rate: f64) -> WindowLimits {
    let bits = FilterBits::at_rate(false_positive_rate);
    let bloom = BloomPart { length: Duration::from_hours(7), bits };
    WindowLimits {
        exact: Duration::from_hours(1),
        max_ids: u64::MAX,
        time: TimeSource::Record,
        bloom: Some(bloom),
    }
}

pub fn id(number: u64) -> Identity {
    Identity(u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_be_bytes())
}

#[derive(Default)]
pub struct Ledger {
    pub owners: BTreeMap<Offset, Identity>,
    pub blocks: Vec<Vec<u8>>,
}

impl Ledger {
    /// Commits pending entries, and returns the first offset whose block is still needed.
    pub fn commit(&mut self, window: &mut Window, next: Offset) -> Offset {
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
