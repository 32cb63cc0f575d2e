//! The local store, as used by the pipeline.

use std::ops::{ControlFlow, Range};
use std::slice;

use crate::dedupe::{
    Block, Coordinates, FilterBits, Identity, IndexKey, KindId, Offset, OwnerRun, PartitionId, Positions,
    Sequence, SlicePartition, StoredOwner, Tail, WindowId,
};

/// How much of a window's local state is confirmed as committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Head {
    /// Raw offset up to which the local owners are known to be committed. Owners at or beyond it are unconfirmed.
    pub confirmed: Offset,
    /// State topic offset at which a read continues to get what lies beyond `confirmed`.
    pub state_next: Offset,
    /// Stream time at `confirmed`, epoch milliseconds.
    pub stream_time_ms: i64,
    /// The last entry whose owners are stored. They are stored in full, and are the only ones that may lie beyond `confirmed`. The
    /// committed offset's metadata names the last committed entry, so that the two can be compared. `None` if there is none.
    pub tail: Option<Tail>,
    /// The last entry at or before `confirmed`: the committed offset's metadata names it if `tail` was not committed. `None` if there
    /// is none, or it is not known.
    pub confirmed_tail: Option<Tail>,
    /// Identities that arrived before this stream time may be missing, epoch milliseconds; 0 when none is known to
    /// be.
    pub incomplete_ms: i64,
}

impl Head {
    /// The part that stays valid when everything at or beyond `from` is removed. If `confirmed` is lowered, the entries
    /// beyond `from` have to be read from the log start of the state topic.
    #[must_use]
    pub fn lowered(self, from: Offset) -> Self {
        let is_left = |tail: &Tail| tail.next <= from;
        let confirmed_tail = self.confirmed_tail.filter(is_left);
        let head = Self { tail: self.tail.filter(is_left).or(confirmed_tail), confirmed_tail, ..self };
        if head.confirmed > from { Self { confirmed: from, state_next: 0, ..head } } else { head }
    }
}

/// Called with stored owners in turn, until it returns `Break`.
pub type VisitRun<'a> = &'a mut dyn FnMut(&OwnerRun<'_>) -> Result<ControlFlow<()>, StoreError>;

/// Owners to seal: committed ones that the store has outside of slices, of windows of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealJob {
    /// The kind of the windows.
    pub kind: KindId,
    /// The owners, by partition in ascending order; not empty.
    pub partitions: Vec<SlicePartition>,
    /// Too many owners wait to be sealed: the job should not be slower than what else the machine does.
    pub is_urgent: bool,
}

impl SealJob {
    /// The windows.
    pub fn windows(&self) -> impl Iterator<Item = WindowId> {
        self.partitions.iter().map(|of| self.kind.window(of.partition))
    }
}

/// The oldest sealed owners of windows that share their slices, which may be in filters only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterJob {
    /// The windows; not empty.
    pub windows: Vec<WindowId>,
    /// Owners that arrived before this stream time, epoch milliseconds.
    pub before_ms: i64,
    /// The time over which the owners of a filter have arrived at least, ms.
    pub span_ms: i64,
    /// Bits of the filter.
    pub bits: FilterBits,
}

/// An identity that is looked up in the slices that a window shares.
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
    /// Its owners.
    pub owners: Vec<Coordinates>,
    /// For each slice without owners whose filter contains it, the stream times between which the owners of the slice arrived, epoch
    /// milliseconds; the newest first.
    pub filters: Vec<(i64, i64)>,
}

/// A slice that is a filter only.
#[derive(Debug, Clone, PartialEq)]
pub struct FilterSummary {
    /// The stream times between which its owners arrived, epoch milliseconds.
    pub time_ms: (i64, i64),
    /// Number of identities, of all windows that share it.
    pub ids: u64,
    /// Bytes in memory.
    pub bytes: u64,
    /// Share of the identities that it does not contain for which it has a false positive.
    pub false_positive_rate: f64,
}

