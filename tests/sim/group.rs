//! The consumer group: its members, the owner of each partition, and the events for each member.

use std::collections::BTreeMap;
use std::time::Duration;

use dedupd::dedupe::{Offset, PartitionId};
use dedupd::ports::GroupEvent;
use fastrand::Rng;

/// The number of a group member. A restarted worker is a new member.
pub type MemberId = usize;

/// The position of a member's client in an assigned partition.
#[derive(Debug, Clone, Copy)]
pub struct Fetch {
    /// The next offset to deliver, `None` until the first seek.
    pub at: Option<Offset>,
    /// The partition is paused.
    pub paused: bool,
}

struct Member {
    worker: usize,
    /// Whether the broker accepts its generation.
    valid: bool,
    queue: Vec<(Duration, GroupEvent)>,
    fetch: BTreeMap<PartitionId, Fetch>,
}

/// The group coordinator's state, and the clients of the members.
#[derive(Default)]
pub struct Group {
    members: Vec<Member>,
    owners: Vec<Option<MemberId>>,
    revoking: Vec<bool>,
    live: BTreeMap<usize, MemberId>,
    /// The assignor does not know the partitions from this one on.
    pub unknown_from: Option<usize>,
}

impl Group {
    /// Adds a partition.
    pub fn grow(&mut self) {
        self.owners.push(None);
        self.revoking.push(false);
    }

    /// Whether the group has no members.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// The workers that are members.
    pub fn workers(&self) -> impl Iterator<Item = usize> {
        self.live.keys().copied()
    }

    /// Whether every partition is assigned and every event is delivered.
    pub fn is_settled(&self) -> bool {
        self.owners.iter().all(Option::is_some)
            && self.live.values().all(|m| self.members[*m].queue.is_empty())
    }

    /// Owner of a partition.
    pub fn owner(&self, partition: usize) -> Option<MemberId> {
        self.owners[partition]
    }

    /// The worker that owns a partition.
    pub fn worker_of(&self, partition: usize) -> Option<usize> {
        self.owners[partition].map(|id| self.members[id].worker)
    }

    /// A worker joins.
    pub fn join(&mut self, worker: usize) -> MemberId {
        self.members.push(Member { worker, valid: true, queue: Vec::new(), fetch: BTreeMap::new() });
        let id = self.members.len() - 1;
        self.live.insert(worker, id);
        id
    }

    /// Removes a worker and its assignment.
    pub fn remove(&mut self, worker: usize) {
        if let Some(id) = self.live.remove(&worker) {
            self.members[id].valid = false;
            self.members[id].queue.clear();
            self.disown(id);
        }
    }

    fn disown(&mut self, id: MemberId) -> Vec<PartitionId> {
        let owned: Vec<usize> = (0..self.owners.len()).filter(|p| self.owners[*p] == Some(id)).collect();
        for p in &owned {
            self.owners[*p] = None;
            self.revoking[*p] = false;
        }
        owned.into_iter().map(|p| u32::try_from(p).unwrap()).collect()
    }

    /// Assigns partitions without an owner to random members.
    pub fn balance(&mut self, now: Duration, rng: &mut Rng) {
        let members: Vec<MemberId> = self.live.values().copied().filter(|m| self.members[*m].valid).collect();
        if members.is_empty() {
            return;
        }
        let mut given: BTreeMap<MemberId, Vec<PartitionId>> = BTreeMap::new();
        let known = self.owners.iter_mut().take(self.unknown_from.unwrap_or(usize::MAX)).enumerate();
        for (partition, owner) in known.filter(|(_, owner)| owner.is_none()) {
            let member = members[rng.usize(0..members.len())];
            *owner = Some(member);
            given.entry(member).or_default().push(u32::try_from(partition).unwrap());
        }
        for (member, partitions) in given {
            let due = now + Duration::from_millis(rng.u64(0..300));
            self.send(member, due, GroupEvent::Assigned(partitions));
        }
    }

    /// Events are delivered in the order in which they were sent.
    fn send(&mut self, member: MemberId, due: Duration, event: GroupEvent) {
        let queue = &mut self.members[member].queue;
        let due = queue.last().map_or(due, |(last, _)| due.max(*last));
        queue.push((due, event));
    }

    /// Revokes a partition from its owner.
    pub fn revoke(&mut self, partition: usize, due: Duration) -> bool {
        let Some(owner) = self.owners[partition].filter(|_| !self.revoking[partition]) else { return false };
        self.revoking[partition] = true;
        self.send(owner, due, GroupEvent::Revoked(vec![u32::try_from(partition).unwrap()]));
        true
    }

    /// Removes the owner of a partition from the group. Its client receives the event at `due`.
    pub fn kick(&mut self, partition: usize, due: Duration) -> bool {
        let Some(owner) = self.owners[partition] else { return false };
        if !self.members[owner].valid || !self.members[owner].queue.is_empty() {
            return false;
        }
        self.members[owner].valid = false;
        let owned = self.disown(owner);
        self.send(owner, due, GroupEvent::Lost(owned));
        true
    }

    /// The member leaves: all its partitions are revoked.
    pub fn leave(&mut self, id: MemberId, now: Duration) {
        for partition in 0..self.owners.len() {
            if self.owners[partition] == Some(id) {
                self.revoke(partition, now);
            }
        }
    }

    /// Takes the events that the member's client has received by now.
    pub fn events(&mut self, id: MemberId, now: Duration) -> Vec<GroupEvent> {
        let queue = &mut self.members[id].queue;
        let due = queue.partition_point(|(due, _)| *due <= now);
        queue.drain(..due).map(|(_, event)| event).collect()
    }

    /// Whether the member's client has received an event by now.
    pub fn has_event(&self, id: MemberId, now: Duration) -> bool {
        self.members[id].queue.first().is_some_and(|(due, _)| *due <= now)
    }

    /// Whether the client considers itself the owner of these partitions.
    pub fn considers_owned(&self, id: MemberId, partitions: &[PartitionId], now: Duration) -> bool {
        let member = &self.members[id];
        let lost =
            member.queue.iter().any(|(due, event)| *due <= now && matches!(event, GroupEvent::Lost(_)));
        !lost && partitions.iter().all(|p| member.fetch.contains_key(p))
    }

    /// Whether another member has replaced this one.
    pub fn is_dead(&self, id: MemberId) -> bool {
        self.live.get(&self.members[id].worker) != Some(&id)
    }

    /// Whether the broker accepts its generation.
    pub fn is_valid(&self, id: MemberId) -> bool {
        self.members[id].valid
    }

    /// The partitions assigned in a member's client.
    pub fn fetch(&mut self, id: MemberId) -> &mut BTreeMap<PartitionId, Fetch> {
        &mut self.members[id].fetch
    }

    /// The position of the owner's client in a partition.
    pub fn position(&self, partition: usize) -> Option<Fetch> {
        let owner = &self.members[self.owners[partition]?];
        owner.fetch.get(&u32::try_from(partition).unwrap()).copied()
    }

    /// Completes the revocation of partitions. A member that was removed rejoins.
    pub fn unassign(&mut self, id: MemberId, partitions: &[PartitionId]) {
        for partition in partitions {
            self.members[id].fetch.remove(partition);
            let at = *partition as usize;
            if self.owners[at] == Some(id) {
                self.owners[at] = None;
                self.revoking[at] = false;
            }
        }
        let member = &mut self.members[id];
        if member.queue.is_empty() && member.fetch.is_empty() && self.live.get(&member.worker) == Some(&id) {
            member.valid = true;
        }
    }
}
