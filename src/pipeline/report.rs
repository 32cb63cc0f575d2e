//! Metrics, status and log of a worker: metrics per committed transaction, status about twice per second, log
//! messages on changes.

mod conflicts;
mod counted_by;
mod duplicates;
mod missing;
mod published;
mod reachability;
mod tally;

use std::sync::Arc;
use std::time::Duration;

use crate::dedupe::coordinates::ranges;
use crate::dedupe::{Offset, PartitionId, Window};
use crate::metrics::{
    Metrics, Outcome, PartitionStatus, Status, TopicLabel, TransactionResult, WindowStatus, WorkerStatus,
};
use crate::pipeline::commit::transaction::Transaction;
use crate::pipeline::journal::Journals;
use crate::pipeline::kinds::Kinds;
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::partition::partitions::Partitions;
use crate::pipeline::report::conflicts::Conflicts;
pub use crate::pipeline::report::counted_by::CountedBy;
use crate::pipeline::report::duplicates::{CommittedDuplicates, FoundOwners};
pub(crate) use crate::pipeline::report::missing::MissingIds;
pub(crate) use crate::pipeline::report::published::{Figures, SealedFigures};
use crate::pipeline::report::published::{kinds, status};
use crate::pipeline::report::reachability::Reachability;
use crate::pipeline::report::tally::RecordTimes;
pub use crate::pipeline::report::tally::Tally;
use crate::pipeline::time::is_due;
use crate::ports::{Failure, GroupEvent};

/// What is published of a worker.
#[derive(Clone, Copy)]
pub(crate) struct Shown<'a> {
    pub partitions: &'a Partitions,
    pub journals: &'a Journals,
    pub transaction: &'a Transaction,
    pub options: &'a WorkerOptions,
}

/// What is done with records without an id.
const FORWARDED: &str = "forwarded without de-duplication";
/// Interval between two publications of the status.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(500);
/// Interval between two summaries in the log, and between two repetitions of the standing warning.
const SUMMARY_INTERVAL: Duration = Duration::from_mins(1);
/// Metrics and status of one worker.
pub struct WorkerReport {
    /// What needs no state besides its counters is counted here directly.
    pub(crate) metrics: Metrics,
    reachability: Reachability,
    published: Published,
    /// Bytes of the largest transaction committed since the status was last published: at low load no transaction is
    /// open at that moment.
    batch_bytes: u64,
    kinds: Vec<KindRate>,
    warnings: Warnings,
    last_minute: LastMinute,
    duplicates: CommittedDuplicates,
}

/// Where the status of this worker is published.
struct Published {
    status: Arc<Status>,
    worker: usize,
    /// Monotonic time of the last publication; `None` when it is due now.
    at: Option<Duration>,
}

/// A kind of records: its name, and the false-positive rate of its filters as last published.
struct KindRate {
    name: String,
    false_positive_rate: f64,
}

/// A warning for the operator that the log repeats once per minute.
#[derive(Debug, Default)]
struct StandingWarning {
    text: Option<&'static str>,
    /// Monotonic time of its last log message.
    logged: Option<Duration>,
}

impl StandingWarning {
    fn repeat(&mut self, now: Duration) {
        if let Some(warning) = self.text.filter(|_| is_due(&mut self.logged, now, SUMMARY_INTERVAL)) {
            tracing::warn!("{warning}");
        }
    }
}

/// What the log repeats.
#[derive(Debug, Default)]
struct Warnings {
    standing: StandingWarning,
    missing: MissingIds,
    conflicts: Conflicts,
    schemas: Option<String>,
}

/// Counts committed since the last summary in the log.
#[derive(Debug, Default)]
struct LastMinute {
    since: Option<Duration>,
    records: u64,
    duplicates: u64,
    missing_ids: u64,
}

impl WorkerReport {
    /// The report of worker number `worker`.
    pub fn new(metrics: Metrics, status: Arc<Status>, worker: usize) -> Self {
        Self {
            metrics,
            reachability: Reachability::default(),
            published: Published { status, worker, at: None },
            batch_bytes: 0,
            kinds: Vec::new(),
            warnings: Warnings::default(),
            last_minute: LastMinute::default(),
            duplicates: CommittedDuplicates::default(),
        }
    }

    /// Registers the names of the kinds. Their time series start at 0.
    pub(crate) fn register_kinds(&mut self, kinds: &Kinds) {
        let rate = |name: &String| KindRate { name: name.clone(), false_positive_rate: 0.0 };
        self.kinds = kinds.iter().map(|kind| rate(&kind.name)).collect();
        for kind in self.kinds.iter().filter(|kind| !kind.name.is_empty()) {
            for outcome in Outcome::ALL {
                self.metrics.kind_records(&kind.name, *outcome);
            }
        }
    }

