//! Looks up an id in the state of a stopped instance, and determines whether its windows still count it.

use std::time::Duration;

use indicatif::ProgressBar;
use serde::Serialize;

use super::error::StateError;
use super::find::{Found, Places, find};
use crate::dedupe::{Identity, JournalId, Offset, PartitionId, RecordTime, WindowId};
use crate::ports::Store;
use crate::store::Copied;

/// How the window treats a stored id: the verdict on a record with it that arrives at the time of the window's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Duplicate: its owner is stored.
    Exact,
    /// New: the id is older than the window, but not deleted yet.
    Expired,
    /// Unknown: the id is of a transaction that is not known to be committed, and the next start decides by the group's committed offsets.
    Unconfirmed,
}

/// The length of the windows of each kind.
#[derive(Debug, Clone)]
pub struct Lengths {
    unnamed: Duration,
    named: Vec<(String, Duration)>,
}

impl Lengths {
    /// Lengths for the records of no named kind, and for each kind with a window of its own.
    #[must_use]
    pub fn new(unnamed: Duration, named: Vec<(String, Duration)>) -> Self {
        Self { unnamed, named }
    }

    /// The length in milliseconds. An unknown kind has that of the records of no named kind.
    fn ms(&self, kind: Option<&str>) -> i64 {
        let named = self.named.iter().find(|(name, _)| Some(name.as_str()) == kind);
        i64::try_from(named.map_or(self.unnamed, |(_, length)| *length).as_millis()).unwrap_or(i64::MAX)
    }
}

/// Result of looking up an id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LookupResult {
    /// The identity of the id: 16 bytes in hex.
    pub identity: String,
    /// Its owners. Empty if none is stored.
    pub found: Vec<FoundOwner>,
    /// Filters without owners that contain the id. A record with it would count as probably seen.
    pub in_filters: Vec<FoundFilter>,
}

/// One stored owner of an id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FoundOwner {
    /// Partition of the raw topic.
    pub partition: PartitionId,
    /// Offset in the raw topic.
    pub offset: Offset,
    /// The kind of its record, if it has a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The stream time of its partition at its arrival, epoch milliseconds; 0 if unknown.
    pub time_ms: i64,
    /// Whether the window still counts it.
    pub standing: Standing,
}

/// A filter without owners that contains an id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FoundFilter {
    /// The journal of its window.
    pub journal: JournalId,
    /// The kind of its window, if it has a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The earliest and the latest stream time of its owners, epoch milliseconds.
    pub time_ms: (i64, i64),
}

impl LookupResult {
    /// Looks up an identity, among the owners of one partition or of all. `bar` counts windows.
    pub fn of(
        identity: Identity,
        state: &Copied,
        only: Option<PartitionId>,
        lengths: &Lengths,
        bar: &ProgressBar,
    ) -> Result<Self, StateError> {
        let mut result = Self { identity: identity.to_string(), found: Vec::new(), in_filters: Vec::new() };
        let mut windows = state.binding.windows();
        // In topic scope, one journal has the owners of all partitions.
        windows.retain(|(_, window)| {
            state.binding.topic_scope || only.is_none_or(|only| only == window.journal())
        });
        bar.set_length(windows.len() as u64);
        for (kind, window) in windows {
            result.search(identity, state, kind, window, lengths.ms(kind))?;
            bar.inc(1);
        }
        result.found.retain(|found| only.is_none_or(|only| only == found.partition));
        Ok(result)
    }

    fn search(
        &mut self,
        identity: Identity,
        state: &Copied,
        kind: Option<&str>,
        window: WindowId,
        length_ms: i64,
    ) -> Result<(), StateError> {
        let (store, journal) = (&state.store, window.journal());
        let Some(head) = store.head(journal.into())? else { return Ok(()) };
        let missing_ms = store.missing_ms(window)?;
        let now = RecordTime { own_ms: head.time_ms, stream_ms: head.time_ms };
        let standing = |found: &Found| {
            let is_dropped = found.arrived_ms.is_some_and(|ms| missing_ms > 0 && ms <= missing_ms);
            match (found.is_confirmed, now.is_near(found.time_ms..=found.time_ms, length_ms)) {
                (false, _) => Standing::Unconfirmed,
                (true, true) if !is_dropped => Standing::Exact,
                (true, _) => Standing::Expired,
            }
        };
        let kind = || kind.map(str::to_owned);
        let Places { owners, filters } = find(store, window, identity, head.confirmed_entry)?;
        self.found.extend(owners.iter().map(|found| FoundOwner {
            partition: found.at.partition,
            offset: found.at.offset,
            kind: kind(),
            time_ms: found.time_ms,
            standing: standing(found),
        }));
        let counting = filters.into_iter().find(|(first, last)| now.is_near(*first..=*last, length_ms));
        self.in_filters.extend(counting.map(|time_ms| FoundFilter { journal, kind: kind(), time_ms }));
        Ok(())
    }

    /// Whether an owner is stored anywhere.
    #[must_use]
    pub fn is_found(&self) -> bool {
        !self.found.is_empty()
    }
}
