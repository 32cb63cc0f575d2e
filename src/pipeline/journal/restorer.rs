//! How an entry of a journal changes the windows.

use std::collections::{BTreeMap, BTreeSet};

use crate::dedupe::{
    Block, BlockError, Coordinates, Entry, ForgetRecord, Identity, JournalId, JournalRecord, KindId, Offset,
    Owner, Sequence, Window, WindowId,
};
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::journal::forgetting::Forgetting;
use crate::pipeline::journal::restoring::{ReadPurpose, Restoring};
use crate::pipeline::journal::sealed::sealed_in;
use crate::pipeline::journal::stored::Stored;
use crate::pipeline::journal::undoing::Undoing;
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::report::WorkerReport;
use crate::pipeline::safeguard::Safeguard;
use crate::ports::{Head, Store, ToForget};

/// What the restore of a journal uses, beside that restore.
pub(crate) struct Restorer<'a, W: WorkerPorts> {
    pub(crate) journal: JournalId,
    pub(crate) store: &'a mut W::Store,
    pub(crate) options: &'a WorkerOptions,
    pub(crate) report: &'a WorkerReport,
}

impl<W: WorkerPorts> Restorer<'_, W> {
    /// Writes what was read to the local store, and counts it: a counter looked up for each block took a noticeable part of
    /// the time of blocks with a single identity.
    pub(crate) fn write(&mut self, restoring: &mut Restoring) -> Result<(), WorkerError> {
        let (source, ids) = (restoring.purpose.source(), restoring.unwritten.ids() as u64);
        self.report.metrics.restored_ids(source).inc_by(ids);
        Ok(restoring.unwritten.write(self.store, self.journal)?)
    }

    /// Adds an entry of the journal to the windows, or pauses the restore. Returns false when records of it are missing.
    pub(crate) fn entry(&mut self, restoring: &mut Restoring, entry: &Entry) -> Result<bool, WorkerError> {
        if let Some(last) = restoring.last.filter(|last| entry.end.number <= last.entry.number) {
            restoring.needed = entry.at + 1;
            // Another one with that number: the journal began again after it and the offsets had expired.
            return Ok(entry.end.number < last.entry.number || entry.end.name() == last.entry);
        }
        if !entry.is_whole && !restoring.may_be_cut() && self.options.keeps(Safeguard::WholeEntries) {
            return Ok(false);
        }
        if entry.records.iter().any(|record| ForgetRecord::is_here(&record.bytes)) {
            // The owners are looked up in the store. Until they are deleted, its heads must not name this entry.
            self.write(restoring)?;
        }
        let sections = &entry.end.sections;
        let resets = sections.iter().flat_map(|section| &section.reset_kinds);
        resets
            .copied()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .try_for_each(|kind| self.discard(restoring, kind))?;
        if self.pauses_to_undo(restoring, entry)? {
            return Ok(true);
        }
        let mut forgotten = Vec::new();
        for record in &entry.records {
            if ForgetRecord::is_here(&record.bytes) {
                let decoded = ForgetRecord::decode(&record.bytes);
                let decoded = decoded.map_err(|e| Fatal::unusable(&self.place(record.offset), &e))?;
                forgotten.extend(decoded.identities);
            } else {
                self.block(restoring, entry, record)?;
            }
        }
        restoring.note(entry);
        if forgotten.is_empty() {
            restoring.unwritten.end_entry(restoring.head());
        } else {
            self.forget(restoring, forgotten)?;
        }
        if restoring.unwritten.is_full() {
            self.write(restoring)?;
        }
        Ok(true)
    }

    /// The text of a place in the journal, for errors.
    pub(crate) fn place(&self, offset: Offset) -> String {
        format!("topic {} partition {} offset {offset}", self.options.state, self.journal)
    }

    /// Adds the owners in a block, if it is of a rule that counts.
    fn block(
        &mut self,
        restoring: &mut Restoring,
        entry: &Entry,
        record: &JournalRecord,
    ) -> Result<(), WorkerError> {
        let unusable =
            |error: &BlockError| WorkerError::from(Fatal::unusable(&self.place(record.offset), error));
        let Block { hash, kind, mut owners } =
            Block::decode(&record.bytes).map_err(|error| unusable(&error))?;
        if self.is_foreign(restoring, record, hash, kind)? {
            return Ok(());
        }
        // Those of a partition that a repair has rewound are processed again.
        owners.retain(|owner| entry.end.has(owner.at));
        restoring.progress.ids += owners.len() as u64;
        self.restore(restoring, kind, &owners, record);
        Ok(())
    }

    fn restore(&self, restoring: &mut Restoring, kind: KindId, owners: &[Owner], record: &JournalRecord) {
        let Restoring { windows, unwritten, left_out, .. } = restoring;
        let Some(window) = windows.of_kind(kind) else {
            let kind = record.key.kind.clone().unwrap_or_default();
            *left_out.entry(kind).or_default() += owners.len() as u64;
            return;
        };
        let number = window.next_number();
        let stamped = window.restore(owners);
        unwritten.add(kind.window(self.journal), number, stamped, window.longest_run_ms());
    }

    /// Pauses the restore to undo all owners at or beyond the first offsets of the sections of an entry, of all kinds, also of kinds that the writer
    /// had not configured, unless that is done. The heads name the entry before meanwhile: after a crash this entry is read and undone again.
    fn pauses_to_undo(&mut self, restoring: &mut Restoring, entry: &Entry) -> Result<bool, WorkerError> {
        let undone = entry.end.sections.iter().filter(|section| restoring.may_undo(section));
        let from: Vec<_> =
            undone.map(|it| Coordinates { partition: it.partition, offset: it.first }).collect();
        let name = Some(entry.end.name());
        if from.is_empty() || restoring.undone == name {
            return Ok(false);
        }
        self.write(restoring)?;
        restoring.undone = name;
        restoring.undoing = Some(Undoing::new(self.journal, &restoring.windows, &from));
        Ok(true)
    }

    /// Forgets identities. Their stored owners are deleted at once, or after a search ([`Restoring::forgetting`]).
    fn forget(&mut self, restoring: &mut Restoring, identities: Vec<Identity>) -> Result<(), WorkerError> {
        // A table of another size may load owners that this one has evicted, and the windows of a copy may not have them in an index.
        let evicts = |window: &WindowId| {
            restoring.windows.iter().any(|(kind, it)| kind == window.kind() && it.slots().is_some())
        };
        let lacks = |window: &WindowId| restoring.purpose == ReadPurpose::Copy || evicts(window);
        let windows = self.options.kinds.windows_of(self.journal).into_iter().filter(lacks).collect();
        let forgetting = Forgetting::new(identities, windows);
        if forgetting.is_done() {
            return self.delete_forgotten(restoring, forgetting);
        }
        restoring.forgetting = Some(forgetting);
        Ok(())
    }

    /// Deletes the owners of forgotten identities, once all of them are found, which ends their entry.
    pub(crate) fn delete_forgotten(
        &mut self,
        restoring: &mut Restoring,
        mut forgetting: Forgetting,
    ) -> Result<(), WorkerError> {
        for id in self.options.kinds.windows_of(self.journal) {
            let found = forgetting.found(id);
            if let Some(window) = restoring.windows.of_kind(id.kind()) {
                let head = self.store.head(id)?.unwrap_or_default();
                forget_identities(self.store, id, window, &forgetting.identities, found, &head)?;
            }
        }
        restoring.unwritten.end_entry(restoring.head());
        Ok(())
    }
}

/// Removes identities from a window and from the store, with this head. `found` are owners that only the store has.
pub(crate) fn forget_identities(
    store: &mut impl Store,
    id: WindowId,
    window: &mut Window,
    identities: &[Identity],
    found: Vec<(Sequence, Identity)>,
    head: &Head,
) -> Result<(), WorkerError> {
    let mut numbers: BTreeMap<_, _> = found.into_iter().collect();
    for identity in identities {
        let key = window.key(*identity);
        let stored = Stored { store: &*store, window: id, is_partial: true };
        let owners = window.owners(&key, &stored)?;
        numbers.extend(owners.into_iter().map(|(number, _)| (number, *identity)));
        for owner in sealed_in(store, id, window, &key)?.owners {
            window.forget_sealed(owner.time_ms);
        }
    }
    for (number, identity) in &numbers {
        window.forget(*number, *identity);
    }
    let numbers: Vec<_> = numbers.into_keys().collect();
    Ok(store.forget(id, ToForget { numbers: &numbers, identities }, head)?)
}
