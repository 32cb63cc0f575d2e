//! The rules that the exactly-once guarantee depends on, each with a name: a test disables one and checks that the guarantee
//! is then violated. Without the `failpoints` feature no rule can be disabled: `WorkerOptions::keeps` is the constant `true`.

use crate::pipeline::options::WorkerOptions;

/// A rule that a test can disable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Safeguard {
    /// The worker waits for missing markers and searches for leftovers (`torn`).
    Markers,
    /// After leftovers were aborted, the three logs are made to agree (`repair`).
    Agreement,
    /// The last transaction of a journal is decided only while no record is open in it and in the clean logs of its partitions (`torn`).
    OpenRecords,
    /// A transaction decides only when its entry is read from its first record on (`torn`).
    WholeTransactions,
    /// An entry of which records are missing is not applied, unless it is the first one that retention has left (`journal`).
    WholeEntries,
    /// A journal is read again when the numbers of its entries have a gap (`journal`).
    EntryNumbers,
    /// Of the checkpoints of a journal's partitions, the one with the last entry decides (`torn`).
    NewestCheckpoint,
    /// A repair is one transaction for all partitions of the entry (`repair`).
    WholeRepairs,
    /// A record beyond the expected offset is accepted only with proof (`order`).
    Gaps,
    /// Records that were polled and not processed, because the iteration took too long, are read again.
    Postponed,
    /// A record below the expected offset is skipped.
    Repeats,
    /// A position skips the end of a log only where another reader has found no record (`worker/skip.rs`).
    EmptyEnds,
    /// A producer whose last result is unknown is replaced.
    Renewal,
    /// Owners that an aborted transaction added to the windows are removed again.
    Undo,
    /// State in memory that a transaction has added to is dropped when the broker has undone that transaction (`repair`).
    UndoneState,
    /// Local state is compared with the last committed entry (`recovery`).
    LastEntries,
    /// The last entry read by a restore is compared with the last committed one (`complete`).
    RestoreEnd,
    /// Local owners of an entry that was not committed are claims and not owners.
    Claims,
    /// No record is processed before the worker has all partitions (`clock`).
    AllPartitions,
    /// Windows expire by the slowest partition with unread records (`clock`).
    SlowestClock,
    /// A partition whose clock is behind the others all the time holds back that of all windows by as much (`clock`).
    Lateness,
    /// A checkpoint has no lateness from before the last records of its partition (`clock`).
    KnownLateness,
    /// Windows expire by a clock that no repair sets back (`commit`).
    SettledClock,
    /// A standby copy deletes owners by a time that the group's checkpoints show to be settled, and not by the clock of their partition
    /// (`standby`).
    StandbyExpiry,
    /// In topic scope a worker that fails leaves the group (`worker`). The guarantee does not depend on it, but how soon another instance is active.
    Resignation,
}

impl WorkerOptions {
    /// Whether a rule is in force.
    #[cfg(feature = "failpoints")]
    pub(crate) fn keeps(&self, rule: Safeguard) -> bool {
        self.disabled != Some(rule)
    }

    /// Always true: the compiler removes the branches of disabled rules.
    #[cfg(not(feature = "failpoints"))]
    #[expect(clippy::unused_self, reason = "the callers are the same with and without the feature")]
    pub(crate) const fn keeps(&self, _rule: Safeguard) -> bool {
        true
    }

    /// Whether leftovers are searched for and the logs made to agree with what was committed.
    pub(crate) fn repairs(&self) -> bool {
        self.keeps(Safeguard::Markers) && self.keeps(Safeguard::Agreement)
    }
}
