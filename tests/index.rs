//! Compares the exact index with a map: every live entry is found.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use dedupd::dedupe::{Identity, IndexKey, OwnerIndex, Positions, Sequence};
use proptest::prelude::*;

fn key(identity: Identity) -> IndexKey {
    Positions::keyed([7; 16]).key(identity)
}

/// The operations of the window on its index.
#[derive(Debug, Clone)]
enum Step {
    /// Inserts new ids, `gap` numbers apart.
    Insert { count: u16, gap: u32 },
    /// Removes the newest ids one by one.
    Undo { count: u16 },
    /// Expires the oldest part.
    Expire { share: u8 },
    /// Removes all.
    Clear,
    /// Reserves space.
    Reserve { ids: u16 },
    /// Changes the estimated size of the window.
    Expect { ids: u32 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let gap = prop_oneof![4 => 1..50u32, 1 => Just(1 << 27)];
    let step = prop_oneof![
        6 => (1..3_000u16, gap).prop_map(|(count, gap)| Step::Insert { count, gap }),
        2 => (1..500u16).prop_map(|count| Step::Undo { count }),
        3 => (0..=255u8).prop_map(|share| Step::Expire { share }),
        1 => Just(Step::Clear),
        1 => (0..5_000u16).prop_map(|ids| Step::Reserve { ids }),
        1 => (0..50_000u32).prop_map(|ids| Step::Expect { ids }),
    ];
    proptest::collection::vec(step, 1..40)
}

#[derive(Default)]
struct Pair {
    index: OwnerIndex,
    model: BTreeMap<Sequence, Identity>,
    made: u64,
    next: Sequence,
}

impl Pair {
    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Insert { count, gap } => (0..count).for_each(|_| self.insert(gap)),
            Step::Undo { count } => {
                for _ in 0..count {
                    let Some((number, identity)) = self.model.pop_last() else { break };
                    assert!(self.index.remove(&key(identity), number));
                    assert!(!self.index.remove(&key(identity), number));
                    self.next = number;
                }
            }
            Step::Expire { share } => {
                let Some(first) = self.at_share(share) else { return };
                let live = self.model.split_off(&first);
                self.index.expire(first, self.model.len() as u64);
                self.model = live;
            }
            Step::Clear => {
                self.model.clear();
                self.index.clear(self.next);
            }
            Step::Reserve { ids } => self.index.reserve(u64::from(ids)),
            Step::Expect { ids } => self.index.expect(u64::from(ids), u64::from(ids) * 2),
        }
    }

    fn insert(&mut self, gap: u32) {
        self.made += 1;
        let identity = Identity(u128::from(self.made).to_be_bytes());
        self.index.insert(&key(identity), self.next);
        self.model.insert(self.next, identity);
        self.next += u64::from(gap);
    }

    fn at_share(&self, share: u8) -> Option<Sequence> {
        self.model.keys().nth(self.model.len() * usize::from(share) / 256).copied()
    }

    fn found(&self, identity: Identity) -> Vec<Sequence> {
        let mut found = Vec::new();
        let all = self.index.candidates::<()>(&key(identity), |number| {
            found.push(number);
            ControlFlow::Continue(())
        });
        assert!(all.is_continue());
        found
    }

    fn check(&self) {
        assert_eq!(self.index.live(), self.model.len() as u64);
        let mut others = 0;
        for (number, identity) in &self.model {
            let found = self.found(*identity);
            assert!(found.contains(number), "owner {number} is not among {found:?}");
            assert!(found.iter().all(|other| self.model.contains_key(other)), "{found:?} is not all live");
            others += found.len() - 1;
        }
        assert!(others <= 2 + self.model.len() / 1_000, "{others} false candidates");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_index_has_the_same_content_as_a_map(steps in steps()) {
        let mut pair = Pair::default();
        for step in &steps {
            pair.apply(step);
            pair.check();
        }
    }
}

#[test]
fn a_rolling_window_stays_in_one_table() {
    let mut pair = Pair::default();
    pair.index.reserve(12_000);
    let memory = pair.index.memory_bytes();
    for _ in 0..60 {
        pair.apply(&Step::Insert { count: 2_000, gap: 1 });
        if pair.model.len() > 10_000 {
            pair.apply(&Step::Expire { share: 51 });
        }
    }
    pair.check();
    assert_eq!(pair.index.tables(), 1);
    assert!(pair.index.memory_bytes() < memory + 100_000, "{}", pair.index.memory_bytes());
}

#[test]
fn a_growing_window_uses_few_tables_and_frees_old_ones() {
    let mut pair = Pair::default();
    pair.apply(&Step::Insert { count: 50_000, gap: 1 });
    assert!(pair.index.tables() <= 4, "{}", pair.index.tables());
    pair.check();
    pair.apply(&Step::Expire { share: 250 });
    assert_eq!(pair.index.tables(), 1);
    pair.check();
}

#[test]
fn an_id_takes_10_7_bytes_in_a_full_table() {
    let mut pair = Pair::default();
    let ids = 200_000u32;
    pair.index.reserve(u64::from(ids));
    for _ in 0..u64::from(ids) + u64::from(ids) / 16 {
        pair.insert(1);
    }
    let each = pair.index.memory_bytes() as f64 / pair.index.live() as f64;
    assert_eq!(pair.index.tables(), 1);
    assert!(each < 10.8, "{each} bytes, {} overflowed", pair.index.overflowed());
    let overflowed = pair.index.overflowed() as f64 / pair.index.live() as f64;
    assert!(overflowed < 0.003, "{overflowed}");
}
