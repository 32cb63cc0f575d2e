//! Whether the raw records that were dropped equal those of their ids that clean holds.
//!
//! Of each id with several raw records, those are sorted by the stream time of their partition. A record that clean does not hold, and
//! that is not lost, is compared with the last one before it that clean holds, at most as far away as an id is kept. If there is none,
//! dedupd may have read a later one of another partition first: then it is compared with that.
//!
//! A forced record within one window of another one is none of these: dedupd keeps the other one as the owner.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::AddAssign;

use super::digest::Digest;
use super::entry::{Marks, Place, Record};
use super::expected::Rules;
use super::spill::{Key, Scratch, Sorted, Sorter, Table, encode_fields};
use super::{Offset, PartitionId};

/// How many pairs that are not equal are reported with their coordinates.
pub(super) const PAIRS: usize = 5;

/// Raw records in the range that are not in clean because another one has their id.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DroppedCounts {
    /// They equal the one that clean holds.
    pub equal: u64,
    /// They differ from it.
    pub unequal: u64,
    /// That one is not in raw or not in the range, or one of both lacks what is compared.
    pub not_compared: u64,
}

impl DroppedCounts {
    /// All dropped records.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.equal + self.unequal + self.not_compared
    }
}

impl AddAssign for DroppedCounts {
    fn add_assign(&mut self, other: Self) {
        self.equal += other.equal;
        self.unequal += other.unequal;
        self.not_compared += other.not_compared;
    }
}

/// A dropped raw record and the one that clean holds, which differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnequalPair {
    /// Partition of the dropped record; where several raw topics are compared, its number in [`Report::logs`](crate::Report::logs).
    pub partition: PartitionId,
    /// Offset of the dropped record.
    pub offset: Offset,
    /// Partition of the other one.
    pub owner_partition: PartitionId,
    /// Offset of the other one.
    pub owner_offset: Offset,
}

/// What is known of the dropped records of a partition.
#[derive(Debug, Default)]
pub(super) struct DroppedOf {
    pub counts: DroppedCounts,
    /// The first ones by place.
    pub pairs: BTreeSet<UnequalPair>,
}

/// What became of a raw record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// Clean holds it.
    Forwarded,
    /// Clean holds another record of its id that is not in raw.
    OwnerGone,
    /// It is lost, or deleted from clean.
    Missing,
}

/// A raw record of an id that several raw records have.
#[derive(Debug, Clone, Copy)]
pub(super) struct SameId {
    /// Number of the id.
    id: u64,
    partition: PartitionId,
    offset: Offset,
    /// Stream time at its arrival, epoch milliseconds.
    time_ms: i64,
    digest: Digest,
    marks: Marks,
    /// Whether it may be the owner for others: clean holds it, or it is unknown which record clean holds.
    is_owner: bool,
}

encode_fields!(SameId {
    id: u64,
    partition: PartitionId,
    offset: Offset,
    time_ms: i64,
    digest: Digest,
    marks: Marks,
    is_owner: bool
});

impl SameId {
    fn new(id: u64, record: &Record) -> Self {
        let Record { partition, offset, time_ms, digest, marks, .. } = *record;
        // Clean is not read there.
        let is_owner = marks.has(Marks::BEFORE);
        let digest = if is_owner { Digest::NONE } else { digest };
        Self { id, partition, offset, time_ms, digest, marks, is_owner }
    }

    fn place(&self) -> Place {
        (self.partition, self.offset)
    }

    fn by_place(&self) -> Key {
        (0, self.partition.into(), self.offset)
    }

    fn by_id(&self) -> Key {
        let id = u128::from(self.id) << u64::BITS;
        (id | u128::from(self.time_ms.cast_unsigned() ^ (1 << 63)), self.partition.into(), self.offset)
    }
}

/// Collects the raw records of ids that several have. They are passed by id.
#[derive(Debug)]
pub(super) struct Repeated {
    sorter: Sorter<SameId>,
    id: u64,
    /// Whether the last record has the same id as the next one.
    is_open: bool,
}

impl Repeated {
    pub fn new(scratch: &Scratch) -> Self {
        Self { sorter: Sorter::new(scratch, 2, SameId::by_place), id: 0, is_open: false }
    }

    /// Passes a raw record, and the one after it.
    pub fn add(&mut self, record: &Record, next: Option<Record>) -> io::Result<()> {
        let is_followed = next.is_some_and(|next| next.is_raw_of(record.fingerprint));
        if record.marks.has(Marks::ID) && (self.is_open || is_followed) {
            self.sorter.push(SameId::new(self.id, record))?;
        }
        self.is_open = is_followed;
        self.id += u64::from(!is_followed);
        Ok(())
    }

