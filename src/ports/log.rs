//! The logs that transactions write to.

use std::collections::BTreeMap;
use std::fmt;

use crate::dedupe::coordinates::ranges;
use crate::dedupe::{Offset, PartitionId};

/// The offsets at which a partition's log begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogBounds {
    /// Log start offset: the first offset in the log.
    pub low: Offset,
    /// Last stable offset: one past the last offset that a `read_committed` reader can see.
    pub stable: Offset,
    /// High watermark: one past the last offset written, committed or not.
    pub high: Offset,
}

impl LogBounds {
    /// Whether the log has records at or after the start of an open transaction.
    #[must_use]
    pub fn has_open_records(&self) -> bool {
        self.stable < self.high
    }

    /// Whether the log contains the offset.
    #[must_use]
    pub fn holds(&self, offset: Offset) -> bool {
        (self.low..self.high).contains(&offset)
    }
}

/// A topic that transactions write to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OutputTopic {
    /// New records, one partition for each raw partition.
    Clean,
    /// The journals.
    State,
    /// The dead-letter topic.
    DeadLetter,
    /// Dropped records, if `topics.duplicates` is set.
    Duplicates,
}

impl OutputTopic {
    /// Whether several workers write to one partition of the topic: the side topics may have fewer partitions than raw.
    #[must_use]
    pub fn is_shared(self) -> bool {
        matches!(self, Self::DeadLetter | Self::Duplicates)
    }
}

impl fmt::Display for OutputTopic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Clean => "clean",
            Self::State => "state",
            Self::DeadLetter => "dead_letter",
            Self::Duplicates => "duplicates",
        })
    }
}

/// A partition that transactions write to. Each gets its own transaction marker when a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId {
    /// Which of the configured topics.
    pub topic: OutputTopic,
    /// The partition of that topic.
    pub partition: PartitionId,
}

impl LogId {
    /// A partition of the clean topic.
    #[must_use]
    pub fn clean(partition: PartitionId) -> Self {
        Self { topic: OutputTopic::Clean, partition }
    }

    /// A partition of the state topic.
    #[must_use]
    pub fn state(partition: PartitionId) -> Self {
        Self { topic: OutputTopic::State, partition }
    }

    /// Logs as text: the partitions of each topic as [`ranges`].
    #[must_use]
    pub fn listed(logs: &[Self]) -> String {
        let mut topics: BTreeMap<OutputTopic, Vec<PartitionId>> = BTreeMap::new();
        for log in logs {
            topics.entry(log.topic).or_default().push(log.partition);
        }
        let texts: Vec<String> =
            topics.into_iter().map(|(topic, partitions)| format!("{topic} {}", ranges(partitions))).collect();
        texts.join(", ")
    }
}
