//! The comparison of all partitions of a topic together, or of several topics: an id counts once, wherever its copies are.

use std::collections::BTreeMap;
use std::io;

use super::PartitionId;
use super::compare::{Gone, Outcome, PartitionOptions, UnmatchedRecords};
use super::expected::Rules;
use super::joint::{Joint, Log};
use super::owners::TopicRules;
use super::range::Part;
use super::record::Seen;
use super::spill::Scratch;

/// A comparison of all partitions in progress: records are added with [`Self::raw`] and [`Self::clean`], those of each side of
/// a partition by increasing offset. Sides and partitions may be interleaved.
///
/// It finds an id that clean does not hold, a second clean record of an id within the window in any partition, a clean record
/// that differs from its raw record, one whose id raw does not have in that partition, and one out of raw order. Which of
/// several copies clean holds is not checked, unless all of them are in one partition: then it must be the first.
#[derive(Debug)]
pub struct TopicComparison {
    joint: Joint,
    numbers: Vec<PartitionId>,
}

impl TopicComparison {
    /// An empty comparison of these partitions, whose windows must be the same. Records of other partitions are ignored.
    /// `longest_ms`: no id is kept for longer than this, ms of stream time, but for 1/256 and the span of a block (1/32); `None`
    /// is forever. It is at least the window.
    #[must_use]
    pub fn new(
        partitions: impl IntoIterator<Item = (PartitionOptions, Rules)>,
        longest_ms: Option<i64>,
        scratch: &Scratch,
    ) -> Self {
        Self::with(partitions, longest_ms, scratch, false)
    }

    /// An empty comparison of raw topics with a clean topic behind `rekey`. Each partition of each topic has a number of its own.
    /// The headers of the raw records must be those that `rekey` gives them: with one more, which names the record.
    ///
    /// A clean record may be in any partition and at any place. Its headers name its raw record, and it must equal that. A raw
    /// record is explained by any clean record of its id. Those without an id, and forced ones, may be in clean several times.
    #[must_use]
    pub fn behind_rekey(
        logs: impl IntoIterator<Item = (PartitionOptions, Rules)>,
        longest_ms: Option<i64>,
        scratch: &Scratch,
    ) -> Self {
        Self::with(logs, longest_ms, scratch, true)
    }

    fn with(
        partitions: impl IntoIterator<Item = (PartitionOptions, Rules)>,
        longest_ms: Option<i64>,
        scratch: &Scratch,
        is_rekeyed: bool,
    ) -> Self {
        let logs: BTreeMap<_, _> = partitions
            .into_iter()
            .map(|(options, rules)| (options.partition, (options.gone, Log::new(rules, options))))
            .collect();
        let allows_gone = logs.values().any(|(gone, _)| *gone != Gone::Nothing);
        let logs: BTreeMap<_, _> = logs.into_iter().map(|(number, (_, log))| (number, log)).collect();
        let numbers = logs.keys().copied().collect();
        let rules = TopicRules { kept_ms: longest_ms.map(kept_ms), allows_gone, is_rekeyed };
        Self { joint: Joint::new(Some(rules), logs, scratch, scratch), numbers }
    }

    /// Adds the next raw record of a partition, which is in this part of its log. Fails if a temporary file fails.
    pub fn raw(&mut self, partition: PartitionId, record: &Seen, part: Part) -> io::Result<()> {
        self.joint.raw(partition, record, part)
    }

    /// Adds the next clean record of a partition. Fails if a temporary file fails.
    pub fn clean(&mut self, partition: PartitionId, record: &Seen) -> io::Result<()> {
        self.joint.clean(partition, record)
    }

    /// Compares, once both sides of all partitions are read. Returns the result of each partition. An id in several partitions
    /// is counted in the one that has its earliest record. Fails if a temporary file fails.
    pub fn finish(self, unmatched: &mut UnmatchedRecords) -> io::Result<BTreeMap<PartitionId, Outcome>> {
        let outcomes = self.joint.finish(&mut unmatched.sorter)?;
        Ok(self.numbers.into_iter().zip(outcomes).collect())
    }
}

/// The longest time that an id of this window may be kept, ms: expiry is accurate to 1/256 of the window, and an owner that was
/// restored from a block may stay longer by the span of the block, up to 1/32 of the window.
pub(super) fn kept_ms(longest_ms: i64) -> i64 {
    longest_ms.saturating_add(longest_ms / 256).saturating_add(longest_ms / 32).saturating_add(1)
}
