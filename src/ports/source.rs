//! Reading the raw topic.

use std::time::Duration;

use super::{Epoch, Failure, LogBounds, Truncation};
use crate::dedupe::identity::Fields;
use crate::dedupe::{Coordinates, Offset, PartitionId};

/// A raw record, borrowed from the client while an iteration processes it.
pub trait Record: Fields {
    /// Its partition and offset in the raw topic.
    fn coordinates(&self) -> Coordinates;
    /// The record's timestamp, epoch milliseconds; `None` when the record has none.
    fn timestamp_ms(&self) -> Option<i64>;
    /// The leader epoch under which it was written; `None` where the log does not contain it.
    fn leader_epoch(&self) -> Option<i32> {
        None
    }
    /// Size of key and value, in bytes.
    fn size(&self) -> usize;
    /// Whether it has a header of this name, regardless of its value.
    fn has_header(&self, name: &str) -> bool;
}

/// The raw topic, read from the partitions that are assigned to this client.
pub trait Source {
    /// A record borrowed from the client.
    type Record<'a>: Record
    where
        Self: 'a;

    /// Serves the group protocol and appends the next records, at most `most`. Waits at most `wait`, and only for the first;
    /// returns earlier when a [`GroupEvent`](super::GroupEvent) arrived. The records before a failure are appended: the
    /// client does not return them again. A batch that two reads found damaged is reported by every poll until its
    /// partition is sought, and no record behind it is returned.
    fn poll<'a>(
        &'a self,
        records: &mut Vec<Self::Record<'a>>,
        most: usize,
        wait: Duration,
    ) -> Result<(), Failure>;
    /// Seeks assigned partitions to new offsets and resumes them; records fetched before are discarded.
    fn seek(&self, starts: &[(PartitionId, Offset)]) -> Result<(), Failure>;
    /// Seeks one partition and compares leader epochs. `last` is the leader epoch of a record at or beyond `offset` -
    /// 1, where known. When the log no longer contains that record because it was truncated, [`Source::truncated`]
    /// reports so before any record is returned.
    fn seek_behind(
        &self,
        partition: PartitionId,
        offset: Offset,
        _last: Option<Epoch>,
    ) -> Result<(), Failure> {
        self.seek(&[(partition, offset)])
    }
    /// What the client found at the position of the last seek, if that position is outside of the log.
    fn truncated(&self, _partition: PartitionId) -> Option<Truncation> {
        None
    }
    /// Removes assigned partitions from the client and assigns them again, each at its offset and with the comparison
    /// of [`Source::seek_behind`]: for partitions that the client no longer fetches.
    fn reassign(&self, starts: &[(PartitionId, Offset, Option<Epoch>)]) -> Result<(), Failure> {
        starts.iter().try_for_each(|(partition, offset, last)| self.seek_behind(*partition, *offset, *last))
    }
    /// Stops returning records of these partitions until the next [`Source::seek`].
    fn pause(&self, partitions: &[PartitionId]) -> Result<(), Failure>;
    /// The bounds of the logs of these raw partitions, in this order. Requests them from the leaders.
    fn bounds(&self, partitions: &[PartitionId], wait: Duration) -> Result<Vec<LogBounds>, Failure>;
    /// How many partitions the raw topic has now, as a broker reports it.
    fn partition_count(&self, wait: Duration) -> Result<usize, Failure>;
    /// The current topic id of the raw topic; `None` where the broker does not report it.
    fn topic_id(&self, _wait: Duration) -> Option<String> {
        None
    }
    /// The end of a raw partition as reported by the last fetch; sends no request.
    fn end(&self, partition: PartitionId) -> Option<Offset>;
    /// Adds the reason for a failed connection to the failure of any port, when that is what failed and this client
    /// has the reason.
    fn explained(&self, failed: Failure) -> Failure {
        failed
    }
}