    /// Adds the only raw record of an id, which is dropped.
    pub fn add_only(&mut self, record: &Record) -> io::Result<()> {
        self.sorter.push(SameId::new(self.id, record))?;
        self.id += 1;
        Ok(())
    }

    pub fn sorted(self, scratch: &Scratch) -> io::Result<SameIds> {
        Ok(SameIds { by_place: self.sorter.sorted()?, by_id: Sorter::new(scratch, 2, SameId::by_id) })
    }
}

/// The raw records of ids that several have, while it is found out what became of each.
#[derive(Debug)]
pub(super) struct SameIds {
    by_place: Sorted<SameId>,
    by_id: Sorter<SameId>,
}

impl SameIds {
    /// Passes a record that was not dropped, by place. Those before it were.
    pub fn pass(&mut self, place: Place, fate: Fate) -> io::Result<()> {
        self.pass_dropped(place)?;
        let Some(record) = self.by_place.next_if(|record| record.place() == place)? else { return Ok(()) };
        match fate {
            Fate::Forwarded => self.by_id.push(SameId { is_owner: true, ..record }),
            Fate::OwnerGone => self.by_id.push(SameId { is_owner: true, digest: Digest::NONE, ..record }),
            Fate::Missing => Ok(()),
        }
    }

    fn pass_dropped(&mut self, end: Place) -> io::Result<()> {
        while let Some(record) = self.by_place.next_if(|record| record.place() < end)? {
            if record.is_owner || record.marks.has(Marks::DUE) {
                self.by_id.push(record)?;
            }
        }
        Ok(())
    }

    /// Compares, once all places are passed. `kept_ms`: how long an id is kept at most; `None` is forever.
    pub fn compare(
        mut self,
        scratch: &Scratch,
        rules: &Rules,
        kept_ms: Option<i64>,
    ) -> io::Result<BTreeMap<PartitionId, DroppedOf>> {
        self.pass_dropped((PartitionId::MAX, Offset::MAX))?;
        let mut records = self.by_id.sorted()?;
        let mut pairing = Pairing { kept_ms, owner: None, dropped: BTreeMap::new() };
        while let Some(SameId { id, .. }) = records.peek() {
            pairing.owner = None;
            let mut waiting = Table::new(scratch);
            while let Some(record) = records.next_if(|record| record.id == id)? {
                if record.is_owner {
                    pairing.settle(&mut waiting, Some(record))?;
                    waiting = Table::new(scratch);
                    pairing.own(record, rules);
                } else if pairing.owner.is_some_and(|owner| pairing.reaches(&owner, &record)) {
                    pairing.count(&record, pairing.owner);
                } else {
                    waiting.push(record)?;
                }
            }
            pairing.settle(&mut waiting, None)?;
        }
        Ok(pairing.dropped)
    }
}

/// Finds the owner of each dropped record of an id.
struct Pairing {
    kept_ms: Option<i64>,
    /// The last one.
    owner: Option<SameId>,
    dropped: BTreeMap<PartitionId, DroppedOf>,
}

impl Pairing {
    fn own(&mut self, record: SameId, rules: &Rules) {
        let is_near = |owner: SameId| rules.within_window(owner.time_ms, record.time_ms);
        if !(record.marks.has(Marks::FORCED) && self.owner.is_some_and(is_near)) {
            self.owner = Some(record);
        }
    }

    /// Whether a record may have been dropped for one that was processed before it, by the stream times of both.
    fn reaches(&self, earlier: &SameId, later: &SameId) -> bool {
        self.kept_ms.is_none_or(|kept_ms| later.time_ms.saturating_sub(earlier.time_ms) <= kept_ms)
    }

    /// Counts records that the last owner does not reach; `next` is the owner after them.
    fn settle(&mut self, waiting: &mut Table<SameId>, next: Option<SameId>) -> io::Result<()> {
        for row in 0..waiting.len() {
            let Some(record) = waiting.get(row)? else { break };
            let next = next.filter(|next| next.partition != record.partition && self.reaches(&record, next));
            self.count(&record, next.or(self.owner));
        }
        Ok(())
    }

    fn count(&mut self, record: &SameId, owner: Option<SameId>) {
        let DroppedOf { counts, pairs } = self.dropped.entry(record.partition).or_default();
        match owner.and_then(|owner| owner.digest.is_equal(record.digest).map(|equal| (owner, equal))) {
            None => counts.not_compared += 1,
            Some((_, true)) => counts.equal += 1,
            Some((owner, false)) => {
                counts.unequal += 1;
                let SameId { partition, offset, .. } = *record;
                let (owner_partition, owner_offset) = owner.place();
                pairs.insert(UnequalPair { partition, offset, owner_partition, owner_offset });
                if pairs.len() > PAIRS {
                    pairs.pop_last();
                }
            }
        }
    }
}
