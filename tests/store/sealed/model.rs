//! What a store with slices must have, and the steps that change it.

use std::collections::BTreeMap;
use std::time::Duration;

use dedupd::dedupe::{
    Block, Coordinates, FilterBits, HashKind, Identity, Offset, Sequence, SliceMark, SlicePartition,
    StoredOwner, WindowId,
};
use dedupd::ports::{FilterJob, Head, SealJob, SealedLookup, Sealing, Store, StoreError, ToForget};
use dedupd::store::{Binding, SledStore};
use fastrand::Rng;

/// A window.
#[derive(Debug, Clone, Default)]
pub struct Owned {
    /// The owners that count.
    pub live: BTreeMap<Offset, Identity>,
    /// Owners that have expired. The store can still have them.
    pub expired: BTreeMap<Offset, Identity>,
    /// Owners that were undone or forgotten. No identity is used again.
    pub removed: Vec<(Offset, Identity)>,
    /// The numbers of the owners that were not undone.
    pub numbers: BTreeMap<Offset, Sequence>,
    pub next_number: Sequence,
    pub confirmed: Offset,
    /// Owners below it have expired.
    pub floor: Offset,
    pub end: Offset,
}

impl Owned {
    /// Without the owners at or beyond an offset.
    pub fn cut(&mut self, from: Offset) {
        let gone = self.live.split_off(&from);
        self.removed.extend(gone);
        self.removed.extend(self.expired.split_off(&from));
        let numbers = self.numbers.split_off(&from);
        self.next_number = numbers.values().next().copied().unwrap_or(self.next_number);
        for at in [&mut self.end, &mut self.confirmed, &mut self.floor] {
            *at = (*at).min(from);
        }
    }

    fn clear(&mut self) {
        self.cut(0);
    }
}

pub type Model = BTreeMap<WindowId, Owned>;

/// A store, and what it must have.
pub struct Modelled {
    pub rng: Rng,
    pub store: SledStore,
    pub model: Model,
    is_shared: bool,
    /// What has happened: appends, seals, merges, filters.
    pub events: BTreeMap<&'static str, u64>,
}

fn time_of(offset: Offset) -> i64 {
    1_000 + offset.cast_signed() * 10
}

pub fn binding(rng: &mut Rng) -> Binding {
    let is_shared = rng.bool();
    let kinds = if rng.bool() { vec!["named".to_owned()] } else { Vec::new() };
    let partitions = if is_shared { 3 } else { rng.u32(1..3) };
    Binding { partitions, kinds, shares_slices: Some(is_shared), ..Binding::default() }
}

/// Whether the store has an owner that counts. The worker looks up a sealed one by its identity, and another one by its number.
pub fn has(
    store: &SledStore,
    window: WindowId,
    (model, offset): (&Owned, Offset),
) -> Result<bool, StoreError> {
    has_owner(store, window, model, (offset, model.live[&offset]))
}

fn has_owner(
    store: &SledStore,
    window: WindowId,
    model: &Owned,
    (offset, identity): (Offset, Identity),
) -> Result<bool, StoreError> {
    if store.sealed(window).last().is_none_or(|range| offset >= range.next) {
        let owner = Some(StoredOwner { offset, identity: Some(identity) });
        return Ok(store.owner(window, model.numbers[&offset], Some(identity))? == owner);
    }
    let mut lookup = SealedLookup::new(window, store.positions().key(identity));
    store.find_sealed(&mut [&mut lookup]);
    let places = store.sealed_places(&lookup)?;
    let owner = Coordinates { partition: window.partition(), offset };
    Ok(places.owners.contains(&owner) || !places.filters.is_empty())
}

