//! Where logs begin and end: what retention has deleted before can never be read again, and what lies behind
//! an open transaction not yet.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::consumer::BaseConsumer;
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::Offset as KafkaOffset;

use super::client_config::Settings;
use super::ends::{Ends, Quiet, listed};
use super::error::failure;
use crate::dedupe::{Offset, PartitionId};
use crate::ports::Failure;

/// An offset of each partition.
pub type Offsets = BTreeMap<PartitionId, Offset>;

/// Asks where the logs of the raw topic begin and end, by clients of its own: no worker waits for the answer.
///
/// One request a broker for all partitions. A partition whose broker does not know is left out; when none is
/// known, the first one's error is returned.
pub struct LogEnds {
    ends: Ends,
    topic: String,
}

impl LogEnds {
    /// Creates the clients; nothing is asked yet.
    pub fn new(settings: &Settings) -> Result<Self, Failure> {
        Ok(Self { ends: Ends::new(settings)?, topic: settings.raw.clone() })
    }

    /// The first offset left.
    pub fn first(
        &self,
        partitions: impl IntoIterator<Item = PartitionId>,
        wait: Duration,
    ) -> Result<Offsets, Failure> {
        self.ask(self.ends.stable(), KafkaOffset::Beginning, partitions, wait)
    }

    /// One past the last offset that a `read_committed` reader can see, and one past the last one written.
    pub fn last(
        &self,
        partitions: impl IntoIterator<Item = PartitionId> + Clone,
        wait: Duration,
    ) -> Result<(Offsets, Offsets), Failure> {
        let stable = self.ask(self.ends.stable(), KafkaOffset::End, partitions.clone(), wait)?;
        Ok((stable, self.ask(self.ends.unstable(), KafkaOffset::End, partitions, wait)?))
    }

    fn ask(
        &self,
        reader: &BaseConsumer<Quiet>,
        end: KafkaOffset,
        partitions: impl IntoIterator<Item = PartitionId>,
        wait: Duration,
    ) -> Result<Offsets, Failure> {
        let fail = |e: &KafkaError| {
            failure(&format!("asking where the logs of topic {} begin and end", self.topic), e)
        };
        let logs = partitions.into_iter().map(|partition| (self.topic.as_str(), partition));
        let answer = listed(reader, logs, end, wait).map_err(|e| fail(&e))?;
        let mut offsets = Offsets::new();
        let mut refused = None;
        for element in answer.elements() {
            match (element.error(), element.offset(), u32::try_from(element.partition())) {
                (Ok(()), KafkaOffset::Offset(offset), Ok(partition)) => {
                    offsets.insert(partition, u64::try_from(offset).unwrap_or(0));
                }
                (Err(error), ..) => drop(refused.get_or_insert(error)),
                _ => {}
            }
        }
        match refused {
            Some(error) if offsets.is_empty() => Err(fail(&error)),
            _ => Ok(offsets),
        }
    }
}
