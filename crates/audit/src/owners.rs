//! Topic scope: whether the clean records of an id explain each other, and the raw records that clean does not hold.
//!
//! A record has a time of its own and an arrival: its timestamp, if that is valid and not later, and the stream time of its partition.
//! dedupd drops a record if it has processed one with the same id, in any partition, and the times of one are at most the window from those
//! of the other. It reads partitions in any order, so which of several copies wins is not determined. Hence three rules for the raw
//! records of one id:
//!
//! - Two of them whose arrivals are within one window of each other are not both in clean, unless one is forced.
//! - If only their own times are, one of them is late. dedupd may have dropped the id of the other one by then, by a clock that the topics
//!   do not show; and it knows a late owner by its arrival only. If both are in clean, that is counted apart.
//! - One that is not in clean is explained by one that is, in any partition, before or after it. That one must be at most
//!   [`TopicRules::kept_ms`] away. A later one in its own partition explains it, too, if another partition has the id: the record
//!   may have been dropped as a copy of one there, whose transaction was torn and undone before the later one was read. If there
//!   is none, the record is lost. It then explains the records that it would have made duplicates, so that a lost id is one
//!   finding.
//!
//! What these rules cannot decide: dedupd may keep an id for longer than the window (1/256, and 1/32 for the span of a block).
//! Of two records whose distance is between the window and `kept_ms`, the later may be in clean or not. The topics do not show
//! when dedupd processed a record, so they do not show by how much its clock limited the stream time: a timestamp in the future
//! moves the audit's stream time too far. The last rule therefore takes the least distance that is possible: for each record,
//! the stream time is between its timestamp and the audit's stream time. After such a timestamp, and for records with old
//! timestamps, a lost record can be explained by a clean record that is further away.

use std::collections::BTreeMap;
use std::io;

use super::entry::{Copy, Marks, Record};
use super::expected::Rules;
use super::findings::{Findings, Kind, Step};
use super::record::{Differing, Fingerprint};
use super::spill::{Key, Scratch, Sorter, Table, encode_fields};
use super::{Offset, PartitionId};

/// What topic scope needs beyond [`Rules`].
#[derive(Debug, Clone, Copy)]
pub(super) struct TopicRules {
    /// The longest time that an id may be kept, ms of stream time; `None` is forever.
    pub kept_ms: Option<i64>,
    /// Whether a clean record whose raw record is missing may explain others.
    pub allows_gone: bool,
    /// Whether `rekey` is between raw and clean. The stream time of its target topic depends on the order in which it read the
    /// sources, so a copy may have been dropped at any distance from its owner.
    pub is_rekeyed: bool,
}

impl TopicRules {
    /// The earliest stream time at which a record can be of use to one that is later by at most the longest time.
    fn earliest(self, time_ms: i64) -> i64 {
        let kept_ms = self.kept_ms.filter(|_| !self.is_rekeyed);
        kept_ms.map_or(i64::MIN, |kept_ms| time_ms.saturating_sub(kept_ms))
    }

    /// Whether an owner of this stream time may explain a later record of the same partition with this timestamp.
    fn explains(self, owner_ms: i64, timestamp_ms: i64) -> bool {
        self.earliest(timestamp_ms) <= owner_ms
    }
}

/// A raw record of an id with several: one that clean holds (an owner), or one that has to be explained.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    /// The first row of the id in the chains.
    group: u64,
    is_owner: bool,
    /// From this stream time on an owner explains others; the stream time of others.
    at_ms: i64,
    /// The stream time of an owner; the earliest one of an owner that explains this record.
    reach_ms: i64,
    record: Record,
}

encode_fields!(Claim { group: u64, is_owner: bool, at_ms: i64, reach_ms: i64, record: Record });

impl Claim {
    /// An owner whose raw record was deleted: its stream time is unknown, so it may explain all records.
    pub fn anywhere(group: u64, fingerprint: Fingerprint) -> Self {
        let record = Record { partition: PartitionId::MAX, ..Record::unknown(fingerprint) };
        Self { group, is_owner: true, at_ms: i64::MIN, reach_ms: i64::MAX, record }
    }

    fn wanted(rules: &TopicRules, group: u64, record: Record) -> Self {
        // No other record explains the absence of a due one.
        let reach_ms = if record.marks.has(Marks::DUE) {
            i64::MAX
        } else {
            rules.earliest(record.content.timestamp_ms().min(record.time_ms))
        };
        Self { group, is_owner: false, at_ms: record.time_ms, reach_ms, record }
    }

    /// Sorts by id, then by time, owners first, then by place.
    pub fn by_time(&self) -> Key {
        let side = u64::from(!self.is_owner) << PartitionId::BITS;
        (by_id(self.group, self.at_ms), side | u64::from(self.record.partition), self.record.offset)
    }
}

