//! Makes the logs of a partition agree before its committed offset is relied on. [`super::decision`] decides how.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{Block, Checkpoint, Offset, PartitionId, StateKey, Tail};
use crate::metrics::Resolution;
use crate::pipeline::commit::Access;
use crate::pipeline::commit::markers::await_markers;
use crate::pipeline::context::Context;
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::partition::local::{all_expired, usable};
use crate::pipeline::partition::topic::TopicScope;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::safeguard::Safeguard;
use crate::pipeline::torn::decision::{Lack, TornDecision, time_at};
use crate::pipeline::torn::evidence::{PartitionEvidence, ResumePoint};
use crate::pipeline::torn::producer::Torn;
use crate::pipeline::torn::reading::{last_transactions, next_piece, read_evidence, visibility};
use crate::pipeline::torn::tails::TransactionBlocks;
use crate::pipeline::{REQUEST_TIMEOUT, failpoint};
use crate::ports::{CommitPosition, Committed, GroupMember, Sink, Store};

/// Time to read evidence between two polls; at least one piece of it is read.
const EVIDENCE_SLICE: Duration = Duration::from_millis(200);

impl Torn {
    /// The partitions whose logs agree with their committed offset. The others are repaired, and then checked again.
    ///
    /// Returns no partition while records in a side topic are unsettled: no transaction with records may touch them before
    /// that. A repair writes no records to side topics, and settling may depend on it, so repairs are made even then.
    pub(crate) fn reconcile<W: WorkerPorts>(
        &mut self,
        access: &mut Access<'_, W>,
        answers: &[Committed],
    ) -> Result<Vec<PartitionId>, WorkerError> {
        let checked = check_logs(access, answers)?;
        if !self.waits_for_sides() {
            return Ok(checked);
        }
        let not_before = self.next_side_check();
        for id in checked {
            if let Some(partition) = access.ctx.partitions.get_mut(id) {
                partition.relocate(not_before);
            }
        }
        Ok(Vec::new())
    }
}

fn check_logs<W: WorkerPorts>(
    access: &mut Access<'_, W>,
    answers: &[Committed],
) -> Result<Vec<PartitionId>, WorkerError> {
    let is_checked = |answer: &&Committed| {
        access.ctx.partitions.get(answer.partition).is_none_or(|p| p.checked_from.is_some())
    };
    let (done, unchecked): (Vec<&Committed>, Vec<&Committed>) = answers.iter().partition(is_checked);
    let mut checked: Vec<PartitionId> = done.iter().map(|answer| answer.partition).collect();
    if !access.ctx.options.repairs() {
        return Ok(answers.iter().map(|answer| answer.partition).collect());
    }
    if unchecked.is_empty() {
        return Ok(checked);
    }
    let until = access.ctx.clock.elapsed() + EVIDENCE_SLICE;
    let mut unread = last_transactions(access.ctx, unchecked.into_iter())?;
    while let Some(piece) = next_piece(&access.ctx.options, &mut unread) {
        let piece = read_evidence(access.ctx, piece)?;
        for (evidence, visibility) in piece.iter().zip(visibility(access.ctx, &piece)?) {
            let id = evidence.answer.partition;
            match evidence.decide(&visibility) {
                TornDecision::Agreed => {
                    if let Some(partition) = access.ctx.partitions.get_mut(id) {
                        partition.checked_from = Some(evidence.state.low);
                    }
                    // From now on the state counts as settled, also before the partition is located.
                    let drops = access.ctx.options.keeps(Safeguard::UndoneState);
                    if let Some(locating) = access.ctx.partitions.locating_mut(id).filter(|_| drops) {
                        locating.state.take_if(|state| !state.is_of(evidence.answer));
                    }
                    checked.push(id);
                }
                decision => repair(access, evidence, decision)?,
            }
        }
        // The rest follows in the next iteration.
        if access.ctx.clock.elapsed() >= until {
            break;
        }
    }
    Ok(checked)
}

