//! One partition while its topics are read: which of its records are compared.

use std::ops::ControlFlow;

use super::clock;
use super::compare::{Gone, Outcome, PartitionOptions};
use super::expected::{Rules, kept_ms};
use super::logs::Spans;
use super::range::{Cut, Last, Part, whole_ms};
use super::reader::Span;
use super::record::Seen;
use super::report::PartitionReport;
use super::{Offset, Options, Scope};

/// How far ahead of the clock a timestamp may move stream time, ms.
const AHEAD_MS: i64 = 5 * 60 * 1_000;

/// The audited range of a partition of raw, of clean, or of both. Clean is passed before raw.
pub(super) struct Cuts {
    spans: Spans,
    clean: Cut,
    raw: Cut,
    /// Whether both are read to their ends: records of the range may follow one behind it.
    to_end: bool,
    /// The first record of clean after the range.
    last: Last,
    /// Whether raw has reached that.
    is_past_last: bool,
    /// Raw is read at least to the first record behind the range with this timestamp or a later one.
    raw_until_ms: i64,
    /// End of the audited range of raw.
    raw_end: Offset,
}

impl Cuts {
    pub fn new(options: &Options, spans: &Spans) -> Self {
        Self {
            spans: *spans,
            clean: Cut::new(options.range, options.scope == Scope::Topics),
            raw: Cut::new(options.range, options.scope == Scope::Topics),
            to_end: options.scope == Scope::Topics,
            last: Last::default(),
            is_past_last: false,
            raw_until_ms: raw_until_ms(options),
            raw_end: spans.raw.end,
        }
    }

    /// Passes the next record of clean, and returns whether it is in the range, and whether more of them are needed.
    pub fn clean(&mut self, record: &Seen) -> (bool, ControlFlow<()>) {
        match self.clean.part(record) {
            Part::Within => (true, ControlFlow::Continue(())),
            part if part == Part::Before || self.to_end => (false, ControlFlow::Continue(())),
            _ => {
                self.last = Last(Some(*record));
                (false, ControlFlow::Break(()))
            }
        }
    }

    /// Passes the next record of raw, and returns its part. It breaks if this record and the following ones are not needed.
    pub fn raw(&mut self, record: &Seen) -> ControlFlow<(), Part> {
        let part = self.raw.part(record);
        if part == Part::Behind && !self.to_end {
            self.raw_end = self.raw_end.min(record.offset);
            self.is_past_last |= self.last.is(record);
            if self.is_past_last && record.content.timestamp_ms() >= self.raw_until_ms {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(part)
    }

    /// How the partition is reported.
    pub fn options(&self, options: &Options) -> PartitionOptions {
        let Spans { partition, clean_trimmed, .. } = self.spans;
        let gone = if options.allow_gone { Gone::Allowed { clean_trimmed } } else { Gone::Nothing };
        PartitionOptions { partition, samples: options.samples, gone }
    }

    pub fn report(&self, outcome: Outcome) -> PartitionReport {
        let Spans { partition, raw, clean, .. } = self.spans;
        let raw_span = Span { low: raw.low, end: self.raw_end };
        PartitionReport { partition, raw_span, clean_span: clean, outcome }
    }
}

/// Where raw may end, epoch milliseconds. In topic scope, a record in the range may be dropped for one that is later in another
/// partition, by at most the longest time that an id is kept.
fn raw_until_ms(options: &Options) -> i64 {
    match (options.scope, options.range.to_ms) {
        (Scope::Topic, Some(to_ms)) => options
            .longest_window
            .map_or(i64::MAX, |longest| to_ms.saturating_add(kept_ms(whole_ms(longest)))),
        _ => i64::MIN,
    }
}

/// The rules for a partition.
pub(super) fn rules(options: &Options, spans: &Spans) -> Rules {
    let cut_short = spans.raw.low == spans.raw_low;
    // The clean record of a deleted raw record explains copies, unless it was deleted, too, or is not read.
    let hides_owners = match options.scope {
        Scope::Partition | Scope::Topic => options.range.from_ms.is_some() || spans.clean_trimmed,
        // It may be in any partition of clean.
        Scope::Topics => true,
    };
    Rules {
        window_ms: options.window.map(whole_ms),
        longest_ms: options.longest_window.map(whole_ms),
        latest_ms: clock::wall_ms().saturating_add(AHEAD_MS),
        missing_id: options.missing_id,
        due_below: spans.raw.end,
        from_ms: options.range.from_ms,
        whole_from: if cut_short { 0 } else { spans.raw.low },
        context_cut: cut_short && hides_owners && spans.raw_low > 0,
    }
}
