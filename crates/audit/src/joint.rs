//! The comparison of one partition, or of all partitions of a topic together.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use super::PartitionId;
use super::choice::Choice;
use super::compare::{Gone, Outcome, PartitionOptions, UnmatchedRecords};
use super::dropped::{DroppedOf, UnequalPair};
use super::entry::{Copy, Link, Marks, Record, Round};
use super::evaluation::{Evaluation, Streams};
use super::expected::{RawCounts, RawLog, Rules, kept_ms};
use super::findings::Findings;
use super::join::Joined;
use super::order::mark_order;
use super::owners::{FindingsOf, Owners, TopicRules};
use super::range::Part;
use super::record::Seen;
use super::spill::{Scratch, Sorter, Table};

/// A comparison in progress, of one partition or of several together: records are added with [`Self::raw`] and [`Self::clean`], those of
/// each side of a partition by increasing offset. Sides and partitions may be interleaved, and records of other partitions are ignored.
#[derive(Debug)]
pub struct Comparison {
    scratch: Scratch,
    /// Absent in partition scope.
    topic: Option<TopicRules>,
    logs: BTreeMap<PartitionId, Log>,
    records: Sorter<Record>,
}

/// What is known about a partition before the join.
#[derive(Debug)]
struct Log {
    rules: Rules,
    raw: RawLog,
    clean_records: u64,
    /// Timestamp of the first clean record, epoch milliseconds.
    clean_first_ms: Option<i64>,
    options: PartitionOptions,
}

impl Log {
    fn new(rules: Rules, options: PartitionOptions) -> Self {
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

impl Comparison {
    /// An empty comparison of a partition on its own.
    #[must_use]
    pub fn new(options: PartitionOptions, rules: Rules, scratch: &Scratch) -> Self {
        Self::with(None, BTreeMap::from([(options.partition, Log::new(rules, options))]), scratch, scratch)
    }

    /// The same for one of several partitions that share the memory: those of [`Scratch::group`]. `records` is its number there.
    #[must_use]
    pub fn in_group(options: PartitionOptions, rules: Rules, scratch: &Scratch, records: u64) -> Self {
        let logs = BTreeMap::from([(options.partition, Log::new(rules, options))]);
        Self::with(None, logs, &scratch.for_reading(records), &scratch.for_comparing())
    }

    /// An empty comparison of these partitions, whose windows must be the same: an id counts once, wherever its copies are.
    /// `longest_ms`: no id is kept for longer than this, ms of stream time, but for 1/256 and the span of a block (1/32); `None`
    /// is forever. It is at least the window.
    ///
    /// It finds an id that clean does not hold, a second clean record of an id within the window in any partition, a clean record
    /// that differs from its raw record, one whose id raw does not have in that partition, and one out of raw order. Which of
    /// several copies clean holds is not checked, unless all of them are in one partition: then it must be the first.
    #[must_use]
    pub fn of_topic(
        partitions: impl IntoIterator<Item = (PartitionOptions, Rules)>,
        longest_ms: Option<i64>,
        scratch: &Scratch,
    ) -> Self {
        Self::of_several(partitions, longest_ms, scratch, false)
    }

    /// An empty comparison of raw topics with a clean topic behind `rekey`. Each partition of each topic has a number of its own.
    /// The headers of the raw records must be those that `rekey` gives them: with one more, which names the record.
    ///
    /// A clean record may be in any partition and at any place. Its headers name its raw record, and it must equal that. A raw
    /// record is explained by any clean record of its id. Those without an id, and forced ones, may be in clean several times.
    #[must_use]
    pub fn behind_rekey(
        logs: impl IntoIterator<Item = (PartitionOptions, Rules)>,
        longest_ms: Option<i64>,
        scratch: &Scratch,
    ) -> Self {
        Self::of_several(logs, longest_ms, scratch, true)
    }

    fn of_several(
        partitions: impl IntoIterator<Item = (PartitionOptions, Rules)>,
        longest_ms: Option<i64>,
        scratch: &Scratch,
        is_rekeyed: bool,
    ) -> Self {
        let log = |(options, rules): (PartitionOptions, Rules)| (options.partition, Log::new(rules, options));
        let logs: BTreeMap<_, _> = partitions.into_iter().map(log).collect();
        let allows_gone = logs.values().any(|log| log.options.gone != Gone::Nothing);
        let topic = TopicRules { kept_ms: longest_ms.map(kept_ms), allows_gone, is_rekeyed };
        Self::with(Some(topic), logs, scratch, scratch)
    }

    fn with(
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

    /// Adds the next raw record of a partition, which is in this part of its log. Fails if a temporary file fails.
    pub fn raw(&mut self, partition: PartitionId, record: &Seen, part: Part) -> io::Result<()> {
        let Some(log) = self.logs.get_mut(&partition) else { return Ok(()) };
        self.records.push(Record { partition, ..log.raw.row(record, part) })
    }

    /// Adds the next clean record of a partition. Fails if a temporary file fails.
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

    /// Compares, once both sides of all partitions are read. Returns the result of each partition. An id in several partitions
    /// is counted in the one that has its earliest record. Fails if a temporary file fails.
    pub fn finish(self, unmatched: &mut UnmatchedRecords) -> io::Result<BTreeMap<PartitionId, Outcome>> {
        let Self { scratch, topic, logs, records } = self;
        let Some(rules) = logs.values().next().map(|log| log.rules) else { return Ok(BTreeMap::new()) };
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
            unmatched: &mut unmatched.sorter,
        };
        let mut outcomes = BTreeMap::new();
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
            outcomes.insert(*number, findings.complete(&outcome));
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
    outcomes: &mut BTreeMap<PartitionId, Outcome>,
) {
    for (number, outcome) in outcomes {
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
