//! A complete store of committed entries, shared by the tests of windows.
#![allow(dead_code, missing_docs, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use dedupd::dedupe::{
    BlockView, BloomPart, FilterBits, HashKind, Identity, Offset, Owners, Sequence, StoredOwner, TimeSource,
    Window, WindowLimits,
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
    pub owners: BTreeMap<Sequence, StoredOwner>,
    /// Each with the number of its first owner.
    pub blocks: Vec<(Sequence, Vec<u8>)>,
}

impl Ledger {
    /// Commits pending entries, and returns the first offset whose block is still needed.
    pub fn commit(&mut self, window: &mut Window, next: Offset) -> Offset {
        let mut number = window.next_number();
        let stored = |(offset, identity): &(_, _)| StoredOwner { offset: *offset, identity: Some(*identity) };
        self.owners.extend((number..).zip(window.pending().iter().map(stored)));
        for block in window.blocks(HashKind::Xxh3, 0.into(), window.next()..next, 1_000) {
            self.blocks.push((number, block.encode()));
            number += block.entries.len() as Sequence;
        }
        assert_eq!(number, window.next_number() + window.pending().len() as Sequence);
        window.commit(next)
    }

    /// Removes the owners below an offset.
    pub fn expire(&mut self, first: Offset) {
        self.owners.retain(|_, owner| owner.offset >= first);
    }

    /// Restores a window from the blocks that cover offsets from this one on.
    pub fn restore(&self, window: &mut Window, from: Offset) {
        for (number, block) in &self.blocks {
            let view = BlockView::verified(block).unwrap();
            if view.header.next > from {
                window.number_from(*number);
                window.restore(&view, Offset::MAX).unwrap();
            }
        }
    }
}

impl Owners for Ledger {
    type Error = Infallible;
    fn owner(&self, number: Sequence, _: Option<Identity>) -> Result<StoredOwner, Infallible> {
        Ok(*self.owners.get(&number).expect("the window holds an owner that is not stored"))
    }
}