/// A raw record that clean holds. If later ones of its partition are equal and clean does not hold them, it may be one of those.
#[derive(Debug, Clone, Copy)]
struct Forwarded {
    group: u64,
    record: Record,
    /// Stream time of the last record that it may be, epoch milliseconds.
    latest_ms: i64,
    clean: Clean,
    in_order: bool,
}

encode_fields!(Forwarded { group: u64, record: Record, latest_ms: i64, clean: Clean, in_order: bool });

/// The place of a clean record.
#[derive(Debug, Clone, Copy)]
struct Clean {
    partition: PartitionId,
    offset: Offset,
}

encode_fields!(Clean { partition: PartitionId, offset: Offset });

impl Forwarded {
    fn by_time(&self) -> Key {
        (by_id(self.group, self.record.time_ms), self.record.partition.into(), self.record.offset)
    }

    /// Whether it is certainly within one window of a later one.
    fn is_near(&self, later: &Self, rules: &Rules, topic: &TopicRules) -> bool {
        let stamps = [self, later].map(|it| it.record.content.timestamp_ms());
        rules.within_window(self.record.time_ms, later.latest_ms)
            && rules.within_window(later.record.time_ms, self.latest_ms)
            // Behind `rekey`, other records of the source did not move the stream time of the target partition.
            && (!topic.is_rekeyed
                || rules.within_window(stamps[0], stamps[1]) && rules.within_window(stamps[1], stamps[0]))
    }

    /// Whether it may be within one window of a later one by the time of that of its own.
    fn is_near_own_time(&self, later: &Self, rules: &Rules) -> bool {
        rules.within_window(self.latest_ms, later.record.own_ms())
    }

    fn owner(&self, rules: &TopicRules) -> Claim {
        let at_ms = rules.earliest(self.record.content.timestamp_ms().min(self.record.time_ms));
        Claim { group: self.group, is_owner: true, at_ms, reach_ms: self.latest_ms, record: self.record }
    }
}

/// A key that sorts by id, then by time.
fn by_id(group: u64, time_ms: i64) -> u128 {
    (u128::from(group) << u64::BITS) | u128::from(time_ms.cast_unsigned() ^ (1 << 63))
}

/// A clean record of a record in the chains.
#[derive(Debug, Clone, Copy)]
struct Held {
    row: u64,
    clean: Clean,
    in_order: bool,
    /// Whether it may be of a raw record that was deleted.
    may_be_gone: bool,
}

encode_fields!(Held { row: u64, clean: Clean, in_order: bool, may_be_gone: bool });

impl Held {
    /// Sorts by row; of several copies, the one in order comes first.
    fn by_row(&self) -> Key {
        let side = u64::from(!self.in_order) << PartitionId::BITS;
        (self.row.into(), side | u64::from(self.clean.partition), self.clean.offset)
    }
}

/// The findings of each partition.
pub(super) type FindingsOf = BTreeMap<PartitionId, Findings>;

/// The check of the ids that have several raw records.
pub(super) struct Owners<'a> {
    pub scratch: &'a Scratch,
    pub rules: &'a Rules,
    pub topic: &'a TopicRules,
    pub claims: Sorter<Claim>,
    /// Lost records are added to it, as due.
    pub unseen: &'a mut Sorter<Record>,
    pub findings: &'a mut FindingsOf,
}

