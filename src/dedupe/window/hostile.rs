//! Results are exact wherever identities are: at one position, at a few, or in one bucket.
//!
//! Ids cannot select their positions ([`Positions`]), so these tests do.

use std::collections::BTreeMap;
use std::convert::Infallible;

use proptest::prelude::*;

use super::*;
use crate::dedupe::identity::Digest;

const T: i64 = 1_700_000_000_000;
const MINUTE: i64 = 60_000;
/// Length of the window.
const EXACT: Duration = Duration::from_hours(1);
/// Ids that no record has.
const UNUSED: std::ops::Range<u16> = 900..1_000;

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

/// The store of a window: committed owners, by number.
#[derive(Default)]
struct OwnerMap(BTreeMap<Sequence, StoredOwner>);

impl Owners for OwnerMap {
    type Error = Infallible;

    fn owner(&self, number: Sequence, _: Option<Identity>) -> Result<StoredOwner, Infallible> {
        Ok(self.0[&number])
    }
}

#[derive(Debug, Clone)]
enum Move {
    /// Records with these ids, in two partitions by turns.
    Transaction { numbers: Vec<u16>, commits: bool },
    /// The window's clock advances.
    Advance { minutes: i64 },
    /// All owners of this id are forgotten.
    Forget { number: u16 },
    /// A partition is read again from some records back.
    Undo { partition: PartitionId, back: Offset },
}

fn steps() -> impl Strategy<Value = Vec<Move>> {
    let step = prop_oneof![
        6 => (proptest::collection::vec(0..UNUSED.start, 0..120), any::<bool>())
            .prop_map(|(numbers, commits)| Move::Transaction { numbers, commits }),
        2 => (0..45i64).prop_map(|minutes| Move::Advance { minutes }),
        1 => (0..UNUSED.start).prop_map(|number| Move::Forget { number }),
        1 => (0..2u32, 0..100u64).prop_map(|(partition, back)| Move::Undo { partition, back }),
    ];
    proptest::collection::vec(step, 1..30)
}

/// All owners of each id that were neither forgotten nor undone, expired ones included.
type Model = BTreeMap<u16, Vec<(Sequence, Owner)>>;

/// A window beside a map.
struct World {
    window: Window,
    known: OwnerMap,
    model: Model,
    /// The next offset of each partition.
    next: [Offset; 2],
    clock_ms: i64,
    evicts: bool,
}

impl World {
    fn new(positions: Positions, evicts: bool) -> Self {
        let limits = WindowLimits { exact: EXACT, max_ids: 4_096, time: TimeSource::Record, bloom: None };
        let window =
            if evicts { Window::evicting(limits, positions) } else { Window::new(limits, positions) };
        let (known, model) = (OwnerMap::default(), Model::new());
        Self { window, known, model, next: [0; 2], clock_ms: T, evicts }
    }

    fn take(&mut self, step: Move) {
        match step {
            Move::Transaction { numbers, commits } => self.transaction(&numbers, commits),
            Move::Advance { minutes } => {
                self.clock_ms += minutes * MINUTE;
                self.window.set_horizon(self.clock_ms);
                self.commit();
            }
            Move::Forget { number } => self.forget(number),
            Move::Undo { partition, back } => self.undo(partition, back),
        }
        let live = self.model.values().flatten().filter(|(number, _)| *number >= self.window.first_live());
        assert!(self.evicts || self.window.ids() == live.count() as u64);
    }

    fn transaction(&mut self, numbers: &[u16], commits: bool) {
        let before = (self.model.clone(), self.next);
        for (number, partition) in numbers.iter().zip([0u32, 1].into_iter().cycle()) {
            self.record(*number, partition);
        }
        if commits {
            self.commit();
        } else {
            self.window.abort();
            (self.model, self.next) = before;
        }
    }

    fn record(&mut self, number: u16, partition: PartitionId) {
        let offset = &mut self.next[partition as usize];
        let at = Coordinates { partition, offset: *offset };
        *offset += 1;
        // One partition is read later than the other.
        let time_ms = self.clock_ms + i64::from(partition) * 20 * MINUTE;
        let key = self.window.key(identity(number));
        let time = RecordTime { own_ms: time_ms, stream_ms: time_ms };
        let verdict = self.window.verdict(at, time, &key, &self.known).unwrap();
        let owners = self.model.entry(number).or_default();
        let counting = owners.iter().filter(|(_, owner)| self.window.counts(owner.time_ms, time));
        let mut copies = counting.map(|(_, owner)| Verdict::Duplicate { owner: *owner }).peekable();
        let is_new = copies.peek().is_none() || self.evicts;
        assert!(
            copies.any(|copy| copy == verdict) || is_new && verdict == Verdict::New,
            "{number}: {verdict:?}"
        );
        if verdict == Verdict::New {
            let owner = Owner { at, time_ms, identity: key.identity, digest: Digest::NONE };
            owners.push((self.window.next_number() + self.window.pending().len() as Sequence, owner));
            let last_ms = self.window.pending().last().map_or(self.window.latest_ms(), |last| last.stamp_ms);
            self.window.admit(StampedOwner { owner, stamp_ms: last_ms.max(time_ms) }, &key);
        }
    }

    fn commit(&mut self) {
        let pending = self.window.pending().iter().map(|pending| pending.owner.into());
        self.known.0.extend((self.window.next_number()..).zip(pending));
        let first_needed = self.window.commit();
        self.known.0.retain(|number, _| *number >= first_needed);
    }

    fn forget(&mut self, number: u16) {
        let mut found = self.window.owners(&self.window.key(identity(number)), &self.known).unwrap();
        found.sort_unstable_by_key(|(number, _)| *number);
        let mut owners = self.model.remove(&number).unwrap_or_default();
        owners.retain(|(number, _)| *number >= self.window.first_live());
        assert!(self.evicts && found.iter().all(|it| owners.contains(it)) || found == owners);
        for (number, owner) in found {
            self.remove(number, owner.identity);
        }
    }

    fn undo(&mut self, partition: PartitionId, back: Offset) {
        let next = &mut self.next[partition as usize];
        *next = next.saturating_sub(back);
        let (from, mut undone) = (*next, Vec::new());
        for owners in self.model.values_mut() {
            let is_undone = |at: Coordinates| at.partition == partition && at.offset >= from;
            undone.extend(owners.extract_if(.., |(_, owner)| is_undone(owner.at)));
        }
        for (number, owner) in undone {
            self.remove(number, owner.identity);
        }
    }

    /// Removes an owner from the window and from the store, where it may have expired.
    fn remove(&mut self, number: Sequence, identity: Identity) {
        self.window.forget(number, identity);
        if let Some(stored) = self.known.0.get_mut(&number) {
            stored.identity = None;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn verdicts_are_exact_wherever_identities_are(
        positions in proptest::sample::select(positions().to_vec()),
        steps in steps(),
        evicts in any::<bool>(),
    ) {
        let mut world = World::new(positions, evicts);
        for step in steps {
            world.take(step);
        }
        // Each id once more, and some that no record had.
        let all: Vec<u16> = (0..UNUSED.end).collect();
        world.take(Move::Transaction { numbers: all, commits: true });
    }
}
