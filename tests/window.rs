//! The window of one partition.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::cell::Cell;
use std::time::Duration;

use dedupd::dedupe::{
    Block, BlockView, HashKind, Identity, Offset, OwnerRun, Owners, Positions, Sequence, StoredOwner,
    TimeSource, Verdict, Window, WindowLimits,
};

const T: i64 = 1_700_000_000_000;
const HOUR: i64 = 3_600_000;

fn window(exact: Duration, max_ids: u64) -> Window {
    let limits = WindowLimits { exact, max_ids, time: TimeSource::Record, bloom: None };
    Window::new(limits, Positions::keyed([7; 16]))
}

fn id(number: u64) -> Identity {
    Identity(u128::from(number).to_be_bytes())
}

/// A store in which the owner with number n has the offset n + `first`, and an identity that is `shift` beyond its offset. It counts its
/// lookups.
#[derive(Default)]
struct Ledger {
    first: Offset,
    shift: u64,
    lookups: Cell<u32>,
}

impl Owners for Ledger {
    type Error = &'static str;
    fn owner(&self, number: Sequence, _: Option<Identity>) -> Result<StoredOwner, &'static str> {
        self.lookups.set(self.lookups.get() + 1);
        let offset = self.first + number;
        Ok(StoredOwner { offset, identity: Some(id(offset + self.shift)) })
    }
}

struct Broken;

impl Owners for Broken {
    type Error = &'static str;
    fn owner(&self, _: Sequence, _: Option<Identity>) -> Result<StoredOwner, &'static str> {
        Err("disk failure")
    }
}

/// Processes one record: observe, verdict, and admit if it is forwarded.
fn pass(window: &mut Window, at: Offset, number: u64, ms: i64) -> Verdict {
    window.observe(Some(ms), ms);
    let key = window.key(id(number));
    let verdict = window.verdict(at, &key, &Ledger::default()).unwrap();
    if !matches!(verdict, Verdict::Duplicate { .. }) {
        window.admit(at, &key);
    }
    verdict
}

#[test]
fn a_fingerprint_alone_never_drops_a_record() {
    let mut window = window(Duration::from_hours(1), u64::MAX);
    pass(&mut window, 0, 0, T);
    window.commit(1);
    let key = window.key(id(0));
    let honest = Ledger::default();
    assert_eq!(window.verdict(1, &key, &honest), Ok(Verdict::Duplicate { owner: 0 }));
    assert_eq!(honest.lookups.get(), 1);
    let other = Ledger { shift: 7, ..Ledger::default() };
    assert_eq!(window.verdict(1, &key, &other), Ok(Verdict::New), "the 16 bytes differ");
    assert_eq!(window.verdict(1, &key, &Broken), Err("disk failure"));
}

#[test]
fn owners_of_the_open_transaction_require_no_store_and_are_removed_by_an_abort() {
    let mut window = window(Duration::from_hours(1), u64::MAX);
    assert_eq!(pass(&mut window, 5, 1, T), Verdict::New);
    let key = window.key(id(1));
    assert_eq!(window.verdict(6, &key, &Broken), Ok(Verdict::Duplicate { owner: 5 }));
    assert_eq!(window.pending(), [(5, id(1))]);
    window.abort();
    assert_eq!(window.verdict(6, &key, &Broken), Ok(Verdict::New));
    assert_eq!((window.pending().len(), window.ids(), window.stream_time_ms()), (0, 0, 0));
}

#[test]
fn an_id_older_than_the_window_is_new() {
    let mut window = window(Duration::from_hours(24), u64::MAX);
    pass(&mut window, 0, 0, T);
    // In the same transaction, and after a commit.
    assert_eq!(pass(&mut window, 1, 0, T + 24 * HOUR), Verdict::Duplicate { owner: 0 });
    assert_eq!(pass(&mut window, 2, 0, T + 25 * HOUR), Verdict::New);
    window.abort();
    pass(&mut window, 0, 0, T);
    window.commit(1);
    assert_eq!(pass(&mut window, 1, 0, T + 30 * 24 * HOUR), Verdict::New);
    window.abort();
    assert_eq!(
        pass(&mut window, 1, 0, T + HOUR),
        Verdict::Duplicate { owner: 0 },
        "the abort did not restore stream time"
    );
}

#[test]
fn a_far_future_timestamp_does_not_flush_the_window() {
    let mut window = window(Duration::from_hours(1), u64::MAX);
    pass(&mut window, 0, 0, T);
    window.commit(1);
    window.observe(Some(i64::MAX), T);
    window.commit(2);
    assert_eq!(pass(&mut window, 2, 0, T), Verdict::Duplicate { owner: 0 });
}

#[test]
fn the_count_limit_shortens_the_reported_window() {
    let mut window = window(Duration::from_hours(1), 1_000);
    for at in 0..4_000 {
        pass(&mut window, at, at, T + at.cast_signed() * 100);
        if at % 100 == 99 {
            let seconds = window.effective_seconds();
            assert!(at > 1_000 || (seconds - 3_600.0).abs() < 1e-9, "the window is already shorter");
            window.commit(at + 1);
            assert!(window.ids() <= 1_000);
        }
    }
    assert!((window.effective_seconds() - 100.0).abs() < 2.0, "{}", window.effective_seconds());
    assert!((990..=1_000).contains(&window.ids()), "{}", window.ids());
    assert_eq!(window.first_live(), 4_000 - window.ids());
}

