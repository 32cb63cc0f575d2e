//! The entry of a transaction: its owners in the local store, and its records in the journal.

use std::collections::BTreeMap;

use crate::dedupe::{
    EntryEnd, EntryName, JournalId, KindId, LastEntry, Offset, PartitionId, Section, StateKey,
};
use crate::pipeline::commit::Committer;
use crate::pipeline::context::Context;
use crate::pipeline::error::WorkerError;
use crate::pipeline::journal::Journal;
use crate::pipeline::journal::unwritten::{NewOwners, append_runs};
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::ports::WorkerPorts;
use crate::ports::{Head, Sink, Store, StoreError, WrittenEnds};

/// An entry that is to be written to its journal; the places of its clean records are not known yet.
pub(super) struct NewEntry {
    journal: JournalId,
    /// Blocks and forget records, each with its kind.
    records: Vec<(KindId, Vec<u8>)>,
    end: EntryEnd,
}

/// Writes the owners of the open transaction to the local store, and returns the entries for the journals. If the store has the name of an
/// entry, it has all its owners.
pub(super) fn store_entries<W: WorkerPorts>(ctx: &mut Context<W>) -> Result<Vec<NewEntry>, WorkerError> {
    let mut sections: BTreeMap<PartitionId, Vec<Section>> = BTreeMap::new();
    let Context { partitions, journals, options, store, .. } = ctx;
    for partition in partitions.open_mut().filter(|partition| partition.adds_section()) {
        let id = partition.journal;
        let reset_kinds = journals.get(id).iter().flat_map(|journal| &journal.reset_kinds).copied().collect();
        sections.entry(id).or_default().push(Section { reset_kinds, ..partition.section() });
    }
    let mut entries = Vec::new();
    for journal in journals.iter_mut() {
        let Some(sections) = sections.remove(&journal.id) else { continue };
        let entry = new_entry(journal, options, sections);
        let name = entry.end.name();
        journal.open.records = entry.records.len() as u64 + 1;
        journal.open.last_entry = Some(LastEntry { entry: name, from: Some(journal.end.next) });
        // It has no owners, and the store has the others until the commit: the name would claim that they are forgotten.
        if journal.open.forgotten.is_none() {
            store_owners(journal, store, name)?;
        }
        entries.push(entry);
    }
    Ok(entries)
}

fn new_entry(journal: &Journal, options: &WorkerOptions, sections: Vec<Section>) -> NewEntry {
    let blocks = journal.windows.iter().flat_map(|it| it.blocks(options.hash, options.block_ids));
    let mut records: Vec<_> = blocks.map(|block| (block.kind, block.encode())).collect();
    let forgotten = journal.open.forgotten.as_ref();
    records.extend(forgotten.map(|forgotten| (KindId::UNNAMED, forgotten.encode())));
    let end = EntryEnd::of(journal.end.number() + 1, records.iter().map(|(_, record)| &**record), sections);
    NewEntry { journal: journal.id, records, end }
}

/// Writes the owners of the open transaction of a journal, and with the last of them the name of the entry.
fn store_owners(journal: &Journal, store: &mut impl Store, name: EntryName) -> Result<(), StoreError> {
    let Some(windows) = &journal.windows else { return Ok(()) };
    for (kind, before) in journal.heads().into_iter().rev() {
        let Some((_, window)) = windows.iter().find(|(of, _)| *of == kind) else { continue };
        let owners = window.pending().to_vec();
        if kind == KindId::UNNAMED || !owners.is_empty() {
            let after = Head { last_entry: Some(name), ..before.clone() };
            let new = NewOwners { number: window.next_number(), longest_ms: window.longest_run_ms(), owners };
            append_runs(store, kind.window(journal.id), &new, &before, &after)?;
        }
    }
    Ok(())
}

/// Warns if others have written to a journal between the last two entries, of which the second ends at this offset.
pub(super) fn note_foreign<W: WorkerPorts>(ctx: &mut Context<W>, id: PartitionId, end: Offset) {
    let Some(journal) = ctx.journals.get_mut(id).filter(|journal| journal.open.last_entry.is_some()) else {
        return;
    };
    if let Some(offsets) = journal.own.committed(journal.open.records, end) {
        tracing::warn!(
            journal = id,
            offsets,
            before = end.saturating_sub(journal.open.records),
            "topic {} has records or markers that this instance has not written: let no other program write there. A restart without local \
             state, and a spare, may fail at them: run dedupd check",
            ctx.options.state
        );
    }
}

impl<W: WorkerPorts> Committer<W> {
    /// The key of a record with ids of a kind.
    pub(crate) fn state_key_of(options: &WorkerOptions, kind: KindId) -> StateKey {
        StateKey {
            kind: options.kinds.name_of(kind).map(str::to_owned),
            rule: options.rule_of(kind),
            ..options.state_key()
        }
    }

    /// Writes an entry to its journal, in the open transaction. The clean records are acknowledged.
    pub(super) fn put_entry(&mut self, ctx: &Context<W>, entry: &NewEntry) -> Result<(), WorkerError> {
        for (kind, record) in &entry.records {
            self.put_record(entry.journal, &Self::state_key_of(&ctx.options, *kind), record)?;
        }
        let mut end = entry.end.clone();
        for section in &mut end.sections {
            section.clean_end = self.sink.clean_end(section.partition);
        }
        self.put_record(entry.journal, &ctx.options.state_key(), &end.encode())
    }

    /// Writes a record to a journal.
    pub(crate) fn put_record(
        &mut self,
        journal: JournalId,
        key: &StateKey,
        record: &[u8],
    ) -> Result<(), WorkerError> {
        let key = key.render();
        self.sink.put_state(journal, &key, record)?;
        self.transaction.tally.state(key.len() + record.len());
        Ok(())
    }
}
