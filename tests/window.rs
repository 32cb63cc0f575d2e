//! The window of one kind: the owners of many partitions, in the order of their arrival.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod ledger;

use std::convert::Infallible;
use std::time::Duration;

use dedupd::dedupe::{
    Coordinates, Digest, Identity, Offset, Owner, OwnerRun, Owners, PartitionId, Positions, RecordTime,
    Sequence, StampedOwner, StoredOwner, TimeSource, Verdict, Window, WindowLimits, for_each_run,
};
use ledger::{Ledger, T, admit, id, timed};

const HOUR: i64 = 3_600_000;

fn window(hours: u64, max_ids: u64) -> Window {
    let exact = Duration::from_hours(hours);
    let limits = WindowLimits { exact, max_ids, time: TimeSource::Record, bloom: None };
    Window::new(limits, Positions::keyed([7; 16]))
}

fn at(partition: PartitionId, offset: Offset) -> Coordinates {
    Coordinates { partition, offset }
}

fn owner(at: Coordinates, time_ms: i64, number: u64) -> Owner {
    Owner { at, time_ms, identity: id(number), digest: Digest::NONE }
}

/// The verdict on a record with the id `number`.
fn verdict(window: &Window, at: Coordinates, number: u64, time: RecordTime, ledger: &Ledger) -> Verdict {
    window.verdict(at, time, &window.key(id(number)), ledger).unwrap()
}

/// Processes one record: the verdict, and admission if it is forwarded.
fn pass(window: &mut Window, at: Coordinates, number: u64, ms: i64, ledger: &Ledger) -> Verdict {
    let verdict = verdict(window, at, number, timed(ms), ledger);
    if !matches!(verdict, Verdict::Duplicate { .. }) {
        let key = window.key(id(number));
        admit(window, at, ms, &key);
    }
    verdict
}

/// A window with these committed owners, each with its own id: the offset.
fn holding(owners: &[(PartitionId, Offset, i64)]) -> (Window, Ledger) {
    let (mut window, mut ledger) = (window(1, u64::MAX), Ledger::default());
    for (partition, offset, ms) in owners {
        pass(&mut window, at(*partition, *offset), *offset, *ms, &ledger);
    }
    ledger.commit(&mut window);
    (window, ledger)
}

/// A store that has these owners, or none that can be read.
struct Fixed(Option<StoredOwner>);

impl Owners for Fixed {
    type Error = &'static str;
    fn owner(&self, _: Sequence, _: Option<Identity>) -> Result<StoredOwner, &'static str> {
        self.0.ok_or("disk failure")
    }
}

#[test]
fn a_fingerprint_alone_never_drops_a_record() {
    let (window, _) = holding(&[(0, 5, T)]);
    let stored = owner(at(0, 5), T, 5);
    let verdict = |store| window.verdict(at(1, 0), timed(T), &window.key(id(5)), &Fixed(store));
    assert_eq!(verdict(Some(stored.into())), Ok(Verdict::Duplicate { owner: stored }));
    assert_eq!(verdict(Some(owner(at(0, 5), T, 7).into())), Ok(Verdict::New), "the 16 bytes differ");
    assert_eq!(verdict(Some(StoredOwner { identity: None, ..stored.into() })), Ok(Verdict::New), "forgotten");
    assert_eq!(verdict(None), Err("disk failure"));
}

#[test]
fn owners_of_the_open_transaction_require_no_store_and_are_removed_by_an_abort() {
    let mut window = window(1, u64::MAX);
    let known = owner(at(2, 5), T, 1);
    assert_eq!(pass(&mut window, known.at, 1, T, &Ledger::default()), Verdict::New);
    let verdict =
        |window: &Window| window.verdict(at(0, 6), timed(T), &window.key(id(1)), &Fixed(None)).unwrap();
    assert_eq!(verdict(&window), Verdict::Duplicate { owner: known });
    assert_eq!(window.pending(), [StampedOwner { owner: known, stamp_ms: T }]);
    window.abort();
    assert_eq!(verdict(&window), Verdict::New);
    assert_eq!((window.pending().len(), window.ids(), window.next_number()), (0, 0, 0));
}

