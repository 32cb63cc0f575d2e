//! The loop: read a batch, send each record to the partition of its id, and store the offsets below which every record is
//! acknowledged.
//!
//! A record may be written again: after a crash, a rebalance or a failure, reading continues at the stored offset. The next
//! stage drops such copies. Copies are complete and in order: of each source partition, the records from the stored offset on
//! are sent again, and of each target partition the idempotent producer writes no record before an earlier one.

mod assignment;
mod incarnation;
mod reread;
mod status;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tracing::field::display;

use self::assignment::UnplacedLogs;
use super::logs::AssignedLogs;
use super::partitioner::partition_of;
use crate::clock;
use crate::config::{OnGap, PartitionBy};
use crate::dedupe::{Epoch, IdentityRule, MissingSchema, Schemas, name_source};
use crate::kafka::{Acknowledgements, RawRecord, Settings, SourceLog, SourceReader, TargetWriter};
use crate::metrics::{Outcome, RekeyMetrics};
use crate::pipeline::{MissingIds, SchemaCheck, SchemaWait, is_due};
use crate::ports::{Failure, GroupEvent, Record as _, Remedy};
use crate::schemas::SharedSchemas;

/// Most records of one poll.
const BATCH: usize = 256;
/// How long a poll waits for the first record.
const IDLE: Duration = Duration::from_millis(100);
/// How long to wait while too much is in flight.
const FULL: Duration = Duration::from_millis(2);
/// Pause before a failed call is repeated.
const PAUSE: Duration = Duration::from_millis(200);
/// Time limit of one request to a broker.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// How long partitions that move to another member wait for acknowledgements.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between warnings about the same failure.
const WARN_INTERVAL: Duration = Duration::from_secs(30);

/// What the loop does with a record.
pub struct RekeyRule {
    pub id: IdentityRule,
    pub schemas: SharedSchemas,
    pub by: PartitionBy,
    pub on_gap: OnGap,
    /// The ids of the topics that this process has read, by name.
    pub topic_ids: RefCell<BTreeMap<String, String>>,
}

/// The loop and its state.
pub struct RekeyLoop<'r> {
    rule: &'r RekeyRule,
    settings: &'r Settings,
    metrics: &'r RekeyMetrics,
    reader: &'r SourceReader,
    writer: TargetWriter,
    /// Number of partitions of the target topic.
    partitions: u32,
    logs: AssignedLogs,
    unplaced: UnplacedLogs,
    /// Changes of the assignment that are not handled.
    changes: VecDeque<GroupEvent<SourceLog>>,
    acknowledged: Acknowledgements,
    schemas: Schemas,
    /// When partitions that wait look at the known schemas again.
    schema_check: SchemaCheck,
    /// The warning about records without an id.
    missing: MissingIds,
    /// Text of the header of the current record.
    source: String,
    /// The times below are measured from then on.
    began: Instant,
    last: LastTimes,
    /// The last failure, and when it occurred.
    failed: Option<(String, Duration)>,
    /// When each failure was logged.
    logged: BTreeMap<String, Option<Duration>>,
}

/// When something was done last.
#[derive(Default)]
struct LastTimes {
    report: Option<Duration>,
    refresh: Option<Duration>,
    compared: Option<Duration>,
    acknowledged: Duration,
}

impl<'r> RekeyLoop<'r> {
    /// The producer is connected at the first use.
    pub fn new(
        rule: &'r RekeyRule,
        settings: &'r Settings,
        metrics: &'r RekeyMetrics,
        reader: &'r SourceReader,
    ) -> Result<Self, Failure> {
        let began = clock::monotonic();
        Ok(Self {
            rule,
            settings,
            metrics,
            reader,
            writer: TargetWriter::open(settings)?,
            partitions: 0,
            logs: AssignedLogs::default(),
            unplaced: UnplacedLogs::default(),
            changes: VecDeque::new(),
            acknowledged: Acknowledgements::default(),
            schemas: rule.schemas.known(),
            schema_check: SchemaCheck::default(),
            missing: MissingIds::default(),
            source: String::new(),
            began,
            // The partitions are counted before the first poll.
            last: LastTimes { refresh: Some(Duration::ZERO), ..LastTimes::default() },
            failed: None,
            logged: BTreeMap::new(),
        })
    }

    /// Runs until a stop is requested, or until a failure after which reader and producer must be replaced. Positions are stored
    /// in any case, and committed when the reader is dropped.
    pub fn run(mut self, stop: &AtomicBool) -> Result<(), Failure> {
        let ended = self.repeat_until(stop).map_err(|failure| self.cause_of(failure));
        self.store();
        ended
    }

    /// After a rejected record the client drops others and accepts no more. These failures can be returned first, and the rejection is
    /// their cause: with new clients it would only be repeated.
    fn cause_of(&mut self, failure: Failure) -> Failure {
        let is_final = failure.remedy == Remedy::Stop;
        if !is_final && !self.writer.has_ended() {
            return failure;
        }
        // After a final one the operator may have to set the offset behind a record: those before it must be written.
        match self.settle() {
            Err(cause) if cause.remedy == Remedy::Stop && !is_final => cause,
            _ => failure,
        }
    }

    fn repeat_until(&mut self, stop: &AtomicBool) -> Result<(), Failure> {
        let mut records = Vec::with_capacity(BATCH);
        while !stop.load(Ordering::Acquire) {
            if let Err(failure) = self.iterate(&mut records) {
                self.handle(failure, &mut records)?;
            }
            records.clear();
        }
        self.settle()
    }

