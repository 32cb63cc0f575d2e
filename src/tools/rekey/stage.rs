//! The loop: read a batch, send each record to the partition of its id, and store the offsets below which every record is
//! acknowledged.
//!
//! A record may be written again: after a crash, a rebalance or a failure, reading continues at the stored offset. The next
//! stage drops such copies. Copies are complete and in order: of each source partition, the records from the stored offset on
//! are sent again, and of each target partition the idempotent producer writes no record before an earlier one.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::logs::{AssignedLogs, listed};
use super::partitioner::partition_of;
use super::start::{StartOffset, start};
use crate::clock;
use crate::config::{OnGap, PartitionBy};
use crate::dedupe::{IdentityRule, MissingSchema, Offset, Schemas};
use crate::kafka::{
    Acknowledgements, MembershipChange, RawRecord, Settings, SourceLog, SourceReader, TargetWriter,
    log_ended_outages,
};
use crate::metrics::{RekeyMetrics, RekeyStatus};
use crate::ports::{Failure, Record as _, Remedy};
use crate::schemas::SharedSchemas;

/// Most records of one poll.
const BATCH: usize = 256;
/// How long a poll waits for the first record.
const IDLE: Duration = Duration::from_millis(100);
/// How long to wait while too much is in flight.
const FULL: Duration = Duration::from_millis(2);
/// Pause before a failed call is repeated.
const PAUSE: Duration = Duration::from_millis(200);
/// Interval at which positions are stored and the status is published.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);
/// Interval at which the partitions of the target topic are counted.
const REFRESH_INTERVAL: Duration = Duration::from_secs(10);
/// Time limit of one request to a broker.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// How long partitions that move to another member wait for acknowledgements.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// Without an acknowledgement for this long, records in flight count as stuck.
const STUCK: Duration = Duration::from_secs(10);
/// For this long after a failure the process counts as not ready. The client repeats the errors of an outage more often.
const FAILED: Duration = Duration::from_secs(2);
/// Interval between warnings about the same failure.
const WARN_INTERVAL: Duration = Duration::from_secs(30);

/// What the loop does with a record.
pub struct RekeyRule {
    pub id: IdentityRule,
    pub schemas: SharedSchemas,
    pub by: PartitionBy,
    pub on_gap: OnGap,
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
    /// Changes of the assignment that are not handled.
    changes: VecDeque<MembershipChange>,
    acknowledged: Acknowledgements,
    schemas: Schemas,
    /// Text of the header of the current record.
    source: String,
    times: RekeyTimes,
    /// The last failure, and when it occurred.
    failed: Option<(String, Instant)>,
    /// When each failure was logged.
    logged: BTreeMap<String, Instant>,
}

/// When something was done last.
struct RekeyTimes {
    report: Instant,
    refresh: Instant,
    acknowledged: Instant,
}

impl<'r> RekeyLoop<'r> {
    /// The producer is connected at the first use.
    pub fn new(
        rule: &'r RekeyRule,
        settings: &'r Settings,
        metrics: &'r RekeyMetrics,
        reader: &'r SourceReader,
    ) -> Result<Self, Failure> {
        let now = clock::monotonic();
        Ok(Self {
            rule,
            settings,
            metrics,
            reader,
            writer: TargetWriter::open(settings)?,
            partitions: 0,
            logs: AssignedLogs::default(),
            changes: VecDeque::new(),
            acknowledged: Acknowledgements::default(),
            schemas: rule.schemas.known(),
            source: String::new(),
            times: RekeyTimes { report: now, refresh: now, acknowledged: now },
            failed: None,
            logged: BTreeMap::new(),
        })
    }

    /// Runs until a stop is requested, or until a failure after which reader and producer must be replaced. Positions are stored
    /// in any case, and committed when the reader is dropped.
    pub fn run(mut self, stop: &AtomicBool) -> Result<(), Failure> {
        let ended = self.repeat_until(stop);
        self.store();
        ended
    }

    fn repeat_until(&mut self, stop: &AtomicBool) -> Result<(), Failure> {
        let mut records = Vec::with_capacity(BATCH);
        while !stop.load(Ordering::Acquire) {
            if let Err(failure) = self.iterate(&mut records) {
                self.handle(failure)?;
            }
            records.clear();
        }
        self.settle()
    }