impl Owners<'_> {
    /// Checks all ids. `chains` are their raw records, and `copies` the clean records that have a raw record.
    pub fn check(mut self, chains: &mut Table<Record>, copies: &mut Table<Copy>) -> io::Result<()> {
        let mut held = Sorter::new(self.scratch, 2, Held::by_row);
        for number in 0..copies.len() {
            let Some(copy) = copies.get(number)? else { break };
            if copy.marks.has(Marks::REPEAT) {
                let (partition, offset) = copy.clean_place();
                let clean = Clean { partition, offset };
                let may_be_gone = self.topic.allows_gone && !copy.fields.is_at_most_headers();
                held.push(Held { row: copy.row, clean, in_order: copy.in_order, may_be_gone })?;
            }
        }
        let forwarded = self.claim(chains, held)?;
        self.duplicates(forwarded)?;
        self.losses()
    }

    /// Reads the raw records id by id, and adds their claims. Returns those that clean holds in order.
    fn claim(&mut self, chains: &mut Table<Record>, held: Sorter<Held>) -> io::Result<Sorter<Forwarded>> {
        let mut held = held.sorted()?;
        let mut forwarded = Sorter::new(self.scratch, 2, Forwarded::by_time);
        let (mut group, mut fingerprint) = (0, None);
        let mut last: Option<Forwarded> = None;
        for row in 0..chains.len() {
            let Some(record) = chains.get(row)? else { break };
            if fingerprint != Some(record.fingerprint) {
                (group, fingerprint) = (row, Some(record.fingerprint));
            }
            let kept = held.next_if(|held| held.row == row)?;
            // Further copies of one raw record are duplicates whatever the other records are.
            let mut may_be_gone = kept.is_some_and(|held| held.may_be_gone);
            while let Some(other) = held.next_if(|held| held.row == row)? {
                may_be_gone |= other.may_be_gone;
            }
            if may_be_gone {
                self.claims.push(Claim::anywhere(group, record.fingerprint))?;
            }
            let here =
                last.as_mut().filter(|last| (last.group, last.record.partition) == (group, record.partition));
            if let Some(Held { clean, in_order, .. }) = kept {
                let next = Forwarded { group, record, latest_ms: record.time_ms, clean, in_order };
                self.forward(last.replace(next), &mut forwarded)?;
                continue;
            }
            let timestamp_ms = record.content.timestamp_ms();
            let is_explained =
                here.as_ref().is_some_and(|last| self.topic.explains(last.record.time_ms, timestamp_ms));
            if let Some(here) = here.filter(|here| here.record.content == record.content) {
                here.latest_ms = record.time_ms;
            }
            if record.marks.has(Marks::WANTED) && !is_explained {
                self.claims.push(Claim::wanted(self.topic, group, record))?;
            }
        }
        self.forward(last, &mut forwarded)?;
        Ok(forwarded)
    }

    fn forward(&mut self, owner: Option<Forwarded>, to: &mut Sorter<Forwarded>) -> io::Result<()> {
        let Some(owner) = owner else { return Ok(()) };
        self.claims.push(owner.owner(self.topic))?;
        if owner.in_order { to.push(owner) } else { Ok(()) }
    }

    /// Finds records within one window of another that clean also holds.
    fn duplicates(&mut self, forwarded: Sorter<Forwarded>) -> io::Result<()> {
        let mut forwarded = forwarded.sorted()?;
        while let Some(Forwarded { group, .. }) = forwarded.peek() {
            let mut owner: Option<Forwarded> = None;
            // A forced record without an earlier owner is one for its partition: in another, a record may be processed first.
            let mut forced: Option<Forwarded> = None;
            while let Some(next) = forwarded.next_if(|next| next.group == group)? {
                let may_know =
                    |then: Forwarded| self.topic.explains(then.record.time_ms, next.record.time_ms);
                let is_here = |then: Forwarded| {
                    !self.topic.is_rekeyed && then.record.partition == next.record.partition
                };
                let is_near = |then: Forwarded| then.is_near(&next, self.rules, self.topic);
                if next.record.marks.has(Marks::FORCED) {
                    if !owner.is_some_and(may_know) && !forced.is_some_and(may_know) {
                        forced = Some(next);
                    }
                } else if owner.is_some_and(is_near)
                    || forced.is_some_and(|then| is_here(then) && is_near(then))
                {
                    self.duplicate(&next);
                } else {
                    let is_late = |then: Forwarded| then.is_near_own_time(&next, self.rules);
                    if !self.topic.is_rekeyed && owner.is_some_and(is_late) {
                        self.late_or_twice(&next);
                    }
                    owner = Some(next);
                }
            }
        }
        Ok(())
    }

    fn duplicate(&mut self, found: &Forwarded) {
        let Record { partition, offset, .. } = found.record;
        if let Some(findings) = self.findings.get_mut(&partition) {
            let Clean { partition, offset: clean } = found.clean;
            let (key, place) = ((Step::Repeats, offset, clean), (partition, clean));
            findings.add(key, Kind::Duplicated, Some(offset), Some(place), Differing::default());
        }
    }

    fn late_or_twice(&mut self, found: &Forwarded) {
        if let Some(findings) = self.findings.get_mut(&found.record.partition) {
            findings.late_or_twice += 1;
        }
    }

    /// Finds records that no owner explains.
    fn losses(self) -> io::Result<()> {
        let mut claims = self.claims.sorted()?;
        while let Some(Claim { group, .. }) = claims.peek() {
            // The latest stream time of an owner or a lost record.
            let mut latest_ms = None;
            while let Some(claim) = claims.next_if(|claim| claim.group == group)? {
                let Record { time_ms, marks, .. } = claim.record;
                if claim.is_owner {
                    latest_ms = latest_ms.max(Some(claim.reach_ms));
                } else if latest_ms.is_none_or(|ms| ms < claim.reach_ms) {
                    latest_ms = latest_ms.max(Some(time_ms));
                    self.unseen.push(Record { marks: marks.with(Marks::DUE, true), ..claim.record })?;
                }
            }
        }
        Ok(())
    }
}
