//! Metrics, status and log of a worker: metrics per committed transaction, status about twice per second, log
//! messages on changes.

mod published;

use std::sync::Arc;
use std::time::Duration;

use crate::dedupe::coordinates::ranges;
use crate::dedupe::{Bloom, Offset, PartitionId, Window};
use crate::metrics::{
    Latencies, Metrics, OffsetReset, Outcome, Resolution, RestoreSource, Stall, Status, TopicLabel,
    TransactionResult, WindowStatus, WorkerStatus,
};
use crate::pipeline::commit::transaction::Transaction;
use crate::pipeline::kinds::Kinds;
use crate::pipeline::partition::Partition;
use crate::pipeline::partition::partitions::Partitions;
use crate::pipeline::partition::state::DedupeState;
use crate::pipeline::partition_limit::PartitionLimit;
use crate::pipeline::report::published::{highest_rate, kinds, status};
use crate::ports::{Failure, GroupEvent, Remedy};

/// Interval between two publications of the status.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(500);
/// Retried failures are logged only after failing for this long: finding the group coordinator can take a second.
const RETRY_GRACE: Duration = Duration::from_secs(2);
/// Interval between two log messages about retried failures.
const RETRY_LOG_INTERVAL: Duration = Duration::from_secs(5);
/// Interval between two summaries in the log, and between two repetitions of the standing warning.
const SUMMARY_INTERVAL: Duration = Duration::from_mins(1);
/// In a large transaction, the latency of every n-th record is observed.
const SAMPLE: u64 = 16;

/// Counts of the open transaction; they become metrics when it has committed.
#[derive(Debug, Default)]
pub struct Tally {
    /// By kind; the first entry is the unnamed kind.
    outcomes: Vec<[u64; Outcome::ALL.len()]>,
    records: u64,
    raw_bytes: u64,
    clean_bytes: u64,
    state_bytes: u64,
    timestamps_ms: Vec<i64>,
}

impl Tally {
    /// Counts the outcome of one record of this kind.
    pub fn count(&mut self, kind: usize, outcome: Outcome) {
        if self.outcomes.len() <= kind {
            self.outcomes.resize(kind + 1, [0; Outcome::ALL.len()]);
        }
        if let Some(slot) = self.outcomes.get_mut(kind).and_then(|counts| counts.get_mut(outcome as usize)) {
            *slot += 1;
        }
    }

    /// Counts a record read, with `bytes` of key and value.
    pub fn seen(&mut self, bytes: usize, timestamp_ms: Option<i64>) {
        if (self.records < 1024 || self.records.is_multiple_of(SAMPLE))
            && let Some(timestamp_ms) = timestamp_ms
        {
            self.timestamps_ms.push(timestamp_ms);
        }
        self.records += 1;
        self.raw_bytes += bytes as u64;
    }

    /// Number of records read.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Counts a record written to the clean topic.
    pub fn forwarded(&mut self, bytes: usize) {
        self.clean_bytes += bytes as u64;
    }

    /// Counts a block written to the state topic.
    pub fn block(&mut self, bytes: usize) {
        self.state_bytes += bytes as u64;
    }
}

/// Metrics and status of one worker.
pub struct WorkerReport {
    metrics: Metrics,
    latencies: Latencies,
    status: Arc<Status>,
    worker: usize,
    not_ready: Option<String>,
    /// Monotonic time of the last logged failure.
    failure_logged: Option<Duration>,
    /// Monotonic time since which every call has failed.
    failing_since: Option<Duration>,
    /// A failure was logged, and its end was not logged yet.
    failure_open: bool,
    published: Option<Duration>,
    /// Bytes of the largest transaction committed since the status was last published: at low load no transaction is
    /// open at that moment.
    batch_bytes: u64,
    /// By kind, the false-positive rate of the filters as last published.
    false_positive_rates: Vec<f64>,
    /// The kinds' names.
    kinds: Vec<String>,
    /// The standing warning for the operator, and the monotonic time of its last log message.
    warning: Option<&'static str>,
    warning_logged: Option<Duration>,
    last_minute: LastMinute,
}

/// Counts committed since the last summary in the log.
#[derive(Debug, Default)]
struct LastMinute {
    since: Option<Duration>,
    records: u64,
    duplicates: u64,
}

