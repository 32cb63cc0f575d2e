//! Partitions of raw that no member of the group has: since when, and when to do something about it.
//!
//! A rebalance in two steps (revoke, then assign) leaves them behind when a static member is killed between the
//! steps: its successor gets the old assignment without a rebalance, and nobody requests the second step. The
//! same happens to partitions that are added while all static members are away. The group is stable then, every
//! member is content, and the partitions are never read.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::kafka::{GroupState, GroupView};

/// How long a stable group may leave a partition without an owner. A member that still has to give partitions up
/// commits first, and requests the next rebalance right after that.
const PATIENCE: Duration = Duration::from_secs(3);
/// How much later each further instance acts, so that one does it for all.
const TURN: Duration = Duration::from_secs(5);
/// How long one attempt has before the next; doubled each time, up to [`LONGEST`].
const AGAIN: Duration = Duration::from_secs(20);
const LONGEST: Duration = Duration::from_mins(5);
/// After so long without an owner an instance does not count as ready.
const OBSTACLE: Duration = Duration::from_secs(30);
/// So many partitions are named one by one.
const NAMED: usize = 10;

/// The partitions without an owner.
#[derive(Debug, Default)]
pub(super) struct Ownership {
    /// Monotonic time of the first look that found the partition without an owner.
    since: BTreeMap<u32, Duration>,
    /// Monotonic time of the last forced rebalance, and how many there were since every partition had an owner.
    forced: Option<(Duration, u32)>,
}

impl Ownership {
    /// What a look saw of the group, which should own all `partitions`. Returns how many were without an owner before
    /// and have one now.
    pub(super) fn seen(&mut self, group: &GroupView, partitions: usize, now: Duration) -> usize {
        if group.state == GroupState::Rebalancing {
            // Who gets what is not known before the rebalance has ended.
            return 0;
        }
        let mut earlier = std::mem::take(&mut self.since);
        let is_owned = |it: &u32| group.members.iter().any(|member| member.partitions.contains(it));
        let partitions = u32::try_from(partitions).unwrap_or(u32::MAX);
        for partition in (0..partitions).filter(|it| !is_owned(it)) {
            self.since.insert(partition, earlier.remove(&partition).unwrap_or(now));
        }
        if self.since.is_empty() {
            self.forced = None;
        }
        earlier.len()
    }

    /// How many partitions have no owner.
    pub(super) fn unassigned(&self) -> usize {
        self.since.len()
    }

    /// Whether the instance to whose worker `client_id` belongs is to force a rebalance now.
    pub(super) fn is_due(&self, group: &GroupView, client_id: &str, now: Duration) -> bool {
        let Some(since) = self.since.values().min().filter(|_| group.state == GroupState::Stable) else {
            return false;
        };
        let instances: BTreeSet<&str> = group.members.iter().map(|it| instance(&it.client_id)).collect();
        let place = instances.iter().position(|it| *it == instance(client_id)).unwrap_or(instances.len());
        let patience = PATIENCE + TURN * u32::try_from(place).unwrap_or(u32::MAX).min(12);
        let waited = self.forced.is_none_or(|(last, times)| {
            let pause = (AGAIN * 2u32.saturating_pow(times.saturating_sub(1).min(8))).min(LONGEST);
            now.saturating_sub(last) >= pause
        });
        now.saturating_sub(*since) >= patience && waited
    }

    /// A rebalance is forced now.
    pub(super) fn forced(&mut self, now: Duration) {
        let times = self.forced.map_or(0, |(_, times)| times);
        self.forced = Some((now, times + 1));
    }

    /// Why no instance of the group counts as ready; `None` while nothing is without an owner for long.
    pub(super) fn obstacle(&self, group: &str, topic: &str, now: Duration) -> Option<String> {
        let long: Vec<_> =
            self.since.iter().filter(|(_, since)| now.saturating_sub(**since) >= OBSTACLE).collect();
        let since = long.iter().map(|(_, since)| **since).min()?;
        let named: Vec<String> =
            long.iter().take(NAMED).map(|(partition, _)| partition.to_string()).collect();
        let more = match long.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Some(format!(
            "no member of group {group} has partition {}{more} of topic {topic}, for {} s: nobody reads it; another \
             rebalance is forced from time to time. If that does not help, restart one instance after the other, each \
             stopped for longer than group.session_timeout",
            named.join(", "),
            now.saturating_sub(since).as_secs()
        ))
    }
}

