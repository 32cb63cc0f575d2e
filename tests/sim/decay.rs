//! What happens to topics while they are in use: retention deletes old records, and partitions are added.

use std::ops::Range;
use std::time::Duration;

use dedupd::dedupe::{EntryEnd, Offset, Section, TimeSource};

use crate::sim::chance::Fault;
use crate::sim::cluster::{Cluster, Offsets, StateRecord, TRANSACTION_TIMEOUT};
use crate::sim::raw::{Ids, RawLog};
use crate::sim::tx_log::TxLog;

/// Younger records are not deleted. Longer than the transaction timeout.
const RETENTION: Duration = Duration::from_secs(12);
/// The maximum number of partitions.
const PARTITIONS_MAX: usize = 5;
/// First offsets of logs: earlier records were deleted before the history.
const BASES: [Offset; 3] = [0, 0, 1_000];

/// The first offset of each log that retention must keep.
struct Needed {
    raw: Offset,
    clean: Offset,
    state: Offset,
}

/// The ends of the entries among records of a journal, each with its offset.
pub fn ended<'a>(
    records: impl Iterator<Item = (Offset, &'a StateRecord)>,
) -> impl Iterator<Item = (Offset, EntryEnd)> {
    records.filter_map(|(at, record)| Some((at, EntryEnd::decode(&record.block).ok()?)))
}

fn section_of(end: &EntryEnd, partition: usize) -> Option<&Section> {
    end.section(u32::try_from(partition).unwrap())
}

impl Cluster {
    /// The partition of the state topic that has the state of a raw partition.
    pub fn journal_of(&self, partition: usize) -> usize {
        if self.topic_ids.is_some() { 0 } else { partition }
    }

    /// Adds an empty partition to every topic. Raw and clean may start at a higher offset.
    pub fn grow(&mut self) {
        let partition = u32::try_from(self.raw.len()).unwrap();
        let mut base = || BASES[self.chance.rng.usize(0..BASES.len())];
        let (raw, clean) = (base(), base());
        let ids = self.topic_ids.clone().unwrap_or_else(|| Ids::new(&partition.to_string()));
        self.raw.push(RawLog::new(partition, raw, ids));
        self.clean.push(TxLog::new(clean));
        self.state.push(TxLog::new(0));
        self.offsets.push(Offsets::default());
        self.group.grow();
    }

    /// Applies retention and partition growth.
    pub fn decay(&mut self, partition: usize) {
        if self.raw.len() < PARTITIONS_MAX && self.chance.hit(Fault::Growth) {
            self.grow();
        }
        let [clean, state, raw] =
            [Fault::CleanDeleted, Fault::StateDeleted, Fault::RawDeleted].map(|fault| self.chance.hit(fault));
        self.compact_clean(partition);
        if !(clean || state || raw) {
            return;
        }
        let before = self.now.saturating_sub(RETENTION);
        let needed = self.needed(partition);
        if clean {
            self.clean[partition].delete(before, needed.clean);
        }
        let journal = self.journal_of(partition);
        if state && self.state[journal].delete(before, needed.state) {
            self.forgets = true;
        }
        // Records that took the offsets of lost ones are not processed, although they are below the committed offset.
        if raw && !self.raw[partition].is_broken {
            self.raw[partition].delete(needed.raw);
        }
    }

    /// Compaction removes a clean record, often the last one: an expired tombstone, or an aborted record. Without a missing
    /// marker the logs agree, and it may be any record.
    fn compact_clean(&mut self, partition: usize) {
        if !self.chance.hit(Fault::CleanCompacted) {
            return;
        }
        let below = if self.is_torn() { self.needed(partition).clean } else { Offset::MAX };
        let Some((last, _)) = self.clean[partition].everything(0).last() else { return };
        let at = last.saturating_sub(self.chance.rng.u64(0..4)).max(self.clean[partition].bounds().low);
        self.clean[partition].compact(at, below);
    }

    /// Where the last transactions begin in raw, clean and state. A repair after a missing marker reads these records,
    /// so retention must keep them for longer than any downtime. Without a missing marker, all state records may be
    /// deleted.
    fn needed(&self, partition: usize) -> Needed {
        let settled = self.offsets[partition].settled.as_ref().map_or(0, |(offset, _)| *offset);
        let entries: Vec<_> = ended(self.state[self.journal_of(partition)].committed(0)).collect();
        let sections = || entries.iter().filter_map(|(_, end)| section_of(end, partition));
        let ends: Vec<Offset> = sections().filter_map(|section| section.clean_end).collect();
        let clean = ends.iter().rev().nth(2).copied().unwrap_or(0);
        let last = sections().filter(|section| section.clean_end.is_none_or(|end| end > clean));
        let raw = last.map(|section| section.first).min().unwrap_or(0);
        // The last entries from their first record on. While none is committed, a repair may need a hidden one.
        let state = entries.iter().rev().nth(2).map_or(0, |(at, end)| at - Offset::from(end.records));
        let state = if self.is_torn() { state } else { Offset::MAX };
        Needed { raw: raw.min(settled), clean, state }
    }

    /// Whether a marker was missing in clean, in state or in the group's offsets so far.
    pub fn is_torn(&self) -> bool {
        let counts = self.chance.counts();
        let torn = [Fault::TornClean, Fault::TornState, Fault::TornOffsets];
        torn.iter().any(|fault| counts.contains_key(fault.name()))
    }

