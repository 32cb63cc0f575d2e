//! Phases of a journal, and what a restore writes to the local store.

use super::unwritten::Unwritten;
use super::*;
use crate::dedupe::{
    Coordinates, Digest, Identity, Owner, Positions, StampedOwner, StoredOwner, TimeSource, WindowLimits,
};
use crate::store::{Binding, SledStore, open};

const JOURNAL: PartitionId = 3;

#[test]
fn a_journal_returns_to_locating_and_keeps_its_windows_or_not() {
    let mut journal = Journal::new(0, Duration::ZERO);
    journal.windows = Some(Windows::new([]));
    journal.enter(Phase::Running);
    assert!(journal.running().is_some());
    journal.relocate(Duration::ZERO);
    assert!(!journal.is_running() && journal.windows.is_some());
    journal.enter(Phase::Running);
    journal.unload(Duration::ZERO);
    assert!(!journal.is_running() && journal.windows.is_none());
}

#[test]
#[should_panic(expected = "a phase does not begin and end in Locating")]
fn a_change_of_the_phase_that_is_not_declared_is_detected() {
    let mut journal = Journal::new(0, Duration::ZERO);
    journal.enter(Phase::Running);
    journal.enter(Phase::Running);
}

fn kind(number: u16) -> KindId {
    KindId::numbered(number)
}

/// The owner at an offset of partition 7, whose identity is made of that.
fn owner(offset: Offset) -> StampedOwner {
    let at = Coordinates { partition: 7, offset };
    let owner = Owner {
        at,
        time_ms: 1_000,
        identity: Identity(u128::from(offset).to_le_bytes()),
        digest: Digest::NONE,
    };
    StampedOwner { owner, stamp_ms: 1_000 }
}

fn head(number: u64) -> Head {
    let last_entry = Some(EntryName { number, crc: 1 });
    let covered = BTreeMap::from([(7, Covered { next: number * 10, time_ms: 1_000 })]);
    Head { last_entry, confirmed_entry: last_entry, state_next: number, covered, ..Head::default() }
}

/// A store that holds the windows of some kinds.
fn store(dir: &tempfile::TempDir, kinds: &[u16]) -> SledStore {
    let opened = open(dir.path(), &Binding::default(), 1 << 20, Duration::from_secs(20)).unwrap();
    let mut store = opened.store.another();
    for number in kinds {
        assert!(!store.acquire_lease(kind(*number).window(JOURNAL)), "it is new");
    }
    store
}

/// The stored owners of a kind: number and offset.
fn stored(store: &SledStore, number: u16) -> Vec<(Sequence, Offset)> {
    let mut all = Vec::new();
    let scanned = store.scan(kind(number).window(JOURNAL), &mut |run| {
        let owners = (run.number..).zip(run.owners).filter(|(_, owner)| owner.identity.is_some());
        all.extend(owners.map(|(number, owner)| (number, owner.at.offset)));
        Ok(())
    });
    scanned.unwrap();
    all
}

#[test]
fn a_kind_that_is_discarded_in_an_entry_takes_no_owners_of_others_with_it() {
    for discarded in [0, 1, 2] {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, mut unwritten) = (store(&dir, &[0, 1, 2]), Unwritten::default());
        let add = |unwritten: &mut Unwritten, number: u16, at: Sequence| {
            let offset = Offset::from(number) * 100 + at;
            unwritten.add(kind(number).window(JOURNAL), at, vec![owner(offset)], 100);
        };
        (0..3).for_each(|number| add(&mut unwritten, number, 0));
        unwritten.end_entry(head(1));
        // The first two kinds of the next entry are read when one is discarded.
        (0..2).for_each(|number| add(&mut unwritten, number, 1));
        let of_window = if discarded == 2 { 1 } else { 2 };
        unwritten.discard(kind(discarded).window(JOURNAL));
        assert_eq!(unwritten.ids(), 5 - of_window);
        if discarded != 2 {
            add(&mut unwritten, 2, 1);
        }
        unwritten.end_entry(head(2));
        unwritten.write(&mut store, JOURNAL).unwrap();
        for number in 0..3 {
            let first = Offset::from(number) * 100;
            let expected = if number == discarded { vec![] } else { vec![(0, first), (1, first + 1)] };
            assert_eq!(stored(&store, number), expected, "kind {number} without {discarded}");
        }
        let of_all = store.head(JOURNAL.into()).unwrap().unwrap();
        let confirmed = if discarded == 0 { 0 } else { 2 };
        assert_eq!(of_all, Head { confirmed, ..head(2) });
        assert_eq!((unwritten.ids(), unwritten.is_full()), (0, false));
    }
}

