//! Inspects the state of a stopped instance and looks up ids in it.

use indicatif::ProgressBar;
use serde::Serialize;

use super::error::StateError;
use super::find::{Owned, StoredSummary, find, head_of, summarise};
use super::spelling::utc;
use super::standing::{Lengths, Standing, load, standing_of};
use crate::dedupe::{Identity, Offset, PartitionId, WindowId, WindowLimits};
use crate::ports::{FilterSummary, Store};
use crate::store::{Binding, Copied};

/// Report of a whole state.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inspection {
    /// Path of the database.
    pub database: String,
    /// Bytes that its files use.
    pub disk_bytes: u64,
    /// What the state belongs to.
    pub binding: Binding,
    /// Number of identities in all partitions.
    pub ids: u64,
    /// The partitions that have state.
    pub partitions: Vec<PartitionReport>,
}

/// The state of one partition, or of one kind in it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PartitionReport {
    /// Number of the partition in the raw topic.
    pub partition: PartitionId,
    /// The kind, if it has a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Raw offset up to which the state is known to be committed.
    pub confirmed: Offset,
    /// Offset in the state topic from which a restore continues.
    pub state_next: Offset,
    /// Stream time at the confirmed offset, in epoch milliseconds; 0 if unknown.
    pub stream_time_ms: i64,
    /// Stream time in UTC.
    pub stream_time: String,
    /// Number of stored identities.
    pub ids: u64,
    /// Number of those that are in sealed slices.
    pub sealed_ids: u64,
    /// Number of identities at or beyond the confirmed offset. The next start decides whether they count.
    pub unconfirmed_ids: u64,
    /// Number of runs of owners that are not in slices.
    pub runs: u64,
    /// First raw offset that slices and runs cover. `None` without any.
    pub first: Option<Offset>,
    /// One past the last raw offset that they cover. `None` without any.
    pub next: Option<Offset>,
    /// Bytes of the identities in these runs, with their offsets.
    pub bytes: u64,
    /// The filters without owners. In topic scope they are of all partitions together.
    pub slices: Vec<SliceReport>,
}

/// A filter without owners.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SliceReport {
    /// Arrival of the first owner, stream time in epoch milliseconds.
    pub start_ms: i64,
    /// Arrival of the last owner, stream time in epoch milliseconds.
    pub end_ms: i64,
    /// Arrival of the first owner in UTC.
    pub start: String,
    /// Arrival of the last owner in UTC.
    pub end: String,
    pub ids: u64,
    /// Size in memory.
    pub bytes: u64,
    /// The probability that an absent identity is found.
    pub false_positive_rate: f64,
}

/// Result of looking up an id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LookupResult {
    /// The identity of the id: 16 bytes in hex.
    pub identity: String,
    /// Where the id is stored. Empty if it is not stored.
    pub found: Vec<FoundOwner>,
    /// Partitions in which a filter without owners contains the id. A record with this id would count as probably seen.
    pub in_filters: Vec<(PartitionId, Standing)>,
}

/// One stored owner of an id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FoundOwner {
    /// Partition of the raw topic.
    pub partition: PartitionId,
    /// The kind of its record, if it has a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Offset and time of the record that owns the id.
    #[serde(flatten)]
    pub owned: Owned,
    /// Whether the window still counts the owner, and how.
    pub standing: Standing,
}

/// Inspects all partitions, one after the other. `bar` counts partitions.
pub fn inspect(state: &Copied, bar: &ProgressBar) -> Result<Inspection, StateError> {
    let mut partitions = Vec::new();
    let windows = state.binding.windows();
    bar.set_length(windows.len() as u64);
    let ids: Vec<_> = windows.iter().map(|(_, window)| *window).collect();
    let summaries = summarise(&state.store, state.binding.hash, &ids)?;
    for (kind, window) in windows {
        if let Some(summary) = summaries.get(&window) {
            let report = report(state, window, summary);
            partitions.push(PartitionReport { kind: kind.map(str::to_owned), ..report });
        }
        bar.inc(1);
    }
    Ok(Inspection {
        database: state.database.display().to_string(),
        disk_bytes: state.disk_bytes,
        binding: state.binding.clone(),
        ids: partitions.iter().map(|report| report.ids).sum(),
        partitions,
    })
}

fn report(state: &Copied, id: WindowId, summary: &StoredSummary) -> PartitionReport {
    PartitionReport {
        partition: id.partition(),
        kind: None,
        confirmed: summary.head.confirmed,
        state_next: summary.head.state_next,
        stream_time_ms: summary.head.stream_time_ms,
        stream_time: utc(summary.head.stream_time_ms),
        ids: summary.ids,
        sealed_ids: summary.sealed_ids,
        unconfirmed_ids: summary.unconfirmed_ids,
        runs: summary.runs,
        first: summary.covered.map(|(first, _)| first),
        next: summary.covered.map(|(_, next)| next),
        bytes: summary.bytes,
        slices: state.store.filters(id).iter().map(SliceReport::of).collect(),
    }
}

impl SliceReport {
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

impl LookupResult {
    /// Looks up an identity in one partition or in all of them. `bar` counts partitions.
    pub fn of(
        identity: Identity,
        state: &Copied,
        only: Option<PartitionId>,
        lengths: &Lengths,
        bar: &ProgressBar,
    ) -> Result<Self, StateError> {
        let mut answer = Self { identity: identity.to_string(), found: Vec::new(), in_filters: Vec::new() };
        let mut windows = state.binding.windows();
        windows.retain(|(_, window)| only.is_none_or(|only| only == window.partition()));
        bar.set_length(windows.len() as u64);
        for (kind, window) in windows {
            answer.search(identity, state, (kind, window), lengths.of(kind))?;
            bar.inc(1);
        }
        Ok(answer)
    }

    fn search(
        &mut self,
        identity: Identity,
        state: &Copied,
        (kind, window): (Option<&str>, WindowId),
        limits: WindowLimits,
    ) -> Result<(), StateError> {
        let store = &state.store;
        let Some(head) = head_of(store, window)? else { return Ok(()) };
        let partition = window.partition();
        let found =
            |owned, standing| FoundOwner { partition, kind: kind.map(str::to_owned), owned, standing };
        let confirmed = find(store, window, identity, 0..head.confirmed)?;
        let unconfirmed = find(store, window, identity, head.confirmed..Offset::MAX)?;
        if confirmed.is_some() || !store.filters(window).is_empty() {
            let loaded = load(store, state.binding.hash, window, head, limits)?;
            let standing = standing_of((store, window), &loaded, identity, confirmed)?;
            match (confirmed, standing) {
                (Some(owned), Some(standing)) => self.found.push(found(owned, standing)),
                (None, Some(standing)) => self.in_filters.push((partition, standing)),
                (_, None) => {}
            }
        }
        self.found.extend(unconfirmed.map(|owned| found(owned, Standing::Unconfirmed)));
        Ok(())
    }

    /// Whether the id is stored anywhere.
    #[must_use]
    pub fn is_found(&self) -> bool {
        !self.found.is_empty()
    }
}
