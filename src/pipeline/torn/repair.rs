//! Makes the logs of a journal's partitions agree before their committed offsets are relied on. [`super::decision`] decides how.

use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::coordinates::ranges;
use crate::dedupe::{Checkpoint, Entry, JournalId, LastEntry, PartitionId, Section, StateKey};
use crate::metrics::Resolution;
use crate::pipeline::access::Access;
use crate::pipeline::context::Context;
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::journal::JournalEnd;
use crate::pipeline::journal::local::UNDONE;
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::safeguard::Safeguard;
use crate::pipeline::sizes::metadata_bytes;
use crate::pipeline::torn::decision::{Lack, Repair, TornDecision};
use crate::pipeline::torn::evidence::JournalEvidence;
use crate::pipeline::torn::reading::next_piece;
use crate::pipeline::{REQUEST_TIMEOUT, failpoint};
use crate::ports::{CommitPosition, Committed, Failure, GroupMember, Remedy, Sink, Source, Store};

/// Time to read evidence between two polls; at least one piece of it is read.
const EVIDENCE_TIME: Duration = Duration::from_millis(200);

impl<W: WorkerPorts> Access<'_, W> {
    /// The journals whose logs agree with the committed offsets of their partitions. The others are repaired, and then checked again.
    ///
    /// Returns no journal while records in a side topic are unsettled: no transaction with records may touch them before
    /// that. A repair writes no records to side topics, and settling may depend on it, so repairs are made even then.
    pub(crate) fn reconcile(&mut self, answers: &[Committed]) -> Result<Vec<PartitionId>, WorkerError> {
        let checked = self.check_logs(answers)?;
        if !self.torn.waits_for_sides() {
            return Ok(checked);
        }
        let not_before = self.torn.next_side_check();
        for id in checked {
            self.ctx.journals.get_mut(id).into_iter().for_each(|journal| journal.relocate(not_before));
        }
        Ok(Vec::new())
    }

    fn check_logs(&mut self, answers: &[Committed]) -> Result<Vec<PartitionId>, WorkerError> {
        let journals = self.ctx.options.journals_of(answers.iter().map(|answer| answer.partition));
        if !self.ctx.options.repairs() {
            self.assume_ends(answers);
            return Ok(journals.into_iter().collect());
        }
        let is_checked =
            |id: &PartitionId| self.ctx.journals.get(*id).is_none_or(|journal| journal.is_checked);
        let (mut checked, unchecked): (Vec<PartitionId>, Vec<PartitionId>) =
            journals.into_iter().partition(is_checked);
        let members = self.with_members(answers, &unchecked)?;
        if members.is_empty() {
            return Ok(checked);
        }
        let until = self.ctx.clock.elapsed() + EVIDENCE_TIME;
        let mut unread = self.ctx.last_transactions(&members)?;
        while let Some(piece) = next_piece(&self.ctx.options, &mut unread) {
            let piece = self.ctx.read_evidence(piece, &[])?;
            for (evidence, clean) in piece.iter().zip(self.ctx.visibility(&piece)?) {
                check_scope(&self.ctx.options, evidence)?;
                if let Some(unknown) = evidence.unknown_partition() {
                    // It has to be assigned first: its clean log decides too.
                    self.note_partition(evidence.journal, unknown)?;
                    continue;
                }
                if evidence.is_open() && self.ctx.options.keeps(Safeguard::OpenRecords) {
                    continue;
                }
                match evidence.decide(&clean, self.ctx.options.keeps(Safeguard::NewestCheckpoint)) {
                    TornDecision::Agreed => {
                        let last = self.last_entry_of(evidence)?;
                        if let Some(journal) = self.ctx.journals.get_mut(evidence.journal) {
                            journal.end = JournalEnd { last, next: evidence.bounds.high };
                            journal.is_checked = true;
                            checked.push(journal.id);
                        }
                    }
                    decision => self.repair(evidence, decision)?,
                }
            }
            // The rest follows in the next iteration.
            if self.ctx.clock.elapsed() >= until {
                break;
            }
        }
        Ok(checked)
    }

    /// The last entry of a journal names a partition that this process does not know: raw has grown.
    fn note_partition(&self, journal: JournalId, unknown: PartitionId) -> Result<(), WorkerError> {
        let options = &self.ctx.options;
        let raw = self.source.partition_count(REQUEST_TIMEOUT)?;
        if raw > unknown as usize {
            options.partition_counts.note_raw(raw);
            return Ok(());
        }
        Err(Failure::new(
        Remedy::Retry,
        format!(
            "the last entry of topic {} partition {journal} has partition {unknown} of topic {}, which has {raw} as far as the broker knows: \
             waiting until it has more; if raw was recreated, or another program wrote the entry, set topics.state to a new topic, and the \
             group's offsets to their current values (kafka-consumer-groups.sh --reset-offsets --to-current)",
            options.state, options.raw
        ),
    )
    .into())
    }

    /// The last committed entry of a journal. Where the group has lost its offsets and retention has deleted the
    /// entries, local state names the last one: with a lower number, the next entry would be older than what a checkpoint with that name states.
    fn last_entry_of(&self, evidence: &JournalEvidence) -> Result<Option<LastEntry>, WorkerError> {
        let last = evidence.last_entry();
        if last.is_some() {
            return Ok(last);
        }
        let stored = self.ctx.store.head(evidence.journal.into())?.and_then(|head| head.confirmed_entry);
        Ok(stored.filter(|entry| *entry != UNDONE).map(|entry| LastEntry { entry, from: None }))
    }

    /// Where nothing is checked, the journals end where the checkpoints say.
    fn assume_ends(&mut self, answers: &[Committed]) {
        for (id, answers) in self.ctx.options.by_journal(answers.to_vec()) {
            let Some(journal) = self.ctx.journals.get_mut(id) else { continue };
            for checkpoint in answers.iter().filter_map(|answer| Checkpoint::parse(&answer.metadata)) {
                journal.end.extend(checkpoint.last_entry);
                journal.end.next = journal.end.next.max(checkpoint.state_next);
            }
        }
    }

    /// The committed offsets of all partitions of these journals. Where partitions are missing, nothing is decided; a test makes that possible.
    fn with_members(
        &mut self,
        answers: &[Committed],
        journals: &[PartitionId],
    ) -> Result<Vec<Committed>, WorkerError> {
        let of_journals =
            |answer: &&Committed| journals.contains(&self.ctx.options.journal_of(answer.partition));
        let mut members: Vec<Committed> = answers.iter().filter(of_journals).cloned().collect();
        if !self.ctx.options.keeps(Safeguard::AllPartitions) && !members.is_empty() {
            let is_missing = |id: &PartitionId| !answers.iter().any(|answer| answer.partition == *id);
            let mut missing = self.ctx.all_members(journals);
            missing.retain(is_missing);
            members.extend(self.source.committed(&missing, REQUEST_TIMEOUT)?);
        }
        Ok(members)
    }

    fn repair(&mut self, evidence: &JournalEvidence, decision: TornDecision) -> Result<(), WorkerError> {
        if !self.is_confirmed(evidence, &decision)? {
            return Ok(());
        }
        let name = decision.name();
        let repair = match decision {
            TornDecision::Repair(repair) if self.ctx.options.keeps(Safeguard::WholeRepairs) => repair,
            TornDecision::Repair(repair) => repair.of_one(),
            TornDecision::Undecidable(lack, section) => {
                return Err(undecidable(&self.ctx.options, lack, &section).into());
            }
            TornDecision::Missing(id, _) => return Err(missing_entry(&self.ctx.options, evidence, id).into()),
            TornDecision::Agreed => return Ok(()),
        };
        let ids: Vec<PartitionId> = repair.end.sections.iter().map(|section| section.partition).collect();
        tracing::warn!(
            partitions = %ranges(ids.iter().copied()),
            rewound = %ranges(repair.rewound.iter().copied()),
            entry = repair.end.number,
            decision = name,
            read = %evidence.summary(),
            "the logs disagree about the last transaction: a broker has not written all of its markers, or another program has set offsets or \
             checkpoints of the group; repairing its traces"
        );
        let resolution = if repair.rewound.is_empty() { Resolution::Redone } else { Resolution::Rewound };
        let mut positions: Vec<CommitPosition> =
            repair.end.sections.iter().map(|it| position(self.ctx, evidence, &repair, it)).collect();
        positions.extend(renamed(self.ctx, evidence, &repair));
        self.committer.transaction.begin(&mut self.committer.sink, || self.ctx.clock.elapsed())?;
        self.committer.transaction.repairs.clone_from(&ids);
        self.write_repair(evidence.journal, &repair, &positions).map_err(WorkerError::rewinding)?;
        self.ctx.report.metrics.torn_transactions(resolution).inc();
        let now = self.ctx.clock.elapsed();
        self.ctx.journals.get_mut(evidence.journal).into_iter().for_each(|journal| journal.unload(now));
        Ok(())
    }

    fn write_repair(
        &mut self,
        journal: JournalId,
        repair: &Repair,
        positions: &[CommitPosition],
    ) -> Result<(), WorkerError> {
        if let Some(records) = &repair.writes {
            let ours = |key: &StateKey| StateKey { writer: self.ctx.options.writer.clone(), ..key.clone() };
            for record in records {
                self.committer.put_record(journal, &ours(&record.key), &record.bytes)?;
            }
            let key = self.ctx.options.state_key();
            self.committer.put_record(journal, &key, &repair.end.encode())?;
        }
        failpoint::pass("repair_written");
        self.committer.send_positions(self.ctx, self.source, positions)?;
        self.committer.sink.drain(self.ctx.options.transaction_timeout)?;
        failpoint::pass("repair_sent");
        let touched = self.committer.touched(&self.ctx.options);
        self.committer.persistently(self.ctx, Sink::commit)?;
        failpoint::pass("repair_committed");
        self.committer.transaction.close();
        self.ctx.await_markers(self.source, touched)
    }

    /// Whether the journal and its partitions, read again, have the same committed offsets and log bounds, and the same decision follows.
    ///
    /// Evidence that was read at different times can contradict itself. The second read also finds what an incomplete one has
    /// left out: a repair, or a stop for an operator, must not follow from a record that a reader did not return.
    fn is_confirmed(
        &mut self,
        first: &JournalEvidence,
        decision: &TornDecision,
    ) -> Result<bool, WorkerError> {
        let ids: Vec<PartitionId> = first.answers.keys().copied().collect();
        let answers = self.source.committed(&ids, REQUEST_TIMEOUT)?;
        let unread = self.ctx.last_transactions(&answers)?;
        let again = self.ctx.read_evidence(unread, &[])?;
        let clean = self.ctx.visibility(&again)?;
        let newest_only = self.ctx.options.keeps(Safeguard::NewestCheckpoint);
        let is_same = again
            .iter()
            .zip(&clean)
            .any(|(again, clean)| again.is_same_as(first) && again.decide(clean, newest_only) == *decision);
        if !is_same {
            tracing::info!(
                journal = first.journal,
                decision = decision.name(),
                read = %first.summary(),
                read_again = %again.iter().map(JournalEvidence::summary).collect::<String>(),
                "the logs do not agree, and a second read shows something else; checking them again"
            );
        }
        Ok(is_same)
    }
}

