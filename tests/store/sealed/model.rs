//! What a store with slices must have, and the steps that change it.

use std::collections::BTreeMap;
use std::time::Duration;

use dedupd::dedupe::{
    Coordinates, Digest, FilterBits, Identity, KnownOwner, Offset, OwnerRun, PartitionId, SealedRange,
    Sequence, SliceMark, StoredOwner, WindowId,
};
use dedupd::ports::{FilterJob, Head, SealJob, SealedLookup, Sealing, Store, StoreError, ToForget};
use dedupd::store::{Binding, SledStore};
use fastrand::Rng;

use crate::undo_all;

/// Raw partitions of a window.
const PARTITIONS: u32 = 3;

/// A window.
#[derive(Debug, Clone, Default)]
pub struct Owned {
    /// The owners that count.
    pub live: BTreeMap<Sequence, StoredOwner>,
    /// Owners that have expired. The store can still have them.
    pub expired: BTreeMap<Sequence, StoredOwner>,
    /// Owners that were undone or forgotten. No identity is used again.
    pub removed: Vec<StoredOwner>,
    pub next_number: Sequence,
    pub confirmed: Sequence,
    /// Owners below it have expired.
    pub floor: Sequence,
    /// Where each partition continues.
    pub ends: BTreeMap<PartitionId, Offset>,
}

impl Owned {
    /// Without the owners that `is_removed` returns true for.
    fn remove(&mut self, is_removed: impl Fn(Sequence, &StoredOwner) -> bool) {
        for owners in [&mut self.live, &mut self.expired] {
            self.removed
                .extend(owners.extract_if(.., |number, owner| is_removed(*number, owner)).map(|it| it.1));
        }
    }

    /// Without the owners from a number on.
    pub fn truncate(&mut self, from: Sequence) {
        self.remove(|number, _| number >= from);
        for at in [&mut self.next_number, &mut self.confirmed, &mut self.floor] {
            *at = (*at).min(from);
        }
    }
}

pub type Model = BTreeMap<WindowId, Owned>;

/// A store, and what it must have.
pub struct Modelled {
    pub rng: Rng,
    pub store: SledStore,
    pub model: Model,
    /// What has happened: appends, seals, merges, filters.
    pub events: BTreeMap<&'static str, u64>,
}

/// The time of the window's clock at the arrival of an owner.
fn time_of(number: Sequence) -> i64 {
    1_000 + number.cast_signed() * 10
}

/// The rule of the digests of the first owners.
const OLD_RULE: u32 = 7;

pub fn binding(rng: &mut Rng) -> Binding {
    let kinds = if rng.bool() { vec!["named".to_owned()] } else { Vec::new() };
    Binding { partitions: rng.u32(1..3), kinds, ..Binding::default() }
}

/// Whether the store has an owner. The worker looks up a sealed one by its identity, and another one by its number.
pub fn has(
    store: &SledStore,
    window: WindowId,
    number: Sequence,
    owner: &StoredOwner,
) -> Result<bool, StoreError> {
    let StoredOwner { at, time_ms, identity, digest } = *owner;
    if store.sealed(window).last().is_none_or(|range| number >= range.next) {
        return Ok(store.owner(window, number, identity)? == Some(*owner));
    }
    let mut lookup = SealedLookup::new(window, store.positions().key(identity.unwrap()));
    store.find_sealed(&mut [&mut lookup]);
    let places = store.sealed_places(&lookup)?;
    let is_within = |(first, last): &(i64, i64)| time_ms == 0 || (*first..=*last).contains(&time_ms);
    // A slice has the digests of one rule, the newest.
    let is_of_owner = |found: &KnownOwner| {
        let is_kept = found.digest == digest || digest.rule() == OLD_RULE && found.digest == Digest::NONE;
        (found.at, found.time_ms) == (at, time_ms) && is_kept
    };
    Ok(places.owners.iter().any(is_of_owner) || places.filters.iter().any(is_within))
}

/// Looks up some owners of each window, some that have expired, and some that were removed. An error is one of the store.
pub fn check(store: &SledStore, model: &Model, rng: &mut Rng, case: &str) -> Result<(), StoreError> {
    for (window, owned) in model {
        let step = (owned.live.len() / 50).max(1);
        for (number, owner) in owned.live.iter().skip(rng.usize(..step)).step_by(step) {
            let has = has(store, *window, *number, owner)?;
            assert!(has, "{case}: owner {number} of {window} is lost; sealed: {:?}", ranges(store, *window));
        }
        let missing_ms = store.missing_ms(*window)?;
        for (number, owner) in owned.expired.iter().rev().take(100) {
            let is_noted = time_of(*number) <= missing_ms;
            assert!(
                is_noted || has(store, *window, *number, owner)?,
                "{case}: owner {number} of {window} has expired, and only owners up to {missing_ms} ms are noted"
            );
        }
        for StoredOwner { at, identity, .. } in owned.removed.iter().rev().take(30) {
            let lookup = SealedLookup::new(*window, store.positions().key(identity.unwrap()));
            let places = store.sealed_places(&lookup)?;
            let is_back = !places.owners.is_empty() || !places.filters.is_empty();
            assert!(!is_back, "{case}: the removed owner {at} of {window} is back: {places:?}");
        }
    }
    Ok(())
}

