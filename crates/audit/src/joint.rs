//! The comparison of one partition, or of all partitions of a topic together.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use super::PartitionId;
use super::choice::Choice;
use super::compare::{Gone, Outcome, PartitionOptions};
use super::dropped::{DroppedOf, UnequalPair};
use super::entry::{Copy, Link, Marks, Record, Round, Unmatched};
use super::evaluation::{Evaluation, Streams};
use super::expected::{RawCounts, RawLog, Rules};
use super::findings::Findings;
use super::join::Joined;
use super::order::mark_order;
use super::owners::{FindingsOf, Owners, TopicRules};
use super::range::Part;
use super::record::Seen;
use super::spill::{Scratch, Sorter, Table};
use super::topic::kept_ms;

/// Partitions that are compared together. The records of each side of a partition are added by increasing offset.
#[derive(Debug)]
pub(super) struct Joint {
    scratch: Scratch,
    /// Absent in partition scope.
    topic: Option<TopicRules>,
    logs: BTreeMap<PartitionId, Log>,
    records: Sorter<Record>,
}

/// What is known about a partition before the join.
#[derive(Debug)]
pub(super) struct Log {
    rules: Rules,
    raw: RawLog,
    clean_records: u64,
    /// Timestamp of the first clean record, epoch milliseconds.
    clean_first_ms: Option<i64>,
    options: PartitionOptions,
}

impl Log {
    pub fn new(rules: Rules, options: PartitionOptions) -> Self {
        Self { rules, raw: RawLog::new(rules), clean_records: 0, clean_first_ms: None, options }
    }

    /// The outcome before the evaluation.
    fn outcome(&self, raw: RawCounts) -> Outcome {
        Outcome { raw, clean_records: self.clean_records, ..Outcome::default() }
    }

    /// Until then (ms of stream time) a record of the topic can repeat a deleted one of this partition, or be deleted from clean.
    fn uncertain_until(&self, topic: Option<TopicRules>) -> Option<i64> {
        if topic.is_some_and(|topic| topic.is_rekeyed)
            && self.options.gone == (Gone::Allowed { clean_trimmed: true })
        {
            // The deleted clean records may be those of any raw log.
            return Some(self.clean_first_ms.unwrap_or(i64::MAX));
        }
        let first_ms = self.raw.first_ms?;
        let kept_ms = topic.map_or(self.rules.longest_ms.map(kept_ms), |topic| topic.kept_ms);
        self.rules.context_cut.then(|| kept_ms.map_or(i64::MAX, |kept_ms| first_ms.saturating_add(kept_ms)))
    }
}

impl Joint {
    pub fn new(
        topic: Option<TopicRules>,
        logs: BTreeMap<PartitionId, Log>,
        reading: &Scratch,
        comparing: &Scratch,
    ) -> Self {
        let is_rekeyed = topic.is_some_and(|topic| topic.is_rekeyed);
        let key = if is_rekeyed { Record::by_headers } else { Record::by_fingerprint };
        let records = Sorter::new(reading, 20, key);
        Self { scratch: comparing.clone(), topic, logs, records }
    }

    /// Adds the next raw record of a partition; none if the partition is not compared.
    pub fn raw(&mut self, partition: PartitionId, record: &Seen, part: Part) -> io::Result<()> {
        let Some(log) = self.logs.get_mut(&partition) else { return Ok(()) };
        self.records.push(Record { partition, ..log.raw.row(record, part) })
    }

    /// Adds the next clean record of a partition; none if the partition is not compared.
    pub fn clean(&mut self, partition: PartitionId, record: &Seen) -> io::Result<()> {
        let Some(log) = self.logs.get_mut(&partition) else { return Ok(()) };
        log.clean_records += 1;
        log.clean_first_ms.get_or_insert(record.content.timestamp_ms());
        let marks = Marks::default().with(Marks::ID, record.has_id);
        let Seen { fingerprint, offset, content, .. } = *record;
        self.records.push(Record {
            partition,
            is_clean: true,
            offset,
            content,
            marks,
            ..Record::unknown(fingerprint)
        })
    }

    /// Sets how a partition is reported.
    pub fn report_as(&mut self, partition: PartitionId, options: PartitionOptions) {
        if let Some(log) = self.logs.get_mut(&partition) {
            log.options = options;
        }
    }

