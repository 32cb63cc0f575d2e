//! The membership of the consumer group, and the offsets that the group has committed.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Failure;
use crate::dedupe::{Offset, PartitionId};

/// An event of the group protocol. The client's callback only queues it; the worker acts on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupEvent<P = PartitionId> {
    /// These partitions are assigned to this member, effective with the call of [`GroupMember::assign`].
    Assigned(Vec<P>),
    /// These partitions are revoked; the worker releases them with [`GroupMember::unassign`].
    Revoked(Vec<P>),
    /// These partitions may already belong to another member: nothing of them may be committed.
    Lost(Vec<P>),
}

impl<P> GroupEvent<P> {
    /// The same event, with other names of the partitions.
    pub(crate) fn renamed<Q>(self, name: impl Fn(P) -> Q) -> GroupEvent<Q> {
        let all = |partitions: Vec<P>| partitions.into_iter().map(&name).collect();
        match self {
            Self::Assigned(partitions) => GroupEvent::Assigned(all(partitions)),
            Self::Revoked(partitions) => GroupEvent::Revoked(all(partitions)),
            Self::Lost(partitions) => GroupEvent::Lost(all(partitions)),
        }
    }
}

/// The committed offset of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Partition of the raw topic.
    pub partition: PartitionId,
    /// C, the next raw offset to process; `None` when the group has no committed offset (or it has expired).
    pub offset: Option<Offset>,
    /// The checkpoint metadata written with it.
    pub metadata: String,
}

/// A member of the consumer group.
pub trait GroupMember {
    /// Returns the group events since the last call, in order.
    fn events(&self) -> Vec<GroupEvent>;
    /// Accepts assigned partitions. Each starts at its offset, or stays paused where the offset is `None`.
    fn assign(&self, starts: &[(PartitionId, Option<Offset>)]) -> Result<(), Failure>;
    /// Releases partitions after a revocation or a loss.
    fn unassign(&self, partitions: &[PartitionId]) -> Result<(), Failure>;
    /// Reads C of these partitions. Waits at most `wait` for pending transactional offsets to be decided;
    /// [`Remedy::Retry`](super::Remedy::Retry) means that they are still pending.
    fn committed(&self, partitions: &[PartitionId], wait: Duration) -> Result<Vec<Committed>, Failure>;
    /// Reads C without waiting for pending transactions: the last committed offset and metadata. Only for finding out
    /// who wrote last.
    fn committed_unstable(
        &self,
        partitions: &[PartitionId],
        wait: Duration,
    ) -> Result<Vec<Committed>, Failure>;
    /// The transactional ids of the workers that are members of the group now, as far as their names are these ids (partition scope).
    fn live_writers(&self, wait: Duration) -> Result<BTreeSet<String>, Failure>;
    /// Whether this member may commit for exactly these partitions now: it has a real generation and member id, and
    /// its assignment is not lost. The broker validates a member only when the request names one (KIP-447), and never the
    /// ownership of a partition.
    fn may_commit(&self, partitions: &[PartitionId]) -> bool;
    /// Rejoins the group with a new client, without an assignment.
    fn rejoin(&mut self) -> Result<(), Failure>;
    /// Leaves the group. The caller serves [`GroupMember::events`] until all partitions are revoked and
    /// [`GroupMember::has_left`] is true.
    fn leave(&self);
    /// Whether this client is not a member, because it has requested to leave the group or never joined it. A member whose
    /// client is closed before that stays in the group for a session timeout.
    fn has_left(&self) -> bool {
        true
    }
}
