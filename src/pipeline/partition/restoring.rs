//! The state of a restore from the state topic, and how each record of that topic changes it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::dedupe::{
    Block, BlockError, BlockView, Checkpoint, Entry, Fingerprint, ForgetRecord, JournalRecord, KindId,
    Offset, PartitionId, Section, Tail, Window, WindowId,
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
    /// The state, complete up to the last entry read.
    pub state: Box<DedupeState>,
    /// What the local store lacks of it.
    pub unwritten: Unwritten,
    /// The configured rule of each window.
    pub rules: Vec<(KindId, Fingerprint)>,
    /// How much was read.
    pub progress: ReadProgress,
    /// The committed offset that the state has to reach; `None` when the group has none.
    pub committed: Option<Offset>,
    /// What was needed next when the journal ended last, before all of it was read.
    pub ended_at: Option<Offset>,
    /// Journal offset at which reading started.
    pub from: Offset,
    /// End of the journal when reading started.
    pub until: Offset,
    /// The next journal offset that is needed: the entries before it are applied.
    pub needed: Offset,
    /// First offset of the journal when reading started.
    pub low: Offset,
    /// The last entry read that has a section of the partition.
    pub last: Option<Tail>,
    /// Stream time at the first section read that has one, epoch milliseconds.
    pub first_ms: Option<i64>,
    /// One past the last raw offset covered by a section.
    pub covered: Option<Offset>,
    /// The raw offset up to which local state was committed; may lie beyond the last section.
    pub confirmed: Option<Offset>,
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
    /// The forget record whose owners are being searched in the stored ones. No entry behind it is read meanwhile.
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
            ended_at: None,
            from,
            until: log.stable,
            needed: from,
            low: log.low,
            last: None,
            first_ms: None,
            covered: None,
            confirmed: None,
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
        (self.needed.saturating_sub(self.from) as f64 / total as f64).min(1.0)
    }

    /// Notes the section of an entry that was read.
    fn note(&mut self, section: &Section, entry: &Entry) {
        self.covered = Some(section.next);
        // The entry is newer than the local state, and may end below `confirmed`. The records in between were all
        // duplicates, and they stay duplicates.
        self.confirmed = None;
        self.state.state_next = entry.at + 1;
        self.last = Some(Tail { entry: entry.end.name(), next: section.next, from: Some(entry.begin) });
        // Of an entry that retention has cut, no owner is known. A repair can have undone a transaction at an unknown time (0): what is behind
        // that section shows where the window begins.
        let first_ms = if entry.is_whole { section.time_first_ms } else { section.time_last_ms };
        if first_ms > 0 {
            self.first_ms.get_or_insert(first_ms);
        }
    }

    /// Whether the first entry that is read is that of a log whose start retention has deleted, so that records of it may be missing.
    fn may_be_cut(&self) -> bool {
        self.from <= self.low
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

    /// Adds an entry of the journal to the state, as far as it concerns the partition. Returns false when records of it are missing.
    pub(crate) fn entry(&mut self, restoring: &mut Restoring, entry: &Entry) -> Result<bool, WorkerError> {
        let id = restoring.state.id;
        let Some(section) = entry.end.section(id) else {
            restoring.needed = entry.at + 1;
            return Ok(true);
        };
        if !entry.is_whole && !restoring.may_be_cut() && self.options.keeps(Safeguard::WholeEntries) {
            return Ok(false);
        }
        restoring.note(section, entry);
        section.reset_kinds.iter().try_for_each(|kind| self.discard_read(restoring, *kind))?;
        if self.is_foreign(restoring, entry.at, &entry.key, (self.options.hash, id.into()))? {
            restoring.needed = entry.at + 1;
            return Ok(true);
        }
        self.undo_from(restoring, section.first)?;
        let (mut blocks, mut forgotten) = (Vec::new(), Vec::new());
        for record in entry.records_of(id) {
            if ForgetRecord::is_here(&record.bytes) {
                let decoded = ForgetRecord::decode(&record.bytes);
                let decoded = decoded.map_err(|e| WorkerError::block(&self.place(id, record.offset), &e))?;
                forgotten.push(decoded);
            } else if let Some(block) = self.block(restoring, record)? {
                blocks.push(block);
            }
        }
        let unnamed = WindowId::from(id);
        // Where ids are forgotten, the head names the entry when their owners are deleted.
        if forgotten.is_empty() && blocks.iter().all(|block| block.window != unnamed) {
            let covered = section.first..section.next;
            let block = Block::empty(self.options.hash, unnamed, covered, section.time_last_ms);
            blocks.push(Block { time_first_ms: section.time_first_ms, ..block });
        }
        self.restore(restoring, blocks, section)?;
        // Written after the owners of earlier entries.
        forgotten.into_iter().try_for_each(|forgotten| self.forgotten(restoring, entry.at, forgotten))?;
        restoring.needed = entry.at + 1;
        Ok(true)
    }

    /// The text of a place in the journal, for errors.
    pub(crate) fn place(&self, id: PartitionId, offset: Offset) -> String {
        let journal = self.options.journal_of(id);
        format!("topic {} partition {journal} offset {offset}", self.options.state)
    }

    /// The block in a record of the partition, if it is of a rule that counts.
    fn block(
        &mut self,
        restoring: &mut Restoring,
        record: &JournalRecord,
    ) -> Result<Option<Block>, WorkerError> {
        let id = restoring.state.id;
        let unusable = |error: &BlockError| WorkerError::block(&self.place(id, record.offset), error);
        let view = BlockView::verified(&record.bytes).map_err(|error| unusable(&error))?;
        let (hash, window) = (view.header.hash, view.header.window);
        let block = view.to_block().map_err(|error| unusable(&error))?;
        if self.is_foreign(restoring, record.offset, &record.key, (hash, window))? {
            return Ok(None);
        }
        restoring.progress.ids += block.entries.len() as u64;
        if restoring.state.windows.of_kind(window.kind()).is_none() {
            let kind = record.key.kind.clone().unwrap_or_default();
            *restoring.left_out.entry(kind).or_default() += block.entries.len() as u64;
            return Ok(None);
        }
        Ok(Some(block))
    }

    /// Undoes all owners of the partition at or beyond an offset, of all kinds, also of kinds that the writer had not configured.
    fn undo_from(&mut self, restoring: &mut Restoring, first: Offset) -> Result<(), WorkerError> {
        if first >= restoring.state.windows.next() {
            return Ok(());
        }
        // Owners that leave the window leave the store in the same iteration: a slice that is being written with them is then
        // discarded. It would end as one that has the new owners, too, and they would leave the index.
        self.write(restoring)?;
        let is_copy = restoring.purpose != ReadPurpose::Start;
        let state = &mut *restoring.state;
        state.truncate(first, &*self.store, is_copy)?;
        cut_back(self.store, &self.options.kinds.windows_of(state.id), first)?;
        // Owners that have left the window, whose numbers it does not know, may still be stored.
        for (kind, window) in state.windows.iter_mut() {
            window.number_from(self.store.next_number(kind.window(state.id))?);
        }
        Ok(())
    }

    /// Adds the owners in the blocks of an entry.
    fn restore(
        &mut self,
        restoring: &mut Restoring,
        blocks: Vec<Block>,
        section: &Section,
    ) -> Result<(), WorkerError> {
        if !restoring.unwritten.takes(&blocks) {
            self.write(restoring)?;
        }
        let state = &mut *restoring.state;
        let tail = restoring.last.map(|tail| Tail { from: None, ..tail });
        for block in blocks {
            let (id, encoded) = (state.id, block.encode());
            let Some(window) = state.windows.of_kind(block.window.kind()) else { continue };
            let number = window.next_number();
            let view = BlockView::trusted(&encoded);
            let restored = view.and_then(|view| window.restore(&view, Offset::MAX));
            restored.map_err(|e| WorkerError::block("the state topic", &e))?;
            let is_complete = self.options.keeps(Safeguard::FilterOfAll);
            if let Some(topic) = self.topic.as_mut().filter(|_| is_complete) {
                let identities = block.entries.iter().map(|(_, identity)| (*identity, block.time_last_ms));
                topic.filter.insert_all(id, &identities.collect::<Vec<_>>());
            }
            let head = Head {
                confirmed: section.next,
                state_next: state.state_next,
                stream_time_ms: section.time_last_ms,
                tail,
                confirmed_tail: tail,
                incomplete_ms: state.windows.incomplete_before_ms().unwrap_or(0),
            };
            restoring.unwritten.add(block, number, head, encoded.len());
        }
        if restoring.unwritten.is_full(self.options.block_ids) { self.write(restoring) } else { Ok(()) }
    }

    /// Forgets the identities of a forget record. Their stored owners are deleted at once, or after a search ([`Restoring::forgetting`]).
    fn forgotten(
        &mut self,
        restoring: &mut Restoring,
        offset: Offset,
        forgotten: ForgetRecord,
    ) -> Result<(), WorkerError> {
        // The owners are looked up in the store.
        self.write(restoring)?;
        let is_copy = restoring.purpose != ReadPurpose::Start;
        restoring.state.forget(&forgotten, &*self.store, is_copy)?;
        let state = &*restoring.state;
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
        let tail = restoring.last.map(|tail| Tail { from: None, ..tail });
        let head = Head { state_next: forgetting.offset + 1, tail, confirmed_tail: tail, ..before };
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