    /// Compares, and returns the results by partition.
    pub fn finish(self, unmatched: &mut Sorter<Unmatched>) -> io::Result<Vec<Outcome>> {
        let Self { scratch, topic, logs, records } = self;
        let Some(rules) = logs.values().next().map(|log| log.rules) else { return Ok(Vec::new()) };
        let (scratch, topic) = (&scratch, topic.as_ref());
        let counts = logs.iter().map(|(number, log)| (*number, log.raw.counts)).collect();
        let Joined {
            copies,
            rounds,
            mut ambiguous,
            unmatched: unmatched_clean,
            mut unseen,
            mut chains,
            claims,
            repeated,
            counts,
            ..
        } = Joined::new(scratch, &rules, topic, counts, records.sorted()?)?;
        // `rekey` keeps no order that a clean record could violate.
        let is_rekeyed = topic.is_some_and(|topic| topic.is_rekeyed);
        let mut copies = table(scratch, copies, is_rekeyed)?;
        for round in rounds {
            let (copies, chains, ambiguous) = (&mut copies, &mut chains, &mut ambiguous);
            Choice { scratch, copies, chains, ambiguous }.assign_all(round)?;
        }
        if !is_rekeyed {
            mark_order(scratch, &mut copies, Round::END)?;
        }
        let mut findings = no_findings(&logs);
        if let Some(topic) = topic {
            let (unseen, findings) = (&mut unseen, &mut findings);
            Owners { scratch, rules: &rules, topic, claims, unseen, findings }
                .check(&mut chains, &mut copies)?;
        }
        let (by_raw_place, mut repeats) = by_raw_place(scratch, &mut copies, topic.is_none())?;
        let mut streams = Streams {
            copies: by_raw_place.sorted()?,
            unseen: unseen.sorted()?,
            unmatched_clean: unmatched_clean.sorted()?,
            same_ids: repeated.sorted()?,
            clean: copies,
            row: 0,
            unmatched,
        };
        let mut outcomes = Vec::new();
        for (number, log) in &logs {
            let mut evaluation = Evaluation {
                number: *number,
                options: log.options,
                rules: &log.rules,
                is_rekeyed,
                uncertain_until_ms: uncertain_until(&logs, log, topic.copied()),
                streams: &mut streams,
                read_ahead: VecDeque::new(),
                before_first: log.options.gone == Gone::Allowed { clean_trimmed: true },
                at_start: true,
                findings: findings.remove(number).unwrap_or_else(|| Findings::new(*number, *number, 0)),
                outcome: log.outcome(counts.get(number).copied().unwrap_or_default()),
            };
            if let Some(repeats) = repeats.take() {
                evaluation.repeats_within_window(repeats, &mut chains)?;
            }
            evaluation.all(log.raw.begin.unwrap_or(0))?;
            let Evaluation { findings, mut outcome, .. } = evaluation;
            outcome.starts_ms = log.clean_first_ms.filter(|_| findings.lost_at_start > 0);
            outcomes.push(findings.complete(&outcome));
        }
        let dropped = streams.same_ids.compare(scratch, &rules, kept_longest(&rules, topic))?;
        add_dropped(&logs, dropped, &mut outcomes);
        Ok(outcomes)
    }
}

/// Adds the dropped records of each partition to its outcome.
fn add_dropped(
    logs: &BTreeMap<PartitionId, Log>,
    mut dropped: BTreeMap<PartitionId, DroppedOf>,
    outcomes: &mut [Outcome],
) {
    for (number, outcome) in logs.keys().zip(outcomes) {
        let DroppedOf { counts, pairs } = dropped.remove(number).unwrap_or_default();
        outcome.dropped += counts;
        outcome.unequal = pairs.into_iter().map(|pair| reported(logs, pair)).collect();
    }
}

/// The longest time that an id may be kept, ms of stream time; `None` is forever.
fn kept_longest(rules: &Rules, topic: Option<&TopicRules>) -> Option<i64> {
    match topic {
        Some(topic) => topic.kept_ms.filter(|_| !topic.is_rekeyed),
        None => rules.longest_ms.map(kept_ms),
    }
}

/// A pair with the numbers that the partitions have in a report.
fn reported(logs: &BTreeMap<PartitionId, Log>, pair: UnequalPair) -> UnequalPair {
    let of = |number| logs.get(&number).map_or(number, |log| log.options.partition);
    UnequalPair { partition: of(pair.partition), owner_partition: of(pair.owner_partition), ..pair }
}

/// The findings of each partition, before the comparison.
fn no_findings(logs: &BTreeMap<PartitionId, Log>) -> FindingsOf {
    let empty = |(number, Log { options, .. }): (&PartitionId, &Log)| {
        (*number, Findings::new(*number, options.partition, options.samples))
    };
    logs.iter().map(empty).collect()
}

/// Until then (ms of stream time) the verdict on a record of this partition is uncertain. In topic scope, a copy of a deleted record
/// may be in any partition.
fn uncertain_until(logs: &BTreeMap<PartitionId, Log>, log: &Log, topic: Option<TopicRules>) -> Option<i64> {
    match topic {
        Some(_) => logs.values().filter_map(|log| log.uncertain_until(topic)).max(),
        None => log.uncertain_until(None),
    }
}

/// The copies by place in clean. `in_order`: whether all of them count as in order.
fn table(scratch: &Scratch, copies: Sorter<Copy>, in_order: bool) -> io::Result<Table<Copy>> {
    let mut copies = copies.sorted()?;
    let mut table = Table::new(scratch);
    while let Some(copy) = copies.next()? {
        table.push(Copy { in_order, ..copy })?;
    }
    Ok(table)
}

/// Sorts the copies by place in raw. Returns also those in order that repeat an earlier id, if asked for.
fn by_raw_place(
    scratch: &Scratch,
    copies: &mut Table<Copy>,
    with_repeats: bool,
) -> io::Result<(Sorter<Copy>, Option<Sorter<Link>>)> {
    let mut sorter = Sorter::new(scratch, 6, Copy::by_raw_place);
    let mut repeats = with_repeats.then(|| Sorter::new(scratch, 2, Link::by_chain));
    for row in 0..copies.len() {
        let Some(copy) = copies.get(row)? else { break };
        sorter.push(copy)?;
        if let Some(repeats) = repeats.as_mut().filter(|_| copy.in_order && copy.marks.has(Marks::REPEAT)) {
            repeats.push(Link { chain: copy.chain, copy: row })?;
        }
    }
    Ok((sorter, repeats))
}
