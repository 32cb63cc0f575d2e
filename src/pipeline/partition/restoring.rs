//! The state of a restore from the state topic, and how each record of that topic changes it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::dedupe::{
    Block, BlockView, Checkpoint, Fingerprint, ForgetRecord, KindId, Offset, StateKey, Tail, Window, WindowId,
};
use crate::metrics::RestoreSource;
use crate::pipeline::error::WorkerError;
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::partition::expiry::StoredExpiry;
use crate::pipeline::partition::forgetting::Forgetting;
use crate::pipeline::partition::loading::cut_back;
use crate::pipeline::partition::read_progress::ReadProgress;
use crate::pipeline::partition::sealed::sealed_in;
use crate::pipeline::partition::state::DedupeState;
use crate::pipeline::partition::stored::Stored;
use crate::pipeline::partition::topic::TopicScope;
use crate::pipeline::partition::unwritten::Unwritten;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::report::WorkerReport;
use crate::pipeline::safeguard::Safeguard;
use crate::ports::{Head, LogBounds, Store, StoreError, ToForget};

/// Why the state topic is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadPurpose {
    /// The partition starts when its log is read to the end.
    Start,
    /// A standby copy of the state. If it does not seal, the windows lack owners whose blocks are stored.
    Copy {
        /// Whether old owners are sealed.
        seals: bool,
    },
}

impl ReadPurpose {
    fn source(self) -> RestoreSource {
        match self {
            Self::Start => RestoreSource::StateTopic,
            Self::Copy { .. } => RestoreSource::Standby,
        }
    }
}

/// A restore from the state topic in progress.
///
/// Large because it holds all that one slice leaves for the next, and all that decides at the end whether the state is complete.
#[derive(Debug)]
pub struct Restoring {
    /// The state, complete up to the last block read.
    pub state: Box<DedupeState>,
    /// What the local store lacks of it.
    pub unwritten: Unwritten,
    /// The configured rule of each window.
    pub rules: Vec<(KindId, Fingerprint)>,
    /// How much was read.
    pub progress: ReadProgress,
    /// The committed offset that the state has to reach; `None` when the group has none.
    pub committed: Option<Offset>,
    /// State topic offset at which reading started.
    pub from: Offset,
    /// End of the log when reading started.
    pub until: Offset,
    /// Last state topic offset read.
    pub at: Offset,
    /// First offset of the log when reading started.
    pub low: Offset,
    /// The last block read.
    pub last: Option<Tail>,
    /// Stream time at the first block read that has one, epoch milliseconds.
    pub first_ms: Option<i64>,
    /// One past the last raw offset covered by a block.
    pub covered: Option<Offset>,
    /// The raw offset up to which local state was committed; may lie beyond the last block.
    pub confirmed: Option<Offset>,
    /// The first block of a named kind that reaches beyond the blocks of the unnamed kind: its state topic offset,
    /// and the highest raw offset that such blocks cover.
    pub ahead: Option<(Offset, Offset)>,
    /// Kinds for which the group has another identity rule than this process, and the operator accepted the change:
    /// their blocks are skipped.
    pub emptied: BTreeSet<KindId>,
    /// Number of identities skipped because their kind is no longer configured, by the kind's name.
    pub left_out: BTreeMap<String, u64>,
    /// The checkpoint metadata of the committed offset.
    pub checkpoint: Option<Checkpoint>,
    /// Why the log is read.
    pub purpose: ReadPurpose,
    /// What was deleted of the local store meanwhile, because it has left the windows.
    pub expiry: StoredExpiry,
    /// The forget record whose owners are being searched in the stored blocks. No record behind it is read meanwhile.
    pub forgetting: Option<Forgetting>,
}

impl Restoring {
    /// Before the first record: the log is read from this offset up to the end in its bounds. `now` is monotonic.
    pub(crate) fn new(
        purpose: ReadPurpose,
        state: Box<DedupeState>,
        (from, log): (Offset, &LogBounds),
        rules: Vec<(KindId, Fingerprint)>,
        now: Duration,
    ) -> Self {
        Self {
            state,
            unwritten: Unwritten::default(),
            rules,
            progress: ReadProgress::start(now),
            committed: None,
            from,
            until: log.stable,
            at: from,
            low: log.low,
            last: None,
            first_ms: None,
            covered: None,
            confirmed: None,
            ahead: None,
            emptied: BTreeSet::new(),
            left_out: BTreeMap::new(),
            checkpoint: None,
            purpose,
            expiry: StoredExpiry::default(),
            forgetting: None,
        }
    }

    /// Fraction of the log read so far, in 0..=1.
    #[must_use]
    pub fn share(&self) -> f64 {
        let total = self.until.saturating_sub(self.from).max(1);
        (self.at.saturating_sub(self.from) as f64 / total as f64).min(1.0)
    }

