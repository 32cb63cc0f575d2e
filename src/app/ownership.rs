//! Unassigned partitions: raw partitions that are assigned to no member of the group, and the decision when to force
//! a rebalance.
//!
//! A rebalance in two steps (revoke, then assign) leaves partitions unassigned when a static member is killed between
//! the steps: its successor gets the old assignment without a rebalance, and no member requests the second step. The
//! same happens to partitions that are added while all static members are away. The group is stable then, no member
//! requests a rebalance, and the partitions are never read.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::dedupe::coordinates::ranges;
use crate::kafka::{GroupState, GroupView};

/// How long a stable group may leave a partition unassigned. A member that still has to release partitions commits
/// first, and requests the next rebalance right after that.
const GRACE: Duration = Duration::from_secs(3);
/// Additional delay of each further instance, so that one instance acts for all.
const STAGGER: Duration = Duration::from_secs(5);
/// Pause after the first forced rebalance; doubled each time, up to [`MAX_BACKOFF`].
const BACKOFF: Duration = Duration::from_secs(20);
const MAX_BACKOFF: Duration = Duration::from_mins(5);
/// When a partition has been unassigned for this long, no instance counts as ready.
const OBSTACLE_AFTER: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct Ownership {
    /// Monotonic time of the first observation of each unassigned partition.
    since: BTreeMap<u32, Duration>,
    /// Monotonic time of the last forced rebalance, and their number since every partition was assigned.
    forced: Option<(Duration, u32)>,
}

impl Ownership {
    /// Evaluates a view of the group, to which all `partitions` should be assigned. Returns how many partitions are
    /// assigned again after a rebalance was forced for unassigned ones.
    pub(super) fn observe(&mut self, group: &GroupView, partitions: usize, now: Duration) -> usize {
        if group.state == GroupState::Rebalancing {
            // The assignment is unknown until the rebalance ends.
            return 0;
        }
        let mut earlier = std::mem::take(&mut self.since);
        let is_assigned = |it: &u32| group.members.iter().any(|member| member.partitions.contains(it));
        let partitions = u32::try_from(partitions).unwrap_or(u32::MAX);
        for partition in (0..partitions).filter(|it| !is_assigned(it)) {
            self.since.insert(partition, earlier.remove(&partition).unwrap_or(now));
        }
        // Without a forced rebalance, the group was only joined.
        let resolved = if self.forced.is_some() { earlier.len() } else { 0 };
        if self.since.is_empty() {
            self.forced = None;
        }
        resolved
    }

    /// The number of unassigned partitions.
    pub(super) fn unassigned(&self) -> usize {
        self.since.len()
    }

    /// Whether the instance of this worker is to force a rebalance now.
    pub(super) fn is_due(&self, group: &GroupView, worker: &str, now: Duration) -> bool {
        let Some(since) = self.since.values().min().filter(|_| group.state == GroupState::Stable) else {
            return false;
        };
        let instances: BTreeSet<&str> = group.members.iter().map(|it| instance(&it.worker)).collect();
        let place = instances.iter().position(|it| *it == instance(worker)).unwrap_or(instances.len());
        let delay = GRACE + STAGGER * u32::try_from(place).unwrap_or(u32::MAX).min(12);
        let backoff_is_over = self.forced.is_none_or(|(last, times)| {
            let backoff = (BACKOFF * 2u32.saturating_pow(times.saturating_sub(1).min(8))).min(MAX_BACKOFF);
            now.saturating_sub(last) >= backoff
        });
        now.saturating_sub(*since) >= delay && backoff_is_over
    }

    /// Records that a rebalance is forced now.
    pub(super) fn note_forced(&mut self, now: Duration) {
        let times = self.forced.map_or(0, |(_, times)| times);
        self.forced = Some((now, times + 1));
    }

    /// Why no instance of the group counts as ready; `None` while no partition has been unassigned for long.
    /// `foreign` is a member of another program, with the remedy.
    pub(super) fn obstacle(
        &self,
        group: &str,
        topic: &str,
        foreign: Option<String>,
        now: Duration,
    ) -> Option<String> {
        let remedy = foreign.unwrap_or_else(|| {
            "A rebalance is forced with exponential backoff. If that does not help, restart one instance after the other, each \
             stopped for longer than group.session_timeout"
                .to_owned()
        });
        let long: Vec<_> =
            self.since.iter().filter(|(_, since)| now.saturating_sub(**since) >= OBSTACLE_AFTER).collect();
        let since = long.iter().map(|(_, since)| **since).min()?;
        Some(format!(
            "no member of group {group} is assigned partitions {} of topic {topic}, for {} s: its records are not \
             read. {remedy}",
            ranges(long.iter().map(|(partition, _)| **partition)),
            now.saturating_sub(since).as_secs()
        ))
    }
}