/// The identities to forget in a window.
#[derive(Debug, Clone, Copy, Default)]
pub struct ToForget<'a> {
    /// Their owners, as far as they are known.
    pub owners: &'a [Offset],
    /// All of them.
    pub identities: &'a [Identity],
    /// Owners from this offset on stay.
    pub before: Offset,
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
pub type VisitOwner<'a> = &'a mut dyn FnMut(WindowId, Offset, Identity) -> Result<(), StoreError>;

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
    /// Gives up the window, if this handle holds it: its partition is not processed here any more.
    fn release_lease(&mut self, _window: WindowId) {}
    /// The head of the window; `None` when nothing is stored.
    fn head(&self, window: WindowId) -> Result<Option<Head>, StoreError>;
    /// The latest stream time, epoch milliseconds, that was passed to [`Store::expire`] for this state; 0 when there is none. A window that has
    /// become longer lacks owners from up to it.
    fn missing_ms(&self, _window: WindowId) -> Result<i64, StoreError> {
        Ok(0)
    }
    /// Appends the owners in a block and sets the head, atomically.
    fn append(&mut self, block: &Block, number: Sequence, head: Head) -> Result<(), StoreError> {
        self.append_all(slice::from_ref(block), number, head)
    }
    /// Appends the owners in blocks of one window, each of which begins at or beyond the end of the one before it, and sets the head, atomically.
    /// The owners have the numbers from this one on. It must be above all that are stored below the first offset; what is stored from there
    /// on is removed.
    fn append_all(&mut self, blocks: &[Block], number: Sequence, head: Head) -> Result<(), StoreError>;
    /// Sets the head only.
    fn set_head(&mut self, window: WindowId, head: Head) -> Result<(), StoreError> {
        self.forget(window, ToForget::default(), head)
    }
    /// Visits the stored owners from a number on, in their order and some at a time, until `visit` returns `Break`. Returns the number that
    /// continues after those; `None` at the end.
    fn scan_from(
        &self,
        window: WindowId,
        from: Sequence,
        visit: VisitRun<'_>,
    ) -> Result<Option<Sequence>, StoreError>;
    /// Visits all stored owners in their order. Has no time limit: a worker scans in slices instead.
    fn scan(
        &self,
        window: WindowId,
        visit: &mut dyn FnMut(&OwnerRun<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.scan_from(window, 0, &mut |run| visit(run).map(ControlFlow::Continue)).map(drop)
    }
    /// One past the number of the last stored owner.
    fn next_number(&self, window: WindowId) -> Result<Sequence, StoreError>;
    /// Number of stored owners, without reading them: for sizing and progress.
    fn ids(&self, window: WindowId) -> Result<u64, StoreError>;
    /// Removes every owner at or beyond `from` and returns them.
    fn truncate(&mut self, window: WindowId, from: Offset) -> Result<Vec<(Offset, Identity)>, StoreError>;
    /// Removes these owners from the stored ones and from slices, and these identities from filters, and sets the head; ignores what is not
    /// stored.
    fn forget(&mut self, window: WindowId, forgotten: ToForget<'_>, head: Head) -> Result<(), StoreError>;
    /// Removes owners below `first`, as far as no others are stored with them, and slices that have no others. Owners from up to the stream time
    /// `missing_ms`, in epoch milliseconds, do not count any more.
    fn expire(&mut self, window: WindowId, first: Offset, missing_ms: i64) -> Result<(), StoreError>;
    /// The owner with this number; `None` when it is not stored. Where it has the `expected` identity, nothing else is verified.
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
    /// discarded when owners in its ranges are removed meanwhile.
    fn begin_seal(&mut self, _job: SealJob) -> Result<(), StoreError> {
        Ok(())
    }
    /// Begins to replace the oldest slices by filters, in the background, if there are slices that this job allows. Returns whether there
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
    /// The owners of the window in sealed slices, in ascending order of their offsets.
    fn sealed(&self, _window: WindowId) -> Vec<SlicePartition> {
        Vec::new()
    }
    /// Finds the slices that may contain identities which are looked up soon, so that [`Store::sealed_places`] does not have to. For many
    /// at once, because their reads of memory overlap, and those of a disk too if recent ones had to wait for it.
    fn find_sealed(&self, _lookups: &mut [&mut SealedLookup]) {}
    /// The sealed owners of an identity, in the slices that the window shares: those of all partitions, if slices are written for all
    /// partitions together. Some may be older than their window.
    fn sealed_places(&self, _lookup: &SealedLookup) -> Result<SealedPlaces, StoreError> {
        Ok(SealedPlaces::default())
    }
    /// The filters without owners of the slices that the window shares, the oldest first.
    fn filters(&self, _window: WindowId) -> Vec<FilterSummary> {
        Vec::new()
    }
    /// Visits the sealed owners of these windows with offsets in a range, in no order, without those in filters only. Reads only slices
    /// with such owners, each once.
    fn scan_sealed(
        &self,
        _windows: &[WindowId],
        _range: Range<Offset>,
        _visit: VisitOwner<'_>,
    ) -> Result<(), StoreError> {
        Ok(())
    }
    /// Bytes in memory of the slices that the window shares.
    fn sealed_memory(&self, _window: WindowId) -> u64 {
        0
    }
    /// Removes all state of the window. Like every removal of owners it fails with [`StoreError::InFilter`] if a filter has them.
    fn clear(&mut self, window: WindowId) -> Result<(), StoreError>;
    /// Removes all state of these windows, and filters too: no other window may share their slices. All heads are removed before the first
    /// slice, so that no head claims owners that a crash has removed.
    fn clear_all(&mut self, windows: &[WindowId]) -> Result<(), StoreError>;
    /// The partitions of which there is any state, in ascending order.
    fn stored_partitions(&self) -> Vec<PartitionId> {
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
    #[error("the local state of partition {0} is now held by another worker of this process")]
    LeaseLost(WindowId),
    /// Owners of the window have to be removed, and a filter without owners has them. It cannot lose single ones, and has others too. Slices
    /// are unchanged, and the head of the window claims none of these owners: the same call fails again, also after a crash.
    #[error(
        "owners of partition {0} have to be removed from the local state, and a filter with other owners has them: all \
         partitions that share the filter are restored from the state topic, at the latest after a restart"
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