impl WorkerReport {
    /// The report of worker number `worker`.
    #[must_use]
    pub fn new(metrics: Metrics, status: Arc<Status>, worker: usize) -> Self {
        let latencies = metrics.latencies();
        let not_ready = Some("connects to the broker".to_owned());
        Self {
            metrics,
            latencies,
            status,
            worker,
            not_ready,
            failure_logged: None,
            failing_since: None,
            failure_open: true,
            published: None,
            batch_bytes: 0,
            false_positive_rates: Vec::new(),
            kinds: Vec::new(),
            warning: None,
            warning_logged: None,
            last_minute: LastMinute::default(),
        }
    }

    /// Registers the names of the kinds. Their time series start at 0.
    pub(crate) fn register_kinds(&mut self, kinds: &Kinds) {
        self.kinds = kinds.iter().map(|kind| kind.name.clone()).collect();
        for name in self.kinds.iter().filter(|name| !name.is_empty()) {
            for outcome in Outcome::ALL {
                self.metrics.kind_records(name, *outcome);
            }
        }
    }

    /// Sets the standing warning: the status shows it, and the log repeats it once per minute.
    pub(crate) fn set_warning(&mut self, warning: Option<&'static str>) {
        self.warning = warning;
    }

    /// Logs one summary per minute: what was processed, and the lag.
    fn log_summary(
        &mut self,
        (partitions, transaction): (&Partitions, &Transaction),
        now: Duration,
        end: impl Fn(PartitionId) -> Option<Offset>,
    ) {
        let since = *self.last_minute.since.get_or_insert(now);
        if now.saturating_sub(since) < SUMMARY_INTERVAL {
            return;
        }
        let running = partitions.iter().filter_map(Partition::running);
        let lag = |state: &DedupeState| end(state.id).map_or(0, |end| end.saturating_sub(state.next));
        let (count, lag) = running.fold((0, 0), |(count, sum), it| (count + 1, sum + lag(&it.state)));
        let LastMinute { records, duplicates, .. } = self.last_minute;
        let (worker, partitions) = (self.worker, partitions.iter().count());
        tracing::info!(worker, records, duplicates, lag, running = count, partitions, "minute summary");
        if let Some(note) = transaction.note() {
            tracing::info!(worker, "{note}");
        }
        self.last_minute = LastMinute { since: Some(now), ..LastMinute::default() };
    }

    fn repeat_warning(&mut self, now: Duration) {
        let due = self.warning_logged.is_none_or(|last| now.saturating_sub(last) >= SUMMARY_INTERVAL);
        if let Some(warning) = self.warning.filter(|_| due) {
            tracing::warn!("{warning}");
            self.warning_logged = Some(now);
        }
    }

    /// Publishes the counts of a committed transaction, and the time from its first record to its end.
    pub(crate) fn committed(&mut self, tally: &Tally, took: Duration, now_ms: i64) {
        for (kind, counts) in tally.outcomes.iter().enumerate() {
            let counts = Outcome::ALL.iter().copied().zip(counts.iter().copied());
            counts
                .filter(|(_, count)| *count > 0)
                .for_each(|(outcome, count)| self.count(kind, outcome, count));
        }
        self.batch_bytes = self.batch_bytes.max(tally.raw_bytes);
        self.metrics.bytes(TopicLabel::Raw).inc_by(tally.raw_bytes);
        self.metrics.bytes(TopicLabel::Clean).inc_by(tally.clean_bytes);
        self.metrics.bytes(TopicLabel::State).inc_by(tally.state_bytes);
        self.metrics.batch_records().observe(tally.records as f64);
        self.metrics.transaction(TransactionResult::Committed, took);
        for timestamp_ms in &tally.timestamps_ms {
            let latency_ms = u64::try_from(now_ms.saturating_sub(*timestamp_ms)).unwrap_or(0);
            self.latencies.observe(Duration::from_millis(latency_ms));
        }
        self.latencies.flush();
    }

    fn count(&mut self, kind: usize, outcome: Outcome, count: u64) {
        self.last_minute.records += count;
        if matches!(outcome, Outcome::Duplicate | Outcome::Probable) {
            self.last_minute.duplicates += count;
        }
        if matches!(outcome, Outcome::Forwarded | Outcome::Probable) {
            let rate = self.false_positive_rates.get(kind).copied().unwrap_or(0.0);
            self.metrics.false_drops().add(count as f64 * rate);
        }
        self.metrics.records(outcome).inc_by(count);
        if let Some(name) = self.kinds.get(kind).filter(|name| !name.is_empty()) {
            self.metrics.kind_records(name, outcome).inc_by(count);
        }
    }

