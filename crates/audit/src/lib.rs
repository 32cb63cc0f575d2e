//! `dedupd audit`: an independent proof of the promise.
//!
//! Reads raw and clean as any `read_committed` reader would, and compares them: partition by partition, or all partitions
//! together where an id counts once in the topic, or several raw topics with one clean topic ([`Scope`]).
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
mod differences;
mod digest;
mod dropped;
mod entry;
mod error;
mod evaluation;
mod events;
mod expected;
mod findings;
mod group;
mod hints;
mod id;
mod instances;
mod join;
mod joint;
mod kinds;
mod logs;
mod native;
mod order;
mod owners;
mod part;
mod partition;
mod progress;
mod range;
mod reader;
mod record;
mod report;
mod schemas;
mod source;
mod spill;

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::path::PathBuf;
use std::time::Duration;

use indicatif::ProgressBar;

pub use compare::{Gone, Outcome, PartitionOptions, UnmatchedRecords};
pub use differences::{Difference, UnequalRecord};
pub use digest::{CompareRule, Digest};
pub use dropped::{DroppedCounts, UnequalPair};
pub use error::AuditError;
pub use expected::{MissingId, RawCounts, Rules};
pub use findings::{Counts, Finding, Kind};
pub use id::IdRule;
pub use joint::Comparison;
pub use kinds::RecordKind;
pub use progress::progress_bar;
pub use range::{Moment, Part, Range};
pub use reader::Span;
pub use record::{Content, Differing, Exempt, Fields, Fingerprint, Fingerprints, Header, Seen};
pub use report::{PartitionReport, Report};
pub use schemas::{FetchSchema, Framing, SchemaName, SchemaSources, SchemaText};
pub use spill::Scratch;

use connection::Access;
use group::Audit;
use kinds::Selection;
use logs::{Logs, Spans, compared_together};
use progress::Progress;
use reader::Reader;

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
    /// In all raw topics together, which `rekey` has moved into other partitions: those of clean do not correspond to those of
    /// raw, and each clean record names its raw record in the header `dedupd.source`.
    Topics,
    /// In all partitions of the topic together.
    Topic,
    /// In each partition.
    Partition,
}

/// Called with the configuration and the native client of each new client. The audit keeps the result and drops it before the
/// client: it may give tokens to the client meanwhile.
pub type OnClient = fn(
    &rdkafka::ClientConfig,
    *mut rdkafka::types::RDKafka,
) -> Result<Box<dyn Send>, rdkafka::error::KafkaError>;