fn repair<W: WorkerPorts>(
    access: &mut Access<'_, W>,
    evidence: &PartitionEvidence<'_>,
    decision: TornDecision,
) -> Result<(), WorkerError> {
    let id = evidence.answer.partition;
    if !is_confirmed(access.ctx, access.source, evidence, &decision)? {
        return Ok(());
    }
    tracing::warn!(
        partition = id,
        offset = evidence.answer.offset,
        metadata = evidence.answer.metadata,
        decision = decision.name(),
        "the broker left the last transaction without some of its markers; repairing its traces"
    );
    let resolution = match decision {
        TornDecision::Rewind(..) => Resolution::Rewound,
        _ => Resolution::Redone,
    };
    let is_back = matches!(decision, TornDecision::Rewind(..));
    let (records, next, checkpoint) = plan_repair(access, evidence, decision)?;
    // The epoch belongs to a record before the committed offset. Records beyond it may have been read after another leader
    // election.
    let is_same = is_back || evidence.answer.offset == Some(next);
    let epoch = checkpoint.epoch.filter(|epoch| is_same && epoch.covers(next));
    let checkpoint = Checkpoint { epoch, ..checkpoint };
    access.committer.transaction.begin(&mut access.committer.sink, || access.ctx.clock.elapsed())?;
    access.committer.transaction.repairs = Some(id);
    write_repair(
        access,
        (id, records),
        evidence.position_set_elsewhere().unwrap_or_else(|| CommitPosition {
            partition: id,
            next,
            metadata: checkpoint.render(),
        }),
    )
    .map_err(WorkerError::rewinding)?;
    access.ctx.report.metrics.torn_transactions(resolution).inc();
    if let Some(partition) = access.ctx.partitions.get_mut(id) {
        partition.unload(access.ctx.clock.elapsed());
    }
    Ok(())
}

/// The state records, the offset and the checkpoint that a decision requires.
fn plan_repair<W: WorkerPorts>(
    access: &mut Access<'_, W>,
    evidence: &PartitionEvidence<'_>,
    decision: TornDecision,
) -> Result<Planned, WorkerError> {
    let before = evidence.checkpoint.clone().unwrap_or(Checkpoint {
        state_next: evidence.state.low,
        first_raw_partitions: Some(access.ctx.options.raw_partitions),
        // Without one, the windows would be taken for those of partition scope.
        horizon_ms: access.ctx.topic.as_ref().map(TopicScope::horizon_ms),
        ..Checkpoint::default()
    });
    let committed = evidence.answer.offset.unwrap_or(0);
    // A copy can be interrupted after any block. So its first block proves nothing, and its last block names their number.
    let ours = |key: &StateKey| StateKey {
        is_first: false,
        copied: None,
        writer: access.ctx.options.writer.clone(),
        ..key.clone()
    };
    let forgets = before.forgets.max(evidence.tails.forgets);
    let before = access.ctx.options.signed(Checkpoint { forgets, ..before });
    // How late the records of the group are is not known here.
    let late_ms = access.ctx.options.unknown_lateness();
    let after = |group: &TransactionBlocks| Checkpoint {
        tail: Some(group.tail),
        late_ms,
        stream_time_ms: group.times.1,
        ..before.clone()
    };
    Ok(match decision {
        TornDecision::Redo(group) => {
            let tail = Tail { from: Some(evidence.state.high), ..group.tail };
            let checkpoint = if group.tail.next > committed { after(&group) } else { before.clone() };
            let mut records: Vec<_> =
                group.blocks.iter().map(|(key, bytes)| (ours(key), bytes.clone())).collect();
            let copied = (!group.is_cut).then_some(records.len());
            records.last_mut().into_iter().for_each(|(key, _)| key.copied = copied);
            (
                records.into_iter().map(|(key, bytes)| (key.render(), bytes)).collect(),
                group.tail.next.max(committed),
                Checkpoint { tail: Some(tail), ..checkpoint },
            )
        }
        TornDecision::Advance(group) => (Vec::new(), group.tail.next, after(&group)),
        TornDecision::Rewind(to, group) => {
            let stream_time_ms = time_at((to, &group), evidence.answer.offset, evidence.checkpoint.as_ref());
            let (records, tail) = void(access, evidence, (to, stream_time_ms));
            (records, to, Checkpoint { stream_time_ms, tail, ..before })
        }
        TornDecision::RedoForgotten(key, forgotten) => {
            (vec![(ours(&key).render(), forgotten.encode())], committed, before)
        }
        TornDecision::AdvanceForgets(forgets) => (Vec::new(), committed, Checkpoint { forgets, ..before }),
        TornDecision::Undecidable(lack, group) => {
            return Err(undecidable(&access.ctx.options, evidence, lack, &group).into());
        }
        TornDecision::Agreed | TornDecision::Missing(_) => {
            return Err(missing_block(&access.ctx.options, evidence).into());
        }
    })
}