/// Fails when entries of the journal were written in another scope: their partitions are others than those whose logs are compared.
fn check_scope(options: &WorkerOptions, evidence: &JournalEvidence) -> Result<(), Fatal> {
    let place = |entry: &Entry| {
        format!("topic {} partition {} offset {} was written", options.state, evidence.journal, entry.at)
    };
    let mut last = evidence.entries.last();
    last.try_for_each(|entry| options.same_scope(entry.key.is_topic_wide, || place(entry)))
}

/// The offset that a repair commits for a partition, with its checkpoint.
fn position<W: WorkerPorts>(
    ctx: &Context<W>,
    evidence: &JournalEvidence,
    repair: &Repair,
    section: &Section,
) -> CommitPosition {
    let (id, is_back) = (section.partition, repair.rewound.contains(&section.partition));
    if let Some(position) = evidence.position_set_elsewhere(id) {
        return position;
    }
    let committed = evidence.answers.get(&id).and_then(|answer| answer.offset);
    let before = evidence.checkpoint(id).cloned().unwrap_or(Checkpoint {
        first_raw_partitions: Some(ctx.options.raw_partitions),
        ..Checkpoint::default()
    });
    // Transactions without an entry may have followed one whose offsets are shown. Where they are not, the offset that is committed may be one to
    // which this entry goes back.
    let is_shown = !is_back && before.last_entry.is_some_and(|last| last.entry == repair.of);
    let next = committed.filter(|_| is_shown).map_or(section.next, |it| it.max(section.next));
    let is_named = is_shown && repair.writes.is_none();
    let from = if repair.writes.is_some() { evidence.bounds.high } else { evidence.from };
    let last_entry = LastEntry { entry: repair.name(), from: Some(from) };
    // The time at the offset to which a partition is rewound, if it is where the group is.
    let is_unmoved = is_back && committed == Some(next) && evidence.checkpoint(id).is_some();
    let is_ahead = next > section.next;
    // The epoch belongs to a record before the committed offset. Records beyond it may have been read after another leader
    // election.
    let is_same = is_back || committed == Some(next);
    let epoch = before.epoch.filter(|epoch| is_same && epoch.covers(next));
    let checkpoint = if is_named {
        before
    } else {
        Checkpoint {
            state_next: before.state_next.max(evidence.from),
            last_entry: Some(last_entry),
            section_next: Some(section.next),
            others_follow: !evidence.keeps_offsets(),
            // How late the records of the entry are is not known here.
            late_ms: ctx.options.unknown_lateness(),
            stream_time_ms: if is_ahead || is_unmoved { before.stream_time_ms } else { section.time_last_ms },
            ..before
        }
    };
    let most = metadata_bytes(repair.end.sections.len());
    let metadata = ctx.options.signed(Checkpoint { epoch, ..checkpoint }).render_within(most);
    CommitPosition { partition: id, next, metadata }
}

