//! The real reader of the state topic, throttled.

use std::collections::VecDeque;
use std::ops::Range;
use std::thread;
use std::time::Duration;

use dedupd::dedupe::{Offset, PartitionId};
use dedupd::kafka::KafkaStateLog;
use dedupd::ports::{Failure, Isolation, LogBounds, LogId, LogReads, StateItem, StateLog};

/// Throttling of the state topic reader.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Pause before items are returned.
    pub pause: Duration,
    /// Number of pauses.
    pub pauses: usize,
    /// Maximum number of items per read.
    pub items: usize,
}

impl Pace {
    pub const FULL: Pace = Pace { pause: Duration::ZERO, pauses: 0, items: usize::MAX };
}

/// The real reader of the state topic, throttled.
pub struct Throttled {
    pub inner: KafkaStateLog,
    pub pace: Pace,
    pub buffer: VecDeque<StateItem>,
}

impl StateLog for Throttled {
    fn open(&mut self, partition: PartitionId, from: Offset) -> Result<(), Failure> {
        self.inner.open(partition, from)
    }

    fn read(&mut self, wait: Duration) -> Result<Vec<StateItem>, Failure> {
        if self.buffer.is_empty() {
            self.buffer.extend(self.inner.read(wait)?);
        }
        if !self.buffer.is_empty() && self.pace.pauses > 0 {
            self.pace.pauses -= 1;
            thread::sleep(self.pace.pause);
        }
        Ok(self.buffer.drain(..self.buffer.len().min(self.pace.items)).collect())
    }

    fn close(&mut self, closed: PartitionId) -> Result<(), Failure> {
        self.buffer.retain(|item| match item {
            StateItem::Record { partition, .. }
            | StateItem::End { partition, .. }
            | StateItem::Gone { partition } => *partition != closed,
        });
        self.inner.close(closed)
    }
}

type Record = (PartitionId, Offset);

impl LogReads for Throttled {
    fn bounds(&self, logs: &[LogId], wait: Duration) -> Result<Vec<LogBounds>, Failure> {
        self.inner.bounds(logs, wait)
    }

    fn stable_ends(&self, logs: &[LogId], wait: Duration) -> Result<Vec<Offset>, Failure> {
        self.inner.stable_ends(logs, wait)
    }

    fn records(
        &self,
        ranges: &[(PartitionId, Range<Offset>)],
        what: Isolation,
        wait: Duration,
    ) -> Result<Vec<StateItem>, Failure> {
        self.inner.records(ranges, what, wait)
    }

    fn with_records(&self, partitions: &[PartitionId], wait: Duration) -> Result<Vec<PartitionId>, Failure> {
        self.inner.with_records(partitions, wait)
    }

    fn visible(&self, at: &[Record], what: Isolation, wait: Duration) -> Result<Vec<bool>, Failure> {
        self.inner.visible(at, what, wait)
    }
}