fn ranges(store: &SledStore, window: WindowId) -> Vec<(Sequence, Sequence)> {
    store.sealed(window).iter().map(|range| (range.first, range.next)).collect()
}

/// Cuts each window at its confirmed number, as a start does. Slices beyond it are left of a removal of all state that was interrupted.
pub fn start(store: &mut SledStore, model: &mut Model) -> Result<(), StoreError> {
    for (window, owned) in model {
        let confirmed = store.head(*window)?.map_or(0, |head| head.confirmed);
        if store.sealed(*window).last().is_some_and(|range| range.next > confirmed) {
            store.clear(&[*window])?;
            owned.truncate(0);
        } else {
            store.truncate(*window, confirmed)?;
            owned.truncate(confirmed);
        }
    }
    Ok(())
}

impl Modelled {
    pub fn new(rng: Rng, store: SledStore, binding: &Binding) -> Self {
        let model = binding.windows().into_iter().map(|(_, window)| (window, Owned::default())).collect();
        Self { rng, store, model, events: BTreeMap::new() }
    }

    fn count(&mut self, what: &'static str) {
        *self.events.entry(what).or_default() += 1;
    }

    fn any(&mut self) -> (WindowId, Owned) {
        let at = self.rng.usize(..self.model.len());
        self.model.iter().nth(at).map(|(window, owned)| (*window, owned.clone())).unwrap()
    }

    fn of(&mut self, window: WindowId) -> &mut Owned {
        self.model.get_mut(&window).unwrap()
    }

    fn head(&self, window: WindowId) -> Head {
        Head { confirmed: self.model[&window].confirmed, ..Head::default() }
    }

    fn sealed_next(&self, window: WindowId) -> Sequence {
        self.store.sealed(window).last().map_or(0, |range| range.next)
    }

    /// One step of the worker.
    pub fn step(&mut self) {
        match self.rng.u8(..100) {
            0..32 => self.append(),
            32..38 => self.confirm(),
            38..56 => self.seal(),
            56..62 => self.filter(),
            62..80 => {
                let polls = self.rng.usize(1..12);
                self.poll(polls);
            }
            80..82 => self.truncate(),
            82..86 => self.undo(),
            86..91 => self.forget(),
            91..96 => self.expire(),
            96 => {
                let (window, _) = self.any();
                self.clear(window);
            }
            _ => self.poll(usize::MAX),
        }
    }

    fn append(&mut self) {
        let (window, mut owned) = self.any();
        let length = [1, 5, 30, 90, 250][self.rng.usize(..5)];
        let rule = if owned.next_number < 2_000 { OLD_RULE } else { OLD_RULE + 1 };
        let number = owned.next_number;
        let mut owners = Vec::new();
        for number in number..number + length {
            let partition = self.rng.u32(..PARTITIONS);
            let end = owned.ends.entry(partition).or_default();
            let at = Coordinates { partition, offset: *end + self.rng.u64(..2) };
            *end = at.offset + 1;
            // The partitions have clocks of their own.
            let own_ms = time_of(number) - i64::from(partition) * 7;
            let time_ms = if self.rng.u8(..9) == 0 { 0 } else { own_ms };
            let identity = Some(Identity(self.rng.u128(..).to_le_bytes()));
            let digest = Digest::stored(rule, self.rng.u32(..4));
            owners.push(StoredOwner { at, time_ms, identity, digest });
        }
        owned.next_number += length;
        if self.rng.bool() {
            owned.confirmed = owned.next_number;
        }
        owned.live.extend((number..).zip(owners.iter().copied()));
        let times_ms = (time_of(number), time_of(owned.next_number - 1));
        self.model.insert(window, owned);
        let head = self.head(window);
        self.store.append(window, &OwnerRun { number, times_ms, owners: &owners }, &head).unwrap();
    }

    fn confirm(&mut self) {
        let (window, owned) = self.any();
        if owned.next_number > 0 {
            self.of(window).confirmed = owned.next_number;
            let head = self.head(window);
            self.store.set_head(window, &head).unwrap();
        }
    }