    /// Notes a block that was read at this offset of the state topic.
    fn note(&mut self, block: &Block, tail: Tail, offset: Offset) {
        self.at = offset;
        self.covered = Some(block.next);
        // The block is newer than the local state, and may end below `confirmed`. The records in between were all
        // duplicates, and they stay duplicates.
        self.confirmed = None;
        self.progress.ids += block.entries.len() as u64;
        self.state.state_next = self.resume_after(block, offset);
        self.last = Some(tail);
        // A repair can have voided a transaction at an unknown time (0): what is behind that block shows where the window begins.
        if block.time_first_ms > 0 {
            self.first_ms.get_or_insert(block.time_first_ms);
        }
    }

    /// The state offset at which a later restore has to start to miss nothing, once this block is read. The unnamed kind counts
    /// for all kinds, so it is the first block of a named kind that reaches beyond what the unnamed kind covers by now.
    fn resume_after(&mut self, block: &Block, offset: Offset) -> Offset {
        let kind = block.window.kind();
        match &mut self.ahead {
            Some((_, next)) if kind != KindId::UNNAMED => *next = block.next.max(*next),
            None if kind != KindId::UNNAMED => self.ahead = Some((offset, block.next)),
            ahead => drop(ahead.take_if(|(_, next)| *next <= block.next)),
        }
        self.ahead.map_or(offset + 1, |(first, _)| first)
    }

    pub(crate) fn log_left_out(&self, topic: &str) {
        for (kind, ids) in &self.left_out {
            tracing::warn!(
                partition = self.state.id,
                "topic {topic} holds {ids} ids of the kind {kind:?}, which has no window in the configuration: \
                 they are ignored; to restore the ids of a renamed kind, configure its old name"
            );
        }
    }

    pub(crate) fn log_progress(&mut self, now: Duration) {
        let share = self.share();
        self.progress.log(now, self.state.id, ("restoring state from the state topic", share));
    }
}

/// What the restore of a partition uses, beside that restore.
pub(crate) struct Restorer<'a, W: WorkerPorts> {
    pub(crate) store: &'a mut W::Store,
    pub(crate) options: &'a WorkerOptions,
    pub(crate) report: &'a WorkerReport,
    pub(crate) topic: Option<&'a mut TopicScope>,
}

