//! What the worker reports about the contents of records with one id.

use dedupd::dedupe::{Block, Digest, EntryEnd, Offset, Owner, PartitionId};
use dedupd::ports::{Reason, StateItem};

use crate::sim::raw::Raw;
use crate::sim::universe::Universe;

impl Universe {
    /// Compares what the worker found about a record and its owner with what they contain.
    pub fn check_content(&self, record: &Raw, reason: &Reason) {
        let is_conflict = reason.code == "conflict";
        let Some(at) = reason.owner.filter(|_| is_conflict || reason.code == "duplicate") else { return };
        let count = &self.compared[usize::from(is_conflict)];
        count.set(count.get() + 1);
        let mut cluster = self.cluster.borrow_mut();
        // A log that was rewritten has had several records there.
        let Some(log) = cluster.raw.get(at.partition as usize) else {
            cluster.violations.push(format!("raw {}: its owner {at} is in no partition", record.at));
            return;
        };
        let mut owners = log.history.values().filter(|it| it.at == at).peekable();
        let is_owner = owners.peek().is_some();
        if is_owner && owners.all(|owner| (owner.content() != record.content()) != is_conflict) {
            let what = if is_conflict { "a conflict is invented" } else { "a conflict is missed" };
            cluster.violations.push(format!("{what}: raw {} and its owner {at}", record.at));
        }
    }
}

/// Entries that readers are not shown, as a repair reads them to write them again, without the digests of their owners. Each is a valid entry.
pub fn without_digests(items: Vec<StateItem>, shows: impl Fn(PartitionId, Offset) -> bool) -> Vec<StateItem> {
    let mut entry: Vec<Vec<u8>> = Vec::new();
    let change = |item: StateItem| {
        let StateItem::Record { partition, offset, key, value: block } = item else { return item };
        let block = if shows(partition, offset) {
            block
        } else if let Ok(end) = EntryEnd::decode(&block) {
            let records = std::mem::take(&mut entry);
            EntryEnd::of(end.number, records.iter().map(Vec::as_slice), end.sections).encode()
        } else {
            entry.push(stripped(block));
            entry.last().cloned().unwrap_or_default()
        };
        StateItem::Record { partition, offset, key, value: block }
    };
    items.into_iter().map(change).collect()
}

fn stripped(block: Vec<u8>) -> Vec<u8> {
    let Ok(decoded) = Block::decode(&block) else { return block };
    let owners = decoded.owners.iter().map(|owner| Owner { digest: Digest::NONE, ..*owner }).collect();
    Block { owners, ..decoded }.encode()
}
