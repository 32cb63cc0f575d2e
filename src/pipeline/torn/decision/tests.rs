//! All combinations of markers, of partitions and of torn repairs; and what follows where something was deleted.

use std::collections::BTreeSet;

use super::*;
use crate::dedupe::{Block, Coordinates, Digest, HashKind, Identity, KindId, Owner, StateKey};
use crate::ports::StateItem;

mod deleted;

/// The raw offset up to which the transaction before the one under test committed, and that up to which the latter did.
const BEFORE: Offset = 10;
const AFTER: Offset = 20;
/// One past the last clean offset of the two.
const CLEAN_BEFORE: Offset = 100;
const CLEAN_AFTER: Offset = 110;

fn block(partition: PartitionId, first: Offset, next: Offset) -> Vec<u8> {
    let owner = |offset: Offset| Owner {
        at: Coordinates { partition, offset },
        time_ms: 1_000 + offset.cast_signed(),
        identity: Identity(u128::from(offset).to_le_bytes()),
        digest: Digest::NONE,
    };
    let owners = (first..next).map(owner).collect();
    Block { hash: HashKind::Xxh3, kind: KindId::UNNAMED, owners }.encode()
}

fn section(partition: PartitionId, first: Offset, next: Offset, clean_end: Option<Offset>) -> Section {
    let (time_first_ms, time_last_ms) = (1_000 + first.cast_signed(), 1_000 + next.cast_signed());
    Section { partition, first, next, clean_end, time_first_ms, time_last_ms, reset_kinds: Vec::new() }
}

/// What the logs of a transaction show.
#[derive(Debug, Clone)]
struct Visible {
    entry: bool,
    offsets: bool,
    /// For each partition of the transaction.
    clean: Vec<CleanVisibility>,
}

/// The journal, the group's offsets and the clean logs of some partitions.
#[derive(Debug, Clone, Default)]
struct Logs {
    /// The records, each with whether it is committed. Their offsets are their places.
    journal: Vec<(StateItem, bool)>,
    positions: BTreeMap<PartitionId, Position>,
    clean: BTreeMap<(PartitionId, Offset), CleanVisibility>,
    low: Offset,
}

impl Logs {
    /// A transaction of all partitions is committed, and another one shows in some logs.
    fn with(shown: &Visible) -> Self {
        let mut logs = Self::default();
        let all = CleanVisibility::Yes;
        let before = Visible { entry: true, offsets: true, clean: vec![all; shown.clean.len()] };
        logs.transact(1, 0, BEFORE, CLEAN_BEFORE, &before);
        logs.transact(2, BEFORE, AFTER, CLEAN_AFTER, shown);
        logs
    }

    fn transact(&mut self, number: u64, first: Offset, next: Offset, end: Offset, shown: &Visible) {
        let of = |(partition, clean): (PartitionId, &CleanVisibility)| {
            let clean_end = (*clean != CleanVisibility::Unknowable).then_some(end);
            section(partition, first, next, clean_end)
        };
        let sections: Vec<Section> = (0..).zip(&shown.clean).map(of).collect();
        for (section, clean) in sections.iter().zip(&shown.clean) {
            section.clean_end.map(|end| self.clean.insert((section.partition, end), *clean));
        }
        let records = sections.iter().map(|it| block(it.partition, first, next)).collect();
        self.add(records, number, sections, shown);
    }

    fn add(&mut self, records: Vec<Vec<u8>>, number: u64, sections: Vec<Section>, shown: &Visible) {
        let end = EntryEnd::of(number, records.iter().map(|record| &**record), sections);
        let from = self.append(records, &end, shown.entry);
        if shown.offsets {
            self.commit(&end, from);
        }
    }

    /// Adds an entry, and returns the offset of its first record.
    fn append(&mut self, records: Vec<Vec<u8>>, end: &EntryEnd, is_shown: bool) -> Offset {
        let from = self.journal.len() as Offset;
        for block in records.into_iter().chain([end.encode()]) {
            let key = Some(StateKey { writer: "w".to_owned(), ..StateKey::default() });
            let offset = self.journal.len() as Offset;
            self.journal.push((StateItem::Record { partition: 0, offset, key, value: block }, is_shown));
        }
        from
    }