/// What the clients of all workers of an instance have in common: `<group>.<instance>.<worker>` without the last.
fn instance(client_id: &str) -> &str {
    client_id.rsplit_once('.').map_or(client_id, |(instance, _)| instance)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::Member;

    const SECOND: fn(u64) -> Duration = Duration::from_secs;

    fn group(state: GroupState, members: &[(&str, &[u32])]) -> GroupView {
        let member = |(name, partitions): &(&str, &[u32])| Member {
            client_id: (*name).to_owned(),
            partitions: partitions.to_vec(),
        };
        GroupView { state, members: members.iter().map(member).collect() }
    }

    fn halves() -> GroupView {
        group(GroupState::Stable, &[("g.b.0", &[]), ("g.a.1", &[2, 3]), ("g.a.0", &[])])
    }

    #[test]
    fn only_what_a_stable_or_empty_group_leaves_out_has_no_owner() {
        let mut ownership = Ownership::default();
        assert_eq!(
            ownership.seen(&group(GroupState::Stable, &[("a", &[0, 1]), ("b", &[2])]), 3, SECOND(0)),
            0
        );
        assert_eq!(ownership.unassigned(), 0);
        ownership.seen(&halves(), 4, SECOND(1));
        assert_eq!(ownership.unassigned(), 2);
        // While the group rebalances, nothing is known of who has what.
        ownership.seen(&group(GroupState::Rebalancing, &[("a", &[]), ("b", &[])]), 4, SECOND(2));
        assert_eq!(ownership.unassigned(), 2);
        assert_eq!(ownership.seen(&group(GroupState::Stable, &[("a", &[0, 1, 2, 3])]), 4, SECOND(3)), 2);
        assert_eq!(ownership.unassigned(), 0);
        ownership.seen(&GroupView::default(), 4, SECOND(4));
        assert_eq!(ownership.unassigned(), 4);
    }

    #[test]
    fn one_instance_after_the_other_forces_a_rebalance_ever_more_rarely() {
        let mut ownership = Ownership::default();
        let due = |ownership: &Ownership, name, second| ownership.is_due(&halves(), name, SECOND(second));
        ownership.seen(&halves(), 4, SECOND(100));
        assert!(!due(&ownership, "g.a.0", 102));
        assert!(due(&ownership, "g.a.0", 103) && !due(&ownership, "g.b.0", 107));
        assert!(due(&ownership, "g.b.0", 108) && !due(&ownership, "no member", 112));
        assert!(due(&ownership, "no member", 113));
        // A group that rebalances anyway is left alone.
        let busy = group(GroupState::Rebalancing, &[("a", &[])]);
        assert!(!ownership.is_due(&busy, "g.a.0", SECOND(200)));
        let mut now = 103;
        for pause in [20, 40, 80, 160, 300, 300] {
            ownership.forced(SECOND(now));
            assert!(!due(&ownership, "g.a.0", now + pause - 1));
            assert!(due(&ownership, "g.a.0", now + pause));
            now += pause;
        }
        // Once all have an owner, the next case begins anew.
        ownership.seen(&group(GroupState::Stable, &[("a", &[0, 1, 2, 3])]), 4, SECOND(now));
        ownership.seen(&halves(), 4, SECOND(now));
        assert!(due(&ownership, "g.a.0", now + 3));
    }

    #[test]
    fn what_has_no_owner_for_half_a_minute_is_named() {
        let mut ownership = Ownership::default();
        ownership.seen(&halves(), 4, SECOND(0));
        ownership.seen(&halves(), 5, SECOND(10));
        assert_eq!(ownership.obstacle("g", "raw", SECOND(29)), None);
        let text = ownership.obstacle("g", "raw", SECOND(30)).expect("an obstacle");
        assert!(text.contains("group g") && text.contains("partition 0, 1 of topic raw, for 30 s"), "{text}");
        ownership.seen(&halves(), 100, SECOND(10));
        let text = ownership.obstacle("g", "raw", SECOND(60)).expect("an obstacle");
        assert!(text.contains("0, 1, 4, 5, 6, 7, 8, 9, 10, 11 and 88 more"), "{text}");
    }
}
