//! Log start and end offsets of the raw topic. Records before the log start offset are permanently deleted; records
//! behind an open transaction cannot be read yet.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::consumer::BaseConsumer;
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::Offset as KafkaOffset;

use super::client_config::Settings;
use super::ends::{Ends, QuietContext, list_offsets};
use super::error::failure;
use crate::dedupe::{Offset, PartitionId};
use crate::ports::Failure;

/// One offset for each partition.
pub type Offsets = BTreeMap<PartitionId, Offset>;

/// Reads log start and end offsets of the raw topic with clients of its own, so no worker waits for the responses.
///
/// Each broker receives one request for all its partitions. A partition with an error is omitted; when all have errors, the
/// first error is returned.
pub struct LogEnds {
    ends: Ends,
    topic: String,
}

impl LogEnds {
    /// Creates the clients; sends no request yet.
    pub fn new(settings: &Settings) -> Result<Self, Failure> {
        Ok(Self { ends: Ends::new(settings)?, topic: settings.raw.clone() })
    }

    /// The log start offsets.
    pub fn first(
        &self,
        partitions: impl IntoIterator<Item = PartitionId>,
        wait: Duration,
    ) -> Result<Offsets, Failure> {
        self.list_offsets(self.ends.stable(), KafkaOffset::Beginning, partitions, wait)
    }

    /// The last stable offsets and the high watermarks.
    pub fn last(
        &self,
        partitions: impl IntoIterator<Item = PartitionId> + Clone,
        wait: Duration,
    ) -> Result<(Offsets, Offsets), Failure> {
        let stable = self.list_offsets(self.ends.stable(), KafkaOffset::End, partitions.clone(), wait)?;
        Ok((stable, self.list_offsets(self.ends.unstable(), KafkaOffset::End, partitions, wait)?))
    }

    fn list_offsets(
        &self,
        reader: &BaseConsumer<QuietContext>,
        end: KafkaOffset,
        partitions: impl IntoIterator<Item = PartitionId>,
        wait: Duration,
    ) -> Result<Offsets, Failure> {
        let fail = |e: &KafkaError| {
            failure(&format!("reading the log start and end offsets of topic {}", self.topic), e)
        };
        let logs = partitions.into_iter().map(|partition| (self.topic.as_str(), partition));
        let list = list_offsets(reader, logs, end, wait).map_err(|e| fail(&e))?;
        let mut offsets = Offsets::new();
        let mut first_error = None;
        for element in list.elements() {
            match (element.error(), element.offset(), u32::try_from(element.partition())) {
                (Ok(()), KafkaOffset::Offset(offset), Ok(partition)) => {
                    offsets.insert(partition, u64::try_from(offset).unwrap_or(0));
                }
                (Err(error), ..) => drop(first_error.get_or_insert(error)),
                _ => {}
            }
        }
        match first_error {
            Some(error) if offsets.is_empty() => Err(fail(&error)),
            _ => Ok(offsets),
        }
    }
}