#[test]
fn copies_are_at_most_the_window_apart_in_whatever_partitions_they_are() {
    let (window, ledger) = holding(&[(3, 9, T)]);
    let is_copy = |own_ms, stream_ms| {
        let found = verdict(&window, at(0, 1), 9, RecordTime { own_ms, stream_ms }, &ledger);
        assert!(found == Verdict::New || found == Verdict::Duplicate { owner: owner(at(3, 9), T, 9) });
        found != Verdict::New
    };
    assert_eq!([T + HOUR, T + HOUR + 1].map(|ms| is_copy(ms, ms)), [true, false]);
    // A partition that is read later than others.
    assert_eq!([T - HOUR, T - HOUR - 1].map(|ms| is_copy(ms, ms)), [true, false]);
    // A late record of a partition that is far ahead.
    assert!(is_copy(T + HOUR, T + 50 * HOUR) && is_copy(T - 50 * HOUR, T));
    assert!(is_copy(0, 0), "its time is unknown");
}

#[test]
fn owners_expire_only_by_the_clock_of_the_window() {
    let mut window = window(1, u64::MAX);
    for (partition, offset, ms) in [(0, 0, T), (1, 1, T + HOUR), (0, 2, T + 3 * HOUR), (1, 3, T + 90 * HOUR)]
    {
        let key = window.key(id(offset));
        admit(&mut window, at(partition, offset), ms, &key);
    }
    let stored = window.pending().iter().map(|it| it.owner.into());
    let ledger = Ledger { owners: (0..).zip(stored).collect(), ..Ledger::default() };
    window.commit();
    assert_eq!((window.ids(), window.first_live()), (4, 0), "one partition is far ahead");
    window.set_horizon(T + 2 * HOUR);
    assert_eq!((window.ids(), window.drops_without_records()), (4, true));
    assert_eq!(window.commit(), 0, "it is stored until the next checkpoint");
    assert_eq!((window.ids(), window.first_live(), window.dropped_ms()), (3, 1, None));
    assert_eq!((window.drops_without_records(), window.commit()), (true, 1));
    assert!(!window.drops_without_records());
    // The stamp of the owner at 1@1 is exactly the window before its clock.
    assert_ne!(verdict(&window, at(0, 9), 1, timed(T + 2 * HOUR), &ledger), Verdict::New);
    window.set_horizon(T + 2 * HOUR + 1);
    window.commit();
    assert_eq!((window.ids(), window.first_live()), (2, 2));
}

#[test]
fn an_owner_of_a_slower_partition_expires_with_those_that_arrived_before_it() {
    // Its stream time is before the stamp, which never decreases.
    let (mut window, ledger) = holding(&[(0, 0, T + 5 * HOUR), (1, 1, T + HOUR)]);
    assert_eq!(window.latest_ms(), T + 5 * HOUR);
    window.set_horizon(T + 3 * HOUR);
    window.commit();
    assert_eq!(window.ids(), 2);
    assert!(!window.needs(T + HOUR), "no record of its time is read any more");
    assert_eq!(verdict(&window, at(0, 9), 1, timed(T + 3 * HOUR), &ledger), Verdict::New);
    window.set_horizon(T + 6 * HOUR + 1);
    window.commit();
    assert_eq!((window.ids(), window.first_live()), (0, 2));
}

