//! Where logs begin: what retention has deleted before that can never be read again.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::{Offset as KafkaOffset, TopicPartitionList};

use super::client_config::Settings;
use super::consumer::number;
use super::ends::{Quiet, reader};
use super::error::failure;
use crate::dedupe::{Offset, PartitionId};
use crate::ports::Failure;

/// Asks where the logs of the raw topic begin, by a client of its own: no worker waits for the answer.
pub struct LogStarts {
    reader: BaseConsumer<Quiet>,
    topic: String,
}

impl LogStarts {
    /// Creates the client; nothing is asked yet.
    pub fn new(settings: &Settings) -> Result<Self, Failure> {
        Ok(Self { reader: reader(settings, "read_committed")?, topic: settings.raw.clone() })
    }

    /// The first offset left of each partition, in one request a broker. A partition whose broker does
    /// not know is left out; when none is known, the first one's error is returned.
    pub fn of(
        &self,
        partitions: impl IntoIterator<Item = PartitionId>,
        wait: Duration,
    ) -> Result<BTreeMap<PartitionId, Offset>, Failure> {
        let fail =
            |e: &KafkaError| failure(&format!("asking where the logs of topic {} begin", self.topic), e);
        let mut list = TopicPartitionList::new();
        for partition in partitions {
            // In the place of a time: the earliest offset there is.
            list.add_partition_offset(&self.topic, number(partition), KafkaOffset::Beginning)
                .map_err(|e| fail(&e))?;
        }
        if list.count() == 0 {
            return Ok(BTreeMap::new());
        }
        let answer = self.reader.offsets_for_times(list, wait).map_err(|e| fail(&e))?;
        let mut starts = BTreeMap::new();
        let mut refused = None;
        for element in answer.elements() {
            match (element.error(), element.offset(), u32::try_from(element.partition())) {
                (Ok(()), KafkaOffset::Offset(start), Ok(partition)) => {
                    starts.insert(partition, u64::try_from(start).unwrap_or(0));
                }
                (Err(error), ..) => drop(refused.get_or_insert(error)),
                _ => {}
            }
        }
        match refused {
            Some(error) if starts.is_empty() => Err(fail(&error)),
            _ => Ok(starts),
        }
    }
}