/// What to audit.
#[derive(Debug, Clone)]
pub struct Options {
    /// `host:port` list.
    pub bootstrap_servers: String,
    /// librdkafka properties. They cannot override the properties that determine what is read.
    pub properties: Vec<(String, String)>,
    /// Called with each new client.
    pub on_client: OnClient,
    /// The raw topic; in [`Scope::Topics`] one or several.
    pub raw: Vec<String>,
    /// The clean topic.
    pub clean: String,
    /// Where the id is read: `key`, `value`, `header:NAME`, `json:/pointer`, `avro:/path` or `protobuf:/path`; several sources make one composite id.
    pub id: Vec<String>,
    /// Where the schemas of Avro and Protobuf records come from.
    pub schemas: SchemaSources,
    /// Kinds of records: a record belongs to the first one that it matches. The same id in two kinds is two ids.
    pub kinds: Vec<RecordKind>,
    /// What of two records with one id is compared, as in `id`; nothing without a source. Of the value as a whole, null differs from
    /// empty.
    pub compare: Vec<String>,
    /// Whether a dropped record that differs from the one that clean holds is a finding.
    pub require_equal: bool,
    /// Ids that were forgotten, each with one text per source. Clean may have any of their records.
    pub forgotten: Vec<Vec<String>>,
    /// How the pipeline treats records without an id.
    pub missing_id: MissingId,
    /// Records with this header are always forwarded, whatever their id.
    pub force_header: Option<String>,
    /// Where an id counts once.
    pub scope: Scope,
    /// How long an id is kept at least; `None` is forever.
    pub window: Option<Duration>,
    /// How long an id is kept at most, at least as long as `window`; `None` is forever. In topic scope, a record without a clean
    /// record of its id within this time is lost. In both scopes, a missing record within this time behind the deleted start of a
    /// log may be a copy of a deleted one.
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
    /// The defaults: everything that the topics hold, in topic scope, with a window without an end.
    #[must_use]
    pub fn new(bootstrap_servers: &str, raw: &str, clean: &str, id: &str, on_client: OnClient) -> Self {
        Self {
            bootstrap_servers: bootstrap_servers.to_owned(),
            properties: Vec::new(),
            on_client,
            raw: vec![raw.to_owned()],
            clean: clean.to_owned(),
            id: vec![id.to_owned()],
            schemas: SchemaSources::default(),
            kinds: Vec::new(),
            compare: Vec::new(),
            require_equal: false,
            forgotten: Vec::new(),
            missing_id: MissingId::Forwarded,
            force_header: None,
            scope: Scope::Topic,
            window: None,
            longest_window: None,
            range: Range::default(),
            allow_gone: false,
            samples: 3,
            memory: DEFAULT_MEMORY,
            temp_dir: None,
            notes: Vec::new(),
        }
    }

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
    let id = IdRule::parse(&options.id).and_then(|id| id.with_schemas(options.schemas.clone()));
    let id = id.map_err(AuditError::Settings)?;
    let compare = CompareRule::new(&options.compare, &id).map_err(AuditError::Settings)?;
    let id = if options.missing_id == MissingId::Identified { id.or_source() } else { id };
    let id = Selection::new(id, &options.kinds, &options.forgotten).map_err(AuditError::Settings)?;
    let scratch = options.scratch();
    // The default directory need not exist where memory suffices.
    if options.temp_dir.is_some() {
        scratch.is_usable()?;
    }
    let open = |topic: &str, isolation: &str| {
        Reader::open(
            &Access {
                servers: &options.bootstrap_servers,
                properties: &options.properties,
                prefetch: options.prefetch(),
                on_client: options.on_client,
            },
            topic,
            isolation,
        )
    };
    let raw = options.raw.iter().map(|topic| open(topic, COMMITTED)).collect::<Result<_, _>>()?;
    let logs = Logs::new(raw, open(&options.clean, COMMITTED)?, options.scope);
    let open_transaction =
        await_open_transactions(&logs.clean.reader, &open(&options.clean, "read_uncommitted")?)?;
    let spans = logs.spans(options)?;
    let progress = Progress::new(bar, spans.iter().map(Spans::records).sum());
    scratch.has_room(options.scope, compared_together(options.scope, &spans))?;
    let failed = |error| AuditError::spill(&scratch, error);
    let mut report = Report {
        range: options.range,
        notes: logs.notes(&spans, options),
        raw_offsets: spans.iter().map(Spans::raw_offsets).sum(),
        require_equal: options.require_equal,
        ..Report::default()
    };
    if options.scope == Scope::Topics {
        report.logs = logs.names();
    }
    let audit = Audit {
        options,
        id,
        compare,
        logs,
        fingerprints: Fingerprints::new(random_key()),
        progress,
        scratch: scratch.clone(),
    };
    report.notes.extend(open_transaction);
    report.notes.extend(options.notes.iter().cloned());
    let mut unmatched = UnmatchedRecords::new(&scratch);
    let mut rest = spans.as_slice();
    while !rest.is_empty() {
        let parts;
        (parts, rest) = match options.scope {
            Scope::Topic | Scope::Topics => (audit.topic(rest, &mut unmatched)?, [].as_slice()),
            Scope::Partition => audit.group(rest, &mut unmatched)?,
        };
        for part in parts {
            report.add(part, options.samples);
        }
    }
    report.moved = unmatched.moved().map_err(failed)?;
    report.unequal = report.total.unequal.iter().map(|pair| audit.explain(*pair)).collect();
    report.bytes = audit.progress.bytes();
    report.spilled_bytes = scratch.written();
    report.elapsed = started.elapsed();
    bar.finish_and_clear();
    Ok(report)
}

/// A key that nobody can predict: the standard library takes that of its hash maps from the operating system.
fn random_key() -> u128 {
    let half = || u128::from(RandomState::new().build_hasher().finish());
    half() << 64 | half()
}

/// Waits until everything in clean is below its last stable offset: the broker acknowledges a commit before
/// its markers are in every partition. Returns a note when a transaction stays open.
fn await_open_transactions(clean: &Reader, all: &Reader) -> Result<Option<String>, AuditError> {
    let deadline = clock::monotonic() + OPEN_TRANSACTIONS_TIMEOUT;
    let written = all.ends(0..all.partitions)?;
    loop {
        let readable = clean.ends(0..clean.partitions)?;
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