/// The offsets of the partitions that the transaction has no section of, with the name of the entry that replaces its own: two entries with one
/// number must not both be named.
fn renamed<W: WorkerPorts>(
    ctx: &Context<W>,
    evidence: &JournalEvidence,
    repair: &Repair,
) -> Vec<CommitPosition> {
    let last_entry = LastEntry { entry: repair.name(), from: Some(evidence.bounds.high) };
    let names_it = |checkpoint: &&Checkpoint| {
        last_entry.entry != repair.of && checkpoint.last_entry.is_some_and(|last| last.entry == repair.of)
    };
    let most = metadata_bytes(evidence.answers.len());
    let renamed = evidence.answers.values().filter(|answer| repair.end.section(answer.partition).is_none());
    let renamed = renamed.filter_map(|answer| {
        let checkpoint = evidence.checkpoint(answer.partition).filter(names_it)?;
        let metadata = Checkpoint { last_entry: Some(last_entry), ..checkpoint.clone() };
        let metadata = ctx.options.signed(metadata).render_within(most);
        Some(CommitPosition { partition: answer.partition, next: answer.offset?, metadata })
    });
    renamed.collect()
}

fn missing_entry(options: &WorkerOptions, evidence: &JournalEvidence, id: PartitionId) -> Fatal {
    let offset = evidence.answers.get(&id).and_then(|answer| answer.offset);
    Fatal::Operator(format!(
        "the group's offset {} for partition {id} of topic {} was committed with an entry that is missing in topic {}, partition {}, \
         although records written before and after that entry are there: the state topic has lost committed records (an \
         unclean leader election, or a restore from a copy). Two reads agree: {}. To continue at the offsets of all partitions with empty \
         windows, stop all instances and set the group's offsets to their current values with kafka-consumer-groups.sh \
         --reset-offsets --to-current --execute --topic {}",
        offset.unwrap_or(0),
        options.raw,
        options.state,
        evidence.journal,
        evidence.summary(),
        options.raw
    ))
}

fn undecidable(options: &WorkerOptions, lack: Lack, section: &Section) -> Fatal {
    let WorkerOptions { raw, state, .. } = options;
    let (id, end) = (section.partition, section.clean_end.unwrap_or(0));
    let lacks = match lack {
        Lack::Record => format!(
            "log compaction has removed its last record, offset {} of the clean topic, partition {id}",
            end.saturating_sub(1)
        ),
        Lack::Records => format!("retention has deleted its first records from topic {state}"),
    };
    Fatal::Operator(format!(
        "the broker left the last transaction of partition {id} of topic {raw} without some of its markers, and {lacks}: \
         nothing shows whether its records, raw offsets {} to {}, are in the clean topic. Look for them there. Then stop \
         all instances and set the group's offset with kafka-consumer-groups.sh --reset-offsets --topic {raw}:{id} \
         --to-offset {} --execute if they are there. If not, set it to the first of them, and start once with \
         group.on_rewind = \"reemit\"",
        section.first,
        section.next.saturating_sub(1),
        section.next
    ))
}
