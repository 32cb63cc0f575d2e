//! Transactions that a broker left without their marker.
//!
//! When a partition has no leader at the moment the coordinator wants to write its marker, Kafka
//! 4.3.0 records the transaction as complete and never writes it (KAFKA-17573, KAFKA-20734). The
//! batch stays open in the partition, the offsets stay pending, and **the next marker of the same
//! producer id settles the leftover its own way**. So replaying and committing would show records
//! twice, and always aborting first would take committed ones away (both measured, KAFKA.md 9.2).
//!
//! What counts is that each partition's clean records, block and offset agree; the decision is
//! therefore made for each partition, from what of the transaction is visible there:
//! anything committed → it was committed; nothing → it may be undone, and its input is read again.

use std::time::Duration;

use super::checkpoint::{Checkpoint, Origin};
use super::options::Torn;
use super::trouble::{Fatal, Trouble};
use super::worker::{Core, World};
use crate::clock::Clock;
use crate::dedupe::{Block, BlockView, Forgotten, Offset, PartitionId};
use crate::metrics::Resolution;
use crate::ports::{Bounds, Leftover, Position, Remedy, Sink, Source, StateItem, StateLog, Store};

/// Slice of a question to the broker.
const SLICE: Duration = Duration::from_secs(1);
/// Longest time that reading a tail or settling may take.
const LONG: Duration = Duration::from_secs(10);

/// What is visible of the last transaction in one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Evidence {
    /// The clean partition has records beyond its last stable offset, which is this.
    pub clean_hangs_at: Option<Offset>,
    /// The block that hangs in the state partition covers up to this raw offset.
    pub block_hangs: Option<Offset>,
    /// The clean end noted with the hanging block is visible to `read_committed`.
    pub hanging_blocks_records_visible: bool,
    /// One past the last clean offset noted with the last visible block.
    pub visible_clean_end: Option<Offset>,
    /// One past the last raw offset of the last visible block.
    pub visible_next: Option<Offset>,
    /// C, when it can be read; a torn transaction may hold it back.
    pub committed: Option<Offset>,
    /// C as it was before the pending transaction.
    pub settled: Option<Offset>,
}

/// How a torn transaction is to be settled in one partition.
pub(super) fn resolve(evidence: &Evidence) -> Resolution {
    let offsets_say = match (evidence.block_hangs, evidence.committed) {
        (Some(next), Some(committed)) => committed >= next,
        _ => false,
    };
    let records_say = evidence.block_hangs.is_some() && evidence.hanging_blocks_records_visible;
    let block_says =
        evidence.clean_hangs_at.is_some_and(|at| evidence.visible_clean_end.is_some_and(|end| end > at));
    // Offsets alone are held back: a block that is visible beyond the settled offset was committed with them.
    let only_offsets = evidence.block_hangs.is_none()
        && evidence.committed.is_none()
        && evidence.visible_next.is_some_and(|next| evidence.settled.is_none_or(|settled| next > settled));
    if offsets_say || records_say || block_says || only_offsets {
        Resolution::Committed
    } else {
        Resolution::Aborted
    }
}

/// Everything found about one partition.
struct Found {
    evidence: Evidence,
    writer: String,
    block: Option<Block>,
    state_hangs: bool,
    /// As the settled checkpoint says.
    forgets: u64,
}

impl<W: World> Core<W> {
    /// Looks for leftovers in the partitions that wait, and settles them. Returns those that are
    /// free of any: in healthy life all of them, at the price of a few questions.
    pub(super) fn untorn(
        &mut self,
        source: &W::Source,
        waiting: &[PartitionId],
    ) -> Result<Vec<PartitionId>, Trouble> {
        let mut free = Vec::new();
        for id in waiting {
            if self.is_untorn(source, *id)? {
                free.push(*id);
            }
        }
        Ok(free)
    }

    fn is_untorn(&mut self, source: &W::Source, id: PartitionId) -> Result<bool, Trouble> {
        if self.partitions.get(id).is_none_or(|p| p.untorn) {
            return Ok(true);
        }
        let (clean, state) = (self.log.clean_bounds(id, SLICE)?, self.log.bounds(id, SLICE)?);
        if hangs(&clean) || hangs(&state) {
            let now = self.clock.elapsed();
            let Some(partition) = self.partitions.get_mut(id) else { return Ok(false) };
            // A writer that lives moves on; what hangs at the same place all the time is left behind.
            let places = (clean.stable, state.stable);
            let since = partition.hanging.filter(|(_, seen)| *seen == places).map_or(now, |(since, _)| since);
            partition.hanging = Some((since, places));
            let Some(found) = self.found(source, id, &clean, &state)? else { return Ok(false) };
            // A living writer may be about to commit; our own transaction ended when we took our id over.
            let ours = found.state_hangs && found.writer == self.options.writer;
            if !ours && now.saturating_sub(since) < self.options.transaction_timeout {
                return Ok(false);
            }
            return self.settle(source, id, &found);
        }
        if let Some(partition) = self.partitions.get_mut(id) {
            partition.untorn = true;
            partition.hanging = None;
        }
        Ok(true)
    }