    fn commit(&mut self, end: &EntryEnd, from: Offset) {
        for section in &end.sections {
            let last_entry = Some(LastEntry { entry: end.name(), from: Some(from) });
            let writer = "w".to_owned();
            let checkpoint =
                Some(Checkpoint { last_entry, state_next: from, writer, ..Checkpoint::default() });
            self.positions.insert(section.partition, Position { committed: Some(section.next), checkpoint });
        }
    }

    fn entries(&self) -> LastEntries {
        let committed = (0..).zip(&self.journal).filter(|(_, (_, is_shown))| *is_shown).map(|(at, _)| at);
        let items = self.journal.iter().map(|(item, _)| item.clone());
        let kept = items.skip(usize::try_from(self.low).unwrap());
        LastEntries::new(kept.collect(), &committed.collect::<BTreeSet<Offset>>())
    }

    fn decide(&self) -> TornDecision {
        decide(&Evidence {
            positions: &self.positions,
            journal_low: self.low,
            entries: &self.entries(),
            clean: &self.clean,
            newest_only: true,
        })
    }

    /// Carries out a repair, of which only some logs show the markers.
    fn repair(&mut self, repair: &Repair, [entry, offsets]: [bool; 2]) {
        let mut from = self.journal.len() as Offset;
        if let Some(records) = &repair.writes {
            let records = records.iter().map(|record| record.bytes.clone()).collect();
            from = self.append(records, &repair.end, entry);
        }
        if offsets {
            self.commit(&repair.end, from);
        }
    }

    /// The owners of a partition that a restore finds.
    fn restored(&self, partition: PartitionId) -> BTreeSet<Offset> {
        let mut owners = BTreeSet::new();
        for entry in self.entries().shown {
            let Some(section) = entry.end.section(partition) else { continue };
            owners.retain(|owner| *owner < section.first);
            let blocks = entry.records.iter().map(|record| Block::decode(&record.bytes).unwrap());
            let counted = blocks.flat_map(|block| block.owners).filter(|owner| section.has(owner.at));
            owners.extend(counted.map(|owner| owner.at.offset));
        }
        owners
    }

    fn numbers(&self) -> Vec<u64> {
        self.entries().shown.iter().map(|entry| entry.end.number).collect()
    }
}

/// Repairs until the logs agree, with each combination of markers for the first `torn` repairs, and compares with the raw offset up to which each partition
/// is committed in the end. Returns the number of ends.
fn settle(logs: &Logs, torn: u32, expected: &[Offset], shown: &Visible) -> usize {
    let repair = match logs.decide() {
        TornDecision::Repair(repair) => repair,
        TornDecision::Agreed => {
            for (partition, next) in (0..).zip(expected) {
                let position = &logs.positions[&partition];
                assert_eq!(position.committed, Some(*next), "{shown:?}: offset of {partition}: {logs:#?}");
                let owners = (0..*next).collect::<BTreeSet<Offset>>();
                assert_eq!(logs.restored(partition), owners, "{shown:?}: owners of {partition}: {logs:#?}");
            }
            let numbers = logs.numbers();
            assert!(numbers.windows(2).all(|two| two[0] + 1 == two[1]), "{shown:?}: entries {numbers:?}");
            return 1;
        }
        other => panic!("{shown:?}: {other:?}"),
    };
    let all = [[true, true], [true, false], [false, true], [false, false]];
    let markers = if torn > 0 { &all[..] } else { &all[..1] };
    let ends = markers.iter().map(|markers| {
        let mut logs = logs.clone();
        logs.repair(&repair, *markers);
        settle(&logs, torn.saturating_sub(1), expected, shown)
    });
    ends.sum()
}

/// All combinations of what the clean logs of these partitions show.
fn combinations(of: &[CleanVisibility], partitions: u32) -> Vec<Vec<CleanVisibility>> {
    (0..partitions).fold(vec![Vec::new()], |all, _| {
        all.iter().flat_map(|some| of.iter().map(|one| [&**some, &[*one]].concat())).collect()
    })
}

