//! One partition: the records of both topics go to its comparison.

use std::io;
use std::ops::ControlFlow;

use super::Offset;
use super::clock;
use super::compare::{Comparison, Gone, Outcome, Scope, UnmatchedRecords};
use super::expected::Rules;
use super::range::{Cut, Last, Part, whole_ms};
use super::reader::Span;
use super::record::Seen;
use super::report::PartitionReport;
use super::spill::Scratch;
use super::{Options, Spans};

/// How far ahead of the clock a timestamp may move stream time, ms.
const AHEAD_MS: i64 = 5 * 60 * 1_000;

pub(super) struct Partition {
    spans: Spans,
    comparison: Comparison,
    clean_cut: Cut,
    raw_cut: Cut,
    /// The first record of clean after the range.
    last: Last,
    /// End of the audited range of raw.
    raw_end: Offset,
}

impl Partition {
    /// A partition that is read alone, or together with others that share the memory.
    pub fn new(options: &Options, spans: &Spans, scratch: &Scratch, alone: bool) -> Self {
        let rules = rules(options, spans);
        Self {
            spans: *spans,
            comparison: if alone {
                Comparison::new(rules, scratch)
            } else {
                Comparison::in_group(rules, scratch, spans.records())
            },
            clean_cut: Cut::new(options.range),
            raw_cut: Cut::new(options.range),
            last: Last::default(),
            raw_end: spans.raw.end,
        }
    }

    /// Adds the next record of clean. Returns whether more of them are needed.
    pub fn clean(&mut self, record: &Seen) -> io::Result<ControlFlow<()>> {
        match self.clean_cut.part(record) {
            Part::Before => {}
            Part::Within => self.comparison.clean(record)?,
            Part::Behind => {
                self.last = Last(Some(*record));
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Adds the next record of raw, after all of clean. Returns whether more of them are needed.
    pub fn raw(&mut self, record: &Seen) -> io::Result<ControlFlow<()>> {
        let part = self.raw_cut.part(record);
        if part == Part::Behind {
            self.raw_end = self.raw_end.min(record.offset);
        }
        let flow = self.last.flow(part, record);
        if flow.is_continue() {
            self.comparison.raw(record, part)?;
        }
        Ok(flow)
    }

    /// Compares, once both topics are read.
    pub fn compare(self, options: &Options, unmatched: &mut UnmatchedRecords) -> io::Result<PartitionReport> {
        let Spans { partition, raw, clean, clean_trimmed, .. } = self.spans;
        let gone = if options.allow_gone { Gone::Allowed { clean_trimmed } } else { Gone::Nothing };
        let scope = Scope { partition, samples: options.samples, gone };
        let outcome: Outcome = self.comparison.finish(scope, unmatched)?;
        let raw_span = Span { low: raw.low, end: self.raw_end };
        Ok(PartitionReport { partition, raw_span, clean_span: clean, outcome })
    }
}

fn rules(options: &Options, spans: &Spans) -> Rules {
    let cut_short = spans.raw.low == spans.raw_low;
    Rules {
        window_ms: options.window.map(whole_ms),
        latest_ms: clock::wall_ms().saturating_add(AHEAD_MS),
        missing_id: options.missing_id,
        due_below: spans.raw.end,
        from_ms: options.range.from_ms,
        whole_from: if cut_short { 0 } else { spans.raw.low },
        context_cut: cut_short && options.range.from_ms.is_some() && spans.raw_low > 0,
    }
}
