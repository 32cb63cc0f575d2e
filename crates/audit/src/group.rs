//! A group of partitions: they are read at the same time, and compared one after the other, or all together in the other scopes.
//!
//! Each leader sends the records of many partitions in one response. Read one after the other, each partition would cost at
//! least two responses of its own, whatever its size.

use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;

use super::compare::UnmatchedRecords;
use super::digest::CompareRule;
use super::error::AuditError;
use super::id::{SOURCE_HEADER, by_source};
use super::kinds::{ComparedBy, Selection};
use super::logs::{Logs, Numbered, Spans};
use super::partition::{Cuts, Partition, rules};
use super::progress::Progress;
use super::range::whole_ms;
use super::reader::{Arrived, Span, SpanOf};
use super::record::{Fields, Fingerprints, Seen};
use super::report::PartitionReport;
use super::spill::Scratch;
use super::topic::TopicComparison;
use super::{Offset, Options, PartitionId, Scope};

pub(super) struct Audit<'a> {
    pub options: &'a Options,
    pub id: Selection,
    pub compare: CompareRule,
    pub logs: Logs,
    pub fingerprints: Fingerprints,
    pub progress: Progress<'a>,
    pub scratch: Scratch,
}

type Partitions = BTreeMap<PartitionId, Partition>;

/// Takes a record of a partition and returns whether more of the partition are needed; `None` for an unknown partition.
type Take<T> = fn(&mut T, PartitionId, &Seen) -> Option<io::Result<ControlFlow<()>>>;

/// All partitions, compared together.
struct Topic {
    cuts: BTreeMap<PartitionId, Cuts>,
    comparison: TopicComparison,
}

impl Topic {
    fn new(options: &Options, spans: &[Spans], scratch: &Scratch) -> Self {
        let cuts: BTreeMap<_, _> =
            spans.iter().map(|spans| (spans.partition, Cuts::new(options, spans))).collect();
        let partitions =
            cuts.values().zip(spans).map(|(cuts, spans)| (cuts.options(options), rules(options, spans)));
        let longest_ms = options.longest_window.map(whole_ms);
        let comparison = match options.scope {
            Scope::Topics => TopicComparison::behind_rekey(partitions, longest_ms, scratch),
            _ => TopicComparison::new(partitions, longest_ms, scratch),
        };
        Self { cuts, comparison }
    }

    fn clean(&mut self, number: PartitionId, record: &Seen) -> Option<io::Result<ControlFlow<()>>> {
        let (is_within, flow) = self.cuts.get_mut(&number)?.clean(record);
        let added = if is_within { self.comparison.clean(number, record) } else { Ok(()) };
        Some(added.map(|()| flow))
    }

    fn raw(&mut self, number: PartitionId, record: &Seen) -> Option<io::Result<ControlFlow<()>>> {
        Some(match self.cuts.get_mut(&number)?.raw(record) {
            ControlFlow::Continue(part) => {
                self.comparison.raw(number, record, part).map(ControlFlow::Continue)
            }
            ControlFlow::Break(()) => Ok(ControlFlow::Break(())),
        })
    }

    fn compare(self, unmatched: &mut UnmatchedRecords) -> io::Result<Vec<PartitionReport>> {
        let mut outcomes = self.comparison.finish(unmatched)?;
        let report =
            |(number, cuts): (&PartitionId, &Cuts)| cuts.report(outcomes.remove(number).unwrap_or_default());
        Ok(self.cuts.iter().map(report).collect())
    }
}

