//! The entry of a transaction: its owners in the local store, and its records in the journal.

use std::collections::BTreeMap;
use std::mem;

use crate::dedupe::{Block, EntryEnd, EntryName, KindId, PartitionId, StateKey, Tail, WindowId};
use crate::pipeline::commit::Committer;
use crate::pipeline::context::Context;
use crate::pipeline::error::WorkerError;
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::partition::state::DedupeState;
use crate::pipeline::ports::WorkerPorts;
use crate::ports::{Head, Sink, Store, StoreError, WrittenEnds};

/// An entry that is to be written to its journal; the places of its clean records are not known yet.
pub(super) struct NewEntry {
    journal: PartitionId,
    /// The windows of blocks, and the partitions of forget records, with these records.
    records: Vec<(WindowId, Vec<u8>)>,
    end: EntryEnd,
    name: EntryName,
}

/// Writes the owners of the open transaction to the local store, and returns the entries for the journals. If the store has the name of an
/// entry for a partition, it has all its owners in it.
pub(super) fn store_entries<W: WorkerPorts>(ctx: &mut Context<W>) -> Result<Vec<NewEntry>, WorkerError> {
    let mut blocks: BTreeMap<PartitionId, Vec<Block>> = BTreeMap::new();
    let mut entries: BTreeMap<PartitionId, NewEntry> = BTreeMap::new();
    for state in ctx.partitions.open_mut().filter(|state| state.adds_section()) {
        let journal = ctx.options.journal_of(state.id);
        let entry = entries.entry(journal).or_insert_with(|| {
            let number = ctx.journals.end(journal).last + 1;
            let end = EntryEnd { number, records: 0, content: 0, sections: Vec::new() };
            NewEntry { journal, records: Vec::new(), end, name: EntryName::default() }
        });
        let of_partition = state.blocks(ctx.options.hash, ctx.options.block_ids);
        let with_owners = of_partition.iter().filter(|block| !block.entries.is_empty());
        entry.records.extend(with_owners.map(|block| (block.window, block.encode())));
        let forgotten = state.open.as_ref().and_then(|open| open.forgotten.as_ref());
        entry.records.extend(forgotten.map(|forgotten| (state.id.into(), forgotten.encode())));
        entry.end.sections.push(state.section());
        blocks.insert(state.id, of_partition);
    }
    for NewEntry { records, end, name, .. } in entries.values_mut() {
        let sections = mem::take(&mut end.sections);
        *end = EntryEnd::of(end.number, records.iter().map(|(_, record)| &**record), sections);
        *name = end.name();
    }
    for state in ctx.partitions.open_mut() {
        let journal = ctx.options.journal_of(state.id);
        let Some((blocks, entry)) = blocks.remove(&state.id).zip(entries.get(&journal)) else { continue };
        let tail = Tail { entry: entry.name, next: state.next, from: Some(ctx.journals.end(journal).next) };
        store_owners(state, &mut ctx.store, &blocks, tail)?;
    }
    Ok(entries.into_values().collect())
}

/// Writes the owners in the blocks of a partition, and with the last of them the name of the entry.
fn store_owners(
    state: &mut DedupeState,
    store: &mut impl Store,
    blocks: &[Block],
    tail: Tail,
) -> Result<(), StoreError> {
    let Some(open) = state.open.as_mut() else { return Ok(()) };
    open.tail = Some(tail);
    if open.forgotten.is_some() {
        // It has no owners, and the store has the others until the commit: the name would claim that they are forgotten.
        return Ok(());
    }
    let head = Head { tail: Some(Tail { from: None, ..tail }), ..state.head() };
    for blocks in blocks.chunk_by(|one, other| one.window == other.window) {
        let window = blocks.first().and_then(|block| state.windows.of_kind(block.window.kind()));
        store.append_all(blocks, window.map_or(0, |window| window.next_number()), head)?;
    }
    Ok(())
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
        for (window, record) in &entry.records {
            let key = Self::state_key_of(&ctx.options, window.kind());
            self.put_record(entry.journal, &key, record)?;
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
        journal: PartitionId,
        key: &StateKey,
        record: &[u8],
    ) -> Result<(), WorkerError> {
        let key = key.render();
        self.sink.put_state(journal, &key, record)?;
        self.transaction.tally.state(key.len() + record.len());
        Ok(())
    }
}