    /// Begins to seal the oldest owners of a window.
    fn seal(&mut self) {
        let ((window, owned), most) = (self.any(), [80, 80, 1_500][self.rng.usize(..3)]);
        let from = self.sealed_next(window).max(owned.floor).min(owned.confirmed);
        let unsealed = owned.live.range(from..owned.confirmed);
        let owners: Vec<Sequence> =
            unsealed.take(self.rng.usize(1..most)).map(|(number, _)| *number).collect();
        let (Some(first), Some(last)) = (owners.first(), owners.last()) else { return };
        let mut marks = Vec::new();
        let mut rest = owners.as_slice();
        while !rest.is_empty() {
            let (mark, after) = rest.split_at(self.rng.usize(1..=rest.len()));
            let (first, last) = (mark[0], mark[mark.len() - 1]);
            let (count, time_ms) = (mark.len() as u64, (time_of(first), time_of(last)));
            marks.push(SliceMark { next: last + 1, count, time_ms });
            rest = after;
        }
        let range = SealedRange { first: *first, next: last + 1, marks };
        self.store.begin_seal(SealJob { window, range, is_urgent: self.rng.bool() }).unwrap();
    }

    fn filter(&mut self) {
        let (window, owned) = self.any();
        let before_ms = time_of(self.rng.u64(..=owned.confirmed) / 2);
        let job = FilterJob { window, before_ms, span_ms: 100, bits: FilterBits::at_rate(1e-10) };
        if self.store.begin_filter(&job).unwrap() {
            self.count("filters begun");
        }
    }

    /// Polls at most so often, until nothing is being written.
    pub fn poll(&mut self, times: usize) {
        for _ in 0..times {
            match self.store.poll_seal().unwrap() {
                Sealing::Idle => return,
                Sealing::Busy => std::thread::sleep(Duration::from_micros(200)),
                Sealing::Done(_) => self.count("sealed"),
                Sealing::Failed | Sealing::Paused => panic!("a slice was discarded"),
            }
        }
    }

    fn back(&mut self) -> u64 {
        let most = [3, 50, 400, 3_000][self.rng.usize(..4)];
        self.rng.u64(..most)
    }

    /// Removes owners that are in no slice.
    fn truncate(&mut self) {
        let (window, owned) = self.any();
        let from = owned.next_number.saturating_sub(self.back());
        let from = from.max(self.sealed_next(window)).max(owned.floor);
        self.of(window).truncate(from);
        self.store.truncate(window, from).unwrap();
    }

    fn undo(&mut self) {
        let (window, mut owned) = self.any();
        let partition = self.rng.u32(..PARTITIONS);
        let end = owned.ends.get(&partition).copied().unwrap_or(0);
        let back = if self.rng.u8(..3) == 0 { self.rng.u64(..=end) } else { self.back() };
        let from = Coordinates { partition, offset: end.saturating_sub(back) };
        let is_undone = |owner: &StoredOwner| owner.at.partition == partition && owner.at >= from;
        let sealed = self.sealed_next(window);
        let unsealed = owned.live.range(sealed..).filter(|(_, owner)| is_undone(owner));
        let unsealed: Vec<_> = unsealed.map(|(number, owner)| (*number, owner.identity.unwrap())).collect();
        owned.remove(|_, owner| is_undone(owner));
        owned.ends.insert(partition, from.offset);
        match undo_all(&mut self.store, window, from) {
            Err(StoreError::InFilter(_)) => {
                self.count("in filter");
                check(&self.store, &self.model, &mut self.rng, "a refused undo has changed something")
                    .unwrap();
                self.clear(window);
            }
            undone => {
                let undone = undone.unwrap();
                assert!(unsealed.iter().all(|owner| undone.contains(owner)));
                self.model.insert(window, owned);
                self.count("undone");
            }
        }
    }

    fn forget(&mut self) {
        let (window, owned) = self.any();
        let candidates: Vec<_> = owned.live.range(..owned.confirmed).collect();
        if candidates.is_empty() {
            return;
        }
        let forgotten: BTreeMap<Sequence, StoredOwner> = (0..self.rng.usize(1..4))
            .map(|_| candidates[self.rng.usize(..candidates.len())])
            .map(|(number, owner)| (*number, *owner))
            .collect();
        let numbers: Vec<_> = forgotten.keys().copied().collect();
        let identities: Vec<_> = forgotten.values().filter_map(|owner| owner.identity).collect();
        self.of(window).remove(|number, _| forgotten.contains_key(&number));
        let to_forget = ToForget { numbers: &numbers, identities: &identities };
        let head = self.head(window);
        self.store.forget(window, to_forget, &head).unwrap();
    }

    fn expire(&mut self) {
        let (window, owned) = self.any();
        let span = owned.confirmed.saturating_sub(owned.floor);
        let first = owned.floor + self.rng.u64(..=span) / [2, 4, 16][self.rng.usize(..3)];
        let of_window = self.of(window);
        of_window.floor = first;
        let live = of_window.live.split_off(&first);
        of_window.expired.extend(std::mem::replace(&mut of_window.live, live));
        self.store.expire(window, first, time_of(first) - 10).unwrap();
    }

    /// Removes all state of a window, as the worker also does when a filter would have to lose owners.
    fn clear(&mut self, window: WindowId) {
        self.store.clear(&[window]).unwrap();
        self.of(window).truncate(0);
    }
}