impl Audit<'_> {
    /// Compares consecutive partitions, as many as fit into memory together. Returns also those that are left.
    pub fn group<'s>(
        &self,
        spans: &'s [Spans],
        unmatched: &mut UnmatchedRecords,
    ) -> Result<(Vec<PartitionReport>, &'s [Spans]), AuditError> {
        let (group, rest) =
            spans.split_at(self.scratch.group(spans.iter().map(Spans::records)).min(spans.len()));
        let new = |spans| Partition::new(self.options, spans, &self.scratch, group.len() == 1);
        let mut partitions: Partitions = group.iter().map(|spans| (spans.partition, new(spans))).collect();
        self.read(
            group,
            &mut partitions,
            |partitions, number, record| partitions.get_mut(&number).map(|partition| partition.clean(record)),
            |partitions, number, record| partitions.get_mut(&number).map(|partition| partition.raw(record)),
        )?;
        let compare = |(number, partition): (PartitionId, Partition)| {
            self.progress.comparing(number);
            partition.compare(self.options, unmatched).map_err(|error| self.spill(error))
        };
        Ok((partitions.into_iter().map(compare).collect::<Result<_, _>>()?, rest))
    }

    /// Compares all partitions together.
    pub fn topic(
        &self,
        spans: &[Spans],
        unmatched: &mut UnmatchedRecords,
    ) -> Result<Vec<PartitionReport>, AuditError> {
        let mut topic = Topic::new(self.options, spans, &self.scratch);
        self.read(spans, &mut topic, Topic::clean, Topic::raw)?;
        self.progress.comparing_all();
        topic.compare(unmatched).map_err(|error| self.spill(error))
    }

    /// Reads all topics of these partitions. Clean is read before raw, so that raw has every record of clean by then.
    fn read<T>(
        &self,
        spans: &[Spans],
        target: &mut T,
        clean: Take<T>,
        raw: Take<T>,
    ) -> Result<(), AuditError> {
        let Logs { raw: raw_topics, clean: clean_topic } = &self.logs;
        let clean_spans = clean_topic.own(spans.iter().map(|spans| (spans.partition, spans.clean)));
        self.read_topic(
            clean_topic,
            clean_spans,
            target,
            |arrived| self.seen(arrived.offset, arrived.fields),
            clean,
        )?;
        for topic in raw_topics {
            let raw_ends = topic.ends(spans.iter().map(|spans| spans.partition))?;
            let raw_span = |spans: &Spans| {
                let end = raw_ends.get(&spans.partition).copied().unwrap_or_default();
                (spans.partition, Span { low: spans.raw.low, end })
            };
            let raw_spans = topic.own(spans.iter().map(raw_span));
            let id = match self.options.scope {
                Scope::Topics => Some(topic.reader.topic_id()?),
                _ => None,
            };
            let seen = |arrived: &Arrived<'_>| {
                let seen = match &id {
                    Some(id) => self.seen_behind_rekey(topic, id.as_deref(), arrived),
                    None => self.seen(arrived.offset, arrived.fields),
                }?;
                let digest = self.compare.digest(&seen, arrived.fields, &self.fingerprints)?;
                Ok(Seen { digest, ..seen })
            };
            self.read_topic(topic, raw_spans, target, seen, raw)?;
        }
        Ok(())
    }

    fn seen(&self, offset: Offset, fields: &Fields<'_>) -> Result<Seen, String> {
        let by = self.id.of(fields)?;
        let exempt = match &by {
            ComparedBy::Id(id) => return Ok(self.fingerprints.seen(offset, Some(id), fields)),
            ComparedBy::Content(exempt) => *exempt,
        };
        // Behind `rekey`, the position in the source topic identifies the record, but does not make it unique in clean.
        let named = if self.options.scope == Scope::Topics { by_source(fields) } else { None };
        let seen = self.fingerprints.seen(offset, named.as_deref(), fields);
        Ok(Seen { has_id: false, exempt, ..seen })
    }

    /// A raw record as `rekey` writes it: with one more header, which names it.
    fn seen_behind_rekey(
        &self,
        topic: &Numbered,
        id: Option<&str>,
        Arrived { partition, offset, epoch, fields, .. }: &Arrived<'_>,
    ) -> Result<Seen, String> {
        let (topic, id) = (topic.reader.topic(), id.unwrap_or("-"));
        let epoch = epoch.map_or_else(|| "-".to_owned(), |epoch| epoch.to_string());
        let source = format!("{topic}/{partition}@{offset}#{id}.{epoch}");
        let mut headers = fields.headers.clone();
        headers.push((SOURCE_HEADER, Some(source.as_bytes())));
        self.seen(*offset, &Fields { headers, ..**fields })
    }

    fn read_topic<T>(
        &self,
        topic: &Numbered,
        spans: SpanOf,
        target: &mut T,
        seen: impl Fn(&Arrived<'_>) -> Result<Seen, String>,
        take: Take<T>,
    ) -> Result<(), AuditError> {
        self.progress.begin(&spans);
        let header = self.options.force_header.as_deref();
        topic.reader.read(spans, &mut |arrived| {
            let Arrived { partition, offset, passed, fields, .. } = arrived;
            let mut seen = seen(arrived).map_err(|why| AuditError::Schema {
                topic: topic.reader.topic().to_owned(),
                partition: *partition,
                offset: *offset,
                why,
            })?;
            seen.forced = header
                .is_some_and(|header| fields.headers.iter().any(|(name, _)| *name == header.as_bytes()));
            self.progress.read(*passed, fields.bytes());
            let taken = take(target, topic.number(*partition), &seen).unwrap_or(Ok(ControlFlow::Break(())));
            taken.map_err(|error| self.spill(error))
        })?;
        self.progress.end();
        Ok(())
    }

    fn spill(&self, error: io::Error) -> AuditError {
        AuditError::spill(&self.scratch, error)
    }
}