#[test]
fn the_count_limit_shortens_the_reported_window() {
    let (mut window, mut ledger) = (window(1, 1_000), Ledger::default());
    for offset in 0..4_000 {
        pass(&mut window, at(0, offset), offset, T + offset.cast_signed() * 100, &ledger);
        if offset % 100 == 99 {
            let seconds = window.effective_seconds();
            assert!(offset > 1_000 || (seconds - 3_600.0).abs() < 1e-9, "the window is already shorter");
            ledger.commit(&mut window);
            assert!(window.ids() <= 1_000);
        }
    }
    assert!((window.effective_seconds() - 100.0).abs() < 2.0, "{}", window.effective_seconds());
    assert!((990..=1_000).contains(&window.ids()), "{}", window.ids());
    assert_eq!(window.first_live(), 4_000 - window.ids());
}

#[test]
fn a_topic_without_timestamps_is_limited_by_count_alone() {
    let (mut window, mut ledger) = (window(1, 100), Ledger::default());
    for offset in 0..1_000 {
        pass(&mut window, at(0, offset), offset, 0, &ledger);
        ledger.commit(&mut window);
    }
    assert_eq!((window.ids(), window.latest_ms()), (100, 0));
    // The first timestamp does not expire all ids.
    pass(&mut window, at(0, 1_000), 1_000, T, &ledger);
    ledger.commit(&mut window);
    let known = |window: &Window, ledger: &Ledger| verdict(window, at(1, 0), 950, timed(T + HOUR), ledger);
    assert_ne!(known(&window, &ledger), Verdict::New);
    window.set_horizon(T + HOUR + 1);
    window.commit();
    assert_eq!((known(&window, &ledger), window.ids()), (Verdict::New, 0));
}

#[test]
fn a_restored_window_has_the_numbers_and_the_stamps_of_the_one_that_wrote_the_journal() {
    let owners = [(0, 4, T + 9), (1, 2, T + 3), (0, 5, T + 12), (2, 7, 0)];
    let owners = owners.map(|(partition, offset, ms)| owner(at(partition, offset), ms, offset));
    let mut window = window(1, u64::MAX);
    let stamps = |stamped: &[StampedOwner]| stamped.iter().map(|it| it.stamp_ms - T).collect::<Vec<_>>();
    let stamped = window.restore(&owners);
    assert_eq!(stamped.iter().map(|it| it.owner).collect::<Vec<_>>(), owners);
    assert_eq!((stamps(&stamped), window.latest_ms()), (vec![9, 9, 12, 12], T + 12));
    let next = owner(at(1, 3), T + 1, 3);
    assert_eq!(stamps(&window.restore(&[next])), [12], "they never decrease");
    let all: Vec<StoredOwner> = owners.iter().chain([&next]).map(|owner| (*owner).into()).collect();
    let ledger = Ledger { owners: (0..).zip(all).collect(), ..Ledger::default() };
    assert_eq!((window.ids(), window.next_number()), (5, 5));
    for owner in owners {
        let found = verdict(&window, at(9, 9), owner.at.offset, timed(T + 20), &ledger);
        assert_eq!(found, Verdict::Duplicate { owner });
    }
}

#[test]
fn owners_are_loaded_up_to_a_number_without_the_forgotten_ones() {
    let stored = |offset: Offset| StoredOwner {
        identity: Some(id(offset)).filter(|_| !offset.is_multiple_of(3)),
        ..owner(at(0, offset), T, offset).into()
    };
    let owners: Vec<StoredOwner> = (0..10).map(stored).collect();
    let mut window = window(1, u64::MAX);
    let run = OwnerRun { number: 100, times_ms: (T, T + 5), owners: &owners };
    assert_eq!(window.load(&run, 108), 5);
    assert_eq!((window.ids(), window.next_number(), window.latest_ms()), (5, 108, T + 5));
    // Numbers may be missing between runs: those of owners that were cut off.
    let run = OwnerRun { number: 200, ..run };
    assert_eq!((window.load(&run, Sequence::MAX), window.next_number()), (6, 210));
    let ledger = Ledger {
        owners: (100..108).zip(owners.clone()).chain((200..210).zip(owners)).collect(),
        ..Ledger::default()
    };
    for offset in 0..10 {
        let is_new = verdict(&window, at(1, 0), offset, timed(T), &ledger) == Verdict::New;
        assert_eq!(is_new, offset.is_multiple_of(3), "{offset}");
    }
}

