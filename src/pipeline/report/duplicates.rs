//! What is counted and shown of duplicates whose owner is known.

use std::collections::VecDeque;
use std::time::Duration;

use super::counted_by::{CountedBy, CountsBySource};
use crate::dedupe::{Content, Coordinates, KnownOwner, RecordTime};
use crate::metrics::{ContentLabel, DuplicateStatus, DuplicatesStatus};

/// The records of an open transaction whose id has an owner.
#[derive(Debug, Default)]
pub struct FoundOwners {
    /// Those whose owner is in another partition.
    pub(super) elsewhere: u64,
    /// Those that could not be compared with their owner.
    pub(super) not_compared: u64,
    /// The first record with other content than its owner, and that.
    pub(super) conflict: Option<[Coordinates; 2]>,
    /// The shortest window in which each is found, where that is known.
    pub(super) ages: Vec<Duration>,
    pub(super) sources: CountsBySource,
    last: LastDuplicates,
}

impl FoundOwners {
    /// Counts a record whose id has an owner.
    pub fn add(&mut self, at: Coordinates, owner: KnownOwner, content: Content, time: RecordTime) {
        self.elsewhere += u64::from(owner.at.partition != at.partition);
        match content {
            Content::Equal => {}
            Content::NotCompared => self.not_compared += 1,
            Content::Different => {
                self.conflict.get_or_insert([at, owner.at]);
            }
        }
        let age = time.distance_ms(owner.time_ms).map(|ms| Duration::from_millis(ms.unsigned_abs()));
        self.ages.extend(age);
        self.last.add(DuplicateStatus {
            committed_ms: 0,
            partition: at.partition,
            offset: at.offset,
            owner_partition: owner.at.partition,
            owner_offset: owner.at.offset,
            age_seconds: age.map(|age| age.as_secs_f64()),
            content: label(content),
        });
    }
}

fn label(content: Content) -> ContentLabel {
    match content {
        Content::Equal => ContentLabel::Equal,
        Content::Different => ContentLabel::Different,
        Content::NotCompared => ContentLabel::NotCompared,
    }
}

/// The last duplicates, oldest first.
#[derive(Debug, Default)]
struct LastDuplicates(VecDeque<DuplicateStatus>);

impl LastDuplicates {
    fn add(&mut self, one: DuplicateStatus) {
        if self.0.len() == DuplicatesStatus::LISTED {
            self.0.pop_front();
        }
        self.0.push_back(one);
    }
}

/// What the committed transactions of this worker have shown.
#[derive(Debug, Default)]
pub(super) struct CommittedDuplicates {
    last: LastDuplicates,
    sources: CountsBySource,
}

impl CommittedDuplicates {
    /// Adds a transaction that was committed at this time, epoch milliseconds.
    pub fn add(&mut self, found: &FoundOwners, committed_ms: i64) {
        for one in &found.last.0 {
            self.last.add(DuplicateStatus { committed_ms, ..*one });
        }
        self.sources.merge(&found.sources);
    }

    pub fn status(&self, by: &[CountedBy]) -> DuplicatesStatus {
        DuplicatesStatus {
            last: self.last.0.iter().rev().copied().collect(),
            sources: self.sources.status(by),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedupe::Digest;

    #[test]
    fn the_last_committed_duplicates_are_shown_newest_first() {
        let owner =
            KnownOwner { at: Coordinates { partition: 1, offset: 5 }, time_ms: 1_000, digest: Digest::NONE };
        let time = RecordTime { own_ms: 3_500, stream_ms: 4_000 };
        let found = |offsets: std::ops::Range<u64>| {
            let mut found = FoundOwners::default();
            for offset in offsets {
                found.add(Coordinates { partition: 2, offset }, owner, Content::NotCompared, time);
            }
            found
        };
        let mut committed = CommittedDuplicates::default();
        assert_eq!(committed.status(&[]), DuplicatesStatus::default());
        committed.add(&found(0..20), 7_000);
        // Aborted: it does not count.
        found(20..30);
        committed.add(&found(30..32), 8_000);
        let last = committed.status(&[]).last;
        assert_eq!(
            last.iter().map(|it| it.offset).collect::<Vec<_>>(),
            [31, 30, 19, 18, 17, 16, 15, 14, 13, 12]
        );
        let expected = DuplicateStatus {
            committed_ms: 8_000,
            partition: 2,
            offset: 31,
            owner_partition: 1,
            owner_offset: 5,
            // The record is late: its owner expires by the clock of the partition.
            age_seconds: Some(3.0),
            content: ContentLabel::NotCompared,
        };
        assert_eq!((last[0], last[2].committed_ms), (expected, 7_000));
    }
}
