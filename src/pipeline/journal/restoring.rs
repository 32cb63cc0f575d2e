//! The state of a restore from a journal.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::dedupe::{
    Coordinates, Entry, EntryName, Fingerprint, JournalId, KindId, LastEntry, Offset, PartitionId, Section,
    Windows,
};
use crate::metrics::RestoreSource;
use crate::pipeline::journal::forgetting::Forgetting;
use crate::pipeline::journal::local::Located;
use crate::pipeline::journal::read_progress::ReadProgress;
use crate::pipeline::journal::undoing::Undoing;
use crate::pipeline::journal::unwritten::Unwritten;
use crate::ports::{Covered, Head, LogBounds};

/// Why a journal is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReadPurpose {
    /// Its partitions start when it is read to the end.
    #[default]
    Start,
    /// A standby copy of the windows.
    Copy,
}

impl ReadPurpose {
    pub(super) fn source(self) -> RestoreSource {
        match self {
            Self::Start => RestoreSource::StateTopic,
            Self::Copy => RestoreSource::Standby,
        }
    }
}

/// A restore from a journal in progress.
///
/// Large because it holds all that one part leaves for the next, and all that decides at the end whether the windows are complete.
#[derive(Debug, Default)]
pub struct Restoring {
    /// The windows, complete up to the last entry read.
    pub windows: Windows,
    /// What the local store lacks of them.
    pub unwritten: Unwritten,
    /// The configured rule of each window.
    pub rules: Vec<(KindId, Fingerprint)>,
    /// How much was read.
    pub progress: ReadProgress,
    /// What the group has committed.
    pub(crate) located: Located,
    /// What was needed next when the journal ended last, before all of it was read.
    pub ended_at: Option<Offset>,
    /// Journal offset at which reading started.
    pub from: Offset,
    /// End of the journal when reading started.
    pub until: Offset,
    /// The next journal offset that is needed: the entries before it are applied.
    pub needed: Offset,
    /// First offset of the journal when reading started.
    pub low: Offset,
    /// The last entry that is in the windows.
    pub last: Option<LastEntry>,
    /// Stream time at the first section read that has one, epoch milliseconds.
    pub first_ms: Option<i64>,
    /// Where the last section of each partition ends.
    pub covered: BTreeMap<PartitionId, Covered>,
    /// Whether a partition that has no section so far can have owners: those of local state.
    pub has_uncovered: bool,
    /// Kinds whose windows start empty, because a change of their rule was accepted.
    pub reset_kinds: BTreeSet<KindId>,
    /// Kinds for which the group has another identity rule than this process, and the operator accepted the change:
    /// their owners are skipped.
    pub emptied: BTreeSet<KindId>,
    /// Number of identities skipped because their kind is no longer configured, by the kind's name.
    pub left_out: BTreeMap<String, u64>,
    /// Why the log is read.
    pub purpose: ReadPurpose,
    /// Monotonic time at which stored owners that have left the windows are deleted next.
    pub next_expiry: Duration,
    /// The forgotten identities whose owners are being searched in the stored ones. No entry behind them is read meanwhile.
    pub forgetting: Option<Forgetting>,
    /// What is being undone before an entry is added. That entry is read again once it is, and none behind it meanwhile.
    pub undoing: Option<Undoing>,
    /// The entry for which owners were undone last.
    pub undone: Option<EntryName>,
}

impl Restoring {
    /// Before the first entry: the journal is read from this offset up to the end in its bounds. `head` is that of local state in the windows. `now`
    /// is monotonic.
    pub(crate) fn new(
        purpose: ReadPurpose,
        windows: Windows,
        head: Head,
        from: Offset,
        log: &LogBounds,
        now: Duration,
    ) -> Self {
        Self {
            windows,
            progress: ReadProgress::start(now),
            from,
            until: log.stable,
            needed: from,
            low: log.low,
            last: head.confirmed_entry.map(|entry| LastEntry { entry, from: None }),
            has_uncovered: head.confirmed_entry.is_some() && head.covered.is_empty(),
            covered: head.covered,
            purpose,
            next_expiry: now,
            ..Self::default()
        }
    }

