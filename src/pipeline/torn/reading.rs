//! Reads the evidence about the last transactions of partitions, in pieces: on a slow connection all of it can take minutes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::dedupe::{Offset, PartitionId};
use crate::pipeline::REQUEST_TIMEOUT;
use crate::pipeline::context::Context;
use crate::pipeline::error::WorkerError;
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::safeguard::Safeguard;
use crate::pipeline::torn::evidence::PartitionEvidence;
use crate::pipeline::torn::tails::{CleanVisibility, Tails};
use crate::ports::{Committed, Leftover, LogId, LogTails, StateItem};

/// Timeout of reading tails.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// How many times `evidence_records` one piece has, unless the last transaction of a single partition is longer. With
/// blocks of 0.5 MB a piece takes some seconds at 100 MB/s; most blocks are far smaller.
const PIECE: Offset = 10;

/// Where the last transactions of these partitions are in the state logs.
pub(super) fn last_transactions<'a, W: WorkerPorts>(
    ctx: &Context<W>,
    answers: impl Iterator<Item = &'a Committed> + Clone,
) -> Result<Vec<PartitionEvidence<'a>>, WorkerError> {
    let logs = LogId::pairs(answers.clone().map(|answer| &answer.partition));
    let bounds = ctx.log.bounds(&logs, REQUEST_TIMEOUT)?;
    let evidence = answers.zip(bounds.chunks_exact(2)).filter_map(|(answer, bounds)| {
        Some(PartitionEvidence::new(answer, bounds.try_into().ok()?, ctx.options.evidence_records))
    });
    Ok(evidence.collect())
}

/// Takes the partitions whose state records are read together.
pub(super) fn next_piece<'a>(
    options: &WorkerOptions,
    unread: &mut Vec<PartitionEvidence<'a>>,
) -> Option<Vec<PartitionEvidence<'a>>> {
    let (most, mut records) = (PIECE * options.evidence_records, 0);
    let fits = |evidence: &&PartitionEvidence<'_>| {
        records += evidence.state.high.saturating_sub(evidence.from);
        records <= most
    };
    let count = unread.iter().take_while(fits).count().max(1);
    (!unread.is_empty()).then(|| unread.drain(..count).collect())
}

/// Reads the last transactions of these partitions from the state logs, each from its first block on.
///
/// Without a checkpoint nothing names that block, and a transaction can have any number of blocks. What follows from a part
/// of it would be wrong: a rewind to the middle skips the raw records before, and blocks that are rewritten without the first
/// ones leave ids out of the window.
pub(super) fn read_evidence<'a, W: WorkerPorts>(
    ctx: &Context<W>,
    mut evidence: Vec<PartitionEvidence<'a>>,
) -> Result<Vec<PartitionEvidence<'a>>, WorkerError> {
    let mut unread: Vec<&mut PartitionEvidence<'a>> = evidence.iter_mut().collect();
    while !unread.is_empty() {
        read_tails(ctx, &mut unread)?;
        let extends = ctx.options.keeps(Safeguard::WholeTransactions);
        unread.retain_mut(|evidence| extends && evidence.extend());
    }
    Ok(evidence)
}

fn read_tails<W: WorkerPorts>(
    ctx: &Context<W>,
    unread: &mut [&mut PartitionEvidence<'_>],
) -> Result<(), WorkerError> {
    let all: Vec<_> = unread.iter().map(|k| (k.answer.partition, k.from..k.state.high)).collect();
    let stable: Vec<_> = unread.iter().map(|k| (k.answer.partition, k.from..k.state.stable)).collect();
    let mut everything: BTreeMap<PartitionId, Vec<StateItem>> = BTreeMap::new();
    for item in ctx.log.tails(&all, Leftover::Everything, READ_TIMEOUT)? {
        if let Some((id, _)) = place(&item) {
            everything.entry(id).or_default().push(item);
        }
    }
    ctx.progress.advance();
    let mut committed: BTreeMap<PartitionId, BTreeSet<Offset>> = BTreeMap::new();
    for (id, at) in ctx.log.tails(&stable, Leftover::Committed, READ_TIMEOUT)?.iter().filter_map(place) {
        committed.entry(id).or_default().insert(at);
    }
    for evidence in unread {
        let id = evidence.answer.partition;
        let own = everything.remove(&id).unwrap_or_default();
        let committed = committed.remove(&id).unwrap_or_default();
        evidence.tails = Tails::new(own, &committed);
    }
    ctx.progress.advance();
    Ok(())
}

/// Whether the clean log shows the last committed transaction of each partition, and the aborted transactions after it.
pub(super) fn visibility<W: WorkerPorts>(
    ctx: &mut Context<W>,
    evidence: &[PartitionEvidence<'_>],
) -> Result<Vec<(CleanVisibility, Vec<CleanVisibility>)>, WorkerError> {
    let wanted = |evidence: &PartitionEvidence<'_>| {
        let id = evidence.answer.partition;
        evidence.clean_ends().map(|end| (id, end - 1)).collect::<Vec<_>>()
    };
    let mut unseen: BTreeSet<(PartitionId, Offset)> = evidence.iter().flat_map(wanted).collect();
    let committed = find(ctx, &mut unseen, Leftover::Committed)?;
    // A record that only this reader finds is aborted. One that it does not find either was removed by compaction.
    let aborted = find(ctx, &mut unseen, Leftover::Everything)?;
    Ok(evidence.iter().map(|evidence| evidence.sort([&committed, &aborted])).collect())
}

/// Moves the clean records that such a reader finds out of `unseen`.
fn find<W: WorkerPorts>(
    ctx: &Context<W>,
    unseen: &mut BTreeSet<(PartitionId, Offset)>,
    reader: Leftover,
) -> Result<BTreeSet<(PartitionId, Offset)>, WorkerError> {
    if unseen.is_empty() {
        return Ok(BTreeSet::new());
    }
    let requested: Vec<(PartitionId, Offset)> = unseen.iter().copied().collect();
    let seen = ctx.log.visible(&requested, reader, READ_TIMEOUT)?;
    let found = requested.into_iter().zip(seen).filter(|(_, seen)| *seen).map(|(at, _)| at);
    let found: BTreeSet<(PartitionId, Offset)> = found.collect();
    unseen.retain(|at| !found.contains(at));
    Ok(found)
}

fn place(item: &StateItem) -> Option<(PartitionId, Offset)> {
    match item {
        StateItem::Block { partition, offset, .. } => Some((*partition, *offset)),
        StateItem::End { .. } | StateItem::Gone { .. } => None,
    }
}