    /// C has been held back for longer than any living transaction: only the offsets are torn.
    pub(super) fn settle_offsets(&mut self, source: &W::Source, id: PartitionId) -> Result<(), Trouble> {
        let (clean, state) = (self.log.clean_bounds(id, SLICE)?, self.log.bounds(id, SLICE)?);
        match self.found(source, id, &clean, &state)? {
            Some(found) => self.settle(source, id, &found).map(drop),
            None => Ok(()),
        }
    }

    /// What is found, unless the logs moved meanwhile: evidence of different moments contradicts itself.
    fn found(
        &mut self,
        source: &W::Source,
        id: PartitionId,
        clean: &Bounds,
        state: &Bounds,
    ) -> Result<Option<Found>, Trouble> {
        let found = self.find(source, id, clean, state)?;
        let (clean_now, state_now) = (self.log.clean_bounds(id, SLICE)?, self.log.bounds(id, SLICE)?);
        let same = (clean_now.stable, state_now.stable) == (clean.stable, state.stable);
        Ok(same.then_some(found))
    }

    fn find(
        &mut self,
        source: &W::Source,
        id: PartitionId,
        clean: &Bounds,
        state: &Bounds,
    ) -> Result<Found, Trouble> {
        let settled = source.committed_unstable(&[id], SLICE)?.into_iter().next();
        let committed = match source.committed(&[id], SLICE) {
            Ok(answers) => answers.into_iter().next().and_then(|answer| answer.offset),
            Err(failed) if failed.remedy == Remedy::Retry => None,
            Err(failed) => return Err(failed.into()),
        };
        let checkpoint = settled.as_ref().and_then(|c| Checkpoint::parse(&c.metadata)).unwrap_or_default();
        let tail = self.log.tail(id, state.stable, Leftover::Everything, LONG)?;
        let only_forgotten = forgotten(&tail);
        let hanging = oldest_writers(tail).or(only_forgotten);
        let from = checkpoint.state_next.saturating_sub(1).clamp(state.low, state.stable);
        let visible = blocks(self.log.tail(id, from, Leftover::Committed, LONG)?).last();
        let clean_end = hanging.as_ref().and_then(|(origin, _)| origin.clean_end);
        let hanging_blocks_records_visible = match clean_end {
            Some(end) if end > 0 && end <= clean.stable => self.log.clean_shows(id, end - 1, LONG)?,
            _ => false,
        };
        let writer = hanging.as_ref().map(|(origin, _)| origin.writer.clone());
        Ok(Found {
            evidence: Evidence {
                clean_hangs_at: hangs(clean).then_some(clean.stable),
                block_hangs: hanging.as_ref().map(|(_, block)| block.next),
                hanging_blocks_records_visible,
                visible_clean_end: visible.as_ref().and_then(|(origin, _)| origin.clean_end),
                visible_next: visible.as_ref().map(|(_, block)| block.next),
                committed,
                settled: settled.and_then(|c| c.offset),
            },
            writer: writer
                .or_else(|| Some(checkpoint.writer).filter(|writer| !writer.is_empty()))
                .unwrap_or_else(|| self.options.writer.clone()),
            block: hanging.or(visible).map(|(_, block)| block),
            state_hangs: hangs(state),
            forgets: checkpoint.forgets,
        })
    }

