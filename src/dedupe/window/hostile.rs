//! Results are exact wherever identities are: at one position, at a few, or in one bucket.
//!
//! Ids cannot select their positions ([`Positions`]), so these tests do.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::dedupe::coordinates::PartitionId;

const T: i64 = 1_700_000_000_000;

/// What someone would choose who could.
pub(super) fn positions() -> [Positions; 5] {
    [
        Positions::keyed([7; 16]),
        Positions::chosen(|_| (7, 7)),
        Positions::chosen(|_| (u64::MAX, u64::MAX)),
        // Four positions, in pairs of equal buckets.
        Positions::chosen(|Identity(bytes)| (u64::from(bytes[15] % 4) << 62, u64::from(bytes[15] % 2) << 63)),
        // One bucket, with different fingerprints.
        Positions::chosen(|Identity(bytes)| (1 << 50 | u64::from(bytes[15]), 1 << 50)),
    ]
}

fn identity(number: u16) -> Identity {
    Identity(u128::from(number).to_be_bytes())
}

/// Committed owners, by number.
#[derive(Default)]
pub(super) struct OwnerMap(pub BTreeMap<Sequence, (Offset, Identity)>);

impl OwnerMap {
    /// Adds the owners of the open transaction.
    pub(super) fn add(&mut self, window: &Window) {
        self.0.extend((window.next_number()..).zip(window.pending().iter().copied()));
    }
}

impl Owners for OwnerMap {
    type Error = Infallible;

    fn owner(&self, number: Sequence, _: Option<Identity>) -> Result<StoredOwner, Infallible> {
        let (offset, identity) = self.0[&number];
        Ok(StoredOwner { offset, identity: Some(identity) })
    }
}

/// A window and the filter over all windows beside a map.
struct World {
    window: Window,
    filter: TopicFilter,
    known: OwnerMap,
    model: BTreeMap<u16, Offset>,
    next: Offset,
    evicts: bool,
}

impl World {
    fn new(positions: Positions, evicts: bool) -> Self {
        let exact = Duration::from_hours(1);
        let limits = WindowLimits { exact, max_ids: 4_096, time: TimeSource::Record, bloom: None };
        let window =
            if evicts { Window::evicting(limits, positions) } else { Window::new(limits, positions) };
        let filter = TopicFilter::new(exact, positions, u64::MAX);
        Self { window, filter, known: OwnerMap::default(), model: BTreeMap::new(), next: 0, evicts }
    }

    fn transaction(&mut self, numbers: &[u16], commits: bool) {
        let (before, begin) = (self.model.clone(), self.next);
        for number in numbers {
            let at = self.next;
            self.window.observe(Some(T), T);
            let key = self.window.key(identity(*number));
            let expected = match self.model.get(number) {
                Some(owner) => Verdict::Duplicate { owner: *owner },
                None => Verdict::New,
            };
            let verdict = self.window.verdict(at, &key, &self.known).unwrap();
            assert!(verdict == expected || self.evicts && verdict == Verdict::New, "{number}: {verdict:?}");
            assert!(!self.model.contains_key(number) || self.filter.groups(&key).has(partition(*number)));
            if verdict == Verdict::New {
                self.window.admit(at, &key);
                self.filter.insert(&key, partition(*number), T);
                self.model.insert(*number, at);
            }
            self.next += 1;
        }
        if commits {
            self.known.add(&self.window);
            self.window.commit(self.next);
        } else {
            self.window.abort();
            (self.model, self.next) = (before, begin);
        }
    }

    fn truncate(&mut self, from: Offset) {
        self.window.truncate(from, &self.known).unwrap();
        self.known.0.retain(|_, (owner, _)| *owner < from);
        self.model.retain(|_, owner| *owner < from);
        self.next = from;
    }
}

fn partition(number: u16) -> PartitionId {
    PartitionId::from(number % 7)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn verdicts_are_exact_wherever_identities_are(
        positions in proptest::sample::select(positions().to_vec()),
        steps in proptest::collection::vec(
            (proptest::collection::vec(0..900u16, 0..120), any::<bool>(), 0..20u64), 1..25),
        evicts in any::<bool>(),
    ) {
        let mut world = World::new(positions, evicts);
        for (numbers, commits, cut) in steps {
            world.transaction(&numbers, commits);
            if cut > 0 && cut < 4 {
                world.truncate(world.next.saturating_sub(cut * 40));
            }
        }
        let unknown: BTreeSet<u16> = (0..1_000).filter(|number| !world.model.contains_key(number)).collect();
        for number in unknown {
            let key = world.window.key(identity(number));
            prop_assert_eq!(world.window.verdict(world.next, &key, &world.known).unwrap(), Verdict::New);
        }
    }
}
