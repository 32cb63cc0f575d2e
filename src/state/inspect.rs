//! What a stopped instance's state holds, and where an id is in it.

use indicatif::ProgressBar;
use serde::Serialize;

use super::error::StateError;
use super::find::{Owned, Summary, find, head_of, summarise};
use super::spelling::utc;
use super::standing::{Lengths, Standing, load, standing_of};
use crate::dedupe::bloom::Slice;
use crate::dedupe::{Bloom, Identity, KindId, Offset, PartitionId, Window, WindowLimits};
use crate::ports::Store;
use crate::store::{Binding, Copied};

/// A whole state.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inspection {
    /// The database.
    pub database: String,
    /// Bytes that its files take up.
    pub disk_bytes: u64,
    /// What it belongs to.
    pub binding: Binding,
    /// Identities of all partitions.
    pub ids: u64,
    /// The partitions that have state.
    pub partitions: Vec<PartitionReport>,
}

/// One partition, or what it remembers of one kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PartitionReport {
    /// Its number in the raw topic.
    pub partition: PartitionId,
    /// The kind, if it has a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Raw offset up to which the state is known to be committed.
    pub confirmed: Offset,
    /// Where the state topic continues.
    pub state_next: Offset,
    /// Stream time at the confirmed offset, ms since the epoch; 0 while unknown.
    pub stream_time_ms: i64,
    /// The same in UTC.
    pub stream_time: String,
    /// Identities stored.
    pub ids: u64,
    /// Those at or beyond the confirmed offset; the next start decides about them.
    pub unconfirmed_ids: u64,
    /// Blocks stored.
    pub blocks: u64,
    /// First raw offset that a block covers; `None` without blocks.
    pub first: Option<Offset>,
    /// One past the last raw offset that a block covers; `None` without blocks.
    pub next: Option<Offset>,
    /// Bytes of the blocks.
    pub bytes: u64,
    /// Identities in the exact part of the window; `None` when no filters are configured.
    pub exact_ids: Option<u64>,
    /// The filters by slice; empty when none are configured.
    pub slices: Vec<SliceReport>,
}

/// The filters of one slice of stream time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SliceReport {
    /// Beginning, ms since the epoch.
    pub start_ms: i64,
    /// End, exclusive, ms since the epoch.
    pub end_ms: i64,
    /// The same in UTC.
    pub start: String,
    /// The same in UTC.
    pub end: String,
    /// Identities.
    pub ids: u64,
    /// Filters; more than one when the slice outgrew its design.
    pub filters: u32,
    /// Bits of memory.
    pub bits: u64,
    /// Share of bits set, 0 to 1.
    pub fill: f64,
    /// The chance that an absent identity passes.
    pub false_positive_rate: f64,
}

/// Where an id is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// The 16 bytes that stand for the id, in hex.
    pub identity: String,
    /// Where it is stored; empty when it is not.
    pub found: Vec<Found>,
    /// Partitions with a filter that passes it by chance, and the slice. A record with it would count
    /// as probably seen.
    pub passed_by_chance: Vec<(PartitionId, Standing)>,
}

/// One owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Partition of the raw topic.
    pub partition: PartitionId,
    /// The kind of its record, if it has a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Offset and time of the record that owns the id.
    #[serde(flatten)]
    pub owned: Owned,
    /// Whether the window still counts it.
    pub standing: Standing,
}

/// Looks at all partitions, one after the other; filters are built as a start builds them. `bar`
/// counts partitions.
pub fn inspect(state: &Copied, lengths: &Lengths, bar: &ProgressBar) -> Result<Inspection, StateError> {
    let mut partitions = Vec::new();
    let windows = state.binding.windows();
    bar.set_length(windows.len() as u64);
    for (kind, partition, filed) in windows {
        if let Some(summary) = summarise(&state.store, filed)? {
            let report = report(&state.store, filed, &summary, lengths.of(kind))?;
            partitions.push(PartitionReport { partition, kind: kind.map(str::to_owned), ..report });
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

fn report(
    store: &impl Store,
    partition: PartitionId,
    summary: &Summary,
    limits: WindowLimits,
) -> Result<PartitionReport, StateError> {
    let window = limits.bloom.map(|_| load(store, partition, summary.head, limits)).transpose()?;
    let slices = window.as_ref().and_then(Window::bloom).map(Bloom::slices);
    Ok(PartitionReport {
        partition,
        kind: None,
        confirmed: summary.head.confirmed,
        state_next: summary.head.state_next,
        stream_time_ms: summary.head.stream_time_ms,
        stream_time: utc(summary.head.stream_time_ms),
        ids: summary.ids,
        unconfirmed_ids: summary.unconfirmed_ids,
        blocks: summary.blocks,
        first: summary.covered.map(|(first, _)| first),
        next: summary.covered.map(|(_, next)| next),
        bytes: summary.bytes,
        exact_ids: window.as_ref().map(Window::ids),
        slices: slices.unwrap_or_default().iter().map(SliceReport::of).collect(),
    })
}

impl SliceReport {
    fn of(slice: &Slice) -> Self {
        Self {
            start_ms: slice.start_ms,
            end_ms: slice.end_ms,
            start: utc(slice.start_ms),
            end: utc(slice.end_ms),
            ids: slice.ids,
            filters: slice.filters,
            bits: slice.bytes * 8,
            fill: slice.fill,
            false_positive_rate: slice.false_positive_rate,
        }
    }
}

impl Answer {
    /// Looks for an identity, in one partition or in all of them. `bar` counts partitions.
    pub fn of(
        identity: Identity,
        state: &Copied,
        only: Option<PartitionId>,
        lengths: &Lengths,
        bar: &ProgressBar,
    ) -> Result<Self, StateError> {
        let mut answer =
            Self { identity: identity.to_string(), found: Vec::new(), passed_by_chance: Vec::new() };
        let mut windows = state.binding.windows();
        windows.retain(|(_, partition, _)| only.is_none_or(|only| only == *partition));
        bar.set_length(windows.len() as u64);
        for (kind, _, filed) in windows {
            answer.look(identity, &state.store, (kind, filed), lengths.of(kind))?;
            bar.inc(1);
        }
        Ok(answer)
    }

    fn look(
        &mut self,
        identity: Identity,
        store: &impl Store,
        (kind, filed): (Option<&str>, PartitionId),
        limits: WindowLimits,
    ) -> Result<(), StateError> {
        let Some(head) = head_of(store, filed)? else { return Ok(()) };
        let (_, partition) = KindId::of_filed(filed);
        let found = |owned, standing| Found { partition, kind: kind.map(str::to_owned), owned, standing };
        let settled = find(store, filed, identity, 0..head.confirmed)?;
        let hearsay = find(store, filed, identity, head.confirmed..Offset::MAX)?;
        if settled.is_some() || limits.bloom.is_some() {
            let window = load(store, filed, head, limits)?;
            let made_of = (store, filed);
            let standing = standing_of(made_of, (&window, limits.bloom), identity, settled)?;
            match (settled, standing) {
                (Some(owned), Some(standing)) => self.found.push(found(owned, standing)),
                (None, Some(standing)) => self.passed_by_chance.push((partition, standing)),
                (_, None) => {}
            }
        }
        self.found.extend(hearsay.map(|owned| found(owned, Standing::Unconfirmed)));
        Ok(())
    }

    /// Whether the id is stored anywhere.
    #[must_use]
    pub fn is_found(&self) -> bool {
        !self.found.is_empty()
    }
}