#[test]
fn blocks_restore_the_window_that_created_them() {
    let mut window = window(Duration::from_hours(32), u64::MAX);
    for at in 0..100 {
        pass(&mut window, 10 + at, 10 + at, T + at.cast_signed() * HOUR / 10);
    }
    window.observe(Some(T + 20 * HOUR), T + 20 * HOUR);
    let blocks = window.blocks(HashKind::Xxh3, 3.into(), 5..120, 8);
    assert_eq!((blocks[0].first, blocks.last().unwrap().next), (5, 120));
    assert!(blocks.windows(2).all(|pair| pair[0].next == pair[1].first), "the blocks do not cover the range");
    assert!(blocks.iter().all(|block| block.entries.len() <= 8));
    assert!(blocks.iter().all(|block| block.time_last_ms - block.time_first_ms <= HOUR));
    let entries: Vec<_> = blocks.iter().flat_map(|block| block.entries.clone()).collect();
    assert_eq!(entries, window.pending());
    window.commit(120);

    let mut restored = self::window(Duration::from_hours(32), u64::MAX);
    for bytes in blocks.iter().map(Block::encode) {
        restored.restore(&BlockView::verified(&bytes).unwrap(), Offset::MAX).unwrap();
    }
    assert_eq!((restored.ids(), restored.next()), (100, 120));
    assert_eq!(restored.stream_time_ms(), window.stream_time_ms());
    for at in [10, 50, 109] {
        let key = restored.key(id(at));
        let ledger = Ledger { first: 10, ..Ledger::default() };
        assert_eq!(restored.verdict(120, &key, &ledger), Ok(Verdict::Duplicate { owner: at }));
    }
}

#[test]
fn the_part_of_a_block_beyond_the_committed_offset_is_not_restored() {
    let mut source = window(Duration::from_hours(1), u64::MAX);
    for at in 0..10 {
        pass(&mut source, at, at, T + at.cast_signed());
    }
    let bytes = source.blocks(HashKind::Xxh3, 0.into(), 0..10, 100)[0].encode();
    let mut window = window(Duration::from_hours(1), u64::MAX);
    assert_eq!(window.restore(&BlockView::verified(&bytes).unwrap(), 6), Ok(6));
    assert_eq!((window.ids(), window.next()), (6, 6));
    assert_eq!(
        window.restore(&BlockView::verified(&bytes).unwrap(), 0),
        Ok(0),
        "the whole block is beyond the offset"
    );
    assert_eq!(window.ids(), 6);
    assert_eq!(window.truncate(0, &Ledger::default()), Ok(6));
    assert_eq!(
        window.restore(&BlockView::verified(&bytes).unwrap(), 8),
        Ok(8),
        "the same range with a higher offset"
    );
    assert_eq!(window.ids(), 8);
}

#[test]
fn a_claim_only_affects_the_record_at_its_offset() {
    let mut window = window(Duration::from_hours(1), u64::MAX);
    window.claim(id(1), 7);
    assert_eq!(pass(&mut window, 6, 1, T), Verdict::New, "an earlier copy");
    window.abort();
    assert_eq!(pass(&mut window, 7, 1, T), Verdict::Retry);
    assert_eq!(pass(&mut window, 8, 1, T), Verdict::Duplicate { owner: 7 });
    window.commit(9);
    assert_eq!(window.claims(), 0);
}

#[test]
fn truncation_removes_only_the_newest_ids() {
    let mut window = window(Duration::from_hours(1), u64::MAX);
    for at in 0..1_000 {
        pass(&mut window, at, at, T);
    }
    window.commit(1_000);
    pass(&mut window, 1_000, 1_000, T);
    assert_eq!(window.truncate(600, &Ledger::default()), Ok(400));
    assert_eq!((window.ids(), window.next(), window.next_number()), (600, 600, 600));
    assert_eq!(pass(&mut window, 600, 599, T), Verdict::Duplicate { owner: 599 });
    assert_eq!(pass(&mut window, 601, 601, T), Verdict::New);
}

#[test]
fn a_topic_without_timestamps_is_limited_by_count_alone() {
    let mut window = window(Duration::from_hours(1), 100);
    for at in 0..1_000 {
        window.observe(None, T);
        let key = window.key(id(at));
        window.admit(at, &key);
        window.commit(at + 1);
    }
    assert_eq!((window.ids(), window.stream_time_ms()), (100, 0));
    // The first timestamp does not expire all ids.
    assert_eq!(pass(&mut window, 1_000, 950, T), Verdict::Duplicate { owner: 950 });
    window.commit(1_001);
    assert_eq!(pass(&mut window, 1_001, 950, T + HOUR), Verdict::Duplicate { owner: 950 });
    assert_eq!(pass(&mut window, 1_002, 950, T + HOUR + 1), Verdict::New);
}

