//! What can be wrong with the log itself: damage, and history that is not the one that was read.

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::KafkaSource;
use crate::dedupe::{Offset, PartitionId};
use crate::kafka::error::is_damage;
use crate::kafka::native::Unread;
use crate::kafka::unread::{damaged, truncated};
use crate::ports::{Epoch, Failure, Remedy};

impl KafkaSource {
    /// The leader epoch by which the partition is compared at this offset, where one is known.
    pub(super) fn epoch_before(&self, partition: PartitionId, offset: Offset) -> Option<i32> {
        self.epochs.borrow().get(&partition).filter(|epoch| epoch.covers(offset)).map(|epoch| epoch.number)
    }

    /// Under which leader the record was taken that comes before the place to go on at.
    pub(super) fn remember(&self, partition: PartitionId, last: Option<Epoch>) {
        let mut epochs = self.epochs.borrow_mut();
        epochs.remove(&partition);
        epochs.extend(last.map(|last| (partition, last)));
    }

    /// Begins partitions at their offsets. The client compares leader epochs at a seek only, not where an assignment begins.
    pub(super) fn place_compared(&self, starts: &[(PartitionId, Offset)]) -> Result<(), Failure> {
        self.place(starts)?;
        let known =
            |(partition, offset): &&(PartitionId, Offset)| self.epoch_before(*partition, *offset).is_some();
        let compared: Vec<_> = starts.iter().filter(known).copied().collect();
        self.seek_each(&compared).map_err(|e| self.fail("comparing leader epochs of", &e))
    }

    /// What an error of the client means; `None` when it is none.
    pub(super) fn unread(&self, unread: &Unread) -> Option<Failure> {
        match unread.code {
            // After `PollExceeded` the loss of the assignment follows as an event; polling again rejoins.
            RDKafkaErrorCode::PartitionEOF | RDKafkaErrorCode::PollExceeded => None,
            RDKafkaErrorCode::AutoOffsetReset => Some(self.outside(unread)),
            _ if unread.fatal => Some(self.end_with(self.fail("reading", &unread.error()))),
            code => Some(match unread.at.filter(|_| is_damage(code)) {
                Some(at) => self.damaged(at, unread),
                // Of an answer about the group, not of the log.
                None if is_damage(code) => self.fail("reading", &KafkaError::Global(code)),
                None => self.fail("reading", &unread.error()),
            }),
        }
    }

    /// Everything is located anew, and finds out what the log holds.
    pub(super) fn outside(&self, unread: &Unread) -> Failure {
        self.truncated.borrow_mut().extend(truncated(unread));
        let partition =
            unread.at.map(|(partition, _)| format!("partition {partition} of ")).unwrap_or_default();
        Failure {
            remedy: Remedy::Abort,
            what: format!(
                "the position in {partition}topic {} is outside of its log: records were deleted before they were read, \
                 or the topic was truncated or created again ({}); asking the group where it stands",
                self.topic, unread.reason
            ),
            refused: None,
        }
    }

    /// Once may be the way from the broker; twice is the log.
    pub(super) fn damaged(&self, at: (i32, i64), unread: &Unread) -> Failure {
        let again = !self.damaged.borrow_mut().insert(at);
        let failure = damaged(&self.topic, at, unread, again);
        if again { self.end_with(failure) } else { failure }
    }

    /// A failure that repeats itself with every poll from now on.
    pub(super) fn end_with(&self, failure: Failure) -> Failure {
        self.ended.borrow_mut().get_or_insert(failure).clone()
    }
}
