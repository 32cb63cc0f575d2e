//! Reads one partition of both topics, then compares them.

use std::io;
use std::ops::ControlFlow;

use super::compare::{Comparison, Gone, Outcome, Scope, UnmatchedRecords};
use super::error::AuditError;
use super::expected::Rules;
use super::id::id_of;
use super::progress::Progress;
use super::range::{Cut, Last, Part, whole_ms};
use super::reader::{Reader, Span};
use super::record::{Fingerprints, Seen};
use super::spill::Scratch;
use super::{Options, Spans};
use crate::clock;
use crate::dedupe::{Offset, PartitionId};

/// How far ahead of the clock a timestamp may move stream time, ms.
const AHEAD_MS: i64 = 5 * 60 * 1_000;

pub(super) struct Audit<'a> {
    pub options: &'a Options,
    pub raw: Reader,
    pub clean: Reader,
    pub fingerprints: Fingerprints,
    pub progress: Progress<'a>,
    pub scratch: Scratch,
}

impl Audit<'_> {
    /// Compares a partition. Returns also the end of the audited range of raw.
    pub fn partition(
        &self,
        spans: &Spans,
        unmatched: &mut UnmatchedRecords,
    ) -> Result<(Outcome, Offset), AuditError> {
        let mut comparison = Comparison::new(self.rules(spans), &self.scratch);
        let last = self.clean(spans, &mut comparison)?;
        let raw_end = self.raw(spans, last, &mut comparison)?;
        let allowed = Gone::Allowed { clean_trimmed: spans.clean_trimmed };
        let scope = Scope {
            partition: spans.partition,
            samples: self.options.samples,
            gone: if self.options.allow_gone { allowed } else { Gone::Nothing },
        };
        self.progress.comparing(spans.partition);
        let outcome = comparison.finish(scope, unmatched).map_err(|error| self.spill(error))?;
        Ok((outcome, raw_end))
    }

    fn rules(&self, spans: &Spans) -> Rules {
        let cut_short = spans.raw.low == spans.raw_low;
        Rules {
            window_ms: self.options.window.map(whole_ms),
            latest_ms: clock::wall_ms().saturating_add(AHEAD_MS),
            missing_id: self.options.missing_id,
            due_below: spans.raw.end,
            from_ms: self.options.range.from_ms,
            whole_from: if cut_short { 0 } else { spans.raw.low },
            context_cut: cut_short && self.options.range.from_ms.is_some() && spans.raw_low > 0,
        }
    }

    /// Reads clean before raw, so that raw has every record of clean by then. Returns the first record after the
    /// range.
    fn clean(&self, spans: &Spans, comparison: &mut Comparison) -> Result<Last, AuditError> {
        let mut cut = Cut::new(self.options.range);
        let mut last = Last::default();
        self.read(&self.clean, spans.partition, spans.clean, &mut |record| {
            match cut.part(record) {
                Part::Before => {}
                Part::Within => comparison.clean(record)?,
                Part::Behind => {
                    last = Last(Some(*record));
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(last)
    }

    fn raw(&self, spans: &Spans, last: Last, comparison: &mut Comparison) -> Result<Offset, AuditError> {
        let all = Span { low: spans.raw.low, end: self.raw.span(spans.partition)?.end };
        let mut cut = Cut::new(self.options.range);
        let mut end = spans.raw.end;
        self.read(&self.raw, spans.partition, all, &mut |record| {
            let part = cut.part(record);
            if part == Part::Behind {
                end = end.min(record.offset);
            }
            let flow = last.flow(part, record);
            if flow.is_continue() {
                comparison.raw(record, part)?;
            }
            Ok(flow)
        })?;
        Ok(end)
    }

    fn read(
        &self,
        reader: &Reader,
        partition: PartitionId,
        span: Span,
        take: &mut dyn FnMut(&Seen) -> io::Result<ControlFlow<()>>,
    ) -> Result<(), AuditError> {
        self.progress.begin(partition, span);
        let header = self.options.force_header.as_deref();
        reader.read(partition, span, &mut |offset, fields| {
            let id = id_of(&self.options.id, fields);
            let mut seen = self.fingerprints.seen(offset, id.as_deref(), fields);
            seen.forced = header
                .is_some_and(|header| fields.headers.iter().any(|(name, _)| *name == header.as_bytes()));
            self.progress.read(offset, fields.bytes());
            take(&seen).map_err(|error| self.spill(error))
        })?;
        self.progress.end();
        Ok(())
    }

    fn spill(&self, error: io::Error) -> AuditError {
        AuditError::spill(&self.scratch, error)
    }

    /// Notes for the reader of the report, about the topics.
    pub fn notes(&self, spans: &[Spans]) -> Vec<String> {
        let mut notes = Vec::new();
        let (raw, clean) = (self.raw.partitions(), self.clean.partitions());
        let (raw_topic, clean_topic) = (&self.options.raw, &self.options.clean);
        if raw != clean {
            notes.push(format!("{raw_topic} has {raw} partitions and {clean_topic} has {clean}"));
        }
        let trimmed = |topic: &str, lows: &mut dyn Iterator<Item = (Offset, Span)>, counts_as: &str| {
            let count = lows.filter(|(low, span)| *low > 0 && *low == span.low).count();
            (count > 0).then(|| {
                format!(
                    "{topic} no longer starts at offset 0 in {count} partitions: the deleted records cause findings \
                     ({counts_as}); allow them with --allow-gone"
                )
            })
        };
        if !self.options.allow_gone {
            notes.extend(trimmed(raw_topic, &mut spans.iter().map(|s| (s.raw_low, s.raw)), "phantom"));
            notes.extend(trimmed(clean_topic, &mut spans.iter().map(|s| (s.clean_low, s.clean)), "lost"));
        }
        notes
    }
}
