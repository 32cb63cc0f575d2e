//! The ends of the logs that transactions write to, and the records there: evidence about transactions that were torn.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use super::{Failure, LogBounds, LogId, StateItem};
use crate::dedupe::{Coordinates, Offset, PartitionId};

/// Which records of a log to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// Records that `read_committed` readers see.
    Committed,
    /// All records, including open and aborted ones.
    Uncommitted,
}

/// A record in a side topic, according to its headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SideRecord {
    /// Partition of the side topic.
    pub log: LogId,
    /// Offset in that partition.
    pub offset: Offset,
    /// Transactional id of the producer that wrote it; `None` when another program or another group did.
    pub writer: Option<String>,
    /// The raw record of which it is a copy; `None` when it is not a copy.
    pub raw: Option<Coordinates>,
    /// Written outside of any transaction: no abort can remove it.
    pub is_outside: bool,
}

/// Records of side partitions that one read returned, in order within each partition, and the offset at which the
/// next read of each partition continues.
pub type SideRecords = (Vec<SideRecord>, BTreeMap<LogId, Offset>);

/// Reads of the ends of all topics that transactions write to.
pub trait LogReads {
    /// The bounds of these logs, in this order. Requests them from the leaders.
    fn bounds(&self, logs: &[LogId], wait: Duration) -> Result<Vec<LogBounds>, Failure>;
    /// The last stable offsets of these logs, in this order. Requests them from the leaders.
    fn stable_ends(&self, logs: &[LogId], wait: Duration) -> Result<Vec<Offset>, Failure>;
    /// The records of state partitions in these ranges, in order within each partition. The end of a range is a bound that
    /// [`LogReads::bounds`] returned: `high` for everything, `stable` for committed records. Never returns less: when the end
    /// of a partition is reported before that of its range, it reads on. Fails when nothing arrives for `wait`.
    fn records(
        &self,
        ranges: &[(PartitionId, Range<Offset>)],
        what: Isolation,
        wait: Duration,
    ) -> Result<Vec<StateItem>, Failure>;
    /// Whether a reader of such records finds one at each of these offsets of the clean topic, in this order. Compaction may
    /// have removed it. An end that is reported before the last of them counts as in [`LogReads::records`].
    fn visible(
        &self,
        at: &[(PartitionId, Offset)],
        what: Isolation,
        wait: Duration,
    ) -> Result<Vec<bool>, Failure>;
    /// Those of these clean partitions in which `read_committed` readers see a record. One that is not read within `wait` counts as empty.
    fn with_records(&self, partitions: &[PartitionId], wait: Duration) -> Result<Vec<PartitionId>, Failure>;
    /// All partitions of the configured side topics.
    fn side_logs(&self, _wait: Duration) -> Result<Vec<LogId>, Failure> {
        Ok(Vec::new())
    }
    /// The records of side partitions, committed or not, each from an offset up to another, which is not beyond `high`. Returns
    /// after `wait` what was read until then. An end that is reported before the range ends counts as in [`LogReads::records`].
    fn side_records(
        &self,
        _from_to: &BTreeMap<LogId, (Offset, Offset)>,
        _wait: Duration,
    ) -> Result<SideRecords, Failure> {
        Ok(SideRecords::default())
    }
}
