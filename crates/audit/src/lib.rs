//! `dedupd audit`: an independent proof of the promise.
//!
//! Reads raw and clean as any `read_committed` reader would, and compares them: partition by partition, or all partitions
//! together where an id counts once in the topic ([`Scope`]).
//! It shares no code with the service: no configuration, no client, no id extraction, no window, no state. A bug there
//! is therefore not repeated here. Its input is [`Options`]: texts and numbers. The audit checks only the promise: each id that is new within the window is
//! in clean once, in raw order, byte for byte.
//!
//! The topics do not show when the pipeline processed a record. The audit caps timestamps in the future by
//! its own clock instead. With `window.time = "arrival"` the age of a record cannot be derived from the
//! topics: set no window then, provided that all of raw arrived within one window.

mod choice;
mod clock;
mod compare;
mod connection;
mod entry;
mod error;
mod evaluation;
mod events;
mod expected;
mod findings;
mod group;
mod headers;
mod id;
mod instances;
mod join;
mod joint;
mod order;
mod owners;
mod partition;
mod progress;
mod range;
mod reader;
mod record;
mod report;
mod source;
mod spill;
mod topic;

use std::path::PathBuf;
use std::time::Duration;

use indicatif::ProgressBar;

pub use compare::{Comparison, Gone, Outcome, PartitionOptions, UnmatchedRecords};
pub use error::AuditError;
pub use expected::{MissingId, RawCounts, Rules};
pub use findings::{Counts, Finding, Kind};
pub use id::IdRule;
pub use progress::progress_bar;
pub use range::{Moment, Part, Range};
pub use reader::Span;
pub use record::{Content, Differing, Fields, Fingerprint, Fingerprints, Header, Seen};
pub use report::{PartitionReport, Report};
pub use spill::Scratch;
pub use topic::TopicComparison;

use connection::Access;
use group::Audit;
use progress::Progress;
use reader::{Reader, SpanOf};

/// A Kafka offset inside one partition; never negative in a log.
pub type Offset = u64;
/// A Kafka partition number; never negative.
pub type PartitionId = u32;

/// The isolation level of consumers that read committed transactions only.
const COMMITTED: &str = "read_committed";
/// How long to wait for transactions that are open at the start.
const OPEN_TRANSACTIONS_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Memory of the client beyond its queue, and of everything that is not rows, bytes.
const OVERHEAD: u64 = 8 << 20;
/// Maximum prefetched by the client, bytes.
const PREFETCH_MAX: u64 = 64 << 20;

/// The minimum memory of an audit, bytes.
pub const LEAST_MEMORY: u64 = 32 << 20;
/// The default memory of an audit, bytes.
pub const DEFAULT_MEMORY: u64 = 256 << 20;

/// Where an id counts once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// In all partitions of the topic together.
    Topic,
    /// In each partition.
    Partition,
}

/// What to audit.
#[derive(Debug, Clone)]
pub struct Options {
    /// `host:port` list.
    pub bootstrap_servers: String,
    /// librdkafka properties. They cannot override the properties that determine what is read.
    pub properties: Vec<(String, String)>,
    /// The raw topic.
    pub raw: String,
    /// The clean topic.
    pub clean: String,
    /// Where the id is read: `key`, `value`, `header:NAME` or `json:/pointer`; several sources make one composite id.
    pub id: Vec<String>,
    /// How the pipeline treats records without an id.
    pub missing_id: MissingId,
    /// Records with this header are always forwarded, whatever their id.
    pub force_header: Option<String>,
    /// Where an id counts once.
    pub scope: Scope,
    /// How long an id is kept at least; `None` is forever.
    pub window: Option<Duration>,
    /// How long an id is kept at most, at least as long as `window`; `None` is forever. In topic scope, a record without a clean
    /// record of its id within this time is lost. Partition scope does not use it.
    pub longest_window: Option<Duration>,
    /// The range of the logs that is audited.
    pub range: Range,
    /// Count what retention or compaction explains separately, not as findings.
    pub allow_gone: bool,
    /// How many findings of each kind are reported with their coordinates.
    pub samples: usize,
    /// Memory limit, bytes, at least [`LEAST_MEMORY`]; what does not fit goes to temporary files.
    pub memory: u64,
    /// The directory of the temporary files; `None` is the system's.
    pub temp_dir: Option<PathBuf>,
    /// Notes for the reader of the report, about the configuration.
    pub notes: Vec<String>,
}

impl Options {
    /// How much the client may prefetch, bytes.
    fn prefetch(&self) -> u64 {
        (self.memory / 4).min(PREFETCH_MAX)
    }

    fn scratch(&self) -> Scratch {
        let dir = self.temp_dir.clone().unwrap_or_else(std::env::temp_dir);
        let rows = self.memory.max(LEAST_MEMORY).saturating_sub(self.prefetch() + OVERHEAD);
        Scratch::new(&dir, usize::try_from(rows).unwrap_or(usize::MAX))
    }
}