/// Looks up some owners of each window, some that have expired, and some that were removed. An error is one of the store.
pub fn check(store: &SledStore, model: &Model, rng: &mut Rng, case: &str) -> Result<(), StoreError> {
    for (window, owned) in model {
        let step = (owned.live.len() / 50).max(1);
        for (offset, _) in owned.live.iter().skip(rng.usize(..step)).step_by(step) {
            let has = has(store, *window, (owned, *offset))?;
            assert!(has, "{case}: owner {offset} of {window} is lost; sealed: {:?}", ranges(store, *window));
        }
        let missing_ms = store.missing_ms(*window)?;
        for (offset, identity) in owned.expired.iter().rev().take(100) {
            let is_noted = time_of(*offset) <= missing_ms;
            let is_known = is_noted || has_owner(store, *window, owned, (*offset, *identity))?;
            assert!(
                is_known,
                "{case}: owner {offset} of {window} has expired, and only owners up to {missing_ms} ms are noted"
            );
        }
        for (offset, identity) in owned.removed.iter().rev().take(30) {
            let lookup = SealedLookup::new(*window, store.positions().key(*identity));
            let places = store.sealed_places(&lookup)?;
            let is_back = !places.owners.is_empty() || !places.filters.is_empty();
            assert!(!is_back, "{case}: the removed owner {offset} of {window} is back: {places:?}");
        }
    }
    Ok(())
}

fn ranges(store: &SledStore, window: WindowId) -> Vec<(Offset, Offset)> {
    store.sealed(window).iter().map(|range| (range.first, range.next)).collect()
}

/// Cuts each window at its confirmed offset, as a start does. Returns whether a filter has removed owners.
pub fn start(store: &mut SledStore, model: &mut Model) -> Result<bool, StoreError> {
    for (window, owned) in model {
        let confirmed = store.head(*window)?.map_or(0, |head| head.confirmed);
        owned.cut(confirmed);
        match store.truncate(*window, confirmed) {
            Err(StoreError::InFilter(_)) => return Ok(true),
            removed => drop(removed?),
        }
    }
    Ok(false)
}

impl Modelled {
    pub fn new(rng: Rng, store: SledStore, binding: &Binding) -> Self {
        let model = binding.windows().into_iter().map(|(_, window)| (window, Owned::default())).collect();
        let is_shared = binding.shares_slices == Some(true);
        Self { rng, store, model, is_shared, events: BTreeMap::new() }
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

    /// The windows that share slices with this one.
    fn sharing(&self, window: WindowId) -> Vec<WindowId> {
        let shares =
            |other: &&WindowId| **other == window || (self.is_shared && other.kind() == window.kind());
        self.model.keys().filter(shares).copied().collect()
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
            80..85 => self.truncate(),
            85..91 => self.forget(),
            91..96 => self.expire(),
            96 => self.clear(),
            _ => self.poll(usize::MAX),
        }
    }

    fn append(&mut self) {
        let (window, before) = self.any();
        let length = [1, 5, 30, 90, 250][self.rng.usize(..5)];
        let is_rewind = self.rng.u8(..12) == 0 && self.store.filters(window).is_empty();
        let back = if is_rewind { self.rng.u64(..400) } else { 0 };
        let first = before.end.saturating_sub(back).max(before.floor);
        let next = first + length;
        let mut entries = Vec::new();
        for offset in first..next {
            if self.rng.u8(..8) > 0 {
                entries.push((offset, Identity(self.rng.u128(..).to_le_bytes())));
            }
        }
        let empty = Block::empty(HashKind::Xxh3, window, first..next, time_of(first));
        let block = Block { entries: entries.clone(), time_last_ms: time_of(next), ..empty };
        let confirmed = if self.rng.bool() { next } else { first };
        let owned = self.of(window);
        owned.cut(first);
        let number = owned.next_number;
        owned.numbers.extend(entries.iter().map(|(offset, _)| *offset).zip(number..));
        owned.next_number += entries.len() as Sequence;
        owned.live.extend(entries);
        (owned.end, owned.confirmed) = (next, owned.confirmed.max(confirmed));
        let head = self.head(window);
        self.store.append(&block, number, head).unwrap();
    }