/// A block with an empty offset range for every kind. A restore that reads it forgets all owners at or beyond `to` that it
/// has read.
fn void<W: WorkerPorts>(
    access: &mut Access<'_, W>,
    evidence: &PartitionEvidence<'_>,
    (to, stream_time_ms): (Offset, i64),
) -> (Vec<(String, Vec<u8>)>, Option<Tail>) {
    let (mut records, mut tail) = (Vec::new(), None);
    for (number, window) in (0..).zip(access.ctx.options.kinds.windows_of(evidence.answer.partition)) {
        let encoded = Block::empty(access.ctx.options.hash, window, to..to, stream_time_ms).encode();
        tail = Some(Tail { crc: Block::checksum(&encoded), next: to, from: Some(evidence.state.high) });
        let is_first = number == 0;
        let key = StateKey {
            clean_end: None,
            is_first,
            ..access.committer.state_key_of(access.ctx, window, false)
        };
        records.push((key.render(), encoded));
    }
    (records, tail)
}

fn write_repair<W: WorkerPorts>(
    access: &mut Access<'_, W>,
    (id, records): (PartitionId, Vec<(String, Vec<u8>)>),
    position: CommitPosition,
) -> Result<(), WorkerError> {
    for (key, bytes) in &records {
        access.committer.sink.put_state(id, key, bytes)?;
    }
    failpoint::pass("repair_written");
    access.committer.send_positions(access.ctx, access.source, &[position])?;
    access.committer.sink.drain(access.ctx.options.transaction_timeout)?;
    failpoint::pass("repair_sent");
    let touched = access.committer.touched();
    access.committer.persistently(access.ctx, Sink::commit)?;
    failpoint::pass("repair_committed");
    access.committer.transaction.close();
    await_markers(access.ctx, access.source, touched)
}

/// Where processing of these partitions resumes.
pub(crate) fn resume_points<W: WorkerPorts>(
    ctx: &mut Context<W>,
    source: &W::Source,
    ids: &[PartitionId],
) -> Result<BTreeMap<PartitionId, ResumePoint>, WorkerError> {
    let answers = source.committed(ids, REQUEST_TIMEOUT)?;
    let mut unread = last_transactions(ctx, answers.iter())?;
    let mut evidence = Vec::new();
    while let Some(piece) = next_piece(&ctx.options, &mut unread) {
        let piece = read_evidence(ctx, piece)?;
        let visibility = visibility(ctx, &piece)?;
        evidence.extend(piece.into_iter().zip(visibility));
    }
    let mut resume_points = BTreeMap::new();
    for (evidence, visibility) in evidence {
        let id = evidence.answer.partition;
        // The local state of a partition that another worker owns does not count.
        let is_ours = ctx.partitions.get(id).is_some();
        let head = if is_ours { ctx.store.head(id.into())? } else { None };
        let local = head.map(|head| (head.state_next, head.confirmed));
        let local_end = usable(local, &evidence.state, None).map(|(_, confirmed)| confirmed);
        match evidence.resume_point(&visibility, local_end) {
            Some(point) => drop(resume_points.insert(id, point)),
            None if is_ours => return Err(all_expired(&ctx.options, id, local).into()),
            // The owner of the partition reports this error, or resumes from its local state.
            None => {}
        }
    }
    Ok(resume_points)
}

