//! The local store, as used by the pipeline.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crate::dedupe::{
    Coordinates, EntryName, FilterBits, Identity, IndexKey, KnownOwner, Offset, OwnerRun, PartitionId,
    Positions, SealedRange, Sequence, StoredOwner, WindowId,
};

/// The end of the last section of a partition in a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Covered {
    /// The raw offset behind it.
    pub next: Offset,
    /// The stream time of the partition there, epoch milliseconds; 0 while unknown.
    pub time_ms: i64,
}

/// How much of a window's local state is confirmed as committed. That of the unnamed kind stands for all kinds of its journal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Head {
    /// Owners with lower numbers are known to be committed. Those from it on are of the entry `last_entry`, and unconfirmed, if that is not
    /// `confirmed_entry`.
    pub confirmed: Sequence,
    /// Offset in the journal at which a read continues to get what follows `confirmed_entry`.
    pub state_next: Offset,
    /// The last entry whose owners are stored, in full. The newest checkpoint names the last committed entry, so that the two can be
    /// compared. `None` if there is none.
    pub last_entry: Option<EntryName>,
    /// The last entry that is known to be committed: a checkpoint names it if `last_entry` was not committed. `None` if there is none.
    pub confirmed_entry: Option<EntryName>,
    /// The window's clock at `confirmed_entry`, epoch milliseconds; 0 while unknown.
    pub time_ms: i64,
    /// Identities that arrived before this stream time may be missing, epoch milliseconds; 0 when none is known to be.
    pub incomplete_ms: i64,
    /// Where the last section of each partition ends, up to `confirmed_entry`. Only in the head of the unnamed kind.
    pub covered: BTreeMap<PartitionId, Covered>,
}

impl Head {
    /// The part that stays valid without the owners of the unconfirmed entry.
    #[must_use]
    pub fn confirmed_only(&self) -> Self {
        Self { last_entry: self.confirmed_entry, ..self.clone() }
    }

    /// The head of a window whose owners below this number are committed, and that names no entry with others.
    #[must_use]
    pub fn confirmed_at(self, number: Sequence) -> Self {
        Self { confirmed: number, confirmed_entry: self.last_entry, ..self }
    }

    /// The number from which on owners do not count; `None` if all of them do. What is stored up to the `trusted` entry counts.
    #[must_use]
    pub fn counted(&self, trusted: Option<EntryName>) -> Option<Sequence> {
        let number = |entry: Option<EntryName>| entry.map_or(0, |entry| entry.number);
        // All owners of an unconfirmed entry are stored before its name is. An entry that was aborted can have the number of the one that replaced it.
        let has_trusted = self.last_entry != self.confirmed_entry
            && (self.last_entry == trusted || number(self.last_entry) < number(trusted));
        (!has_trusted).then_some(self.confirmed)
    }
}

/// Called with stored owners in turn, until it returns `Break`.
pub type VisitRun<'a> = &'a mut dyn FnMut(&OwnerRun<'_>) -> Result<ControlFlow<()>, StoreError>;

/// Owners to seal: committed ones of a window that the store has outside of slices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealJob {
    /// The window.
    pub window: WindowId,
    /// The owners; at least one of them was not forgotten.
    pub range: SealedRange,
    /// Too many owners wait to be sealed: the job should not be slower than what else the machine does.
    pub is_urgent: bool,
}

/// The oldest sealed owners of a window, which may be in filters only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterJob {
    /// The window.
    pub window: WindowId,
    /// Owners that arrived before this time of the window's clock, epoch milliseconds.
    pub before_ms: i64,
    /// The time over which the owners of a filter have arrived at least, ms.
    pub span_ms: i64,
    /// Bits of the filter.
    pub bits: FilterBits,
}

/// An identity that is looked up in the slices of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealedLookup {
    /// The window.
    pub window: WindowId,
    /// The identity.
    pub key: IndexKey,
    /// What [`Store::find_sealed`] has found. Only that store understands it.
    pub found: Option<FoundSlices>,
}

impl SealedLookup {
    /// A look-up that nothing was found for yet.
    #[must_use]
    pub fn new(window: WindowId, key: IndexKey) -> Self {
        Self { window, key, found: None }
    }
}

/// The slices that may contain an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundSlices {
    /// The version of the slices for which that is known.
    pub version: u64,
    /// A bit for each of the oldest 64.
    pub slices: u64,
}

/// What slices have of an identity.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SealedPlaces {
    /// Its owners, the newest slice first.
    pub owners: Vec<KnownOwner>,
    /// For each slice without owners whose filter contains it, the earliest and the latest stream time of its owners, epoch milliseconds; the
    /// newest first.
    pub filters: Vec<(i64, i64)>,
}

