//! The committed offsets of the group.

use std::collections::BTreeMap;

use dedupd::dedupe::{Checkpoint, Offset};
use dedupd::ports::Epoch;

use crate::sim::raw::RawLog;
use crate::sim::tx_log;

/// The group's committed offsets of a partition.
#[derive(Default)]
pub struct Offsets {
    /// Committed offset and metadata, if any.
    pub settled: Option<(Offset, String)>,
    /// The highest offset that was ever committed. Local state may still contain it when the group does not.
    pub highest: Offset,
    /// The offset that each producer's next marker commits or aborts.
    pub pending: BTreeMap<tx_log::Producer, (Offset, String)>,
}

impl Offsets {
    /// The leader epoch of the last record before the offset, if the metadata contains it.
    fn epoch(&self) -> Option<Epoch> {
        let (offset, metadata) = self.settled.as_ref()?;
        Checkpoint::parse(metadata)?.epoch_before(*offset)
    }

    /// Whether the offsets of a group in topic scope have expired: no checkpoint is left, or the newest one says that others follow.
    pub fn have_expired(all: &[Self]) -> bool {
        let checkpoints = all.iter().filter_map(|offsets| Checkpoint::parse(&offsets.settled.as_ref()?.1));
        let newest = checkpoints.max_by_key(|checkpoint| checkpoint.last_entry.map(|last| last.entry.number));
        newest.is_none_or(|checkpoint| checkpoint.others_follow)
    }

    /// Whether leader epochs show that the log was truncated, or would show it if the log were truncated at `at`. They do not show that only
    /// markers behind the last record are lost.
    pub fn shows_truncation(&self, raw: &RawLog, at: Offset) -> bool {
        self.epoch().is_some_and(|epoch| raw.end_of_epoch(epoch.number) > at && epoch.next > at)
    }

    /// Whether the metadata contains this raw topic id.
    pub fn names(&self, raw_id: &str) -> bool {
        let checkpoint = self.settled.as_ref().and_then(|(_, metadata)| Checkpoint::parse(metadata));
        checkpoint.is_some_and(|checkpoint| checkpoint.raw.as_deref() == Some(raw_id))
    }
}