    /// Fraction of the log read so far, in 0..=1.
    pub fn share(&self) -> f64 {
        let total = self.until.saturating_sub(self.from).max(1);
        (self.needed.saturating_sub(self.from) as f64 / total as f64).min(1.0)
    }

    /// Number of the last entry that is in the windows; 0 if that is not known.
    pub(crate) fn applied(&self) -> u64 {
        self.last.map_or(0, |last| last.entry.number)
    }

    /// Notes an entry that was read.
    pub(super) fn note(&mut self, entry: &Entry) {
        self.last = Some(LastEntry { entry: entry.end.name(), from: Some(entry.begin) });
        self.needed = entry.at + 1;
        for section in &entry.end.sections {
            let covered = Covered { next: section.next, time_ms: section.time_last_ms };
            self.covered.insert(section.partition, covered);
            self.windows.restored_to(section.time_last_ms);
            // Of an entry that retention has cut, no owner is known. A repair can have undone a transaction at an unknown time (0): what is behind
            // that section shows where the window begins.
            let first_ms = if entry.is_whole { section.time_first_ms } else { section.time_last_ms };
            if first_ms > 0 {
                self.first_ms = Some(self.first_ms.unwrap_or(first_ms));
            }
        }
    }

    /// Whether the journal is not read meanwhile.
    pub fn is_paused(&self) -> bool {
        self.forgetting.is_some() || self.undoing.is_some()
    }

    /// Whether the first entry that is read is that of a log whose start retention has deleted, so that records of it may be missing.
    pub(super) fn may_be_cut(&self) -> bool {
        self.from <= self.low
    }

    /// Whether there may be owners of the section's partition at or beyond its first offset.
    pub(super) fn may_undo(&self, section: &Section) -> bool {
        self.covered
            .get(&section.partition)
            .map_or(self.has_uncovered, |covered| section.first < covered.next)
    }

    /// The head of the unnamed kind after the entry that was read last.
    pub(super) fn head(&self) -> Head {
        let last_entry = self.last.map(|last| last.entry);
        Head {
            confirmed: 0,
            state_next: self.needed,
            last_entry,
            confirmed_entry: last_entry,
            time_ms: self.windows.committed_ms(),
            incomplete_ms: self.windows.incomplete_before_ms().unwrap_or(0),
            covered: self.covered.clone(),
        }
    }

    /// The windows, once the journal is read up to `next`.
    pub(crate) fn completed(self, next: Offset) -> Completed {
        // Of an entry that retention has deleted, only the name is known.
        let named = self.located.last_entry.filter(|named| named.entry.number > self.applied());
        Completed {
            last_entry: named.or(self.last),
            is_cut: self.low > 0,
            windows: self.windows,
            located: self.located,
            covered: self.covered,
            next,
            reset_kinds: self.reset_kinds,
            ..Completed::default()
        }
    }

    pub(crate) fn log_left_out(&self, topic: &str) {
        for (kind, ids) in &self.left_out {
            tracing::warn!(
                "topic {topic} holds {ids} ids of the kind {kind:?}, which has no window in the configuration: \
                 they are ignored; to restore the ids of a renamed kind, configure its old name"
            );
        }
    }

    pub(crate) fn log_progress(&mut self, now: Duration, journal: JournalId) {
        let share = self.share();
        self.progress.log(now, journal, "restoring state from the state topic", share);
    }
}

/// Windows that are complete.
#[derive(Debug, Default)]
pub(crate) struct Completed {
    pub windows: Windows,
    /// What the group has committed.
    pub located: Located,
    /// The last committed entry.
    pub last_entry: Option<LastEntry>,
    /// Where the last section of each partition ends.
    pub covered: BTreeMap<PartitionId, Covered>,
    /// The journal was read up to this offset; 0 if it was not.
    pub next: Offset,
    /// Whether retention has deleted entries.
    pub is_cut: bool,
    /// Kinds whose windows start empty.
    pub reset_kinds: BTreeSet<KindId>,
    /// From where on owners have to be undone, because the group was rewound.
    pub rewound: Vec<Coordinates>,
}