/// A slice that is a filter only.
#[derive(Debug, Clone, PartialEq)]
pub struct FilterSummary {
    /// The earliest and the latest stream time of its owners, epoch milliseconds.
    pub time_ms: (i64, i64),
    /// Number of identities.
    pub ids: u64,
    /// Bytes in memory.
    pub bytes: u64,
    /// Share of the identities that it does not contain for which it has a false positive.
    pub false_positive_rate: f64,
}

/// What to forget in a window.
#[derive(Debug, Clone, Copy, Default)]
pub struct ToForget<'a> {
    /// Numbers of owners outside of slices.
    pub numbers: &'a [Sequence],
    /// Identities all of whose owners in slices are forgotten, and which no filter contains any more.
    pub identities: &'a [Identity],
}

/// What [`Store::undo`] has removed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Undone {
    /// The owners outside of slices, with their numbers.
    pub owners: Vec<(Sequence, Identity)>,
    /// The number at which it continues; `None` when all are removed.
    pub next: Option<Sequence>,
}

/// The state of [`Store::begin_seal`] or [`Store::begin_filter`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sealing {
    /// Nothing is being sealed.
    Idle,
    /// Owners are being sealed.
    Busy,
    /// The owners of this job are in a slice now, and those outside of slices may be removed.
    Done(SealJob),
    /// The file could not be written, and was discarded. All owners stay where they were; it is retried after some minutes.
    Failed,
    /// The retry is not due yet.
    Paused,
}

/// Called with each owner in turn, and its window.
pub type VisitOwner<'a> = &'a mut dyn FnMut(WindowId, Identity, KnownOwner) -> Result<(), StoreError>;