impl<W: WorkerPorts> Restorer<'_, W> {
    /// Writes what was read to the local store, and counts it: a counter looked up for each block took a noticeable part of
    /// the time of blocks with a single identity.
    pub(crate) fn write(&mut self, restoring: &mut Restoring) -> Result<(), WorkerError> {
        let (source, ids) = (restoring.purpose.source(), restoring.unwritten.ids() as u64);
        self.report.metrics.restored_ids(source).inc_by(ids);
        Ok(restoring.unwritten.write(self.store)?)
    }

    /// Adds one record of the state topic to the state.
    pub(crate) fn record(
        &mut self,
        restoring: &mut Restoring,
        offset: Offset,
        key: StateKey,
        bytes: &[u8],
    ) -> Result<(), WorkerError> {
        let id = restoring.state.id;
        // An error is rare, and a text for each record would take a noticeable part of the time.
        let place = || format!("topic {} partition {id} offset {offset}", self.options.state);
        if ForgetRecord::is_here(bytes) {
            let forgotten = ForgetRecord::decode(bytes).map_err(|e| WorkerError::block(&place(), &e))?;
            let foreign = self.is_foreign(restoring, &place, &key, (forgotten.hash, id.into()))?;
            return self.forgotten(restoring, offset, (forgotten, foreign));
        }
        let view = BlockView::verified(bytes).map_err(|e| WorkerError::block(&place(), &e))?;
        let foreign = self.is_foreign(restoring, &place, &key, (view.header.hash, view.header.window))?;
        let block = view.to_block().map_err(|e| WorkerError::block(&place(), &e))?;
        let tail = Tail { crc: Block::checksum(bytes), next: block.next, from: Some(offset) };
        restoring.note(&block, tail, offset);
        if foreign {
            return Ok(());
        }
        if !restoring.unwritten.takes(&block) {
            self.write(restoring)?;
        }
        let is_copy = restoring.purpose != ReadPurpose::Start;
        let state = &mut *restoring.state;
        if block.first == block.next {
            // A block with an empty offset range voids all owners at or beyond it, of all kinds, also of kinds that its writer
            // had not configured.
            state.truncate(block.next, &*self.store, is_copy)?;
            cut_back(self.store, &self.options.kinds.windows_of(id), block.next)?;
        }
        let ids = block.entries.len() as u64;
        // Owners that leave the window leave the store in the same iteration: a slice that is being written with them is then
        // discarded. It would end as one that has the new owners, too, and they would leave the index.
        let replaces =
            state.windows.of_kind(block.window.kind()).is_some_and(|window| block.first < window.next());
        if replaces {
            self.write(restoring)?;
        }
        let state = &mut *restoring.state;
        let mut number = 0;
        if let Some(window) = state.windows.of_kind(block.window.kind()) {
            if replaces {
                let stored = Stored { store: &*self.store, window: block.window, is_copy };
                window.truncate(block.first, &stored)?;
            }
            number = window.next_number();
        }
        if !state.windows.restore(&view).map_err(|e| WorkerError::block("the state topic", &e))? {
            *restoring.left_out.entry(key.kind.unwrap_or_default()).or_default() += ids;
            return Ok(());
        }
        let is_complete = self.options.keeps(Safeguard::FilterOfAll);
        if let Some(topic) = self.topic.as_mut().filter(|_| is_complete) {
            let identities = block.entries.iter().map(|(_, identity)| (*identity, block.time_last_ms));
            topic.filter.insert_all(id, &identities.collect::<Vec<_>>());
        }
        let head = Head {
            confirmed: block.next,
            state_next: state.state_next,
            stream_time_ms: block.time_last_ms,
            tail: Some((tail.crc, tail.next)),
            confirmed_tail: Some((tail.crc, tail.next)),
            forgets: state.forgets,
            incomplete_ms: state.windows.incomplete_before_ms().unwrap_or(0),
        };
        restoring.unwritten.add(block, number, head, bytes.len());
        if replaces || restoring.unwritten.is_full(self.options.block_ids) {
            self.write(restoring)?;
        }
        Ok(())
    }

    /// Forgets the identities of a forget record, which was written after the blocks read so far. Their stored owners are deleted
    /// at once, or after a search ([`Restoring::forgetting`]).
    fn forgotten(
        &mut self,
        restoring: &mut Restoring,
        offset: Offset,
        (forgotten, foreign): (ForgetRecord, bool),
    ) -> Result<(), WorkerError> {
        restoring.at = offset;
        let state = &mut *restoring.state;
        state.state_next = offset + 1;
        if foreign {
            state.forgets = state.forgets.max(forgotten.number);
            return Ok(());
        }
        // The owners are looked up in the store.
        self.write(restoring)?;
        let is_copy = restoring.purpose != ReadPurpose::Start;
        restoring.state.forget(&forgotten, &*self.store, is_copy)?;
        let state = &*restoring.state;
        // Without a stored block there is no head to update. A new head would claim that local state is complete up to
        // offset 0.
        if self.store.head(state.id.into())?.is_none() {
            return Ok(());
        }
        // A table of another size may load owners that this one has evicted.
        let evicts = |window: &WindowId| {
            state.windows.iter().any(|(kind, it)| kind == window.kind() && it.slots().is_some())
        };
        let lacks =
            |window: &WindowId| restoring.purpose == (ReadPurpose::Copy { seals: false }) || evicts(window);
        let windows = self.options.kinds.windows_of(state.id).into_iter().filter(lacks).collect();
        let forgetting = Forgetting::new(offset, forgotten, windows);
        if forgetting.is_done() {
            return self.delete_forgotten(restoring, forgetting);
        }
        restoring.forgetting = Some(forgetting);
        Ok(())
    }

    /// Deletes the owners of forgotten identities, once all of them are found.
    pub(crate) fn delete_forgotten(
        &mut self,
        restoring: &mut Restoring,
        mut forgetting: Forgetting,
    ) -> Result<(), WorkerError> {
        let state = &mut *restoring.state;
        let Some(before) = self.store.head(state.id.into())? else { return Ok(()) };
        let head = Head { state_next: forgetting.offset + 1, forgets: state.forgets, ..before };
        for window_id in self.options.kinds.windows_of(state.id) {
            let mut owners = forgetting.record.offsets();
            if let Some(window) = state.windows.of_kind(window_id.kind()) {
                let is_copy = restoring.purpose != ReadPurpose::Start;
                let stored = Stored { store: &*self.store, window: window_id, is_copy };
                owners.extend(forget_older_owners(window, &stored, &forgetting.record)?);
                owners.extend(forgetting.found(window_id));
            }
            let identities = forgetting.record.identities();
            let (owners, before) = (&*owners, forgetting.record.at);
            self.store.forget(window_id, ToForget { owners, identities: &identities, before }, head)?;
        }
        Ok(())
    }
}

/// Forgets the same identities also for their older owners, and returns those owners. The writer of the forget record could
/// not name them, because it had evicted them or did not have that kind.
fn forget_older_owners<T: Store>(
    window: &mut Window,
    stored: &Stored<'_, T>,
    forgotten: &ForgetRecord,
) -> Result<Vec<Offset>, StoreError> {
    let mut older = Vec::new();
    for (_, identity) in &forgotten.owners {
        let key = window.key(*identity);
        let sealed = sealed_in(stored.store, stored.window, window, &key)?.owners;
        for (owner, _) in window.owners(&key, stored)?.into_iter().chain(sealed) {
            // A forget record may be read a second time, after blocks that were written later. Their owners stay.
            if owner < forgotten.at {
                window.forget(owner, *identity, stored)?;
                older.push(owner);
            }
        }
    }
    Ok(older)
}
