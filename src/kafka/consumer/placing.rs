//! Which partitions the client reads, and from where on.

use std::collections::BTreeMap;

use rdkafka::consumer::Consumer;
use rdkafka::topic_partition_list::Offset as KafkaOffset;

use super::{KafkaSource, kafka_offset};
use crate::dedupe::{Offset, PartitionId};
use crate::ports::{Failure, Remedy};

impl KafkaSource {
    /// Lets the client read partitions, each from its offset; also answers an assignment.
    ///
    /// Offsets are always absolute. The client would look a logical one (the log's end) up at the
    /// broker, and an answer overtaken by a pause or a seek makes it ask again and then overrule the
    /// seek: everything up to the end of the log would be skipped, silently.
    pub(super) fn place(&self, starts: &[(PartitionId, Offset)]) -> Result<(), Failure> {
        let list = |starts: &[(PartitionId, Offset)]| {
            self.list(starts.iter().map(|(partition, start)| (*partition, kafka_offset(*start))))
        };
        if self.is_cooperative() {
            self.consumer.incremental_assign(&list(starts)?)
        } else {
            let mut all = self.positions()?;
            all.extend(starts.iter().copied());
            self.consumer.assign(&list(&all.into_iter().collect::<Vec<_>>())?)
        }
        .map_err(|e| self.fail("accepting partitions of", &e))?;
        self.placed.borrow_mut().extend(starts.iter().copied());
        Ok(())
    }

    /// Takes partitions away from the client; also answers a revocation.
    pub(super) fn displace(&self, partitions: &[PartitionId]) -> Result<(), Failure> {
        let mut placed = self.placed.borrow_mut();
        let gone: Vec<PartitionId> = partitions.iter().copied().filter(|p| placed.contains_key(p)).collect();
        if self.is_cooperative() {
            self.consumer.incremental_unassign(&self.plain(&gone)?)
        } else {
            self.consumer.unassign()
        }
        .map_err(|e| self.fail("giving back partitions of", &e))?;
        if self.is_cooperative() {
            placed.retain(|p, _| !gone.contains(p));
        } else {
            placed.clear();
        }
        Ok(())
    }

    /// Takes partitions away from the client and lets it read them again, each from its offset.
    pub(super) fn replace(&self, starts: &[(PartitionId, Offset)]) -> Result<(), Failure> {
        if self.is_cooperative() {
            self.displace(&starts.iter().map(|(p, _)| *p).collect::<Vec<_>>())?;
        }
        self.place_compared(starts)
    }

    /// Fails when the group has not given one of these partitions to this member.
    pub(super) fn are_ours(&self, starts: &[(PartitionId, Offset)]) -> Result<(), Failure> {
        let foreign = starts.iter().find(|(partition, _)| !self.owned.borrow().contains(partition));
        if foreign.is_none() && !self.consumer.assignment_lost() {
            return Ok(());
        }
        let (partition, _) = foreign.or(starts.first()).copied().unwrap_or_default();
        Err(Failure {
            remedy: Remedy::Retry,
            what: format!(
                "partition {partition} of topic {} cannot be read from its committed offset: the group {} has not \
                 given it to this member; waiting for the group",
                self.topic, self.group
            ),
            refused: None,
        })
    }

    /// Where each placed partition goes on. Only for eager protocols, which replace the whole
    /// assignment to add to it.
    fn positions(&self) -> Result<BTreeMap<PartitionId, Offset>, Failure> {
        let mut positions = self.placed.borrow().clone();
        let told = self.consumer.position().map_err(|e| self.fail("reading the positions in", &e))?;
        for element in told.elements() {
            if let (Ok(partition), KafkaOffset::Offset(next)) =
                (u32::try_from(element.partition()), element.offset())
                && let (Some(position), Ok(next)) = (positions.get_mut(&partition), u64::try_from(next))
            {
                *position = next;
            }
        }
        Ok(positions)
    }
}
