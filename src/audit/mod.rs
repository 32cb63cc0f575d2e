//! `dedupd audit`: an independent proof of the promise.
//!
//! Reads raw and clean as any `read_committed` reader would, and compares them partition by partition.
//! It shares no code with the pipeline: no reader, no id extraction, no window, no state. An error made
//! there is therefore not made here once more. It knows only the promise: each id that is new within the
//! window is in clean once, in raw order, byte for byte.
//!
//! What it cannot know: when the pipeline looked at a record. Timestamps in the future are capped by the
//! clock of the audit instead, and with `window.time = "arrival"` no age can be told; give no window then,
//! as long as all of raw arrived within one.

mod compare;
mod error;
mod expected;
mod findings;
mod id;
mod matching;
mod order;
mod reader;
mod record;
mod report;

use std::collections::HashMap;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

pub use compare::{Comparison, Gone, Outcome, Scope};
pub use error::AuditError;
pub use expected::{Expected, MissingId, RawCounts, Rules};
pub use findings::{Counts, Finding, Kind};
pub use id::id_of;
pub use reader::Span;
pub use record::{Content, Differing, Fields, Fingerprints, Print, Seen};
pub use report::{PartitionReport, Report};

use crate::clock;
use crate::config::IdSource;
use crate::dedupe::{Offset, PartitionId};
use reader::Reader;

/// How far ahead of the clock a timestamp may move stream time, ms.
const AHEAD_MS: i64 = 5 * 60 * 1_000;

/// What any consumer that trusts transactions reads.
const COMMITTED: &str = "read_committed";
/// How long the transactions that are open at the start may take to end.
const SETTLE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(50);

/// What to audit.
#[derive(Debug, Clone)]
pub struct Options {
    /// `host:port` list.
    pub bootstrap_servers: String,
    /// librdkafka properties; those that decide what is read are not changed by them.
    pub properties: Vec<(String, String)>,
    /// Topic that was read.
    pub raw: String,
    /// Topic that was written.
    pub clean: String,
    /// Where the id stands; several places make one id.
    pub id: Vec<IdSource>,
    /// What happened to records without an id.
    pub missing_id: MissingId,
    /// How long an id was remembered; `None` is for ever.
    pub window: Option<Duration>,
    /// Count what retention or compaction explains apart, instead of as findings.
    pub allow_gone: bool,
    /// How many findings of each kind are told by their coordinates.
    pub samples: usize,
}

/// The progress bar of an audit: on standard error, if that is a terminal.
#[must_use]
pub fn progress_bar() -> ProgressBar {
    let style = ProgressStyle::with_template("audit {bar:40} {percent:>3} % of offsets, {msg} ({eta} left)");
    let bar = ProgressBar::new(0);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Reads both topics and compares them. `bar` is [`progress_bar`] or `ProgressBar::hidden()`.
///
/// Raw is due up to its end at the start; what arrives later may be in clean and need not.
pub fn run(options: &Options, bar: &ProgressBar) -> Result<Report, AuditError> {
    let started = clock::monotonic();
    let open = |topic: &str, isolation: &str| {
        Reader::open(&options.bootstrap_servers, &options.properties, topic, isolation)
    };
    let (raw, clean) = (open(&options.raw, COMMITTED)?, open(&options.clean, COMMITTED)?);
    let hidden = settled(&clean, &open(&options.clean, "read_uncommitted")?)?;
    let spans = spans(&raw, &clean)?;
    bar.set_length(spans.iter().map(|spans| offsets(spans.raw) + offsets(spans.clean)).sum());
    let prints = Fingerprints::new(fastrand::u128(..));
    let audit = Audit { options, raw, clean, prints, bar };
    let mut report = Report { notes: audit.notes(&spans), ..Report::default() };
    report.notes.extend(hidden);
    let (mut lost, mut phantom) = (HashMap::new(), Vec::new());
    for spans in &spans {
        bar.set_message(format!("partition {}", spans.partition));
        let outcome = audit.partition(spans)?;
        report.sample(&outcome.samples, options.samples);
        lost.extend(outcome.lost.iter().map(|(print, _)| (*print, spans.partition)));
        phantom.extend(outcome.phantom.iter().map(|(print, _)| (*print, spans.partition)));
        report.add(part(spans, &outcome));
    }
    report.moved = moved(lost, &phantom);
    report.elapsed = started.elapsed();
    bar.finish_and_clear();
    Ok(report)
}

/// What there is to read of a partition.
#[derive(Debug, Clone, Copy)]
struct Spans {
    partition: PartitionId,
    /// Due up to here.
    raw: Span,
    clean: Span,
}

/// Waits until what clean holds now can be seen: a commit is answered before its markers are in every
/// partition. Gives a note when a transaction stays open.
fn settled(clean: &Reader, all: &Reader) -> Result<Option<String>, AuditError> {
    let deadline = clock::monotonic() + SETTLE;
    for partition in 0..clean.partitions() {
        let written = all.span(partition)?.end;
        while clean.span(partition)?.end < written {
            if clock::monotonic() > deadline {
                return Ok(Some(format!(
                    "a transaction is open in partition {partition} of the clean topic; what it holds does not count"
                )));
            }
            std::thread::sleep(LOOK);
        }
    }
    Ok(None)
}

/// The ends of raw first: what clean then holds beyond them is read in raw as well, but not due.
fn spans(raw: &Reader, clean: &Reader) -> Result<Vec<Spans>, AuditError> {
    let partitions = 0..raw.partitions().max(clean.partitions());
    let mut spans = Vec::new();
    for partition in partitions {
        spans.push(Spans { partition, raw: raw.span(partition)?, clean: Span::default() });
    }
    for spans in &mut spans {
        spans.clean = clean.span(spans.partition)?;
    }
    Ok(spans)
}

fn offsets(span: Span) -> u64 {
    span.end.saturating_sub(span.low)
}

struct Audit<'a> {
    options: &'a Options,
    raw: Reader,
    clean: Reader,
    prints: Fingerprints,
    bar: &'a ProgressBar,
}