    /// Settles one partition. False: it has to be looked at again.
    fn settle(&mut self, source: &W::Source, id: PartitionId, found: &Found) -> Result<bool, Trouble> {
        let resolution = match self.options.torn {
            Torn::ByEvidence => Some(resolve(&found.evidence)),
            Torn::Never => None,
            Torn::AlwaysAborted => Some(Resolution::Aborted),
        };
        tracing::warn!(partition = id, evidence = ?found.evidence, writer = %found.writer, ?resolution,
            "a transaction was left without its marker by a broker; settling it");
        match resolution {
            None => {
                if let Some(partition) = self.partitions.get_mut(id) {
                    partition.untorn = true;
                }
                return Ok(true);
            }
            Some(Resolution::Aborted) => {
                let parts = (found.evidence.clean_hangs_at.is_some(), found.state_hangs);
                self.sink.purge(&found.writer, id, parts, LONG)?;
                // Even a commit that was answered may have come to this: what was believed since the
                // settled offset, in memory and in the store, never was.
                self.store.truncate(id, found.evidence.settled.unwrap_or(0))?;
                if let Some(partition) = self.partitions.get_mut(id) {
                    partition.unload();
                }
            }
            Some(Resolution::Committed) => self.settle_committed(source, id, found)?,
        }
        if let Some(resolution) = resolution {
            self.report.torn(resolution);
        }
        if let Some(partition) = self.partitions.get_mut(id) {
            partition.hanging = None;
            if resolution == Some(Resolution::Committed) && found.evidence.clean_hangs_at.is_some() {
                // The next commit of ours that touches the partition settles it; an abort must not.
                partition.untorn = true;
                partition.must_commit = true;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes block and offset of the leftover real. Its clean records become so with the next commit.
    fn settle_committed(
        &mut self,
        source: &W::Source,
        id: PartitionId,
        found: &Found,
    ) -> Result<(), Trouble> {
        let _: &W::Source = source;
        if found.evidence.clean_hangs_at.is_some() && found.writer != self.options.writer {
            return Err(Fatal::Operator(format!(
                "partition {id} of the clean topic holds a committed transaction of {} without its marker, from offset \
                 {:?} on; start an instance with that group.instance once, or end it with kafka-transactions.sh abort \
                 after saving its records",
                found.writer, found.evidence.clean_hangs_at
            ))
            .into());
        }
        let Some(block) = &found.block else { return Ok(()) };
        let seal = Block {
            first: block.next,
            entries: Vec::new(),
            time_first_ms: block.time_last_ms,
            ..block.clone()
        };
        let origin = self.options.origin(None);
        let checkpoint = Checkpoint {
            stream_time_ms: block.time_last_ms,
            writer: self.options.writer.clone(),
            raw: self.options.raw_id.clone(),
            state: self.options.state_id.clone(),
            forgets: found.forgets,
            ..Checkpoint::default()
        };
        let next = block.next.max(found.evidence.committed.unwrap_or(0));
        let position = Position { partition: id, next, metadata: checkpoint.render() };
        self.sink.seal(&found.writer, &origin.render(), &seal.encode(), &position, LONG)?;
        Ok(())
    }
}

fn hangs(bounds: &Bounds) -> bool {
    bounds.stable < bounds.high
}

/// The last block of the writer whose block stands first: the first unstable offset is where the
/// oldest open transaction begins, and what others committed since then lies behind it.
fn oldest_writers(items: Vec<StateItem>) -> Option<(Origin, Block)> {
    let mut blocks = blocks(items);
    let first = blocks.next()?;
    let writer = first.0.writer.clone();
    blocks.filter(|(origin, _)| origin.writer == writer).last().or(Some(first))
}

/// Of a transaction that only took identities back, as a block without identities.
fn forgotten(items: &[StateItem]) -> Option<(Origin, Block)> {
    items.iter().find_map(|item| match item {
        StateItem::Block { key, block, .. } => {
            let Forgotten { hash, partition, at, .. } = Forgotten::decode(block).ok()?;
            let (first, next, time_first_ms, time_last_ms) = (at, at, 0, 0);
            let block =
                Block { hash, partition, first, next, time_first_ms, time_last_ms, entries: Vec::new() };
            Some((Origin::parse(key)?, block))
        }
        StateItem::End { .. } | StateItem::Gone { .. } => None,
    })
}

/// The blocks that can be read, with their origins.
fn blocks(items: Vec<StateItem>) -> impl Iterator<Item = (Origin, Block)> {
    items.into_iter().filter_map(|item| match item {
        StateItem::Block { key, block, .. } => {
            // Dummies of a purge are no blocks.
            BlockView::verified(&block).ok()?;
            Some((Origin::parse(&key)?, Block::decode(&block).ok()?))
        }
        StateItem::End { .. } | StateItem::Gone { .. } => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Evidence = Evidence {
        clean_hangs_at: None,
        block_hangs: None,
        hanging_blocks_records_visible: false,
        visible_clean_end: None,
        visible_next: None,
        committed: None,
        settled: None,
    };

    #[test]
    fn killed_inside_an_open_transaction_is_undone() {
        let records_only = Evidence {
            clean_hangs_at: Some(50),
            visible_clean_end: Some(50),
            visible_next: Some(100),
            committed: Some(100),
            settled: Some(100),
            ..NOTHING
        };
        assert_eq!(resolve(&records_only), Resolution::Aborted);
        let up_to_the_block = Evidence { block_hangs: Some(150), ..records_only };
        assert_eq!(resolve(&up_to_the_block), Resolution::Aborted);
        let up_to_the_offsets = Evidence { committed: None, ..up_to_the_block };
        assert_eq!(resolve(&up_to_the_offsets), Resolution::Aborted);
    }

    #[test]
    fn any_part_that_is_visible_proves_the_commit() {
        let hung =
            Evidence { clean_hangs_at: Some(50), block_hangs: Some(150), settled: Some(100), ..NOTHING };
        assert_eq!(resolve(&Evidence { committed: Some(150), ..hung }), Resolution::Committed, "offsets");
        let records = Evidence { clean_hangs_at: None, hanging_blocks_records_visible: true, ..hung };
        assert_eq!(resolve(&records), Resolution::Committed, "records");
        let block = Evidence { block_hangs: None, visible_clean_end: Some(60), ..hung };
        assert_eq!(resolve(&block), Resolution::Committed, "block");
        let offsets = Evidence { visible_next: Some(150), settled: Some(100), ..NOTHING };
        assert_eq!(resolve(&offsets), Resolution::Committed, "block, when offsets alone hang");
    }

    #[test]
    fn an_offset_that_was_passed_by_duplicates_alone_proves_nothing() {
        let offsets = Evidence { visible_next: Some(100), settled: Some(100), ..NOTHING };
        assert_eq!(resolve(&offsets), Resolution::Aborted);
    }
}
