//! The assignment of the client: which partitions it fetches, and from which offset.

use std::collections::BTreeMap;

use rdkafka::consumer::Consumer;
use rdkafka::topic_partition_list::Offset as KafkaOffset;

use super::KafkaSource;
use crate::dedupe::{Offset, PartitionId};
use crate::kafka::partitions::{kafka_partition, list_of, partition_id};
use crate::ports::{Failure, Remedy};

impl KafkaSource {
    /// Adds partitions to the client's assignment, each at its offset; this also handles an assign event.
    ///
    /// Offsets are always absolute. For a logical offset (the log end) the client sends a request to the broker. When a
    /// pause or seek overtakes the response, the client repeats the request, and the second response overrides the seek:
    /// everything up to the log end would be skipped without an error.
    pub(super) fn assign_at(&self, starts: &[(PartitionId, Offset)]) -> Result<(), Failure> {
        let fail = |e| self.fail("accepting partitions of", &e);
        let added = starts.iter().map(|(partition, _)| kafka_partition(*partition));
        let is_added = self.is_cooperative();
        let all = if is_added { starts.to_vec() } else { self.all_with(starts)? };
        self.list_at(&all)
            .and_then(|list| {
                self.fetched.assign(&self.consumer, &self.topic, added, || {
                    if is_added {
                        self.consumer.incremental_assign(&list)
                    } else {
                        self.consumer.assign(&list)
                    }
                })
            })
            .map_err(fail)?;
        self.assigned.borrow_mut().extend(starts.iter().copied());
        Ok(())
    }

    /// Removes partitions from the client's assignment; this also handles a revoke event.
    pub(super) fn remove_assigned(&self, partitions: &[PartitionId]) -> Result<(), Failure> {
        let mut assigned = self.assigned.borrow_mut();
        let gone: Vec<PartitionId> =
            partitions.iter().copied().filter(|p| assigned.contains_key(p)).collect();
        if self.is_cooperative() {
            self.consumer.incremental_unassign(&list_of(&self.topic, gone.iter().copied()))
        } else {
            self.consumer.unassign()
        }
        .map_err(|e| self.fail("releasing partitions of", &e))?;
        if self.is_cooperative() {
            assigned.retain(|p, _| !gone.contains(p));
        } else {
            assigned.clear();
        }
        self.fetched.keep(|_, partition| assigned.contains_key(&partition_id(partition)));
        Ok(())
    }

    /// Removes partitions from the client's assignment and adds them again, each at its offset.
    pub(super) fn reassign_at(&self, starts: &[(PartitionId, Offset)]) -> Result<(), Failure> {
        if self.is_cooperative() {
            self.remove_assigned(&starts.iter().map(|(p, _)| *p).collect::<Vec<_>>())?;
        }
        self.assign_and_compare(starts)
    }

    /// Fails when one of these partitions is not assigned to this member.
    pub(super) fn check_ownership(&self, starts: &[(PartitionId, Offset)]) -> Result<(), Failure> {
        let not_owned = starts.iter().find(|(partition, _)| !self.owned.borrow().contains(partition));
        if not_owned.is_none() && !self.consumer.assignment_lost() {
            return Ok(());
        }
        let (partition, _) = not_owned.or(starts.first()).copied().unwrap_or_default();
        Err(Failure::new(
            Remedy::Retry,
            format!(
                "partition {partition} of topic {} cannot be read from its committed offset: it is not assigned to this \
                 member of group {}; waiting for an assignment",
                self.topic, self.group
            ),
        ))
    }

    /// The whole assignment with these partitions added.
    fn all_with(&self, starts: &[(PartitionId, Offset)]) -> Result<Vec<(PartitionId, Offset)>, Failure> {
        let mut all = self.positions()?;
        all.extend(starts.iter().copied());
        Ok(all.into_iter().collect())
    }

    /// The next offset of each partition in the client's assignment. Only for the eager protocol, where adding a partition
    /// replaces the whole assignment.
    fn positions(&self) -> Result<BTreeMap<PartitionId, Offset>, Failure> {
        let mut positions = self.assigned.borrow().clone();
        let list = self.consumer.position().map_err(|e| self.fail("reading the positions in", &e))?;
        for element in list.elements() {
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
