//! Whether the raw records that were dropped equal those of their ids that clean holds.
//!
//! Of each id with several raw records, those are sorted by the stream time of their partition. A record that clean does not hold, and
//! that is not lost, is compared with the last one before it that clean holds, at most as far away as an id is kept. If there is none,
//! dedupd may have read a later one of another partition first: then it is compared with that.
//!
//! A forced record within one window of another one is none of these: dedupd keeps the other one as the owner.
//!
//! Clean may hold records that are not expected there, as after a time in which dedupd dropped nothing (`dedupe.mode`). Which of
//! several equal raw records these are is not known. So their number counts: of the raw records of an id with the same key, value and
//! timestamp, as many as clean holds are not dropped. Headers do not count, because shadow mode adds some.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::AddAssign;

use super::digest::Digest;
use super::entry::{Marks, Place, Record};
use super::expected::Rules;
use super::record::Fingerprint;
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

/// What is known of a row, in the order in which those of one content are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Standing(u8);

impl Standing {
    /// A record of clean.
    const IN_CLEAN: Self = Self(0);
    /// A raw record that clean holds.
    const HELD: Self = Self(1);
    /// A raw record that no clean record is assigned to.
    const UNASSIGNED: Self = Self(2);
    /// A raw record that may be the owner for others: it is unknown which record clean holds.
    const UNKNOWN: Self = Self(3);
}

encode_fields!(Standing { 0: u8 });

/// What became of a raw record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// Clean holds it, perhaps with other headers.
    Forwarded,
    /// Clean holds it with another key, value or timestamp.
    Altered,
    /// Clean holds another record of its id that is not in raw.
    OwnerGone,
    /// It is lost, or deleted from clean.
    Missing,
}

/// A record of an id that several raw records have.
#[derive(Debug, Clone, Copy)]
pub(super) struct SameId {
    /// Number of the id.
    id: u64,
    /// The partition in which raw and clean records are matched.
    matched_in: PartitionId,
    /// Stands for what raw and clean have in common, whatever the mode of dedupd.
    common: u64,
    partition: PartitionId,
    offset: Offset,
    /// Stream time at its arrival, epoch milliseconds.
    time_ms: i64,
    digest: Digest,
    marks: Marks,
    standing: Standing,
}

encode_fields!(SameId {
    id: u64,
    matched_in: PartitionId,
    common: u64,
    partition: PartitionId,
    offset: Offset,
    time_ms: i64,
    digest: Digest,
    marks: Marks,
    standing: Standing
});

impl SameId {
    fn new(id: u64, matched_in: PartitionId, record: &Record) -> Self {
        let Record { partition, offset, time_ms, content, digest, marks, is_clean, .. } = *record;
        let (standing, digest) = if is_clean {
            (Standing::IN_CLEAN, Digest::NONE)
        } else if marks.has(Marks::BEFORE) {
            // Clean is not read there.
            (Standing::UNKNOWN, Digest::NONE)
        } else {
            (Standing::UNASSIGNED, digest)
        };
        let common = content.but_headers();
        Self { id, matched_in, common, partition, offset, time_ms, digest, marks, standing }
    }

    /// Whether it may be the owner for others.
    fn is_owner(&self) -> bool {
        self.standing != Standing::UNASSIGNED
    }

    /// The same for records of which clean may hold one or the other.
    fn alike(&self) -> (u64, u64, PartitionId) {
        (self.id, self.common, self.matched_in)
    }

    fn place(&self) -> Place {
        (self.partition, self.offset)
    }

    fn by_place(&self) -> Key {
        (0, self.partition.into(), self.offset)
    }

    fn by_content(&self) -> Key {
        let (id, common, partition) = self.alike();
        let content = (u128::from(id) << u64::BITS) | u128::from(common);
        (content, (u64::from(partition) << u8::BITS) | u64::from(self.standing.0), self.offset)
    }

    fn by_id(&self) -> Key {
        let id = u128::from(self.id) << u64::BITS;
        (id | u128::from(self.time_ms.cast_unsigned() ^ (1 << 63)), self.partition.into(), self.offset)
    }
}

/// Collects the records of ids that several raw records have. They are passed by id, those of raw first.
#[derive(Debug)]
pub(super) struct Repeated {
    raw: Sorter<SameId>,
    clean: Sorter<SameId>,
    /// Number of the last id.
    id: u64,
    /// The last id that several raw records have.
    several: Option<Fingerprint>,
    /// Whether the last raw record has the same id as the next one.
    is_open: bool,
}

