//! A window with fixed memory: it may evict ids, it never drops a new record, and an abort restores it exactly.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "figures are small")]

mod ledger;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use dedupd::dedupe::{
    Digest, Identity, IndexKey, Offset, Owner, OwnerIndex, Positions, Sequence, TimeSource, Verdict, Window,
    WindowLimits,
};
use dedupd::tools::plan::{missed, remembered_in};
use proptest::prelude::*;

use ledger::{Ledger, T, admit, at, id, verdict};

fn key(identity: Identity) -> IndexKey {
    Positions::keyed([7; 16]).key(identity)
}

fn found(index: &OwnerIndex, number: u64) -> Vec<Sequence> {
    let mut found = Vec::new();
    let all = index.candidates::<()>(&key(id(number)), |number| {
        found.push(number);
        ControlFlow::Continue(())
    });
    assert!(all.is_continue());
    found
}

fn window(slots: u64, exact: Duration) -> Window {
    let limits = WindowLimits { exact, max_ids: slots, time: TimeSource::Record, bloom: None };
    Window::evicting(limits, Positions::keyed([7; 16]))
}

/// One transaction: records as (id, milliseconds since the previous one), and whether it commits.
type Transaction = (Vec<(u8, u16)>, bool);

struct History {
    window: Window,
    ledger: Ledger,
    /// Last committed owner of each id.
    model: BTreeMap<u8, Owner>,
    next: Offset,
    ms: i64,
    evicted: u64,
}

impl History {
    fn new(slots: u64, exact: Duration) -> Self {
        let (ledger, model) = (Ledger::default(), BTreeMap::new());
        Self { window: window(slots, exact), ledger, model, next: 0, ms: T, evicted: 0 }
    }

    fn verdicts(&self) -> Vec<Verdict> {
        let (window, offset) = (&self.window, self.next + 1_000);
        (0..=255).map(|it| verdict(window, offset, self.ms, &window.key(id(it)), &self.ledger)).collect()
    }

    fn transaction(&mut self, (records, commits): &Transaction) {
        let before = (self.verdicts(), self.window.ids());
        let (mut model, mut offset, mut ms, mut evicted) = (self.model.clone(), self.next, self.ms, 0);
        for (number, step) in records {
            ms += i64::from(*step);
            let key = self.window.key(id(u64::from(*number)));
            match verdict(&self.window, offset, ms, &key, &self.ledger) {
                Verdict::Duplicate { owner } => {
                    let known =
                        model.get(number).unwrap_or_else(|| panic!("the new id {number} was dropped"));
                    assert_eq!(owner, *known, "the owner of {number}");
                }
                Verdict::New => {
                    evicted += u64::from(model.contains_key(number));
                    admit(&mut self.window, at(offset), ms, &key);
                    model.insert(
                        *number,
                        Owner { at: at(offset), time_ms: ms, identity: key.identity, digest: Digest::NONE },
                    );
                }
                Verdict::Retry => panic!("{offset} is a retry"),
            }
            offset += 1;
        }
        if !commits {
            self.window.abort();
            assert_eq!((self.verdicts(), self.window.ids()), before, "the abort did not restore the window");
            return;
        }
        let first = self.ledger.commit(&mut self.window);
        self.ledger.expire(first);
        (self.model, self.next, self.ms) = (model, offset, ms);
        self.evicted += evicted;
        self.check();
    }

    /// The window counts every owner in the index, and finds it in the store.
    fn check(&self) {
        let owned = self.verdicts().iter().filter(|it| matches!(it, Verdict::Duplicate { .. })).count();
        assert!(owned as u64 <= self.window.ids());
        assert!(self.window.ids() <= self.window.slots().unwrap());
    }
}