    /// Sets the standing warning: the status shows it, and the log repeats it once per minute.
    pub(crate) fn set_warning(&mut self, warning: Option<&'static str>) {
        self.warnings.standing.text = warning;
    }

    /// Logs one summary per minute: what was processed, and the lag.
    fn log_summary(&mut self, partitions: &[PartitionStatus], transaction: &Transaction, now: Duration) {
        let since = *self.last_minute.since.get_or_insert(now);
        if now.saturating_sub(since) < SUMMARY_INTERVAL {
            return;
        }
        // Only those that are started have a next offset.
        let running = partitions.iter().filter(|partition| partition.next.is_some()).count();
        let lag = partitions.iter().filter_map(|partition| partition.lag_records).sum::<u64>();
        let LastMinute { records, duplicates, missing_ids, .. } = self.last_minute;
        let (worker, partitions) = (self.published.worker, partitions.len());
        tracing::info!(worker, records, duplicates, missing_ids, lag, running, partitions, "minute summary");
        if let Some(note) = transaction.limit().note() {
            tracing::info!(worker, "{note}");
        }
        self.last_minute = LastMinute { since: Some(now), ..LastMinute::default() };
    }

    /// Publishes the counts of a committed transaction, the time from its first record to its end, and its end in monotonic time
    /// and epoch milliseconds.
    pub(crate) fn committed(&mut self, tally: &Tally, took: Duration, now: Duration, now_ms: i64) {
        for (kind, counts) in tally.outcomes.iter().enumerate() {
            let counts = Outcome::ALL.iter().copied().zip(counts.iter().copied());
            counts
                .filter(|(_, count)| *count > 0)
                .for_each(|(outcome, count)| self.count(kind, outcome, count));
        }
        self.add_duplicates(&tally.found, now_ms);
        if let Some(why) = &tally.why_missing {
            self.warnings.missing.explain(why);
        }
        self.batch_bytes = self.batch_bytes.max(tally.bytes.raw);
        self.metrics.bytes(TopicLabel::Raw).inc_by(tally.bytes.raw);
        self.metrics.bytes(TopicLabel::Clean).inc_by(tally.bytes.clean);
        self.metrics.bytes(TopicLabel::State).inc_by(tally.bytes.state);
        self.metrics.parts.transactions.batch_records.observe(tally.records as f64);
        self.metrics.transaction(TransactionResult::Committed, took);
        self.metrics.parts.transactions.last_commit.set(now_ms as f64 / 1e3);
        // Local to this call: each record of a large transaction would otherwise synchronise with the other workers.
        let (latency, age) = (self.metrics.parts.flow.latency.local(), self.metrics.parts.flow.age.local());
        for RecordTimes { fetched, timestamp_ms } in &tally.times {
            latency.observe(now.saturating_sub(*fetched).as_secs_f64());
            let age_ms = timestamp_ms.map(|ms| u64::try_from(now_ms.saturating_sub(ms)).unwrap_or(0));
            if let Some(ms) = age_ms {
                age.observe(Duration::from_millis(ms).as_secs_f64());
            }
        }
        latency.flush();
        age.flush();
    }

    fn add_duplicates(&mut self, found: &FoundOwners, now_ms: i64) {
        let state = &self.metrics.parts.state;
        state.elsewhere.inc_by(found.elsewhere);
        state.not_compared.inc_by(found.not_compared);
        let ages = state.duplicate_age.local();
        found.ages.iter().for_each(|age| ages.observe(age.as_secs_f64()));
        ages.flush();
        if let Some(example) = found.conflict {
            self.warnings.conflicts.explain(example);
        }
        self.duplicates.add(found, now_ms);
    }

    fn count(&mut self, kind: usize, outcome: Outcome, count: u64) {
        self.last_minute.records += count;
        if outcome.is_duplicate() {
            self.last_minute.duplicates += count;
        }
        if outcome.is_missing_id() {
            self.last_minute.missing_ids += count;
        }
        self.warnings.missing.add(outcome, count);
        self.warnings.conflicts.add(outcome, count);
        self.metrics.records(outcome).inc_by(count);
        let Some(kind) = self.kinds.get(kind) else { return };
        // What was probably seen before is no new record, but for the few that this estimates.
        if outcome == Outcome::Forwarded {
            self.metrics.parts.state.false_drops.add(count as f64 * kind.false_positive_rate);
        }
        if !kind.name.is_empty() {
            self.metrics.kind_records(&kind.name, outcome).inc_by(count);
        }
    }