#[test]
fn numbers_never_go_back() {
    let (mut window, mut ledger) = holding(&[(0, 0, T), (0, 1, T)]);
    pass(&mut window, at(0, 2), 2, T, &ledger);
    window.abort();
    assert_eq!(window.next_number(), 2, "those of an aborted transaction are used again");
    window.number_from(1);
    assert_eq!(window.next_number(), 2);
    window.number_from(7);
    pass(&mut window, at(0, 2), 2, T, &ledger);
    ledger.commit(&mut window);
    assert_eq!((window.next_number(), window.ids()), (8, 3));
    window.forget(7, id(2));
    assert_eq!((window.next_number(), window.ids()), (8, 2));
    window.clear();
    assert_eq!((window.next_number(), window.first_live(), window.ids()), (8, 8, 0));
    assert_eq!(window.commit(), 8);
    assert_eq!(pass(&mut window, at(0, 1), 1, T, &ledger), Verdict::New);
    ledger.commit(&mut window);
    assert_eq!((window.next_number(), window.ids()), (9, 1));
}

/// The owners of a partition at or beyond an offset are undone: the store names their numbers.
#[test]
fn an_undo_removes_the_owners_of_one_partition_and_leaves_the_others() {
    let all: Vec<_> = (0..1_000).map(|offset| ((offset % 3) as PartitionId, offset, T)).collect();
    let (mut window, ledger) = holding(&all);
    let is_undone = |offset: u64| offset % 3 == 1 && offset >= 600;
    for (number, owner) in ledger.owners.iter().filter(|(_, it)| is_undone(it.at.offset)) {
        window.forget(*number, owner.identity.unwrap());
    }
    assert_eq!((window.ids(), window.next_number()), (1_000 - 133, 1_000));
    for offset in 0..1_000 {
        let is_new = verdict(&window, at(7, 0), offset, timed(T), &ledger) == Verdict::New;
        assert_eq!(is_new, is_undone(offset), "{offset}");
    }
    // They are read again, and are owners again, with other numbers.
    assert_eq!(pass(&mut window, at(1, 601), 601, T, &ledger), Verdict::New);
    window.set_horizon(T + HOUR + 1);
    window.commit();
    assert_eq!((window.ids(), window.first_live()), (0, 1_001));
}

#[test]
fn a_claim_only_affects_the_record_at_its_place() {
    let (mut window, mut ledger) = (window(1, u64::MAX), Ledger::default());
    window.claim(id(1), at(2, 7));
    window.claim(id(2), at(3, 7));
    for earlier in [at(2, 6), at(1, 7)] {
        assert_eq!(pass(&mut window, earlier, 1, T, &ledger), Verdict::New, "another copy");
        window.abort();
    }
    assert_eq!(pass(&mut window, at(2, 7), 1, T, &ledger), Verdict::Retry);
    let known = Verdict::Duplicate { owner: owner(at(2, 7), T, 1) };
    assert_eq!(pass(&mut window, at(2, 8), 1, T, &ledger), known);
    ledger.commit(&mut window);
    window.clear_claims_below(2, 7);
    assert_eq!(window.claims(), 2);
    window.clear_claims_below(2, 8);
    assert_eq!(window.claims(), 1, "that of another partition stays");
}