    fn iterate(&mut self, records: &mut Vec<RawRecord<'r>>) -> Result<(), Failure> {
        if self.partitions == 0 {
            self.count_partitions()?;
        }
        self.follow_assignment()?;
        self.take_acknowledged()?;
        self.follow_truncations()?;
        self.resume_waiting()?;
        self.wake_stalled()?;
        let (most, wait) = if self.logs.has_room() { (BATCH, IDLE) } else { (0, FULL) };
        let polled = self.reader.poll(records, most, wait);
        self.forward(records)?;
        polled?;
        self.report()
    }

    /// Logs a failure of a call that is repeated. Returns any other one.
    fn handle(&mut self, failure: Failure, records: &mut Vec<RawRecord<'r>>) -> Result<(), Failure> {
        if failure.remedy != Remedy::Retry {
            return Err(failure);
        }
        self.warn(&failure);
        self.metrics.not_ready(&failure.what);
        self.failed = Some((failure.what, self.began.elapsed()));
        // Also serves the events of the client, which must be polled. A record among them must not be dropped: those behind it would
        // be taken for the next ones.
        let polled = self.reader.poll(records, 0, PAUSE);
        let forwarded = self.forward(records).and(polled);
        forwarded.or_else(|later| if later.remedy == Remedy::Retry { Ok(()) } else { Err(later) })
    }

    /// Logs a failure, but not again and again.
    fn warn(&mut self, failure: &Failure) {
        let now = self.began.elapsed();
        self.logged.retain(|_, at| at.is_some_and(|at| now.saturating_sub(at) < WARN_INTERVAL));
        if is_due(self.logged.entry(failure.what.clone()).or_default(), now, WARN_INTERVAL) {
            tracing::warn!("{failure}");
        }
    }

    /// Waits for acknowledgements, and stores the positions.
    fn settle(&mut self) -> Result<(), Failure> {
        if self.logs.in_flight() > 0 {
            self.writer.flush(FLUSH_TIMEOUT);
            self.take_acknowledged()?;
        }
        self.store();
        Ok(())
    }

    fn store(&mut self) {
        let changed = self.logs.changed_positions();
        if !changed.is_empty() {
            self.reader.store(changed);
        }
    }

    fn take_acknowledged(&mut self) -> Result<(), Failure> {
        self.writer.take_acknowledged(&mut self.acknowledged);
        let Acknowledgements { numbers, failed } = &mut self.acknowledged;
        if !numbers.is_empty() {
            let written = numbers.drain(..).filter(|number| self.logs.acknowledge(*number)).count();
            self.metrics.parts.written.inc_by(written as u64);
            self.last.acknowledged = self.began.elapsed();
        }
        match failed.take() {
            None => Ok(()),
            Some((number, code)) => {
                let log = self.logs.name_of(number).unwrap_or("a released partition");
                Err(self.writer.failure(&format!("of {log}"), code))
            }
        }
    }

    fn forward(&mut self, records: &mut Vec<RawRecord<'r>>) -> Result<(), Failure> {
        if self.logs.in_flight() == 0 {
            self.last.acknowledged = self.began.elapsed();
        }
        let (mut read, mut missing, mut why) = (0, 0, None);
        let (mut sent, mut paused) = (Ok(()), Vec::new());
        for mut record in records.drain(..) {
            let at = record.coordinates();
            // Of a released partition, or returned a second time.
            let Some(log) = self.logs.of_record(record.topic(), at.partition) else { continue };
            if at.offset < log.next || log.schema.is_some() {
                continue;
            }
            let id = match self.rule.id.id(&record, &self.schemas) {
                Ok(id) => id,
                Err(MissingSchema(schema)) => {
                    let name = display(&log.log);
                    log.schema = Some(SchemaWait::begin(&self.rule.schemas, schema, name, at.offset));
                    paused.push(log.log.clone());
                    continue;
                }
            };
            log.next = at.offset + 1;
            let epoch = record.leader_epoch();
            log.epoch = epoch.map(|number| Epoch { next: log.next, number });
            name_source(&mut self.source, &log.name, at.offset, log.topic_id.as_deref(), epoch);
            if id.is_none() {
                missing += 1;
                why.get_or_insert_with(|| self.rule.id.why_missing(&record, &self.schemas));
            }
            let bytes = id.as_deref().unwrap_or(log.name.as_bytes());
            let partition = partition_of(self.rule.by, bytes, self.partitions);
            let size = record.size();
            read += 1;
            sent = self.writer.send(&mut record, partition, &self.source, self.logs.next_number());
            if sent.is_err() {
                break;
            }
            self.logs.sent(at.offset, size);
        }
        self.count(read, missing, why.as_deref());
        // The record that was not sent, and those after it, are read again. So this failure must not be hidden by a later one.
        sent.map_err(|failure| failure.escalated(&[Remedy::Retry], Remedy::Renew))?;
        paused.iter().try_for_each(|log| self.reader.pause(log))
    }

    /// Counts records that were read, how many of these have no id, and why one of them has none.
    fn count(&mut self, read: u64, missing: u64, why: Option<&str>) {
        self.metrics.parts.read.inc_by(read);
        self.metrics.parts.missing_id.inc_by(missing);
        self.missing.add(Outcome::MissingId, missing);
        self.missing.add(Outcome::Forwarded, read - missing);
        if let Some(why) = why {
            self.missing.explain(why);
        }
    }
}
