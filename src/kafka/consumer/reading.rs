//! Read errors that are about the log itself: damaged batches, deleted records and truncation.

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::KafkaSource;
use crate::dedupe::{Coordinates, Offset, PartitionId};
use crate::kafka::error::is_damage;
use crate::kafka::native::ReadError;
use crate::kafka::partitions::coordinates;
use crate::kafka::unread::{damaged, truncated};
use crate::ports::{Epoch, Failure, Remedy};

impl KafkaSource {
    /// The leader epoch to compare when the partition is sought to this offset; `None` when it is unknown.
    pub(super) fn epoch_before(&self, partition: PartitionId, offset: Offset) -> Option<i32> {
        self.epochs.borrow().get(&partition).filter(|epoch| epoch.covers(offset)).map(|epoch| epoch.number)
    }

    /// Stores the leader epoch of the record before the next offset of a partition, or removes it.
    pub(super) fn set_epoch(&self, partition: PartitionId, last: Option<Epoch>) {
        let mut epochs = self.epochs.borrow_mut();
        epochs.remove(&partition);
        epochs.extend(last.map(|last| (partition, last)));
    }

    /// Adds partitions to the client's assignment and seeks them where an epoch is known: the client compares leader epochs
    /// at a seek only, not at an assignment.
    pub(super) fn assign_and_compare(&self, starts: &[(PartitionId, Offset)]) -> Result<(), Failure> {
        self.assign_at(starts)?;
        let known =
            |(partition, offset): &&(PartitionId, Offset)| self.epoch_before(*partition, *offset).is_some();
        let compared: Vec<_> = starts.iter().filter(known).copied().collect();
        self.seek_each(&compared).map_err(|e| self.fail("comparing leader epochs of", &e))
    }

    /// The failure for an error of the client; `None` when it requires no action.
    pub(super) fn failure_of_read(&self, error: &ReadError) -> Option<Failure> {
        match error.code {
            // After `PollExceeded` an event reports the lost assignment, and the next poll rejoins the group.
            RDKafkaErrorCode::PartitionEOF | RDKafkaErrorCode::PollExceeded => None,
            RDKafkaErrorCode::AutoOffsetReset => Some(self.out_of_range(error)),
            _ if error.fatal => Some(self.set_fatal(self.fail("reading", &error.error()))),
            code => Some(match error.at.filter(|_| is_damage(code)) {
                Some((partition, offset)) => self.damaged(coordinates(partition, offset), error),
                // A damaged response of the group coordinator, not a damaged log.
                None if is_damage(code) => self.fail("reading", &KafkaError::Global(code)),
                None => self.fail("reading", &error.error()),
            }),
        }
    }

    /// A position outside of the log. The remedy aborts, so that every partition is located again from its committed offset
    /// and checked against the log.
    pub(super) fn out_of_range(&self, error: &ReadError) -> Failure {
        self.truncated.borrow_mut().extend(truncated(error));
        let partition =
            error.at.map(|(partition, _)| format!("partition {partition} of ")).unwrap_or_default();
        Failure::new(
            Remedy::Abort,
            format!(
                "the position in {partition}topic {} is outside of its log: records were deleted before they were read, \
                 or the topic was truncated or recreated ({}); reading the committed offset again",
                self.topic, error.reason
            ),
        )
    }

    /// A batch that is damaged once may have been damaged in transit; at the second read it is damaged in the log.
    fn damaged(&self, at: Coordinates, error: &ReadError) -> Failure {
        let mut batches = self.damaged.borrow_mut();
        let is_second = batches.contains_key(&at);
        let failure = damaged(&self.topic, at, error, is_second);
        batches.insert(at, is_second.then(|| failure.clone()));
        failure
    }

    /// The failures of the damaged batches that the client has read twice and skipped.
    pub(super) fn found_damaged(&self) -> Vec<Failure> {
        self.damaged.borrow().values().flatten().cloned().collect()
    }

    /// Makes every later poll return this failure.
    pub(super) fn set_fatal(&self, failure: Failure) -> Failure {
        self.fatal.borrow_mut().get_or_insert(failure).clone()
    }
}
