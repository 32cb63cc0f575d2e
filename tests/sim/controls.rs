//! The deliberate defects, and what the audit must report for each.

use dedupd::pipeline::Safeguard;

use crate::sim::universe::Sabotage;

/// Each sabotage, and the prefix of a violation that the audit must report. Each runs until the first such violation.
pub const CONTROLS: [(Sabotage, &str); 31] = [
    (Sabotage::StoreAhead, "lost"),
    (Sabotage::FalseCommit, "lost"),
    // The restore never reaches the entry that was committed last.
    (Sabotage::BlockHidden, "worker"),
    (Sabotage::EarlyEndAccepted, "lost"),
    (Sabotage::EarlyEndAccepted, "duplicated"),
    (Sabotage::DigestOfAnother, "a conflict is invented"),
    (Sabotage::DigestOfAnother, "a conflict is missed"),
    (Sabotage::SliceLosesDigests, "a conflict is missed"),
    (Sabotage::RepairLosesDigests, "a conflict is missed"),
    (Sabotage::SliceMisses, "duplicated"),
    (Sabotage::SliceCutShort, "duplicated"),
    (Sabotage::SliceKeepsForgotten, "forgotten and not forwarded again"),
    (Sabotage::FilterMisses, "duplicated"),
    (Sabotage::FilterKeepsForgotten, "forgotten and not forwarded again"),
    (Sabotage::ForgetIgnored, "forgotten and not forwarded again"),
    (Sabotage::CompactedIsAborted, "duplicated"),
    (Sabotage::Without(Safeguard::Markers), "duplicated"),
    (Sabotage::Without(Safeguard::Markers), "lost"),
    // The missing record belongs to a side topic.
    (Sabotage::Without(Safeguard::Markers), "in no topic"),
    (Sabotage::Without(Safeguard::Agreement), "lost"),
    (Sabotage::Without(Safeguard::WholeTransactions), "lost"),
    (Sabotage::Without(Safeguard::Gaps), "lost"),
    (Sabotage::Without(Safeguard::Postponed), "lost"),
    (Sabotage::Without(Safeguard::Repeats), "out of order"),
    (Sabotage::Without(Safeguard::Renewal), "a producer is used after an unknown result"),
    (Sabotage::Without(Safeguard::Undo), "worker"),
    (Sabotage::Without(Safeguard::LastEntries), "duplicated"),
    (Sabotage::Without(Safeguard::RestoreEnd), "duplicated"),
    (Sabotage::Without(Safeguard::Claims), "lost"),
    (Sabotage::StandbyHeadAhead, "duplicated"),
    (Sabotage::Without(Safeguard::EmptyEnds), "lost"),
];

/// The same in topic scope.
pub const TOPIC_CONTROLS: [(Sabotage, &str); 14] = [
    (Sabotage::Without(Safeguard::NewestCheckpoint), "lost"),
    (Sabotage::Without(Safeguard::WholeRepairs), "lost"),
    (Sabotage::DigestOfAnother, "a conflict is invented"),
    (Sabotage::SliceLosesDigests, "a conflict is missed"),
    (Sabotage::RepairLosesDigests, "a conflict is missed"),
    (Sabotage::SliceMisses, "duplicated"),
    (Sabotage::Without(Safeguard::AllPartitions), "lost"),
    (Sabotage::Without(Safeguard::Undo), "worker"),
    (Sabotage::Without(Safeguard::Markers), "lost"),
    (Sabotage::Without(Safeguard::Claims), "lost"),
    (Sabotage::FalseCommit, "lost"),
    (Sabotage::StandbyHeadAhead, "duplicated"),
    (Sabotage::StandbyReadsUncommitted, "lost"),
    (Sabotage::Without(Safeguard::EmptyEnds), "lost"),
];

/// Sabotages that few histories depend on: two reads of the evidence that end early in the same way, an id that is forgotten when its slice has become a filter, and a torn transaction of several
/// blocks without a checkpoint.
pub const RARE: [Sabotage; 3] = [
    Sabotage::EarlyEndAccepted,
    Sabotage::FilterKeepsForgotten,
    Sabotage::Without(Safeguard::WholeTransactions),
];