    fn iterate(&mut self, records: &mut Vec<RawRecord<'r>>) -> Result<(), Failure> {
        if self.partitions == 0 {
            self.count_partitions()?;
        }
        self.changes.extend(self.reader.changes());
        while let Some(change) = self.changes.front().cloned() {
            self.apply(change)?;
            self.changes.pop_front();
        }
        self.take_acknowledged()?;
        self.resume_waiting()?;
        let (most, wait) = if self.logs.has_room() { (BATCH, IDLE) } else { (0, FULL) };
        let polled = self.reader.poll(records, most, wait);
        self.forward(records)?;
        polled?;
        self.report()
    }

    /// Logs a failure of a call that is repeated. Returns any other one.
    fn handle(&mut self, failure: Failure) -> Result<(), Failure> {
        if failure.remedy != Remedy::Retry {
            return Err(failure);
        }
        let now = clock::monotonic();
        self.logged.retain(|_, at| at.elapsed() < WARN_INTERVAL);
        if !self.logged.contains_key(&failure.what) {
            tracing::warn!("{failure}");
            self.logged.insert(failure.what.clone(), now);
        }
        self.metrics.not_ready(&failure.what);
        self.failed = Some((failure.what, now));
        // Also serves the events of the client, which must be polled.
        let polled = self.reader.poll(&mut Vec::new(), 0, PAUSE);
        polled.or_else(|later| if later.remedy == Remedy::Retry { Ok(()) } else { Err(later) })
    }

    fn apply(&mut self, change: MembershipChange) -> Result<(), Failure> {
        match change {
            MembershipChange::Assigned(logs) => {
                self.place(&logs)?;
                tracing::info!(partitions = %listed(&logs), "partitions assigned");
            }
            MembershipChange::Revoked(logs) => {
                self.settle()?;
                self.release(&logs)?;
                tracing::info!(partitions = %listed(&logs), "partitions revoked");
            }
            MembershipChange::Lost(logs) => {
                self.release(&logs)?;
                tracing::warn!(partitions = %listed(&logs), "partitions lost: other members repeat their last records");
            }
        }
        Ok(())
    }

    /// Reads these partitions from the committed offsets.
    fn place(&mut self, logs: &[SourceLog]) -> Result<(), Failure> {
        let mut starts: Vec<(SourceLog, Offset)> = Vec::with_capacity(logs.len());
        for (log, (committed, bounds)) in logs.iter().zip(self.reader.offsets(logs, REQUEST_TIMEOUT)?) {
            let offset = match start(committed, bounds, self.rule.on_gap) {
                StartOffset::At(offset) => offset,
                StartOffset::Behind { offset, gap } => {
                    self.metrics.gap_offsets().inc_by(gap);
                    tracing::warn!(%log, ?committed, offset, gap, "the log does not contain the committed offset; continuing");
                    offset
                }
                StartOffset::Refused => {
                    return Err(self.gap(log, committed.unwrap_or(0), bounds.low, bounds.high));
                }
            };
            starts.push((log.clone(), offset));
        }
        self.reader.place(&starts)?;
        for (log, offset) in starts {
            self.logs.place(log, offset);
        }
        Ok(())
    }

    fn gap(&self, log: &SourceLog, position: Offset, low: Offset, high: Offset) -> Failure {
        let what = format!(
            "group {} continues at offset {position} of {log}, but that log contains the offsets {low} to {high}: records were \
             deleted before they were read, or the topic was truncated or recreated; set group.on_gap = \"accept\" once, to \
             continue at offset {low}",
            self.settings.group
        );
        Failure::new(Remedy::Stop, what)
    }