/// The common prefix of the names of an instance's workers: `<group>.<instance>.<worker>` without the last part.
pub(super) fn instance(worker: &str) -> &str {
    worker.rsplit_once('.').map_or(worker, |(instance, _)| instance)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::Member;

    const SECOND: fn(u64) -> Duration = Duration::from_secs;

    fn group(state: GroupState, members: &[(&str, &[u32])]) -> GroupView {
        let member = |(name, partitions): &(&str, &[u32])| Member {
            id: (*name).to_owned(),
            host: String::new(),
            worker: (*name).to_owned(),
            partitions: partitions.to_vec(),
        };
        GroupView { state, members: members.iter().map(member).collect() }
    }

    fn halves() -> GroupView {
        group(GroupState::Stable, &[("g.b.0", &[]), ("g.a.1", &[2, 3]), ("g.a.0", &[])])
    }

    #[test]
    fn only_a_stable_or_empty_group_has_unassigned_partitions() {
        let mut ownership = Ownership::default();
        assert_eq!(
            ownership.observe(&group(GroupState::Stable, &[("a", &[0, 1]), ("b", &[2])]), 3, SECOND(0)),
            0
        );
        assert_eq!(ownership.unassigned(), 0);
        ownership.observe(&halves(), 4, SECOND(1));
        assert_eq!(ownership.unassigned(), 2);
        // During a rebalance the assignment is unknown.
        ownership.observe(&group(GroupState::Rebalancing, &[("a", &[]), ("b", &[])]), 4, SECOND(2));
        assert_eq!(ownership.unassigned(), 2);
        let whole = group(GroupState::Stable, &[("a", &[0, 1, 2, 3])]);
        assert_eq!(ownership.observe(&whole, 4, SECOND(3)), 0, "no rebalance was forced");
        assert_eq!(ownership.unassigned(), 0);
        ownership.observe(&halves(), 4, SECOND(3));
        ownership.note_forced(SECOND(3));
        assert_eq!(ownership.observe(&whole, 4, SECOND(4)), 2);
        ownership.observe(&GroupView::default(), 4, SECOND(4));
        assert_eq!(ownership.unassigned(), 4);
    }

    #[test]
    fn instances_force_rebalances_one_after_the_other_with_exponential_backoff() {
        let mut ownership = Ownership::default();
        let due = |ownership: &Ownership, name, second| ownership.is_due(&halves(), name, SECOND(second));
        ownership.observe(&halves(), 4, SECOND(100));
        assert!(!due(&ownership, "g.a.0", 102));
        assert!(due(&ownership, "g.a.0", 103) && !due(&ownership, "g.b.0", 107));
        assert!(due(&ownership, "g.b.0", 108) && !due(&ownership, "no member", 112));
        assert!(due(&ownership, "no member", 113));
        // No rebalance is forced while the group rebalances.
        let busy = group(GroupState::Rebalancing, &[("a", &[])]);
        assert!(!ownership.is_due(&busy, "g.a.0", SECOND(200)));
        let mut now = 103;
        for pause in [20, 40, 80, 160, 300, 300] {
            ownership.note_forced(SECOND(now));
            assert!(!due(&ownership, "g.a.0", now + pause - 1));
            assert!(due(&ownership, "g.a.0", now + pause));
            now += pause;
        }
        // After all partitions were assigned, the backoff starts again from its first value.
        ownership.observe(&group(GroupState::Stable, &[("a", &[0, 1, 2, 3])]), 4, SECOND(now));
        ownership.observe(&halves(), 4, SECOND(now));
        assert!(due(&ownership, "g.a.0", now + 3));
    }

    #[test]
    fn partitions_unassigned_for_half_a_minute_are_listed() {
        let mut ownership = Ownership::default();
        ownership.observe(&halves(), 4, SECOND(0));
        ownership.observe(&halves(), 5, SECOND(10));
        assert_eq!(ownership.obstacle("g", "raw", None, SECOND(29)), None);
        let text = ownership.obstacle("g", "raw", None, SECOND(30)).expect("an obstacle");
        assert!(
            text.contains("group g") && text.contains("partitions 0-1 (2) of topic raw, for 30 s"),
            "{text}"
        );
        ownership.observe(&halves(), 100, SECOND(10));
        let text = ownership.obstacle("g", "raw", None, SECOND(60)).expect("an obstacle");
        assert!(
            text.contains("partitions 0-1,4-99 (98) of") && text.contains("restart one instance"),
            "{text}"
        );
        let text =
            ownership.obstacle("g", "raw", Some("stop it".to_owned()), SECOND(60)).expect("an obstacle");
        assert!(text.contains("not read. stop it") && !text.contains("restart"), "{text}");
    }
}