    /// One past the last raw offset that any log shows as processed. A committed offset without its marker may be lower.
    pub fn processed(&self, partition: usize) -> Offset {
        let settled = self.offsets[partition].settled.as_ref().map_or(0, |(offset, _)| *offset);
        let clean = self.shown(partition).map(|raw| raw.at.offset + 1);
        // A repair continues after a hidden committed entry. The leader epoch of its records is not known then.
        let journal = &self.state[self.journal_of(partition)];
        let hidden = journal.everything(0).filter(|_| self.is_torn());
        let entries = ended(journal.ever_committed().chain(hidden));
        let known = settled.max(self.offsets[partition].highest);
        let covered = entries.filter_map(|(_, end)| section_of(&end, partition).map(|section| section.next));
        clean.chain(covered).fold(known, Offset::max)
    }

    /// An operator replaces the replica with a damaged batch by another one. Every record before it must be processed by then:
    /// the operator could have skipped the batch.
    pub fn replace_damaged(&mut self, (partition, offset): (usize, Offset)) {
        let processed = self.processed(partition);
        let unprocessed = self.raw[partition].next(processed).filter(|record| record.at.offset < offset);
        if let Some(record) = unprocessed {
            let at = record.at;
            self.violations.push(format!("not processed: raw {at} before a damaged batch at {offset}"));
        }
        self.raw[partition].damaged.remove(&offset);
    }

    /// An operator sets the offsets that the group and the state topic have lost, or that an operator set before, to the
    /// offset that the clean topic shows as processed, and at least to `covered`, which an error message contained: local
    /// state can cover more than what is left in the topics. The partition of the message is set although a worker may have
    /// committed the earlier, lower offset with a checkpoint since.
    pub fn reset_offsets(&mut self, covered: Option<(usize, Offset)>) {
        self.reset = true;
        let shown = |p: usize| self.shown(p).map(|raw| raw.at.offset + 1).max().unwrap_or(0);
        let shown: Vec<Offset> = (0..self.raw.len()).map(shown).collect();
        let has_state = |p: usize| {
            let mut entries = ended(self.state[self.journal_of(p)].committed(0));
            entries.any(|(_, end)| section_of(&end, p).is_some())
        };
        let has_state: Vec<bool> = (0..self.raw.len()).map(has_state).collect();
        for (partition, offsets) in self.offsets.iter_mut().enumerate() {
            let is_known = match &offsets.settled {
                Some((_, metadata)) => !metadata.is_empty(),
                None => has_state[partition],
            };
            let named = covered.filter(|(id, _)| *id == partition).map(|(_, offset)| offset);
            if (!is_known || named.is_some()) && offsets.pending.is_empty() {
                let stood = shown[partition].max(self.raw[partition].low()).max(named.unwrap_or(0));
                offsets.settled = Some((stood, String::new()));
                self.forgets = true;
            }
        }
    }

    /// Sets the clock of the machine of these workers to a wrong or to the right time.
    pub fn step_clock(&mut self, workers: Range<usize>, time: TimeSource) {
        if !self.chance.hit(Fault::ClockStep) {
            return;
        }
        const MINUTE: i64 = 60_000;
        const YEAR: i64 = 365 * 24 * 60 * MINUTE;
        let errors = [0, 10 * MINUTE, -10 * MINUTE, 30 * MINUTE, -30 * MINUTE, -YEAR, YEAR, 20 * YEAR];
        // With record time, the clock decides which timestamps are impossible. A clock that is years off cannot do that.
        let possible = if time == TimeSource::Record { 5 } else { errors.len() };
        let error = errors[self.chance.rng.usize(0..possible)];
        self.clock_errors.extend(workers.map(|worker| (worker, error)));
    }

    /// Faults that can happen while no worker runs.
    pub fn fail_while_down(&mut self) {
        if !self.group.is_empty() {
            return;
        }
        if self.chance.hit(Fault::Downtime) {
            self.advance(TRANSACTION_TIMEOUT * 2);
        }
        let now_ms = self.wall_ms();
        let processed: Vec<Offset> = (0..self.raw.len()).map(|p| self.processed(p)).collect();
        let (is_torn, is_topic_wide) = (self.is_torn(), self.topic_ids.is_some());
        let Self { chance, raw, offsets, .. } = self;
        for ((raw, offsets), processed) in raw.iter_mut().zip(offsets).zip(processed) {
            if offsets.settled.is_none() || !offsets.pending.is_empty() {
                continue;
            }
            let settled = offsets.settled.as_ref().map_or(0, |(offset, _)| *offset);
            if processed < raw.end() && chance.hit(Fault::Rewrite) {
                raw.rewrite(processed, chance, now_ms);
            } else if settled == processed && settled < raw.end() && chance.hit(Fault::UnreadDeleted) {
                raw.delete_unread(chance.rng.u64(settled + 1..=raw.end()));
            } else if settled == processed && settled > raw.low() + 1 {
                let from = chance.rng.u64(raw.low() + 1..settled);
                // A repair that completes a transaction has no leader epoch of its records.
                if !is_torn && offsets.shows_truncation(raw, from) && chance.hit(Fault::Truncated) {
                    raw.truncate(from, chance, now_ms);
                }
            }
            // Without an offset, nothing shows that the log has changed.
            if !is_topic_wide && !raw.is_broken && chance.hit(Fault::OffsetsLost) {
                offsets.settled = None;
            }
        }
        // The offsets of a group expire together. In partition scope it makes no difference.
        let is_settled = self.offsets.iter().all(|offsets| offsets.pending.is_empty());
        let is_intact = is_settled && !self.raw.iter().any(|raw| raw.is_broken);
        if is_topic_wide && is_intact && self.chance.hit(Fault::OffsetsLost) {
            self.offsets.iter_mut().for_each(|offsets| offsets.settled = None);
        }
    }
}