impl Repeated {
    pub fn new(scratch: &Scratch) -> Self {
        let raw = Sorter::new(scratch, 2, SameId::by_place);
        let clean = Sorter::new(scratch, 2, SameId::by_content);
        Self { raw, clean, id: 0, several: None, is_open: false }
    }

    /// Passes a raw record, and the one after it.
    pub fn add(&mut self, record: &Record, matched_in: PartitionId, next: Option<Record>) -> io::Result<()> {
        let is_followed = next.is_some_and(|next| next.is_raw_of(record.fingerprint));
        self.id += u64::from(!self.is_open);
        if record.marks.has(Marks::ID) && (self.is_open || is_followed) {
            self.several = Some(record.fingerprint);
            self.raw.push(SameId::new(self.id, matched_in, record))?;
        }
        self.is_open = is_followed;
        Ok(())
    }

    /// Passes a clean record.
    pub fn add_clean(&mut self, record: &Record, matched_in: PartitionId) -> io::Result<()> {
        if self.several != Some(record.fingerprint) {
            return Ok(());
        }
        self.clean.push(SameId::new(self.id, matched_in, record))
    }

    /// Adds the only raw record of an id, which is dropped.
    pub fn add_only(&mut self, record: &Record) -> io::Result<()> {
        self.id += 1;
        self.raw.push(SameId::new(self.id, record.partition, record))
    }

    pub fn sorted(self) -> io::Result<SameIds> {
        Ok(SameIds { by_place: self.raw.sorted()?, by_content: self.clean })
    }
}

/// The records of ids that several raw records have, while it is found out what became of each.
#[derive(Debug)]
pub(super) struct SameIds {
    by_place: Sorted<SameId>,
    by_content: Sorter<SameId>,
}

impl SameIds {
    /// Passes a raw record that was not dropped, by place. No clean record is assigned to those before it.
    pub fn pass(&mut self, place: Place, fate: Fate) -> io::Result<()> {
        self.pass_unassigned(place)?;
        let Some(record) = self.by_place.next_if(|record| record.place() == place)? else { return Ok(()) };
        self.by_content.push(match fate {
            Fate::Forwarded => SameId { standing: Standing::HELD, ..record },
            Fate::Altered => SameId { standing: Standing::UNKNOWN, ..record },
            Fate::OwnerGone => SameId { standing: Standing::UNKNOWN, digest: Digest::NONE, ..record },
            Fate::Missing => return Ok(()),
        })
    }

    fn pass_unassigned(&mut self, end: Place) -> io::Result<()> {
        while let Some(record) = self.by_place.next_if(|record| record.place() < end)? {
            if record.is_owner() || record.marks.has(Marks::DUE) {
                self.by_content.push(record)?;
            }
        }
        Ok(())
    }

    /// The raw records by id, once all places are passed. Those that clean holds are known.
    fn by_id(mut self, scratch: &Scratch) -> io::Result<Sorted<SameId>> {
        self.pass_unassigned((PartitionId::MAX, Offset::MAX))?;
        let Self { by_place, by_content } = self;
        drop(by_place);
        let (mut by_content, mut by_id) = (by_content.sorted()?, Sorter::new(scratch, 2, SameId::by_id));
        // The clean records of a content that no raw record is known for.
        let (mut alike, mut more) = (None, 0_u64);
        while let Some(mut record) = by_content.next()? {
            if alike.replace(record.alike()) != Some(record.alike()) {
                more = 0;
            }
            match record.standing {
                Standing::IN_CLEAN => {
                    more += 1;
                    continue;
                }
                Standing::HELD => more = more.saturating_sub(1),
                Standing::UNASSIGNED if more > 0 => {
                    more -= 1;
                    record.standing = Standing::HELD;
                }
                _ => {}
            }
            by_id.push(record)?;
        }
        by_id.sorted()
    }

    /// Compares, once all places are passed. `kept_ms`: how long an id is kept at most; `None` is forever.
    pub fn compare(
        self,
        scratch: &Scratch,
        rules: &Rules,
        kept_ms: Option<i64>,
    ) -> io::Result<BTreeMap<PartitionId, DroppedOf>> {
        let mut records = self.by_id(scratch)?;
        let mut pairing = Pairing { kept_ms, owner: None, dropped: BTreeMap::new() };
        while let Some(SameId { id, .. }) = records.peek() {
            pairing.owner = None;
            let mut waiting = Table::new(scratch);
            while let Some(record) = records.next_if(|record| record.id == id)? {
                if record.is_owner() {
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
