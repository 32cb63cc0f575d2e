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
use super::joint::Comparison;
use super::kinds::{ComparedBy, Selection};
use super::logs::{Logs, Numbered, Spans};
use super::partition::{Cuts, rules};
use super::progress::Progress;
use super::range::whole_ms;
use super::reader::{Arrived, Span, SpanOf};
use super::record::{Fields, Fingerprints, Seen};
use super::report::PartitionReport;
use super::spill::Scratch;
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

/// Takes a record of a partition and returns whether more of the partition are needed.
type Take = fn(&mut Compared, PartitionId, &Seen) -> io::Result<ControlFlow<()>>;

/// Partitions that are read at the same time.
pub(super) struct Compared {
    cuts: BTreeMap<PartitionId, Cuts>,
    /// One for each partition, or one for all, by the first of its partitions.
    comparisons: BTreeMap<PartitionId, Comparison>,
}

impl Compared {
    /// Partitions that are compared on their own, and share the memory if they are several.
    pub fn alone(options: &Options, spans: &[Spans], scratch: &Scratch) -> Self {
        let cuts = cuts(options, spans);
        let comparison = |(own, spans): (&Cuts, &Spans)| {
            let (own, rules) = (own.options(options), rules(options, spans));
            let comparison = if cuts.len() == 1 {
                Comparison::new(own, rules, scratch)
            } else {
                Comparison::in_group(own, rules, scratch, spans.records())
            };
            (spans.partition, comparison)
        };
        let comparisons = cuts.values().zip(spans).map(comparison).collect();
        Self { cuts, comparisons }
    }

    /// Partitions that are compared together.
    fn together(options: &Options, spans: &[Spans], scratch: &Scratch) -> Self {
        let cuts = cuts(options, spans);
        let partitions =
            cuts.values().zip(spans).map(|(cuts, spans)| (cuts.options(options), rules(options, spans)));
        let longest_ms = options.longest_window.map(whole_ms);
        let comparison = match options.scope {
            Scope::Topics => Comparison::behind_rekey(partitions, longest_ms, scratch),
            _ => Comparison::of_topic(partitions, longest_ms, scratch),
        };
        let comparisons = BTreeMap::from([(0, comparison)]);
        Self { cuts, comparisons }
    }

    fn comparison(&mut self, number: PartitionId) -> Option<&mut Comparison> {
        self.comparisons.range_mut(..=number).next_back().map(|(_, comparison)| comparison)
    }

    /// Adds the next record of clean.
    pub fn clean(&mut self, number: PartitionId, record: &Seen) -> io::Result<ControlFlow<()>> {
        let Some(cuts) = self.cuts.get_mut(&number) else { return Ok(ControlFlow::Break(())) };
        let (is_within, flow) = cuts.clean(record);
        if let Some(comparison) = self.comparison(number).filter(|_| is_within) {
            comparison.clean(number, record)?;
        }
        Ok(flow)
    }

    /// Adds the next record of raw, after all of clean.
    pub fn raw(&mut self, number: PartitionId, record: &Seen) -> io::Result<ControlFlow<()>> {
        let Some(cuts) = self.cuts.get_mut(&number) else { return Ok(ControlFlow::Break(())) };
        let ControlFlow::Continue(part) = cuts.raw(record) else { return Ok(ControlFlow::Break(())) };
        if let Some(comparison) = self.comparison(number) {
            comparison.raw(number, record, part)?;
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Compares, once all topics are read. `begins` is called before each comparison with its first partition.
    pub fn compare(
        self,
        unmatched: &mut UnmatchedRecords,
        begins: impl Fn(PartitionId),
    ) -> io::Result<Vec<PartitionReport>> {
        let mut outcomes = BTreeMap::new();
        for (number, comparison) in self.comparisons {
            begins(number);
            outcomes.extend(comparison.finish(unmatched)?);
        }
        let report =
            |(number, cuts): (&PartitionId, &Cuts)| cuts.report(outcomes.remove(number).unwrap_or_default());
        Ok(self.cuts.iter().map(report).collect())
    }
}

fn cuts(options: &Options, spans: &[Spans]) -> BTreeMap<PartitionId, Cuts> {
    spans.iter().map(|spans| (spans.partition, Cuts::new(options, spans))).collect()
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
        let compared = self.read(group, Compared::alone(self.options, group, &self.scratch))?;
        let reports = compared.compare(unmatched, |number| self.progress.comparing(number));
        Ok((reports.map_err(|error| self.spill(error))?, rest))
    }

    /// Compares all partitions together.
    pub fn topic(
        &self,
        spans: &[Spans],
        unmatched: &mut UnmatchedRecords,
    ) -> Result<Vec<PartitionReport>, AuditError> {
        let compared = self.read(spans, Compared::together(self.options, spans, &self.scratch))?;
        let reports = compared.compare(unmatched, |_| self.progress.comparing_all());
        reports.map_err(|error| self.spill(error))
    }

    /// Reads all topics of these partitions. Clean is read before raw, so that raw has every record of clean by then.
    fn read(&self, spans: &[Spans], mut target: Compared) -> Result<Compared, AuditError> {
        let Logs { raw: raw_topics, clean: clean_topic } = &self.logs;
        let clean_spans = clean_topic.own(spans.iter().map(|spans| (spans.partition, spans.clean)));
        self.read_topic(
            clean_topic,
            clean_spans,
            &mut target,
            |arrived| self.seen(arrived.offset, arrived.fields),
            Compared::clean,
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
            self.read_topic(topic, raw_spans, &mut target, seen, Compared::raw)?;
        }
        Ok(target)
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

    fn read_topic(
        &self,
        topic: &Numbered,
        spans: SpanOf,
        target: &mut Compared,
        seen: impl Fn(&Arrived<'_>) -> Result<Seen, String>,
        take: Take,
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
            take(target, topic.number(*partition), &seen).map_err(|error| self.spill(error))
        })?;
        self.progress.end();
        Ok(())
    }

    fn spill(&self, error: io::Error) -> AuditError {
        AuditError::spill(&self.scratch, error)
    }
}