    pub(crate) fn evicted(&self, ids: u64) {
        self.metrics.evicted_ids().inc_by(ids);
    }

    /// Counts a transaction that is not known to be committed, and the time from its first record to its end.
    pub(crate) fn not_committed(&self, result: TransactionResult, took: Duration) {
        self.metrics.transaction(result, took);
    }

    pub(crate) fn torn(&self, resolution: Resolution) {
        self.metrics.torn_transactions(resolution).inc();
    }

    pub(crate) fn restored(&self, source: RestoreSource, ids: u64) {
        self.metrics.restored_ids(source).inc_by(ids);
    }

    pub(crate) fn offset_reset(&self, reset: OffsetReset) {
        self.metrics.offset_resets(reset).inc();
    }

    pub(crate) fn skipped(&self, offsets: u64) {
        self.metrics.gap_offsets().inc_by(offsets);
    }

    pub(crate) fn stalled(&self, stall: Stall) {
        self.metrics.stalled_fetches(stall).inc();
    }

    pub(crate) fn restore_took(&self, took: Duration) {
        self.metrics.restore_seconds().observe(took.as_secs_f64());
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
        self.failing_since = None;
        if self.not_ready.take().is_some() {
            self.published = None;
            if self.failure_open {
                tracing::info!("the broker is reachable");
                self.failure_open = false;
            }
        }
    }

    /// Logs a failure and sets the reason for not being ready. Retried failures are throttled in the log.
    pub(crate) fn failed(&mut self, failed: &Failure, now: Duration) {
        let since = *self.failing_since.get_or_insert(now);
        let within_grace = now.saturating_sub(since) < RETRY_GRACE;
        let recent = self.failure_logged.is_some_and(|last| now.saturating_sub(last) < RETRY_LOG_INTERVAL);
        let quiet = failed.remedy == Remedy::Retry && (within_grace || recent);
        if !quiet {
            tracing::warn!("{failed}");
            self.failure_logged = Some(now);
            self.failure_open = true;
        }
        // Only a retry of the same call waits for the broker; other remedies act first.
        let waits = if failed.remedy == Remedy::Retry { "waits for the broker: " } else { "" };
        let reason = format!("{waits}{failed}");
        if self.not_ready.as_ref() != Some(&reason) {
            self.not_ready = Some(reason);
            self.published = None;
        }
    }

    /// Publishes the status when it is due.
    pub(crate) fn publish(
        &mut self,
        (partitions, transaction, partition_limit): (&Partitions, &Transaction, &PartitionLimit),
        now: Duration,
        end: impl Fn(PartitionId) -> Option<Offset>,
        window: impl Fn(&Window) -> WindowStatus,
    ) {
        if self.published.is_some_and(|last| now.saturating_sub(last) < PUBLISH_INTERVAL) {
            return;
        }
        self.published = Some(now);
        self.repeat_warning(now);
        self.log_summary((partitions, transaction), now, &end);
        // The first limited window represents all: they share the same limits.
        let limits =
            partitions.kinds().find_map(|(id, _, it)| Some(format!("partition {id}: {}", window(it).limit?)));
        let notes =
            self.warning.map(str::to_owned).into_iter().chain(transaction.note()).chain(limits).collect();
        self.false_positive_rates =
            (0..self.kinds.len()).map(|kind| highest_rate(partitions, kind)).collect();
        self.status.publish(
            self.worker,
            WorkerStatus {
                not_ready: self.not_ready.clone(),
                notes,
                reduced_records: transaction.reduced().map(|limit| limit.records as u64),
                index_bytes: partitions.windows().map(|w| w.memory_bytes() as u64).sum(),
                bloom_bytes: partitions.windows().filter_map(Window::bloom).map(Bloom::memory_bytes).sum(),
                batch_bytes: std::mem::take(&mut self.batch_bytes).max(transaction.bytes() as u64),
                kinds: kinds(partitions, &self.kinds),
                partitions: partitions
                    .iter()
                    .map(|p| status(p, partition_limit, end(p.id), &window))
                    .collect(),
            },
        );
    }
}