/// Whether the partition, read again, has the same committed offset and log bounds, and the same decision follows.
///
/// Evidence that was read at different times can contradict itself. The second read also finds what an incomplete one has
/// left out: a repair, or a stop for an operator, must not follow from a record that a reader did not return.
fn is_confirmed<W: WorkerPorts>(
    ctx: &mut Context<W>,
    source: &W::Source,
    first: &PartitionEvidence<'_>,
    decision: &TornDecision,
) -> Result<bool, WorkerError> {
    let answers = source.committed(&[first.answer.partition], REQUEST_TIMEOUT)?;
    let unread = last_transactions(ctx, answers.iter())?;
    let again = read_evidence(ctx, unread)?;
    let visibility = visibility(ctx, &again)?;
    let is_same = again.iter().zip(&visibility).any(|(again, visibility)| {
        let is_unchanged =
            (again.answer, again.clean, again.state) == (first.answer, first.clean, first.state);
        is_unchanged && again.decide(visibility) == *decision
    });
    if !is_same {
        tracing::info!(
            partition = first.answer.partition,
            offset = first.answer.offset,
            decision = decision.name(),
            read = %first.summary(),
            read_again = %again.iter().map(PartitionEvidence::summary).collect::<String>(),
            "the logs of a partition do not agree, and a second read shows something else; checking them again"
        );
    }
    Ok(is_same)
}

fn missing_block(options: &WorkerOptions, evidence: &PartitionEvidence<'_>) -> Fatal {
    Fatal::Operator(format!(
        "the group's offset {} for partition {} of topic {} was committed with a block that is missing in topic {}, \
         although records written before and after that block are there: the state topic has lost committed records (an \
         unclean leader election, or a restore from a copy). Two reads agree: {}. To continue at this offset with an empty \
         window, stop all instances and reset the group's offset to its current value with kafka-consumer-groups.sh \
         --reset-offsets --to-current",
        evidence.answer.offset.unwrap_or(0),
        evidence.answer.partition,
        options.raw,
        options.state,
        evidence.summary()
    ))
}

fn undecidable(
    options: &WorkerOptions,
    evidence: &PartitionEvidence<'_>,
    lack: Lack,
    group: &TransactionBlocks,
) -> Fatal {
    let WorkerOptions { raw, state, .. } = options;
    let (id, end) = (evidence.answer.partition, group.clean_end().unwrap_or(0));
    let lacks = match lack {
        Lack::Record => format!(
            "log compaction has removed its last record, offset {} of the clean topic, partition {id}",
            end.saturating_sub(1)
        ),
        Lack::Blocks => format!("retention has deleted its first blocks from topic {state}"),
    };
    Fatal::Operator(format!(
        "the broker left the last transaction of partition {id} of topic {raw} without some of its markers, and {lacks}: \
         nothing shows whether its records, raw offsets {} to {}, are in the clean topic. Look for them there. Then stop \
         all instances and set the group's offset with kafka-consumer-groups.sh --reset-offsets --topic {raw}:{id} \
         --to-offset {} --execute if they are there. If not, set it to the first of them, and start once with \
         group.on_rewind = \"reemit\"",
        group.first,
        group.tail.next.saturating_sub(1),
        group.tail.next
    ))
}

/// Records for the state topic with their keys, the offset, and its checkpoint.
type Planned = (Vec<(String, Vec<u8>)>, Offset, Checkpoint);
