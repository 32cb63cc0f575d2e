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

mod account;
mod choice;
mod compare;
mod entry;
mod error;
mod expected;
mod findings;
mod id;
mod join;
mod ledger;
mod partition;
mod progress;
mod range;
mod reader;
mod record;
mod report;
mod rise;
mod spill;

use std::path::PathBuf;
use std::time::Duration;

use indicatif::ProgressBar;

pub use compare::{Comparison, Gone, Outcome, Scope, Strangers};
pub use error::AuditError;
pub use expected::{MissingId, RawCounts, Rules};
pub use findings::{Counts, Finding, Kind};
pub use id::id_of;
pub use progress::progress_bar;
pub use range::{Moment, Part, Range};
pub use reader::Span;
pub use record::{Content, Differing, Fields, Fingerprints, Print, Seen};
pub use report::{PartitionReport, Report};
pub use spill::Scratch;

use crate::clock;
use crate::config::IdSource;
use crate::dedupe::{Offset, PartitionId};
use partition::Audit;
use progress::Progress;
use reader::{Access, Reader};

/// What any consumer that trusts transactions reads.
const COMMITTED: &str = "read_committed";
/// How long the transactions that are open at the start may take to end.
const SETTLE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(50);
/// Memory that the client takes beside its queue, and all that is not rows, bytes.
const BESIDE: u64 = 8 << 20;
/// Most that the client reads ahead, bytes.
const AHEAD_MAX: u64 = 64 << 20;

/// The least memory an audit can do with, bytes.
pub const LEAST_MEMORY: u64 = 32 << 20;
/// The memory of an audit that was not told, bytes.
pub const DEFAULT_MEMORY: u64 = 256 << 20;

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
    /// A record with this header went through whatever its id.
    pub force_header: Option<String>,
    /// How long an id was remembered; `None` is for ever.
    pub window: Option<Duration>,
    /// The part of the logs that is judged.
    pub range: Range,
    /// Count what retention or compaction explains apart, instead of as findings.
    pub allow_gone: bool,
    /// How many findings of each kind are told by their coordinates.
    pub samples: usize,
    /// Most memory in use, bytes, at least [`LEAST_MEMORY`]; what does not fit goes to temporary files.
    pub memory: u64,
    /// The folder of those; `None` is the system's.
    pub temp_dir: Option<PathBuf>,
    /// What a reader of the report should know of the configuration.
    pub notes: Vec<String>,
}

impl Options {
    /// How much the client may read ahead, bytes.
    fn ahead(&self) -> u64 {
        (self.memory / 4).min(AHEAD_MAX)
    }

    fn scratch(&self) -> Scratch {
        let dir = self.temp_dir.clone().unwrap_or_else(std::env::temp_dir);
        let rows = self.memory.max(LEAST_MEMORY).saturating_sub(self.ahead() + BESIDE);
        Scratch::new(&dir, usize::try_from(rows).unwrap_or(usize::MAX))
    }
}

/// Reads both topics and compares them. `bar` is [`progress_bar`] or `ProgressBar::hidden()`.
///
/// Raw is due up to its end at the start; what arrives later may be in clean and need not.
pub fn run(options: &Options, bar: &ProgressBar) -> Result<Report, AuditError> {
    let started = clock::monotonic();
    let open = |topic: &str, isolation: &str| {
        Reader::open(
            &Access {
                servers: &options.bootstrap_servers,
                properties: &options.properties,
                ahead: options.ahead(),
            },
            topic,
            isolation,
        )
    };
    let (raw, clean) = (open(&options.raw, COMMITTED)?, open(&options.clean, COMMITTED)?);
    let hidden = settled(&clean, &open(&options.clean, "read_uncommitted")?)?;
    let spans = spans(&raw, &clean, options)?;
    let progress = Progress::new(bar, spans.iter().map(|spans| spans.raw.len() + spans.clean.len()).sum());
    let scratch = options.scratch();
    let largest = spans.iter().map(|spans| spans.raw.len().max(spans.clean.len())).max().unwrap_or(0);
    scratch.has_room(largest)?;
    let failed = |error| AuditError::spill(&scratch, error);
    let audit = Audit {
        options,
        raw,
        clean,
        prints: Fingerprints::new(fastrand::u128(..)),
        progress,
        scratch: scratch.clone(),
    };
    let mut report = Report { range: options.range, notes: audit.notes(&spans), ..Report::default() };
    report.notes.extend(hidden);
    report.notes.extend(options.notes.iter().cloned());
    let mut strangers = Strangers::new(&scratch);
    for spans in &spans {
        let (outcome, raw_end) = audit.partition(spans, &mut strangers)?;
        report.sample(&outcome.samples, options.samples);
        report.add(part(spans, raw_end, &outcome));
    }
    report.moved = strangers.moved().map_err(failed)?;
    report.bytes = audit.progress.bytes();
    report.spilled_bytes = scratch.written();
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
    /// Whether clean has lost its beginning, and the range reaches back to that.
    clean_trimmed: bool,
    /// First offset that raw has, wherever the range begins.
    raw_low: Offset,
    /// First offset that clean has.
    clean_low: Offset,
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
fn spans(raw: &Reader, clean: &Reader, options: &Options) -> Result<Vec<Spans>, AuditError> {
    let partitions = 0..raw.partitions().max(clean.partitions());
    let raws: Vec<Span> =
        partitions.clone().map(|partition| raw.span(partition)).collect::<Result<_, _>>()?;
    let mut spans = Vec::new();
    for (partition, mut raw_span) in partitions.zip(raws) {
        let mut clean_span = clean.span(partition)?;
        let (raw_low, clean_low) = (raw_span.low, clean_span.low);
        if let Some(from_ms) = options.range.from_ms {
            clean_span.low = clean.first_since(partition, from_ms, clean_span)?;
            if let Some(known_ms) = known_since(options, from_ms) {
                raw_span.low = raw.first_since(partition, known_ms, raw_span)?;
            }
        }
        let clean_trimmed = clean_low > 0 && clean_span.low == clean_low;
        let (raw, clean) = (raw_span, clean_span);
        spans.push(Spans { partition, raw, clean, clean_trimmed, raw_low, clean_low });
    }
    Ok(spans)
}

/// From when on raw is read, so that every id is known that can decide about the range: two windows before
/// it. Of an id that was seen last before that, nothing is remembered by any reckoning.
fn known_since(options: &Options, from_ms: i64) -> Option<i64> {
    options.window.map(|window| from_ms.saturating_sub(range::whole_ms(window).saturating_mul(2)))
}

fn part(spans: &Spans, raw_end: Offset, outcome: &Outcome) -> PartitionReport {
    PartitionReport {
        partition: spans.partition,
        raw_span: Span { low: spans.raw.low, end: raw_end },
        clean_span: spans.clean,
        raw: outcome.raw,
        clean_records: outcome.clean_records,
        counts: outcome.counts,
        gone: outcome.gone,
        outside: outcome.outside,
    }
}