#[test]
fn every_combination_of_markers_is_repaired_whatever_becomes_of_the_repairs() {
    // `Unknowable`: the transaction wrote no clean record in that partition.
    let clean = [CleanVisibility::Yes, CleanVisibility::No, CleanVisibility::Unknowable];
    let mut ends = 0;
    for partitions in 1..=3 {
        for clean in combinations(&clean, partitions) {
            for (entry, offsets) in [(true, true), (true, false), (false, true), (false, false)] {
                let shown = Visible { entry, offsets, clean: clean.clone() };
                let is_committed = entry || offsets || clean.contains(&CleanVisibility::Yes);
                let next = |clean: &CleanVisibility| {
                    if is_committed && *clean != CleanVisibility::No { AFTER } else { BEFORE }
                };
                let expected: Vec<Offset> = clean.iter().map(next).collect();
                ends += settle(&Logs::with(&shown), 3, &expected, &shown);
            }
        }
    }
    assert!(ends > 3_000, "{ends} ends");
}

#[test]
fn a_transaction_of_some_partitions_leaves_the_others_where_they_are() {
    for rewinds in [false, true] {
        let clean = if rewinds { CleanVisibility::No } else { CleanVisibility::Yes };
        let mut logs =
            Logs::with(&Visible { entry: true, offsets: true, clean: vec![CleanVisibility::Yes; 3] });
        logs.clean.insert((1, 120), clean);
        let shown = Visible { entry: true, offsets: false, clean: vec![clean] };
        logs.add(vec![block(1, AFTER, 30)], 3, vec![section(1, AFTER, 30, Some(120))], &shown);
        let expected = [AFTER, if rewinds { AFTER } else { 30 }, AFTER];
        settle(&logs, 2, &expected, &shown);
    }
}

#[test]
fn only_the_checkpoint_with_the_last_entry_decides() {
    // Partition 0 has no part in the second transaction. Its checkpoint names the first.
    let mut logs = Logs::with(&Visible { entry: true, offsets: true, clean: vec![CleanVisibility::Yes; 2] });
    logs.clean.insert((1, 120), CleanVisibility::Yes);
    let shown = Visible { entry: false, offsets: true, clean: vec![CleanVisibility::Yes] };
    logs.add(vec![block(1, AFTER, 30)], 3, vec![section(1, AFTER, 30, None)], &shown);
    settle(&logs, 2, &[AFTER, 30], &shown);
    let by_an_older_one = Evidence {
        positions: &logs.positions,
        journal_low: 0,
        entries: &logs.entries(),
        clean: &logs.clean,
        newest_only: false,
    };
    assert_eq!(decide(&by_an_older_one), TornDecision::Agreed, "the case does not depend on it");
}

/// A member has repeated the repair of the second entry, which another one had finished, and aborted it. Then the third entry, without clean
/// records, lacks its marker in the journal; a reading begins behind the committed ones.
#[test]
fn a_copy_of_an_entry_below_the_named_one_is_not_written_again() {
    let mut logs = Logs::with(&Visible { entry: true, offsets: true, clean: vec![CleanVisibility::Yes] });
    let from = logs.journal.len();
    let copy = EntryEnd::of(2, [].into_iter(), vec![section(0, BEFORE, AFTER, Some(CLEAN_AFTER))]);
    logs.append(Vec::new(), &copy, false);
    let third = Visible { entry: false, offsets: true, clean: Vec::new() };
    logs.add(vec![block(0, AFTER, 30)], 3, vec![section(0, AFTER, 30, None)], &third);
    logs.low = from as Offset;
    let TornDecision::Repair(repair) = logs.decide() else { panic!("{logs:#?}") };
    assert_eq!((repair.name().number, repair.of.number), (3, 3));
    logs.repair(&repair, [true, true]);
    assert_eq!((logs.decide(), logs.numbers()), (TornDecision::Agreed, vec![3]));
}
