//! The position of a record: partition and offset; and sets of partitions as text.

use std::collections::BTreeSet;
use std::fmt;

/// A Kafka offset inside one partition; never negative in a log.
pub type Offset = u64;

/// The number of an owner in its window, in the order in which it was added: by arrival, or by partition in a block that is restored.
/// Numbers have no gaps, and those of an aborted transaction are used again.
pub type Sequence = u64;

/// A Kafka partition number; never negative.
pub type PartitionId = u32;

/// A journal, by its partition of the state topic: that of raw in partition scope, 0 in topic scope.
pub type JournalId = PartitionId;

/// The position of one record in the raw topic. It identifies an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Coordinates {
    /// Partition of the raw topic.
    pub partition: PartitionId,
    /// Offset inside the partition.
    pub offset: Offset,
}

impl fmt::Display for Coordinates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.partition, self.offset)
    }
}

/// Maximum number of ranges in a text.
const MAX_RANGES: usize = 20;

/// A set of partitions as text, for logs and errors: ranges and a count, as in `0-3,7 (5)`; `none` for an empty set. At most
/// 20 ranges are listed, the others become `...`.
pub fn ranges(partitions: impl IntoIterator<Item = PartitionId>) -> String {
    let partitions: BTreeSet<PartitionId> = partitions.into_iter().collect();
    let mut ranges: Vec<(PartitionId, PartitionId)> = Vec::new();
    for partition in &partitions {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*partition) => *last = *partition,
            _ => ranges.push((*partition, *partition)),
        }
    }
    if ranges.is_empty() {
        return "none".to_owned();
    }
    let range = |(first, last): &(_, _)| {
        if first == last { format!("{first}") } else { format!("{first}-{last}") }
    };
    let listed: Vec<String> = ranges.iter().take(MAX_RANGES).map(range).collect();
    let more = if ranges.len() > MAX_RANGES { ",..." } else { "" };
    format!("{}{more} ({})", listed.join(","), partitions.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_partitions_is_written_as_ranges_with_a_count() {
        for (partitions, text) in [
            (vec![], "none"),
            (vec![7], "7 (1)"),
            ((0..1024).collect(), "0-1023 (1024)"),
            (vec![7, 0, 2, 1, 3, 3], "0-3,7 (5)"),
            (vec![0, 1, u32::MAX], "0-1,4294967295 (3)"),
        ] {
            assert_eq!(ranges(partitions), text);
        }
    }

    #[test]
    fn a_scattered_set_has_a_short_text_with_the_full_count() {
        let text = ranges((0..1000).map(|it| it * 2));
        assert!(text.starts_with("0,2,4,") && text.ends_with(",36,38,... (1000)"), "{text}");
    }
}
