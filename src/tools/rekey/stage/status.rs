//! What the loop does at intervals: it stores positions, publishes its status, and requests what the brokers know.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{REQUEST_TIMEOUT, RekeyLoop};
use crate::kafka::{SourceLog, log_ended_outages};
use crate::metrics::RekeyStatus;
use crate::pipeline::is_due;
use crate::ports::{Failure, Remedy};
use crate::tools::rekey::logs::AssignedLog;

/// Interval at which positions are stored and the status is published.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);
/// Interval at which the partitions of the target topic are counted, and ids and ends of the source logs are read.
const REFRESH_INTERVAL: Duration = Duration::from_secs(10);
/// Without an acknowledgement for this long, records in flight count as stuck.
const STUCK: Duration = Duration::from_secs(10);
/// For this long after a failure the process counts as not ready. The client repeats the errors of an outage more often.
const FAILED: Duration = Duration::from_secs(2);
/// What is done with records without an id: copies of one that are in different source partitions do not meet.
const WITHOUT_ID: &str = "partitioned by their source topic and partition instead of an id";

impl RekeyLoop<'_> {
    /// Stores positions, publishes the status, counts the partitions of the target and reads the ends of the source logs, each
    /// when it is due.
    pub(super) fn report(&mut self) -> Result<(), Failure> {
        let now = self.began.elapsed();
        if is_due(&mut self.last.report, now, REPORT_INTERVAL) {
            self.store();
            let status = self.status(now);
            self.metrics.publish(status);
        }
        if !is_due(&mut self.last.refresh, now, REFRESH_INTERVAL) {
            return Ok(());
        }
        log_ended_outages();
        for refreshed in [self.count_partitions(), self.compare_topic_ids(), self.read_ends()] {
            refreshed
                .or_else(|failure| if failure.remedy == Remedy::Retry { Ok(()) } else { Err(failure) })?;
        }
        Ok(())
    }

    /// The first partition that waits for a schema, and what it waits for.
    fn waiting(&self) -> Option<String> {
        let waits = |it: &AssignedLog| Some(format!("partition {} {}", it.log, it.schema.as_ref()?));
        let mut waiting = self.logs.all().filter_map(waits);
        let line = waiting.next()?;
        match waiting.count() {
            0 => Some(line),
            more => Some(format!("{line}, and {more} more partitions wait")),
        }
    }

    /// Whether the target topic does not acknowledge what is in flight.
    fn stuck(&self, now: Duration) -> Option<String> {
        let silent = now.saturating_sub(self.last.acknowledged);
        let to = &self.settings.clean;
        let what = || format!("received no acknowledgement of topic {to} for {} s", silent.as_secs());
        (silent > STUCK && self.logs.in_flight() > 0).then(what)
    }

    fn status(&mut self, now: Duration) -> RekeyStatus {
        let failed = self.failed.as_ref().filter(|(_, at)| now.saturating_sub(*at) < FAILED);
        let not_ready = failed
            .map(|(what, _)| what.clone())
            .or_else(|| (!self.reader.is_member()).then(|| self.not_joined()))
            .or_else(|| self.unplaced.problem())
            .or_else(|| self.waiting())
            .or_else(|| self.stuck(now));
        let mut lag: BTreeMap<String, u64> = BTreeMap::new();
        for assigned in self.logs.all() {
            // A client that has lost a fetcher does not receive new log ends.
            let end = self.reader.end(&assigned.log).unwrap_or(0).max(assigned.log_end);
            *lag.entry(assigned.log.topic.clone()).or_default() +=
                end.saturating_sub(assigned.in_flight.position);
        }
        let partitions = self.logs.all().count() + self.unplaced.logs.len();
        let (notes, in_flight) = (self.notes(now), self.logs.in_flight());
        RekeyStatus { not_ready, failure: None, notes, partitions, in_flight, lag }
    }

    /// Without any topic to read, the client joins no group.
    fn not_joined(&self) -> String {
        let what = format!("has not joined group {}", self.settings.group);
        let unmatched = self.reader.unmatched().join(", ");
        if unmatched.is_empty() { what } else { format!("{what}: {unmatched}") }
    }

    /// What an operator should know although records are written. The log has the same.
    fn notes(&mut self, now: Duration) -> Vec<String> {
        let missing = self.missing.note(now, WITHOUT_ID);
        if let Some((note, true)) = &missing {
            tracing::warn!("{note}");
        }
        // Before the group is joined, this is the reason.
        let unmatched = if self.reader.is_member() { self.reader.unmatched() } else { Vec::new() };
        missing.map(|(note, _)| note).into_iter().chain(unmatched).collect()
    }

    /// Reads where the assigned logs end.
    fn read_ends(&mut self) -> Result<(), Failure> {
        let logs: Vec<SourceLog> = self.logs.all().map(|assigned| assigned.log.clone()).collect();
        let ends = self.reader.log_ends(&logs, REQUEST_TIMEOUT)?;
        self.logs.set_ends(ends);
        Ok(())
    }

    pub(super) fn count_partitions(&mut self) -> Result<(), Failure> {
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