    fn confirm(&mut self) {
        let (window, owned) = self.any();
        if owned.end > 0 {
            self.of(window).confirmed = owned.end;
            let head = self.head(window);
            self.store.set_head(window, head).unwrap();
        }
    }

    /// Begins to seal the oldest owners of some windows that share slices.
    fn seal(&mut self) {
        let (any, _) = self.any();
        let (mut partitions, most) = (Vec::new(), [80, 80, 1_500][self.rng.usize(..3)]);
        for window in self.sharing(any) {
            let owned = &self.model[&window];
            let from = self.store.sealed(window).last().map_or(0, |range| range.next).max(owned.floor);
            let unsealed = owned.live.range(from.min(owned.confirmed)..owned.confirmed);
            let owners: Vec<Offset> =
                unsealed.take(self.rng.usize(1..most)).map(|(offset, _)| *offset).collect();
            let mut marks = Vec::new();
            let mut rest = owners.as_slice();
            while !rest.is_empty() {
                let (mark, after) = rest.split_at(self.rng.usize(1..=rest.len()));
                let (first, last) = (mark[0], mark[mark.len() - 1]);
                let (count, time_ms) = (mark.len() as u64, (time_of(first), time_of(last)));
                marks.push(SliceMark { next: last + 1, count, time_ms });
                rest = after;
            }
            if let (Some(first), Some(last)) = (owners.first(), owners.last()) {
                let (partition, first, next) = (window.partition(), *first, last + 1);
                partitions.push(SlicePartition { partition, first, next, marks });
            }
        }
        let is_urgent = self.rng.bool();
        self.store.begin_seal(SealJob { kind: any.kind(), partitions, is_urgent }).unwrap();
    }

    fn filter(&mut self) {
        let (any, owned) = self.any();
        let before_ms = time_of(self.rng.u64(..=owned.confirmed) / 2);
        let bits = FilterBits::at_rate(1e-10);
        let job = FilterJob { windows: self.sharing(any), before_ms, span_ms: 100, bits };
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

    pub fn truncate(&mut self) {
        let (window, owned) = self.any();
        let back = [3, 50, 400, 3_000][self.rng.usize(..4)];
        let from = owned.end.saturating_sub(self.rng.u64(..back));
        self.of(window).cut(from);
        match self.store.truncate(window, from) {
            Err(StoreError::InFilter(_)) => self.clear_sharing(),
            removed => drop(removed.unwrap()),
        }
    }

    fn forget(&mut self) {
        let (window, owned) = self.any();
        let candidates: Vec<_> = owned.live.range(..owned.confirmed).collect();
        if candidates.is_empty() {
            return;
        }
        let forgotten: BTreeMap<Offset, Identity> = (0..self.rng.usize(1..4))
            .map(|_| candidates[self.rng.usize(..candidates.len())])
            .map(|(offset, identity)| (*offset, *identity))
            .collect();
        let (owners, identities): (Vec<_>, Vec<_>) = forgotten.iter().map(|(at, id)| (*at, *id)).unzip();
        let of_window = self.of(window);
        of_window.live.retain(|offset, _| !forgotten.contains_key(offset));
        of_window.removed.extend(forgotten);
        let to_forget = ToForget { owners: &owners, identities: &identities, before: owned.confirmed };
        let head = self.head(window);
        self.store.forget(window, to_forget, head).unwrap();
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

    fn clear(&mut self) {
        let (window, _) = self.any();
        match self.store.clear(window) {
            Err(StoreError::InFilter(_)) => self.clear_sharing(),
            cleared => {
                cleared.unwrap();
                self.of(window).clear();
            }
        }
    }

    /// Removes everything, as the worker does when a filter would have to lose owners.
    pub fn clear_sharing(&mut self) {
        self.count("filters cleared");
        let all: Vec<_> = self.model.keys().copied().collect();
        self.store.clear_all(&all).unwrap();
        self.model.values_mut().for_each(Owned::clear);
    }
}