/// Reads both topics and compares them. `bar` is [`progress_bar`] or `ProgressBar::hidden()`.
///
/// Raw records up to the end of raw at the start are due in clean. Later ones may be in clean but need not be.
pub fn run(options: &Options, bar: &ProgressBar) -> Result<Report, AuditError> {
    let started = clock::monotonic();
    let id = IdRule::parse(&options.id).map_err(AuditError::Settings)?;
    let id = if options.missing_id == MissingId::Identified { id.or_source() } else { id };
    let open = |topic: &str, isolation: &str| {
        Reader::open(
            &Access {
                servers: &options.bootstrap_servers,
                properties: &options.properties,
                prefetch: options.prefetch(),
            },
            topic,
            isolation,
        )
    };
    let (raw, clean) = (open(&options.raw, COMMITTED)?, open(&options.clean, COMMITTED)?);
    let open_transaction = await_open_transactions(&clean, &open(&options.clean, "read_uncommitted")?)?;
    let spans = spans(&raw, &clean, options)?;
    let progress = Progress::new(bar, spans.iter().map(Spans::records).sum());
    let scratch = options.scratch();
    scratch.has_room(options.scope, compared_together(options.scope, &spans))?;
    let failed = |error| AuditError::spill(&scratch, error);
    let audit = Audit {
        options,
        id,
        raw,
        clean,
        fingerprints: Fingerprints::new(fastrand::u128(..)),
        progress,
        scratch: scratch.clone(),
    };
    let mut report = Report { range: options.range, notes: audit.notes(&spans), ..Report::default() };
    report.notes.extend(open_transaction);
    report.notes.extend(options.notes.iter().cloned());
    let mut unmatched = UnmatchedRecords::new(&scratch);
    let mut rest = spans.as_slice();
    while !rest.is_empty() {
        let parts;
        (parts, rest) = match options.scope {
            Scope::Topic => (audit.topic(rest, &mut unmatched)?, [].as_slice()),
            Scope::Partition => audit.group(rest, &mut unmatched)?,
        };
        for part in parts {
            report.add(part, options.samples);
        }
    }
    report.moved = unmatched.moved().map_err(failed)?;
    report.bytes = audit.progress.bytes();
    report.spilled_bytes = scratch.written();
    report.elapsed = started.elapsed();
    bar.finish_and_clear();
    Ok(report)
}

/// The offsets to read of a partition.
#[derive(Debug, Clone, Copy)]
struct Spans {
    partition: PartitionId,
    /// Records below its end are due in clean.
    raw: Span,
    clean: Span,
    /// Whether the first records of clean were deleted, and the range includes the log start.
    clean_trimmed: bool,
    /// Log start offset of raw, wherever the range begins.
    raw_low: Offset,
    /// Log start offset of clean.
    clean_low: Offset,
}

impl Spans {
    /// Number of records of both topics, at most.
    fn records(&self) -> u64 {
        self.raw.len() + self.clean.len()
    }
}

/// The most records of a topic that are compared together.
fn compared_together(scope: Scope, spans: &[Spans]) -> u64 {
    let larger = |raw: u64, clean: u64| raw.max(clean);
    match scope {
        Scope::Topic => larger(
            spans.iter().map(|spans| spans.raw.len()).sum(),
            spans.iter().map(|spans| spans.clean.len()).sum(),
        ),
        Scope::Partition => {
            spans.iter().map(|spans| larger(spans.raw.len(), spans.clean.len())).max().unwrap_or(0)
        }
    }
}

/// Waits until everything in clean is below its last stable offset: the broker acknowledges a commit before
/// its markers are in every partition. Returns a note when a transaction stays open.
fn await_open_transactions(clean: &Reader, all: &Reader) -> Result<Option<String>, AuditError> {
    let deadline = clock::monotonic() + OPEN_TRANSACTIONS_TIMEOUT;
    let written = all.ends(0..all.partitions())?;
    loop {
        let readable = clean.ends(0..clean.partitions())?;
        let open = readable.iter().find(|(partition, end)| written.get(partition) > Some(end));
        let Some((partition, _)) = open else { return Ok(None) };
        if clock::monotonic() > deadline {
            return Ok(Some(format!(
                "a transaction is open in partition {partition} of the clean topic; its records are not counted"
            )));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Fetches the ends of raw first. Records that clean holds beyond them are also read from raw, but are not due.
fn spans(raw: &Reader, clean: &Reader, options: &Options) -> Result<Vec<Spans>, AuditError> {
    let partitions = 0..raw.partitions().max(clean.partitions());
    let all_raw = raw.spans(partitions.clone())?;
    let all_clean = clean.spans(partitions)?;
    let since = |reader: &Reader, ms: Option<i64>, all: &SpanOf| {
        ms.map_or_else(|| Ok(all.clone()), |ms| reader.since(ms, all))
    };
    let from_ms = options.range.from_ms;
    let clean_spans = since(clean, from_ms, &all_clean)?;
    let raw_spans = since(raw, from_ms.and_then(|from_ms| context_since(options, from_ms)), &all_raw)?;
    let lows = all_raw.into_values().zip(all_clean.into_values());
    let spans = raw_spans.into_iter().zip(clean_spans.into_values()).zip(lows);
    Ok(spans
        .map(|(((partition, raw), clean), (all_raw, all_clean))| Spans {
            partition,
            raw,
            clean,
            clean_trimmed: all_clean.low > 0 && clean.low == all_clean.low,
            raw_low: all_raw.low,
            clean_low: all_clean.low,
        })
        .collect())
}

/// The time from which raw is read, epoch milliseconds: two windows before the range. An id that was last
/// seen earlier has expired in any case, so every id that can affect the range is read.
fn context_since(options: &Options, from_ms: i64) -> Option<i64> {
    let longest = match options.scope {
        Scope::Topic => options.longest_window,
        Scope::Partition => options.window,
    };
    longest.map(|window| from_ms.saturating_sub(range::whole_ms(window).saturating_mul(2)))
}
