//! What the loop does at intervals: it stores positions, publishes its status, and requests what the brokers know.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{REQUEST_TIMEOUT, RekeyLoop};
use crate::clock;
use crate::kafka::{SourceLog, log_ended_outages};
use crate::metrics::RekeyStatus;
use crate::ports::{Failure, Remedy};

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
        for refreshed in [self.count_partitions(), self.compare_topic_ids(), self.read_ends()] {
            refreshed
                .or_else(|failure| if failure.remedy == Remedy::Retry { Ok(()) } else { Err(failure) })?;
        }
        Ok(())
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
        // This repeats the requests for schemas, also when there is another reason.
        let waiting = self.waiting();
        let silent = self.times.acknowledged.elapsed();
        let failed = self.failed.as_ref().filter(|(_, at)| at.elapsed() < FAILED);
        let not_ready = if let Some((what, _)) = failed {
            Some(what.clone())
        } else if !self.reader.is_member() {
            Some(self.not_joined())
        } else if let Some(unplaced) = self.unplaced.problem() {
            Some(unplaced)
        } else if let Some(waiting) = waiting {
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
            // A client that has lost a fetcher does not receive new log ends.
            let end = self.reader.end(&assigned.log).unwrap_or(0).max(assigned.log_end);
            *lag.entry(assigned.log.topic.clone()).or_default() +=
                end.saturating_sub(assigned.in_flight.position());
        }
        let partitions = self.logs.all().count() + self.unplaced.count();
        let (notes, in_flight) = (self.notes(), self.logs.in_flight());
        RekeyStatus { not_ready, failure: None, notes, partitions, in_flight, lag }
    }

    /// Without any topic to read, the client joins no group.
    fn not_joined(&self) -> String {
        let what = format!("has not joined group {}", self.settings.group);
        let unmatched = self.reader.unmatched().join(", ");
        if unmatched.is_empty() { what } else { format!("{what}: {unmatched}") }
    }

    /// What an operator should know although records are written. The log has the same.
    fn notes(&mut self) -> Vec<String> {
        let missing = self.missing.note(self.times.created.elapsed(), WITHOUT_ID);
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