impl Audit<'_> {
    fn partition(&self, spans: &Spans) -> Result<Outcome, AuditError> {
        // Everything that clean holds up to the end asked for before was in raw by now.
        let all_raw = Span { low: spans.raw.low, end: self.raw.span(spans.partition)?.end };
        let window = self.options.window.map(|window| i64::try_from(window.as_millis()).unwrap_or(i64::MAX));
        let mut expected = Expected::new(Rules {
            window_ms: window,
            latest_ms: clock::wall_ms().saturating_add(AHEAD_MS),
            missing_id: self.options.missing_id,
            due_below: spans.raw.end,
        });
        self.read(&self.raw, spans.partition, all_raw, &mut |record| expected.push(record))?;
        let mut comparison = Comparison::new(expected);
        self.read(&self.clean, spans.partition, spans.clean, &mut |record| comparison.push(record))?;
        let trimmed = Gone::Allowed { clean_trimmed: spans.clean.low > 0 };
        Ok(comparison.finish(Scope {
            partition: spans.partition,
            samples: self.options.samples,
            gone: if self.options.allow_gone { trimmed } else { Gone::Nothing },
        }))
    }

    fn read(
        &self,
        reader: &Reader,
        partition: PartitionId,
        span: Span,
        take: &mut dyn FnMut(&Seen),
    ) -> Result<(), AuditError> {
        let before = self.bar.position();
        reader.read(partition, span, &mut |offset, fields| {
            let id = id_of(&self.options.id, fields);
            take(&self.prints.seen(offset, id.as_deref(), fields));
            if offset.is_multiple_of(4_096) {
                self.bar.set_position(before + offset.saturating_sub(span.low));
            }
        })?;
        self.bar.set_position(before + offsets(span));
        Ok(())
    }

    fn notes(&self, spans: &[Spans]) -> Vec<String> {
        let mut notes = Vec::new();
        let (raw, clean) = (self.raw.partitions(), self.clean.partitions());
        if raw != clean {
            let (raw_topic, clean_topic) = (&self.options.raw, &self.options.clean);
            notes.push(format!("{raw_topic} has {raw} partitions and {clean_topic} has {clean}"));
        }
        let trimmed = |topic: &str, lows: &mut dyn Iterator<Item = Offset>, counts_as: &str| {
            let count = lows.filter(|low| *low > 0).count();
            (count > 0).then(|| {
                format!(
                    "{topic} no longer begins at offset 0 in {count} partitions: what is gone from there counts as \
                     {counts_as}, unless that is allowed"
                )
            })
        };
        if !self.options.allow_gone {
            notes.extend(trimmed(&self.options.raw, &mut spans.iter().map(|s| s.raw.low), "phantom"));
            notes.extend(trimmed(&self.options.clean, &mut spans.iter().map(|s| s.clean.low), "lost"));
        }
        notes
    }
}

fn part(spans: &Spans, outcome: &Outcome) -> PartitionReport {
    PartitionReport {
        partition: spans.partition,
        raw_span: spans.raw,
        clean_span: spans.clean,
        raw: outcome.raw,
        clean_records: outcome.clean_records,
        counts: outcome.counts,
        gone: outcome.gone,
    }
}

/// Lost records that are phantoms of another partition.
fn moved(mut lost: HashMap<Print, PartitionId>, phantom: &[(Print, PartitionId)]) -> u64 {
    let elsewhere = |(print, found): &&(Print, PartitionId)| {
        lost.get(print).is_some_and(|partition| partition != found) && lost.remove(print).is_some()
    };
    phantom.iter().filter(elsewhere).count() as u64
}