#[test]
fn an_incomplete_window_reports_its_length_until_the_gap_has_expired() {
    let hours = |window: &Window| window.effective_seconds() / 3_600.0;
    let (mut window, mut ledger) = (window(24, u64::MAX), Ledger::default());
    pass(&mut window, at(0, 0), 0, T, &ledger);
    ledger.commit(&mut window);
    assert!((hours(&window) - 24.0).abs() < 1e-9, "a complete window is reported as short");
    window.note_incomplete_before(T - HOUR);
    window.note_incomplete_before(T - 5 * HOUR);
    assert!((hours(&window) - 1.0).abs() < 1e-9, "the later bound does not apply: {}", hours(&window));
    assert_eq!((window.incomplete_before_ms(), window.is_short_by_note()), (Some(T - HOUR), true));
    assert_eq!(window.dropped_ms(), None, "a limit has dropped ids");
    assert_ne!(
        pass(&mut window, at(0, 1), 0, T + 2 * HOUR, &ledger),
        Verdict::New,
        "the verdict has changed"
    );
    window.set_horizon(T + 2 * HOUR);
    assert!((hours(&window) - 3.0).abs() < 1e-9, "{}", hours(&window));
    window.set_horizon(T + 23 * HOUR);
    assert!((hours(&window) - 24.0).abs() < 1e-9, "{}", hours(&window));
    assert_eq!((window.incomplete_before_ms(), window.is_short_by_note()), (None, false));
}

#[test]
fn sealed_owners_leave_the_index_and_are_not_loaded_again() {
    let all: Vec<_> = (0..100u64).map(|offset| (0, offset, T + offset.cast_signed() * HOUR / 100)).collect();
    let (mut window, ledger) = holding(&all);
    assert_eq!(window.to_seal(T - 1, Sequence::MAX), None);
    let range = window.to_seal(T + HOUR / 2, Sequence::MAX).unwrap();
    assert_eq!((range.first, range.next, range.owners()), (0, 51, 51));
    assert_eq!(window.to_seal(T + HOUR, 40).unwrap().next, 40, "those beyond are not confirmed");
    window.seal(range.next);
    assert_eq!((window.ids(), window.unsealed(), window.has_sealed()), (100, 49, true));
    // A restart: the slice first, then what the store still has outside of it.
    let mut loaded = self::window(1, u64::MAX);
    loaded.load_sealed(&range);
    let owners: Vec<StoredOwner> = ledger.owners.values().copied().collect();
    let run = OwnerRun { number: 0, times_ms: (T, T + HOUR), owners: &owners };
    assert_eq!(loaded.load(&run, Sequence::MAX), 49);
    assert_eq!((loaded.ids(), loaded.unsealed(), loaded.next_number()), (100, 49, 100));
    loaded.forget_sealed(T);
    assert_eq!((loaded.ids(), loaded.unsealed()), (99, 49));
    for window in [&mut window, &mut loaded] {
        window.set_horizon(T + 2 * HOUR + 1);
        window.commit();
        assert_eq!((window.ids(), window.has_sealed()), (0, false));
    }
}

#[test]
fn runs_have_consecutive_numbers_and_are_short_in_time_and_count() {
    let stamped = |number: u64, stamp_ms| StampedOwner { owner: owner(at(0, number), T, number), stamp_ms };
    let mut owners: Vec<StampedOwner> =
        (0..10).map(|number| stamped(number, T + number.cast_signed())).collect();
    owners.extend((10..9_000).map(|number| stamped(number, T + 50)));
    let mut runs = Vec::new();
    let all: Result<(), Infallible> = for_each_run(&owners, 70, 4, |run| {
        let first = usize::try_from(run.number - 70).unwrap();
        let expected = owners[first..first + run.owners.len()].iter().map(|it| it.owner.into());
        assert!(run.owners.iter().copied().eq(expected));
        runs.push((run.number, run.end(), run.times_ms.0 - T, run.times_ms.1 - T));
        Ok(())
    });
    assert_eq!(all, Ok(()));
    let expected =
        [(70, 75, 0, 4), (75, 80, 5, 9), (80, 4_176, 50, 50), (4_176, 8_272, 50, 50), (8_272, 9_070, 50, 50)];
    assert_eq!(runs, expected);
    assert_eq!(for_each_run(&owners, 0, 4, |_| Err("full")), Err("full"));
}