    fn release(&mut self, logs: &[SourceLog]) -> Result<(), Failure> {
        self.reader.release(logs)?;
        for log in logs {
            self.logs.remove(log);
        }
        Ok(())
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
            self.metrics.written().inc_by(written as u64);
            self.times.acknowledged = clock::monotonic();
        }
        match failed.take() {
            None => Ok(()),
            Some((number, code)) => {
                let of = self.logs.name_of(number).unwrap_or("of a released partition");
                Err(self.writer.failure(of, code))
            }
        }
    }

    fn forward(&mut self, records: &mut Vec<RawRecord<'r>>) -> Result<(), Failure> {
        if self.logs.in_flight() == 0 {
            self.times.acknowledged = clock::monotonic();
        }
        let (mut read, mut missing) = (0, 0);
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
                    log.schema = Some(schema);
                    tracing::warn!(log = %log.log, offset = at.offset, schema = schema.0,
                        "a record needs a schema that is not known; its partition waits, others continue");
                    self.rule.schemas.request(schema);
                    paused.push(log.log.clone());
                    continue;
                }
            };
            log.next = at.offset + 1;
            self.source.clear();
            self.source.push_str(&log.name);
            // Writing to a String cannot fail.
            write!(self.source, "@{}", at.offset).ok();
            missing += u64::from(id.is_none());
            let bytes = id.as_deref().unwrap_or(log.name.as_bytes());
            let partition = partition_of(self.rule.by, bytes, self.partitions);
            let size = record.size();
            let number = self.logs.send(at.offset, size);
            read += 1;
            sent = self.writer.send(&mut record, partition, &self.source, number);
            if sent.is_err() {
                self.logs.unsend(size);
                break;
            }
        }
        self.metrics.read().inc_by(read);
        self.metrics.missing_id().inc_by(missing);
        paused.iter().try_for_each(|log| self.reader.pause(log))?;
        // The record that was not sent, and those after it, are read again.
        sent.map_err(|failure| failure.escalated(&[Remedy::Retry], Remedy::Renew))
    }

    /// Continues with the partitions whose schema is known now.
    fn resume_waiting(&mut self) -> Result<(), Failure> {
        if self.logs.waiting_mut().next().is_none() {
            return Ok(());
        }
        self.schemas = self.rule.schemas.known();
        for (log, schema) in self.logs.waiting_mut() {
            if self.schemas.has(schema) {
                self.reader.read_again(&log.log, log.next)?;
                log.schema = None;
                tracing::info!(log = %log.log, offset = log.next, schema = schema.0, "schema known; the partition continues");
            }
        }
        Ok(())
    }

    /// Stores positions, publishes the status and counts the partitions of the target, each when it is due.
    fn report(&mut self) -> Result<(), Failure> {
        if self.times.report.elapsed() >= REPORT_INTERVAL {
            self.times.report = clock::monotonic();
            self.store();
            let status = self.status();
            self.metrics.publish(status);
        }
        if self.times.refresh.elapsed() < REFRESH_INTERVAL {
            return Ok(());
        }
        self.times.refresh = clock::monotonic();
        log_ended_outages();
        self.count_partitions()
            .or_else(|failure| if failure.remedy == Remedy::Retry { Ok(()) } else { Err(failure) })
    }

    /// The first partition that waits for a schema, and what it waits for.
    fn waiting(&mut self) -> Option<String> {
        let (log, schema) = self.logs.waiting_mut().next()?;
        let why = self.rule.schemas.request(schema).map_or_else(String::new, |why| format!(": {why}"));
        let line = format!("partition {} needs schema {schema}{why}", log.log);
        let mut more = 0;
        for (_, schema) in self.logs.waiting_mut().skip(1) {
            self.rule.schemas.request(schema);
            more += 1;
        }
        Some(if more == 0 { line } else { format!("{line}, and {more} more partitions wait") })
    }

    fn status(&mut self) -> RekeyStatus {
        let silent = self.times.acknowledged.elapsed();
        let failed = self.failed.as_ref().filter(|(_, at)| at.elapsed() < FAILED);
        let not_ready = if let Some((what, _)) = failed {
            Some(what.clone())
        } else if !self.reader.is_member() {
            Some(format!("has not joined group {}", self.settings.group))
        } else if let Some(waiting) = self.waiting() {
            Some(waiting)
        } else if self.logs.in_flight() > 0 && silent > STUCK {
            Some(format!(
                "received no acknowledgement of topic {} for {} s",
                self.settings.clean,
                silent.as_secs()
            ))
        } else {
            None
        };
        let mut lag: BTreeMap<String, u64> = BTreeMap::new();
        for assigned in self.logs.all() {
            let end = self.reader.end(&assigned.log).unwrap_or(0);
            *lag.entry(assigned.log.topic.clone()).or_default() +=
                end.saturating_sub(assigned.in_flight.position());
        }
        let partitions = self.logs.all().count();
        RekeyStatus { not_ready, failure: None, partitions, in_flight: self.logs.in_flight(), lag }
    }

    fn count_partitions(&mut self) -> Result<(), Failure> {
        let (before, now) = (self.partitions, self.writer.partitions(REQUEST_TIMEOUT)?);
        if before != 0 && before != now {
            tracing::warn!(
                "topic {} has grown from {before} to {now} partitions: ids move to other partitions, where a copy of a record \
                 from before is not detected until the window has passed",
                self.settings.clean
            );
        }
        self.partitions = now;
        Ok(())
    }
}