fn transactions() -> impl Strategy<Value = Vec<Transaction>> {
    let records = proptest::collection::vec((any::<u8>(), 0..2_000u16), 1..40);
    proptest::collection::vec((records, prop::bool::weighted(0.6)), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_window_that_evicts_never_drops_a_new_record(history in transactions(), slots in 1..300u64, seconds in 1..200u64) {
        let mut world = History::new(slots, Duration::from_secs(seconds));
        for transaction in &history {
            world.transaction(transaction);
        }
    }

    #[test]
    fn a_window_with_enough_slots_evicts_nothing(history in transactions()) {
        let mut world = History::new(4_096, Duration::from_hours(24));
        for transaction in &history {
            world.transaction(transaction);
        }
        prop_assert_eq!((world.evicted, world.window.take_evicted()), (0, 0));
        prop_assert!((world.window.certain_seconds() - 86_400.0).abs() < 1e-9);
    }

    #[test]
    fn removing_new_entries_restores_the_index(
        slots in 1..200u64, kept in 0..400u64, undone in 1..400u64, gap in prop_oneof![4 => 1..9u64, 1 => Just(1 << 28)],
    ) {
        let mut index = OwnerIndex::evicting(slots);
        let memory = index.memory_bytes();
        (0..kept).for_each(|n| index.insert(&key(id(n)), n * gap));
        let mut evicted = 0;
        index.commit(|_| evicted += 1);
        prop_assert_eq!(index.live() + evicted, kept);
        let before: Vec<_> = (0..kept).map(|n| found(&index, n)).collect();
        let all = kept..kept + undone;
        all.clone().for_each(|n| index.insert(&key(id(n)), n * gap));
        prop_assert!(all.clone().any(|n| found(&index, n) == [n * gap]));
        all.rev().for_each(|n| assert!(index.remove(&key(id(n)), n * gap), "{n}"));
        prop_assert_eq!((0..kept).map(|n| found(&index, n)).collect::<Vec<_>>(), before);
        prop_assert_eq!((index.memory_bytes(), index.tables(), index.overflowed()), (memory, 1, 0));
    }
}

#[test]
fn numbers_beyond_the_range_of_a_slot_move_the_base() {
    let (mut index, far) = (OwnerIndex::evicting(64), 1u64 << 37);
    (0..40).for_each(|n| index.insert(&key(id(n)), n));
    index.commit(|_| panic!("an owner was evicted"));
    (40..44).for_each(|n| index.insert(&key(id(n)), far + n));
    assert_eq!(found(&index, 3), [3]);
    index.insert(&key(id(44)), 2 * far + 20);
    let mut removed = Vec::new();
    index.commit(|owner| removed.push(owner));
    removed.sort_unstable();
    assert_eq!(removed, (0..40).collect::<Vec<_>>());
    assert!((40..44).all(|n| found(&index, n) == [far + n]) && found(&index, 44) == [2 * far + 20]);
    assert_eq!(index.live(), 5);
}

/// Compares the prediction of the plan with tables whose slots were overwritten many times.
#[test]
fn owners_are_overwritten_as_often_as_predicted() {
    let slots = 1u64 << 17;
    for load in [0.6, 0.75, 0.9, 1.0, 1.2, 1.5] {
        let distance = (slots as f64 * load) as u64;
        let mut index = OwnerIndex::evicting(slots);
        let (mut gone, mut all) = (0u64, 0u64);
        for at in 0..slots * 12 {
            index.insert(&key(id(at)), at);
            index.commit(|_| ());
            // Every duplicate arrives `distance` ids after the first record.
            if at >= slots * 4 && at % 3 == 0 {
                all += 1;
                gone += u64::from(!found(&index, at - distance).contains(&(at - distance)));
            }
        }
        let (measured, predicted) = (gone as f64 / all as f64, missed(load));
        let ratio = measured / predicted;
        println!("distance of {load} tables: {measured:.3e} measured, {predicted:.3e} predicted");
        assert!((0.9..=1.1).contains(&ratio), "{load}: {measured} measured, {predicted} predicted");
        assert!(predicted < 0.1 || (0.97..=1.03).contains(&ratio), "{load}: {measured} and {predicted}");
    }
    for known in [0.9, 0.99, 0.999] {
        let table = remembered_in(known, 1_000_000);
        assert!((missed(1_000_000.0 / table as f64) - (1.0 - known)).abs() < 1e-4, "{known}: {table}");
    }
}

#[test]
fn the_window_reports_what_it_evicted() {
    let mut window = window(10_000, Duration::from_hours(24));
    for offset in 0..60_000u64 {
        let (ms, key) = (T + offset.cast_signed() * 1_000, window.key(id(offset)));
        admit(&mut window, at(offset), ms, &key);
        if offset % 500 == 499 {
            window.set_horizon(ms);
            window.commit();
        }
    }
    // Within the configured window, one owner in six is left: the size of the table.
    assert!((window.effective_seconds() - 86_400.0).abs() < 1e-9);
    assert!((window.evicted_share() - 5.0 / 6.0).abs() < 0.01, "{}", window.evicted_share());
    assert_eq!(window.take_evicted(), 60_000 - window.ids());
    // The prediction is that a single owner younger than 0.65 tables is overwritten.
    assert!((5_000.0..7_500.0).contains(&window.certain_seconds()), "{}", window.certain_seconds());
    // Evicted owners are not needed: only those of about two tables are.
    assert!(60_000 - window.first_live() < 20_000, "{}", window.first_live());
}

#[test]
fn a_restored_window_has_the_same_content() {
    let mut world = History::new(64, Duration::from_hours(24));
    for number in 0..100u8 {
        let records = (0..10).map(|step| (number.wrapping_mul(7).wrapping_add(step * 13), 100)).collect();
        world.transaction(&(records, true));
    }
    let mut restored = window(64, Duration::from_hours(24));
    restored.reserve(1_000_000);
    world.ledger.restore(&mut restored, 0);
    assert_eq!(restored.memory_bytes(), window(64, Duration::from_hours(24)).memory_bytes());
    assert_eq!((restored.ids(), restored.next_number()), (world.window.ids(), world.window.next_number()));
    let verdicts = world.verdicts();
    world.window = restored;
    assert_eq!(world.verdicts(), verdicts);
}
