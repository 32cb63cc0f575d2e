//! A complete store of committed owners, shared by the tests of windows.
#![allow(dead_code, missing_docs, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use dedupd::dedupe::{
    Block, BloomPart, Coordinates, Digest, FilterBits, HashKind, Identity, IndexKey, KindId, Offset, Owner,
    Owners, RecordTime, Sequence, StampedOwner, StoredOwner, TimeSource, Verdict, Window, WindowLimits,
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

/// A record of partition 0.
pub fn at(offset: Offset) -> Coordinates {
    Coordinates { partition: 0, offset }
}

/// The time of a record that is not late.
pub fn timed(ms: i64) -> RecordTime {
    RecordTime { own_ms: ms, stream_ms: ms }
}

/// Adds a record as an owner, with a stamp that is not lower than that of the owner before it.
pub fn admit(window: &mut Window, at: Coordinates, time_ms: i64, key: &IndexKey) {
    let last_ms = window.pending().last().map_or(window.latest_ms(), |last| last.stamp_ms);
    let owner = Owner { at, time_ms, identity: key.identity, digest: Digest::NONE };
    window.admit(StampedOwner { owner, stamp_ms: last_ms.max(time_ms) }, key);
}

/// The verdict on a record of partition 0 that is not late.
pub fn verdict(window: &Window, offset: Offset, ms: i64, key: &IndexKey, ledger: &Ledger) -> Verdict {
    window.verdict(at(offset), timed(ms), key, ledger).unwrap()
}

#[derive(Default)]
pub struct Ledger {
    pub owners: BTreeMap<Sequence, StoredOwner>,
    /// Each with the number of its first owner.
    pub blocks: Vec<(Sequence, Vec<u8>)>,
}

impl Ledger {
    /// Commits pending owners, and returns the lowest number whose owner is still needed. The window's clock is the latest stamp.
    pub fn commit(&mut self, window: &mut Window) -> Sequence {
        let mut number = window.next_number();
        let pending: Vec<Owner> = window.pending().iter().map(|pending| pending.owner).collect();
        self.owners.extend((number..).zip(pending.iter().map(|owner| StoredOwner::from(*owner))));
        for owners in pending.chunks(1_000) {
            let block = Block { hash: HashKind::Xxh3, kind: KindId::UNNAMED, owners: owners.to_vec() };
            self.blocks.push((number, block.encode()));
            number += owners.len() as Sequence;
        }
        let latest_ms = window.pending().last().map_or(window.latest_ms(), |last| last.stamp_ms);
        window.set_horizon(latest_ms);
        window.commit()
    }

    /// Removes the owners below a number.
    pub fn expire(&mut self, first: Sequence) {
        self.owners.retain(|number, _| *number >= first);
    }

    /// Restores a window from the blocks that have owners with numbers from this one on.
    pub fn restore(&self, window: &mut Window, from: Sequence) {
        for (number, block) in &self.blocks {
            let owners = Block::decode(block).unwrap().owners;
            if number + owners.len() as Sequence > from {
                window.number_from(*number);
                window.restore(&owners);
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