#[test]
fn an_incomplete_window_reports_its_length_until_the_gap_has_expired() {
    let hours = |window: &Window| window.effective_seconds() / 3_600.0;
    let mut window = window(Duration::from_hours(24), u64::MAX);
    pass(&mut window, 0, 0, T);
    window.commit(1);
    assert!((hours(&window) - 24.0).abs() < 1e-9, "a complete window is reported as short");
    window.note_incomplete_before(T - HOUR);
    window.note_incomplete_before(T - 5 * HOUR);
    assert!((hours(&window) - 1.0).abs() < 1e-9, "the later bound does not apply: {}", hours(&window));
    assert_eq!((window.incomplete_before_ms(), window.is_short_by_note()), (Some(T - HOUR), true));
    assert_eq!(window.dropped_ms(), None, "a limit has dropped ids");
    assert_eq!(
        pass(&mut window, 1, 0, T + 2 * HOUR),
        Verdict::Duplicate { owner: 0 },
        "the verdict has changed"
    );
    window.commit(2);
    assert!((hours(&window) - 3.0).abs() < 1e-9, "{}", hours(&window));
    pass(&mut window, 2, 2, T + 23 * HOUR);
    window.commit(3);
    assert!((hours(&window) - 24.0).abs() < 1e-9, "{}", hours(&window));
    assert_eq!((window.incomplete_before_ms(), window.is_short_by_note()), (None, false));
}

/// What a store has, in runs of owners: first number, and their offsets. Every second of the last run is forgotten.
struct Runs<'a>(&'a [(Sequence, &'a [Offset])]);

impl Runs<'_> {
    fn of(&self, place: usize) -> Vec<StoredOwner> {
        let is_forgotten = |at: usize| place + 1 == self.0.len() && at % 2 == 1;
        let owner = |(at, offset): (usize, &Offset)| StoredOwner {
            offset: *offset,
            identity: Some(id(*offset)).filter(|_| !is_forgotten(at)),
        };
        self.0[place].1.iter().enumerate().map(owner).collect()
    }

    fn load(&self) -> Window {
        let mut window = window(Duration::from_hours(1), u64::MAX);
        for (place, (number, offsets)) in self.0.iter().enumerate() {
            let covered = offsets[0]..offsets[offsets.len() - 1] + 1;
            window.load(
                &OwnerRun { covered, times_ms: (T, T), number: *number, owners: &self.of(place) },
                Offset::MAX,
            );
        }
        window
    }
}

impl Owners for Runs<'_> {
    type Error = String;
    fn owner(&self, number: Sequence, _: Option<Identity>) -> Result<StoredOwner, String> {
        let place = self.0.iter().rposition(|(first, _)| *first <= number);
        let found = place.and_then(|place| {
            self.of(place).get(usize::try_from(number - self.0[place].0).unwrap()).copied()
        });
        found.ok_or_else(|| format!("there is no owner {number}"))
    }
}

/// After owners were cut off and others followed, numbers are missing in the store. The window was loaded from there, and a later cut asked for
/// them.
#[test]
fn a_truncation_asks_only_for_numbers_that_the_store_has() {
    let runs = Runs(&[(1_000, &[50, 52, 54]), (2_000, &[60, 61, 65, 68]), (2_004, &[70, 71, 72, 73, 74])]);
    let identities = |below: Offset| {
        let all = runs.0.iter().flat_map(|(_, offsets)| *offsets).copied();
        all.filter(|offset| *offset < below && ![71, 73].contains(offset)).collect::<Vec<_>>()
    };
    for from in 0..80 {
        let mut window = runs.load();
        assert_eq!((window.ids(), window.next_number()), (10, 2_009));
        let kept = identities(from);
        assert_eq!(window.truncate(from, &runs), Ok(10 - kept.len() as u64), "from {from}");
        assert_eq!((window.ids(), window.next()), (kept.len() as u64, from.min(75)));
        let verdict = |offset| window.verdict(100, &window.key(id(offset)), &runs).unwrap();
        for offset in identities(100) {
            let expected = if offset < from { Verdict::Duplicate { owner: offset } } else { Verdict::New };
            assert_eq!(verdict(offset), expected, "{offset}, cut from {from} on");
        }
        // The numbers continue above those that are left, and a second cut asks for none in between.
        let (first, number) = (window.next(), window.next_number());
        assert!(number >= kept.last().map_or(0, |_| 1_001) && number <= 2_009, "{number}");
        for at in [0, 1] {
            pass(&mut window, first + at, 1_000 + at, T);
        }
        window.commit(first + 2);
        let mut left: Vec<_> = runs
            .0
            .iter()
            .map(|(number, offsets)| (*number, offsets.iter().copied().filter(|it| *it < from).collect()))
            .filter(|(_, offsets): &(_, Vec<Offset>)| !offsets.is_empty())
            .collect();
        left.push((number, vec![first, first + 1]));
        let left: Vec<_> = left.iter().map(|(number, offsets)| (*number, offsets.as_slice())).collect();
        for again in 0..first + 3 {
            let mut window = Runs(&left).load();
            window.truncate(again, &Runs(&left)).unwrap();
        }
    }
}
