//! The random source of a history: how often each fault happens, and whether it happens now.

use std::collections::BTreeMap;

use dedupd::ports::{Failure, Remedy};
use fastrand::Rng;

/// How often each kind of fault happened.
pub type Counts = BTreeMap<&'static str, u64>;

/// Makes the numbers for markers differ from all others of a seed.
const MARKERS: u64 = 0x6d61_726b_6572_7321;

/// All kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process ends inside a port call.
    Crash,
    /// A call fails and can be retried.
    Retry,
    /// A call fails and the transaction must be aborted.
    Abort,
    /// The outcome of a call is unknown.
    Unknown,
    /// A commit request arrives late, after the worker has stopped waiting for the answer.
    LateCommit,
    /// Another worker runs for a while during a call.
    Meanwhile,
    /// An offset is delivered twice.
    Redelivery,
    /// Records fetched before a seek are delivered after it.
    StaleAbove,
    /// A poll returns nothing although a record is available.
    EmptyPoll,
    /// Raw records at or beyond the committed offset are compacted away.
    Compaction,
    /// While no worker runs, the raw log at or beyond the committed offset is replaced by other records.
    Rewrite,
    /// While no worker runs, the raw log loses processed records, and others take their offsets.
    Truncated,
    /// While no worker runs, raw records that were not processed are deleted.
    UnreadDeleted,
    /// The group loses its offsets.
    OffsetsLost,
    /// A partition is revoked in an orderly rebalance.
    Rebalance,
    /// The group removes a member without revoking its partitions first.
    Kick,
    /// A member is fenced by another one with the same group instance id.
    Replaced,
    /// The local store is empty after a restart.
    StoreCleared,
    /// The local store is an older copy after a restart.
    StoreOld,
    /// A copy of the store is kept for a later restart.
    Snapshot,
    /// A worker stops in an orderly way.
    Leave,
    /// No worker runs for longer than the transaction timeout.
    Downtime,
    /// A record has no timestamp, or an impossible one.
    StrangeTime,
    /// A record has no id.
    MissingId,
    /// The broker rejects a record.
    Rejected,
    /// A marker is not written to a clean partition.
    TornClean,
    /// A marker is not written to a state partition.
    TornState,
    /// A marker is not written to a side partition.
    TornSide,
    /// A marker is not written to the group's offsets.
    TornOffsets,
    /// Markers are written a little after the transaction was decided.
    LateMarker,
    /// The end of a log is reported before it.
    EarlyEnd,
    /// The time of a read of a side topic ends before its range does.
    SlowRead,
    /// After a restart the store lacks the last writes that were not synced.
    WritesLost,
    /// A stored run is damaged.
    BitRot,
    /// Old records of the clean topic are deleted.
    CleanDeleted,
    /// Compaction removes a record of the clean topic.
    CleanCompacted,
    /// Old records of the state topic are deleted.
    StateDeleted,
    /// Processed records of the raw topic are deleted.
    RawDeleted,
    /// A partition is added to the topics.
    Growth,
    /// A process starts with another configuration.
    Reconfigured,
    /// A process starts with another identity rule.
    RuleChanged,
    /// A process finds a raw topic with another id.
    Recreated,
    /// The clock of a machine is set to a wrong or to the right time.
    ClockStep,
    /// A batch of the raw log is damaged, or a response that contains it.
    Damaged,
    /// A producer of raw has ended a transaction: its marker follows the records.
    Marker,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 45] = [
        Self::Crash,
        Self::Retry,
        Self::Abort,
        Self::Unknown,
        Self::LateCommit,
        Self::Meanwhile,
        Self::Redelivery,
        Self::StaleAbove,
        Self::EmptyPoll,
        Self::Compaction,
        Self::Rewrite,
        Self::Truncated,
        Self::UnreadDeleted,
        Self::OffsetsLost,
        Self::Rebalance,
        Self::Kick,
        Self::Replaced,
        Self::StoreCleared,
        Self::StoreOld,
        Self::Snapshot,
        Self::Leave,
        Self::Downtime,
        Self::StrangeTime,
        Self::MissingId,
        Self::Rejected,
        Self::TornClean,
        Self::TornState,
        Self::TornSide,
        Self::TornOffsets,
        Self::LateMarker,
        Self::EarlyEnd,
        Self::SlowRead,
        Self::WritesLost,
        Self::BitRot,
        Self::CleanDeleted,
        Self::CleanCompacted,
        Self::StateDeleted,
        Self::RawDeleted,
        Self::Growth,
        Self::Reconfigured,
        Self::RuleChanged,
        Self::Recreated,
        Self::ClockStep,
        Self::Damaged,
        Self::Marker,
    ];

    /// The name, as printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Crash => "crash",
            Self::Retry => "retry",
            Self::Abort => "abort",
            Self::Unknown => "unknown result",
            Self::LateCommit => "late commit",
            Self::Meanwhile => "other worker meanwhile",
            Self::Redelivery => "redelivery",
            Self::StaleAbove => "record from before a seek",
            Self::EmptyPoll => "empty poll",
            Self::Compaction => "compaction",
            Self::Rewrite => "raw log rewritten",
            Self::Truncated => "raw log truncated",
            Self::UnreadDeleted => "unread raw records deleted",
            Self::OffsetsLost => "group offsets lost",
            Self::Rebalance => "rebalance",
            Self::Kick => "member removed",
            Self::Replaced => "member replaced",
            Self::StoreCleared => "store cleared",
            Self::StoreOld => "store replaced by an older one",
            Self::Snapshot => "store snapshot",
            Self::Leave => "orderly stop",
            Self::Downtime => "long downtime",
            Self::StrangeTime => "strange timestamp",
            Self::MissingId => "missing id",
            Self::Rejected => "rejected record",
            Self::TornClean => "marker missing in clean",
            Self::TornState => "marker missing in state",
            Self::TornSide => "marker missing in a side topic",
            Self::TornOffsets => "marker missing in the offsets",
            Self::LateMarker => "late marker",
            Self::SlowRead => "slow read of a side topic",
            Self::EarlyEnd => "early end of a log",
            Self::WritesLost => "unsynced writes lost",
            Self::BitRot => "bit rot in the store",
            Self::CleanDeleted => "clean records deleted",
            Self::CleanCompacted => "clean record compacted",
            Self::StateDeleted => "state records deleted",
            Self::RawDeleted => "raw records deleted",
            Self::Growth => "partition added",
            Self::Reconfigured => "configuration changed",
            Self::RuleChanged => "identity rule changed",
            Self::Recreated => "raw topic with another id",
            Self::ClockStep => "clock step",
            Self::Damaged => "raw batch damaged",
            Self::Marker => "marker in raw",
        }
    }

    /// The probability where the fault is possible, before the factor of the seed.
    fn rate(self) -> f64 {
        match self {
            Self::Crash | Self::Abort | Self::Unknown => 1.0 / 500.0,
            Self::Retry | Self::Meanwhile => 1.0 / 150.0,
            Self::Replaced => 1.0 / 2000.0,
            Self::LateCommit => 0.5,
            Self::Redelivery | Self::EmptyPoll => 1.0 / 30.0,
            Self::Compaction | Self::Rebalance | Self::RawDeleted | Self::CleanDeleted => 0.04,
            Self::CleanCompacted => 0.1,
            Self::Kick => 0.02,
            Self::Rewrite | Self::OffsetsLost | Self::StoreCleared | Self::Truncated => 0.1,
            Self::UnreadDeleted => 0.05,
            Self::StoreOld | Self::Downtime | Self::StaleAbove => 0.2,
            Self::Snapshot => 0.05,
            Self::Leave | Self::StateDeleted => 0.01,
            Self::Growth => 0.003,
            Self::Reconfigured => 0.3,
            Self::RuleChanged | Self::Recreated => 0.05,
            Self::ClockStep => 0.02,
            Self::StrangeTime => 0.1,
            Self::MissingId => 0.05,
            Self::Rejected => 0.01,
            Self::TornClean | Self::TornState | Self::TornOffsets => 0.01,
            Self::TornSide => 0.04,
            Self::LateMarker => 0.1,
            Self::EarlyEnd | Self::SlowRead => 0.01,
            Self::WritesLost => 0.2,
            Self::BitRot => 0.004,
            Self::Damaged => 0.02,
            Self::Marker => 0.1,
        }
    }
}

