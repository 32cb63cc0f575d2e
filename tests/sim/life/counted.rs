//! What the metrics count while commits fail in every way, and the process never ends.

use super::*;
use dedupd::metrics::Outcome as RecordOutcome;

/// Faults that end a transaction, or leave its outcome open. With the last one, a repair follows.
pub const COMMIT_FAULTS: [Fault; 6] =
    [Fault::Unknown, Fault::LateCommit, Fault::Abort, Fault::Retry, Fault::LateMarker, Fault::TornState];
const STEPS: usize = 400;
/// Longer than a commit without faults takes.
const INTERVAL: Duration = Duration::from_millis(200);

/// What happened, and what was counted.
#[derive(Debug, PartialEq, Eq)]
pub struct Counted {
    /// Raw records.
    pub raw: u64,
    /// Records counted, with any outcome.
    pub records: u64,
    /// Transactions that the broker committed. A repair is one that is not counted.
    pub commits: u64,
    /// Transactions counted: committed, aborted, unknown.
    pub transactions: [u64; 3],
    /// Number of durations observed.
    pub durations: u64,
    /// Their sum, in ms.
    pub duration_ms: u64,
    /// How long transactions were open from the producer's point of view, in ms.
    pub open_ms: u64,
}

/// Processes records with one worker, to which only these faults happen. Its transactions have one record, or are open for some
/// time.
pub fn count(seed: u64, faults: &[Fault], are_long: bool) -> (Counted, Vec<String>) {
    let setting = Setting::sound();
    let choices = |chance: &mut Chance| {
        let mut choices = Choices::plain(chance);
        if are_long {
            (choices.interval, choices.max_records) = (INTERVAL, 63);
        }
        choices
    };
    let mut life = Life::quiet(&setting, 3, choices);
    life.universe.cluster.borrow_mut().chance = Chance::with_only(seed, faults);
    for _ in 0..STEPS {
        life.produce();
        let mut cluster = life.universe.cluster.borrow_mut();
        let Cluster { now, group, chance, .. } = &mut *cluster;
        group.balance(*now, &mut chance.rng);
        drop(cluster);
        life.start(0);
        assert!(life.universe.iterate(0), "the worker has ended");
    }
    let calmed = life.calm();
    let cluster = life.universe.cluster.borrow();
    let commits = cluster.commits(&writer(0));
    let raw = cluster.raw.iter().map(|log| log.history.len() as u64).sum();
    let open_ms = cluster.open_time.as_millis() as u64;
    drop(cluster);
    let page = setting.metrics.render();
    let value =
        |name: &str| page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
    let results = ["committed", "aborted", "unknown"];
    let of_result =
        |result| value(&format!("dedupd_transactions_total{{result=\"{result}\"}}")).unwrap() as u64;
    let counted = Counted {
        raw,
        records: RecordOutcome::ALL.iter().map(|outcome| setting.metrics.records(*outcome).get()).sum(),
        commits,
        transactions: results.map(of_result),
        durations: value("dedupd_transaction_seconds_count").unwrap() as u64,
        duration_ms: (value("dedupd_transaction_seconds_sum").unwrap() * 1_000.0).round() as u64,
        open_ms,
    };
    (counted, life.end(calmed).violations)
}
