//! Owners: the records that had an identity first.

use crate::dedupe::coordinates::{Coordinates, Sequence};
use crate::dedupe::format::Owner;
use crate::dedupe::identity::{Digest, Identity};

impl From<Owner> for StoredOwner {
    fn from(Owner { at, time_ms, identity, digest }: Owner) -> Self {
        Self { at, time_ms, identity: Some(identity), digest }
    }
}

/// An owner, and when it arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StampedOwner {
    /// The owner.
    pub owner: Owner,
    /// The clock of its window at its arrival: the latest stream time of all its partitions, epoch milliseconds; 0 while unknown. It never
    /// decreases from one owner to the next.
    pub stamp_ms: i64,
}

/// Most owners of a run that is stored at once.
const RUN_OWNERS: usize = 4_096;

/// Visits owners in the runs in which they are stored: none is longer than a part of the window, so that a load knows when its owners arrived.
pub fn for_each_run<E>(
    owners: &[StampedOwner],
    number: Sequence,
    longest_ms: i64,
    mut visit: impl FnMut(&OwnerRun<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let (mut rest, mut number) = (owners, number);
    while let Some(first) = rest.first() {
        let is_near = |owner: &StampedOwner| owner.stamp_ms.saturating_sub(first.stamp_ms) <= longest_ms;
        let count = rest.partition_point(is_near).clamp(1, RUN_OWNERS);
        let count = of_one_rule(rest.get(..count).unwrap_or(rest));
        let (run, after) = rest.split_at(count);
        let stored: Vec<StoredOwner> = run.iter().map(|it| it.owner.into()).collect();
        let times_ms = (first.stamp_ms, run.last().map_or(first.stamp_ms, |last| last.stamp_ms));
        visit(&OwnerRun { number, times_ms, owners: &stored })?;
        (rest, number) = (after, number + count as Sequence);
    }
    Ok(())
}

/// How many of these owners, at least one, have digests of one rule, or none.
fn of_one_rule(owners: &[StampedOwner]) -> usize {
    let mut rule = 0;
    let is_other = |owner: &StampedOwner| {
        let own = owner.owner.digest.rule();
        rule = if rule == 0 { own } else { rule };
        own != 0 && own != rule
    };
    owners.iter().position(is_other).unwrap_or(owners.len()).max(1)
}

/// A committed owner in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredOwner {
    /// The record that had the identity first.
    pub at: Coordinates,
    /// The stream time of its partition at its arrival, epoch milliseconds; 0 while unknown.
    pub time_ms: i64,
    /// The identity, byte for byte; `None` when it was forgotten or undone.
    pub identity: Option<Identity>,
    /// What stands for its content.
    pub digest: Digest,
}

/// Consecutive owners of a window, in the order of their arrival.
#[derive(Debug, Clone, Copy)]
pub struct OwnerRun<'a> {
    /// The number of the first one.
    pub number: Sequence,
    /// The times of the window's clock between which they arrived, epoch milliseconds; 0 while unknown. They never decrease from run to run.
    pub times_ms: (i64, i64),
    /// The owners.
    pub owners: &'a [StoredOwner],
}

impl OwnerRun<'_> {
    /// One past the number of the last one.
    pub fn end(&self) -> Sequence {
        self.number + self.owners.len() as Sequence
    }

    /// The numbers of the owners of an identity, in ascending order.
    pub fn numbers_of(&self, identity: Identity) -> impl Iterator<Item = Sequence> {
        let owners = (self.number..).zip(self.owners);
        owners.filter(move |(_, owner)| owner.identity == Some(identity)).map(|(number, _)| number)
    }
}

/// The committed owners of a window, by their numbers.
pub trait Owners {
    /// Why a look-up failed.
    type Error;
    /// The owner with this number, which the window holds. Where it has the `expected` identity, nothing else is verified.
    fn owner(&self, number: Sequence, expected: Option<Identity>) -> Result<StoredOwner, Self::Error>;
}
