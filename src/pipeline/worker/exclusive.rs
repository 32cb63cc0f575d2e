//! One active worker: the owner of partition 0 stays in the group, and every other worker leaves it.
//!
//! A worker joins when no other worker is in the group, so two are in it only when they join at the same moment, or when
//! a worker of another configuration joins. Each worker sees its own assignment only. Partition 0 has one owner, so at
//! most one worker stays.

use std::time::Duration;

/// How long a worker that had partition 0 waits for it. A cooperative rebalance may revoke the partition in one step and
/// return it in the next one, after the worker that has just joined has left.
const PATIENCE: Duration = Duration::from_secs(3);

/// Whether this worker is the one that stays in the group.
#[derive(Debug, Default)]
pub(crate) struct Exclusive {
    /// It has owned partition 0 since it joined.
    had_first: bool,
    /// Monotonic time since which it has an assignment without partition 0.
    without_first: Option<Duration>,
    /// The group has removed it, or another worker joined first.
    gives_way: bool,
}

impl Exclusive {
    /// Evaluates an assignment, which may be empty.
    pub(crate) fn assigned(&mut self, owns_first: bool, now: Duration) {
        self.had_first |= owns_first;
        self.gives_way |= !self.had_first;
        self.without_first = if owns_first { None } else { self.without_first.or(Some(now)) };
    }

    /// The group has removed this worker. It does not join again by itself: another worker may have all partitions.
    pub(crate) fn lost(&mut self) {
        self.gives_way = true;
    }

    /// A new member replaces this one.
    pub(crate) fn rejoins(&mut self) {
        *self = Self::default();
    }

    /// Whether this worker has to leave the group.
    pub(crate) fn gives_way(&self, now: Duration) -> bool {
        self.gives_way || self.without_first.is_some_and(|since| now.saturating_sub(since) >= PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn the_owner_of_partition_0_stays_with_a_part_of_the_partitions() {
        let mut exclusive = Exclusive::default();
        assert!(!exclusive.gives_way(SECOND(60)), "before the first assignment");
        exclusive.assigned(true, SECOND(60));
        assert!(!exclusive.gives_way(SECOND(1_000)));
    }

    #[test]
    fn a_worker_whose_first_assignment_lacks_partition_0_leaves_at_once() {
        let mut exclusive = Exclusive::default();
        exclusive.assigned(false, SECOND(1));
        assert!(exclusive.gives_way(SECOND(1)));
        // Even when the next step of the rebalance brings it: the worker that had it before has stopped by then.
        exclusive.assigned(true, SECOND(1));
        assert!(exclusive.gives_way(SECOND(1)));
    }

    #[test]
    fn a_worker_that_had_partition_0_waits_for_the_next_step_of_the_rebalance() {
        let mut exclusive = Exclusive::default();
        exclusive.assigned(true, SECOND(1));
        exclusive.assigned(false, SECOND(10));
        assert!(!exclusive.gives_way(SECOND(12)));
        exclusive.assigned(true, SECOND(12));
        assert!(!exclusive.gives_way(SECOND(100)));
        exclusive.assigned(false, SECOND(200));
        exclusive.assigned(false, SECOND(202));
        assert!(!exclusive.gives_way(SECOND(202)) && exclusive.gives_way(SECOND(203)));
    }

    #[test]
    fn a_removed_worker_leaves_and_a_new_member_starts_again() {
        let mut exclusive = Exclusive::default();
        exclusive.assigned(true, SECOND(1));
        exclusive.lost();
        assert!(exclusive.gives_way(SECOND(1)));
        exclusive.rejoins();
        assert!(!exclusive.gives_way(SECOND(9)));
        exclusive.assigned(false, SECOND(9));
        assert!(exclusive.gives_way(SECOND(9)));
    }
}