    pub(crate) fn rebalanced(&self, event: &GroupEvent) {
        self.metrics.rebalances().inc();
        let listed = |partitions: &[PartitionId]| ranges(partitions.iter().copied());
        match event {
            GroupEvent::Assigned(it) => tracing::info!(partitions = %listed(it), "partitions assigned"),
            GroupEvent::Revoked(it) => tracing::info!(partitions = %listed(it), "partitions revoked"),
            GroupEvent::Lost(it) => tracing::warn!(
                partitions = %listed(it),
                "partitions lost: the group removed this member; the open transaction is not committed"
            ),
        }
    }

    /// A call to the broker succeeded.
    pub(crate) fn reachable(&mut self) {
        if self.reachability.succeeded() {
            self.published.at = None;
        }
    }

    /// Sets the note about schemas that the registry does not have.
    pub(crate) fn unregistered(&mut self, note: Option<String>) {
        self.warnings.schemas = note;
    }

    /// Logs a failure and sets the reason for not being ready.
    pub(crate) fn failed(&mut self, failed: &Failure, now: Duration) {
        if self.reachability.failed(failed, now) {
            self.published.at = None;
        }
    }

    /// Publishes the status when it is due.
    pub(crate) fn publish(
        &mut self,
        shown: Shown<'_>,
        now: Duration,
        figures: impl FnOnce() -> Figures,
        end: impl Fn(PartitionId) -> Option<Offset>,
        window: impl Fn(&Window) -> WindowStatus,
    ) {
        if !is_due(&mut self.published.at, now, PUBLISH_INTERVAL) {
            return;
        }
        let Shown { partitions, journals, transaction, options } = shown;
        self.warnings.standing.repeat(now);
        let partitions: Vec<_> =
            partitions.iter().map(|it| status(it, &shown, end(it.id), &window)).collect();
        self.log_summary(&partitions, transaction, now);
        let missing = self.warnings.missing.note(now, FORWARDED);
        if let Some((note, true)) = &missing {
            tracing::warn!(worker = self.published.worker, "{note}");
        }
        let conflicts = self.warnings.conflicts.note(
            now,
            &options.raw,
            options.mode,
            options.on_conflict,
            options.is_compare_set,
        );
        if let Some(note) = conflicts.as_ref().filter(|note| note.is_logged) {
            tracing::warn!(worker = self.published.worker, "{}", note.text);
        }
        let Figures { sealed, expiry_lag: (expiry_lag, lag_note) } = figures();
        // The first limited window represents all: they share the same limits.
        let limits = journals.windows().find_map(|(.., it)| window(it).limit);
        let notes = self
            .warnings
            .standing
            .text
            .map(str::to_owned)
            .into_iter()
            .chain(limits)
            .chain(lag_note)
            .chain(missing.map(|(note, _)| note))
            .chain(conflicts.filter(|note| note.is_shown).map(|note| note.text))
            .chain(self.warnings.schemas.clone())
            .collect();
        for (kind, rate) in self.kinds.iter_mut().zip(&sealed.rates) {
            kind.false_positive_rate = *rate;
        }
        self.published.status.publish(
            self.published.worker,
            WorkerStatus {
                not_ready: self.reachability.not_ready(),
                notes,
                reduced_records: transaction.limit().reduced().map(|limit| limit.records as u64),
                index_bytes: journals.windows().map(|(.., it)| it.memory_bytes() as u64).sum(),
                slices_bytes: sealed.bytes,
                expiry_lag_seconds: expiry_lag.as_secs_f64(),
                false_positive_rate: sealed.rates.iter().copied().fold(0.0, f64::max),
                batch_bytes: std::mem::take(&mut self.batch_bytes).max(transaction.size.bytes as u64),
                kinds: kinds(journals, self.kinds.iter().map(|kind| kind.name.as_str())),
                duplicates: self.duplicates.status(&options.counted_by),
                partitions,
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latency_and_the_age_of_a_record_are_observed_at_its_commit() {
        let metrics = Metrics::new();
        let mut report = WorkerReport::new(metrics.clone(), Arc::default(), 0);
        let mut tally = Tally::default();
        tally.forwarded(10, Duration::from_secs(1), Some(3_000));
        tally.forwarded(10, Duration::from_secs(1), None);
        report.committed(&tally, Duration::ZERO, Duration::from_millis(1_030), 10_000);
        let page = metrics.render();
        for line in [
            "dedupd_latency_seconds_count 2",
            "dedupd_latency_seconds_bucket{le=\"0.05\"} 2",
            "dedupd_record_age_seconds_count 1",
            "dedupd_record_age_seconds_bucket{le=\"5\"} 0",
            "dedupd_record_age_seconds_bucket{le=\"15\"} 1",
        ] {
            assert!(page.lines().any(|shown| shown == line), "{line} is missing in\n{page}");
        }
    }
}