/// The local store. It is a cache: every method may lose state, none may add any that was not written.
pub trait Store {
    /// The positions of identities in this store, and so in the windows that use it. Their key is a secret of the store.
    fn positions(&self) -> Positions;
    /// Takes the window: from now on only this handle may change it. Returns false when another handle may have
    /// changed it since this one last took it. A store with a single handle always holds all windows.
    fn acquire_lease(&mut self, _window: WindowId) -> bool {
        true
    }
    /// As [`Store::acquire_lease`], but only if no other handle holds the window. Returns whether this handle holds it now.
    fn acquire_free_lease(&mut self, _window: WindowId) -> bool {
        true
    }
    /// Gives up the window, if this handle holds it: its journal is not used here any more.
    fn release_lease(&mut self, _window: WindowId) {}
    /// The head of the window; `None` when nothing is stored.
    fn head(&self, window: WindowId) -> Result<Option<Head>, StoreError>;
    /// The latest time of the window's clock, epoch milliseconds, that was passed to [`Store::expire`] for this state; 0 when there is none. A
    /// window that has become longer lacks owners from up to it.
    fn missing_ms(&self, _window: WindowId) -> Result<i64, StoreError> {
        Ok(0)
    }
    /// Appends owners and sets the head, atomically. Their number must not be below [`Store::next_number`]. Without owners it only sets the head.
    fn append(&mut self, window: WindowId, owners: &OwnerRun<'_>, head: &Head) -> Result<(), StoreError>;
    /// Sets the head only.
    fn set_head(&mut self, window: WindowId, head: &Head) -> Result<(), StoreError>;
    /// Visits the stored owners from a number on, in their order and some at a time, until `visit` returns `Break`. Returns the number that
    /// continues after those; `None` at the end.
    fn scan_from(
        &self,
        window: WindowId,
        from: Sequence,
        visit: VisitRun<'_>,
    ) -> Result<Option<Sequence>, StoreError>;
    /// Visits all stored owners in their order. Has no time limit: a worker scans in parts instead.
    fn scan(
        &self,
        window: WindowId,
        visit: &mut dyn FnMut(&OwnerRun<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.scan_from(window, 0, &mut |run| visit(run).map(ControlFlow::Continue)).map(drop)
    }
    /// One past the highest number that an owner of the window has had since it was cleared, unless it was truncated: sealed and expired ones count.
    fn next_number(&self, window: WindowId) -> Result<Sequence, StoreError>;
    /// Number of stored owners outside of slices, without reading them: for sizing and progress.
    fn ids(&self, window: WindowId) -> Result<u64, StoreError>;
    /// Removes the owners from this number on, which are in no slice, and returns them. If they are all unconfirmed ones, the head names the entry
    /// before them: [`Head::confirmed_only`]. If some of those stay, it is unchanged.
    fn truncate(&mut self, window: WindowId, from: Sequence) -> Result<Vec<StoredOwner>, StoreError>;
    /// Removes the owners of partitions at or beyond a raw offset each: all that are in slices, and of the others some, from the number `next` on, so
    /// that the call takes milliseconds. It is repeated until [`Undone::next`] is `None`. After a crash in between, owners are missing which the
    /// head still claims. Fails with [`StoreError::InFilter`] if a filter may have some.
    fn undo(&mut self, window: WindowId, from: &[Coordinates], next: Sequence) -> Result<Undone, StoreError>;
    /// Removes owners and sets the head; ignores what is not stored.
    fn forget(&mut self, window: WindowId, forgotten: ToForget<'_>, head: &Head) -> Result<(), StoreError>;
    /// Removes owners below the number `first`, as far as no others are stored with them, and slices that have no others. Owners from up to the
    /// time `missing_ms` of the window's clock, in epoch milliseconds, do not count any more.
    fn expire(&mut self, window: WindowId, first: Sequence, missing_ms: i64) -> Result<(), StoreError>;
    /// The owner with this number; `None` when it is not stored outside of slices. Where it has the `expected` identity, only this
    /// owner is verified.
    fn owner(
        &self,
        window: WindowId,
        number: Sequence,
        expected: Option<Identity>,
    ) -> Result<Option<StoredOwner>, StoreError>;
    /// Whether the store has sealed slices. A store without them ignores jobs.
    fn seals(&self) -> bool {
        false
    }
    /// Begins to write a slice with these owners, in the background. Only one job runs at a time; another one is ignored. A job is
    /// discarded when owners of the window are removed meanwhile, but not when they expire.
    fn begin_seal(&mut self, _job: SealJob) -> Result<(), StoreError> {
        Ok(())
    }
    /// Begins to replace the oldest slices by a filter, in the background, if there are slices that this job allows. Returns whether there
    /// are.
    fn begin_filter(&mut self, _job: &FilterJob) -> Result<bool, StoreError> {
        Ok(false)
    }
    /// Whether a job is running. When it is done, its slice is registered: from then on [`Store::sealed_places`] finds its owners.
    fn poll_seal(&mut self) -> Result<Sealing, StoreError> {
        Ok(Sealing::Idle)
    }
    /// Discards the job that is running.
    fn end_seal(&mut self) {}
    /// Whether any owner is in a sealed slice.
    fn has_sealed(&self) -> bool {
        false
    }
    /// The owners of the window in sealed slices, in ascending order of their numbers.
    fn sealed(&self, _window: WindowId) -> Vec<SealedRange> {
        Vec::new()
    }
    /// Finds the slices that may contain identities which are looked up soon, so that [`Store::sealed_places`] does not have to. For many
    /// at once, because their reads of memory overlap, and those of a disk too if recent ones had to wait for it.
    fn find_sealed(&self, _lookups: &mut [&mut SealedLookup]) {}
    /// What the slices of a window have of an identity. Some owners may be older than the window.
    fn sealed_places(&self, _lookup: &SealedLookup) -> Result<SealedPlaces, StoreError> {
        Ok(SealedPlaces::default())
    }
    /// The filters without owners, the oldest first.
    fn filters(&self, _window: WindowId) -> Vec<FilterSummary> {
        Vec::new()
    }
    /// Visits the sealed owners of these windows, in no order, without those in filters only.
    fn scan_sealed(&self, _windows: &[WindowId], _visit: VisitOwner<'_>) -> Result<(), StoreError> {
        Ok(())
    }
    /// Bytes in memory of the slices of the window.
    fn sealed_memory(&self, _window: WindowId) -> u64 {
        0
    }
    /// Removes all state of these windows, filters too. All heads are removed before the first slice, so that no head claims owners that a
    /// crash has removed. Numbers begin at 0 again.
    fn clear(&mut self, windows: &[WindowId]) -> Result<(), StoreError>;
    /// The journals of which there is any state, in ascending order.
    fn stored_journals(&self) -> Vec<PartitionId> {
        Vec::new()
    }
    /// Bytes on disk of all stored state; `None` where that is not known.
    fn disk_bytes(&self) -> Result<Option<u64>, StoreError> {
        Ok(None)
    }
    /// Makes all writes durable against power loss.
    fn sync(&mut self) -> Result<(), StoreError>;
}

/// The local store failed. The state topic still contains everything; the directory has to be rebuilt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Stored bytes are damaged.
    #[error("local state is damaged: {0}")]
    Corrupt(String),
    /// A read or write failed.
    #[error("local state cannot be written or read: {0}")]
    Io(String),
    /// Another worker of this process holds the window.
    #[error("the local state of journal {0} is now held by another worker of this process")]
    LeaseLost(WindowId),
    /// Owners have to be removed, and a filter without owners may have them: it cannot lose single ones. Nothing is changed: the same call fails
    /// again.
    #[error(
        "owners of journal {0} have to be removed from the local state, and a filter has them, which cannot lose single ones: the \
         windows of the journal are restored from the state topic, at the latest after a restart"
    )]
    InFilter(WindowId),
}

impl StoreError {
    /// The result of a call; `None` when the window is held by another worker.
    pub fn unless_lease_lost<T>(result: Result<T, Self>) -> Result<Option<T>, Self> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(Self::LeaseLost(_)) => Ok(None),
            Err(other) => Err(other),
        }
    }
}
