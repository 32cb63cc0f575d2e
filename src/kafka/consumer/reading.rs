//! Read errors that are about the log itself: damaged batches, deleted records and truncation.

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::KafkaSource;
use crate::dedupe::Coordinates;
use crate::kafka::error::is_damage;
use crate::kafka::native::ReadError;
use crate::kafka::partitions::coordinates;
use crate::kafka::unread::damaged;
use crate::ports::{Failure, Remedy};

impl KafkaSource {
    /// The failure for an error of the client.
    pub(super) fn failure_of_read(&self, error: &ReadError) -> Failure {
        let fail = |error: &KafkaError| self.member.fail("reading", error);
        match error.code {
            RDKafkaErrorCode::AutoOffsetReset => self.out_of_range(error),
            _ if error.fatal => self.set_fatal(fail(&error.error())),
            code => match error.at.filter(|_| is_damage(code)) {
                Some((partition, offset)) => self.damaged(coordinates(partition, offset), error),
                // A damaged response of the group coordinator, not a damaged log.
                None if is_damage(code) => fail(&KafkaError::Global(code)),
                None => fail(&error.error()),
            },
        }
    }

    /// A position outside of the log. The remedy aborts, so that every partition is located again from its committed offset
    /// and checked against the log.
    pub(super) fn out_of_range(&self, error: &ReadError) -> Failure {
        self.member.note_truncated(error);
        let partition =
            error.at.map(|(partition, _)| format!("partition {partition} of ")).unwrap_or_default();
        Failure::new(
            Remedy::Abort,
            format!(
                "the position in {partition}topic {} is outside of its log: records were deleted before they were read, \
                 or the topic was truncated or recreated ({}); reading the committed offset again",
                self.topic(),
                error.reason
            ),
        )
    }

    /// A batch that is damaged once may have been damaged in transit; at the second read it is damaged in the log.
    fn damaged(&self, at: Coordinates, error: &ReadError) -> Failure {
        let mut batches = self.damaged.borrow_mut();
        let is_second = batches.contains_key(&at);
        let failure = damaged(self.topic(), at, error, is_second);
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