#[test]
fn the_heads_of_named_kinds_confirm_only_what_was_stored_before() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, mut unwritten) = (store(&dir, &[0, 1]), Unwritten::default());
    let named = kind(1).window(JOURNAL);
    for (number, last_entry) in [(0, 1), (1, 2)] {
        unwritten.add(named, number, vec![owner(number)], 100);
        unwritten.end_entry(head(last_entry));
        unwritten.write(&mut store, JOURNAL).unwrap();
        let stored = store.head(named).unwrap().unwrap();
        assert_eq!((stored.confirmed, stored.last_entry.map(|it| it.number)), (number, Some(last_entry)));
        assert!(stored.covered.is_empty(), "only the unnamed kind has it");
    }
    unwritten.write(&mut store, JOURNAL).unwrap();
    assert_eq!(store.head(JOURNAL.into()).unwrap(), Some(head(2)), "nothing was read");
}

#[test]
fn owners_of_an_entry_count_if_it_is_not_later_than_the_trusted_one() {
    let name = |number| Some(EntryName { number, crc: 1 });
    let counts = |last_entry, confirmed_entry, trusted| {
        Head { confirmed: 5, last_entry, confirmed_entry, ..Head::default() }.counted(trusted)
    };
    assert_eq!(counts(name(7), name(6), name(7)), None, "all of them");
    assert_eq!(counts(name(7), name(6), name(6)), Some(5));
    assert_eq!(counts(name(7), name(7), name(7)), Some(5));
    assert_eq!(counts(name(1), None, None), Some(5));
    let other = Some(EntryName { number: 7, crc: 2 });
    assert_eq!(counts(name(7), other, other), Some(5), "the one that was committed with the same number");
}

#[test]
fn an_undo_removes_the_owners_of_a_partition_from_all_windows_and_from_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, mut unwritten) = (store(&dir, &[0, 1]), Unwritten::default());
    let limits = WindowLimits {
        exact: Duration::from_hours(1),
        max_ids: u64::MAX,
        time: TimeSource::Record,
        bloom: None,
    };
    let positions: Positions = store.positions();
    let mut windows = Windows::new([0, 1].map(|number| (kind(number), Some(Window::new(limits, positions)))));
    for (id, window) in windows.iter_mut() {
        // Those of two partitions arrive in turn.
        let of = |offset: Offset| {
            let at = Coordinates { partition: 7 + PartitionId::from(offset % 2 == 1), offset };
            Owner { at, ..owner(offset + 100 * Offset::from(id.number())).owner }
        };
        let stamped = window.restore(&(0..10).map(of).collect::<Vec<_>>());
        unwritten.add(id.window(JOURNAL), 0, stamped, 100);
    }
    unwritten.end_entry(head(1));
    unwritten.write(&mut store, JOURNAL).unwrap();
    let mut undoing = Undoing::new(JOURNAL, &windows, &[Coordinates { partition: 8, offset: 5 }]);
    let steps = std::iter::from_fn(|| Some(undoing.advance(&mut store, &mut windows, || true).unwrap()));
    assert_eq!(steps.take_while(|is_done| !is_done).count(), 1, "a window in each step");
    let left = [0, 1, 2, 3, 4, 6, 8].map(|number| (number, number));
    for (id, window) in windows.iter() {
        assert_eq!(stored(&store, id.number()), left);
        assert_eq!((window.ids(), window.next_number()), (7, 10));
        assert_eq!(store.next_number(id.window(JOURNAL)), Ok(10), "numbers never go back");
    }
    let undone = StoredOwner { identity: None, ..owner(5).owner.into() };
    let at = Coordinates { partition: 8, offset: 5 };
    assert_eq!(store.owner(JOURNAL.into(), 5, None), Ok(Some(StoredOwner { at, ..undone })));
}