/// Which failures a call can return, and whether its effect may have happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposure {
    /// Any failure, but only instead of the effect.
    Before,
    /// Any failure, with or without the effect.
    Around,
    /// Only a crash, before the effect or right after it.
    Crash,
    /// Any failure except one that requires an abort.
    Ending,
}

/// The random source of one history.
pub struct Chance {
    /// The generator of all random numbers.
    pub rng: Rng,
    /// The generator of the numbers for damaged batches: histories without them do not depend on it.
    damage: Rng,
    /// The same for markers.
    markers: Rng,
    factors: [f64; Fault::ALL.len()],
    counts: Counts,
    quiet: bool,
}

impl Chance {
    /// Draws a factor for each kind of fault, so that some histories have many faults of one kind and
    /// none of another.
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut damage = Rng::with_seed(!seed);
        let mut markers = Rng::with_seed(seed ^ MARKERS);
        let factors = std::array::from_fn(|fault| {
            let rng = match Fault::ALL[fault] {
                Fault::Damaged => &mut damage,
                Fault::Marker => &mut markers,
                _ => &mut rng,
            };
            [0.0, 0.3, 1.0, 3.0][rng.usize(0..4)]
        });
        Self { rng, damage, markers, factors, counts: Counts::new(), quiet: false }
    }

    /// Only these faults happen, all of them often.
    pub fn with_only(seed: u64, faults: &[Fault]) -> Self {
        Self::with_factor(seed, faults, 5.0)
    }

    /// Only these faults happen, at their usual rates multiplied by `factor`.
    pub fn with_factor(seed: u64, faults: &[Fault], factor: f64) -> Self {
        let factors = std::array::from_fn(|at| if faults.contains(&Fault::ALL[at]) { factor } else { 0.0 });
        Self { factors, ..Self::new(seed) }
    }

    /// Disables faults from now on.
    pub fn quiet(&mut self) {
        self.quiet = true;
    }

    /// Whether faults are disabled.
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Whether this happens now.
    pub fn hit(&mut self, fault: Fault) -> bool {
        let rng = match fault {
            Fault::Damaged => &mut self.damage,
            Fault::Marker => &mut self.markers,
            _ => &mut self.rng,
        };
        if self.quiet || rng.f64() >= fault.rate() * self.factors[fault as usize] {
            return false;
        }
        self.count(fault);
        true
    }

    /// Counts one occurrence.
    pub fn count(&mut self, fault: Fault) {
        *self.counts.entry(fault.name()).or_default() += 1;
    }

    /// Whether a batch is damaged in the log, or only in this response.
    pub fn is_lasting(&mut self) -> bool {
        self.damage.bool()
    }

    /// A number below `end` that histories without markers do not depend on.
    pub fn of_markers(&mut self, end: usize) -> usize {
        self.markers.usize(0..end)
    }

    /// Returns true or false with equal probability.
    pub fn coin(&mut self) -> bool {
        self.rng.bool()
    }

    /// The occurrences so far.
    pub fn counts(&self) -> Counts {
        self.counts.clone()
    }

    /// Draws the failure of a call, if any.
    pub fn failure(&mut self, exposure: Exposure) -> Option<Fault> {
        let faults: &[Fault] = match exposure {
            Exposure::Before | Exposure::Around => {
                &[Fault::Crash, Fault::Retry, Fault::Abort, Fault::Unknown]
            }
            Exposure::Ending => &[Fault::Crash, Fault::Retry, Fault::Unknown],
            Exposure::Crash => &[Fault::Crash],
        };
        faults.iter().copied().find(|fault| self.hit(*fault))
    }
}

/// The failure that a call returns for a fault.
pub fn injected(fault: Fault) -> Failure {
    let remedy = match fault {
        Fault::Crash => Remedy::Stop,
        Fault::Abort => Remedy::Abort,
        Fault::Unknown => Remedy::Renew,
        _ => Remedy::Retry,
    };
    failed(remedy, &format!("injected: {}", fault.name()))
}

/// A failure with this remedy and text.
pub fn failed(remedy: Remedy, what: &str) -> Failure {
    Failure::new(remedy, what.to_owned())
}
