//! Inspects the state of a stopped instance.

use indicatif::ProgressBar;
use serde::Serialize;

use super::error::StateError;
use super::spelling::utc;
use super::whole::{StoredSummary, summarise};
use crate::dedupe::{JournalId, Offset, PartitionId, WindowId};
use crate::ports::{FilterSummary, Store, StoreError};
use crate::store::{Binding, Copied, OWNER_BYTES};

/// Report of a whole state.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inspection {
    /// Path of the database.
    pub database: String,
    /// Bytes that its files use.
    pub disk_bytes: u64,
    /// What the state belongs to.
    pub binding: Binding,
    /// Number of identities in all windows.
    pub ids: u64,
    /// The partitions that have state.
    pub partitions: Vec<PartitionReport>,
    /// The windows that have state.
    pub windows: Vec<WindowReport>,
}

/// How far the state of a partition of the raw topic reaches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartitionReport {
    /// Its number.
    pub partition: PartitionId,
    /// The raw offset up to which the state is known to be committed.
    pub next: Offset,
    /// Stream time there, epoch milliseconds; 0 if unknown.
    pub stream_time_ms: i64,
    /// Stream time in UTC.
    pub stream_time: String,
}

/// A window: that of a kind and a journal.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WindowReport {
    /// The partition of the state topic. In topic scope 0, for all partitions of the raw topic.
    pub journal: JournalId,
    /// The kind, if it has a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Offset in the journal from which a restore continues.
    pub state_next: Offset,
    /// The window's clock, epoch milliseconds: the latest stream time of its partitions; 0 if unknown.
    pub time_ms: i64,
    /// The same in UTC.
    pub time: String,
    /// Number of stored identities.
    pub ids: u64,
    /// Number of those that are in sealed slices.
    pub sealed_ids: u64,
    /// Number of identities that are not known to be committed. The next start decides whether they count.
    pub unconfirmed_ids: u64,
    /// Number of runs of owners that are not in slices.
    pub runs: u64,
    /// Bytes of these owners.
    pub bytes: u64,
    /// The filters without owners.
    pub filters: Vec<FilterReport>,
}

/// A filter without owners.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FilterReport {
    /// The earliest stream time of an owner, epoch milliseconds.
    pub start_ms: i64,
    /// The latest stream time of an owner, epoch milliseconds.
    pub end_ms: i64,
    /// The earliest stream time in UTC.
    pub start: String,
    /// The latest stream time in UTC.
    pub end: String,
    /// Number of identities.
    pub ids: u64,
    /// Size in memory.
    pub bytes: u64,
    /// The probability that an absent identity is found.
    pub false_positive_rate: f64,
}

/// A window that has state, and the name of its kind.
pub(super) struct Counted<'a> {
    pub kind: Option<&'a str>,
    pub id: WindowId,
    pub stored: StoredSummary,
}

/// Counts what each window has that has state. `bar` counts windows.
pub(super) fn counted<'a>(
    store: &impl Store,
    binding: &'a Binding,
    bar: &ProgressBar,
) -> Result<Vec<Counted<'a>>, StoreError> {
    let mut all = Vec::new();
    let windows = binding.windows();
    bar.set_length(windows.len() as u64);
    for (kind, id) in windows {
        // Without the head of the unnamed kind, the journal has no state.
        if let Some(of_all) = store.head(id.journal().into())? {
            let stored = summarise(store, id, of_all.confirmed_entry)?;
            all.extend(stored.map(|stored| Counted { kind, id, stored }));
        }
        bar.inc(1);
    }
    Ok(all)
}

/// Inspects all windows, one after the other. `bar` counts them.
pub fn inspect(state: &Copied, bar: &ProgressBar) -> Result<Inspection, StateError> {
    let windows = counted(&state.store, &state.binding, bar)?;
    let mut partitions: Vec<_> = windows
        .iter()
        .flat_map(|window| &window.stored.head.covered)
        .map(|(partition, covered)| PartitionReport {
            partition: *partition,
            next: covered.next,
            stream_time_ms: covered.time_ms,
            stream_time: utc(covered.time_ms),
        })
        .collect();
    partitions.sort_unstable_by_key(|report| report.partition);
    Ok(Inspection {
        database: state.database.display().to_string(),
        disk_bytes: state.disk_bytes,
        binding: state.binding.clone(),
        ids: windows.iter().map(|window| window.stored.ids()).sum(),
        partitions,
        windows: windows.iter().map(|window| report(state, window)).collect(),
    })
}

fn report(state: &Copied, Counted { kind, id, stored }: &Counted<'_>) -> WindowReport {
    WindowReport {
        journal: id.journal(),
        kind: kind.map(str::to_owned),
        state_next: stored.head.state_next,
        time_ms: stored.head.time_ms,
        time: utc(stored.head.time_ms),
        ids: stored.ids(),
        sealed_ids: stored.sealed_ids(),
        unconfirmed_ids: stored.unconfirmed_ids,
        runs: stored.runs,
        bytes: stored.unsealed_ids * OWNER_BYTES as u64,
        filters: state.store.filters(*id).iter().map(FilterReport::of).collect(),
    }
}

impl FilterReport {
    fn of(filter: &FilterSummary) -> Self {
        let (start_ms, end_ms) = filter.time_ms;
        Self {
            start_ms,
            end_ms,
            start: utc(start_ms),
            end: utc(end_ms),
            ids: filter.ids,
            bytes: filter.bytes,
            false_positive_rate: filter.false_positive_rate,
        }
    }
}
