//! The group assigns only a part of the partitions to a worker that started before raw grew.

use super::*;
use crate::sim::universe::Sabotage;
use dedupd::pipeline::Safeguard;

/// The id whose second record is a copy in another partition, which the worker is not assigned yet.
const COPIED: u64 = 7;

/// A worker has processed both partitions of raw. The next one started when raw had one, and its topic monitor has not looked since. The group
/// first assigns it one partition, with records of several windows later, and then the other one, with a copy of an id of the first. Returns how
/// often the id was forwarded.
fn forwarded_with_an_old_assignment(setting: &Setting, group_began: usize) -> usize {
    let mut life = Life::quiet(setting, group_began, Choices::short_topic);
    life.began = Some(group_began);
    let now_ms = life.universe.cluster.borrow().wall_ms();
    life.produce_at(0, 1_000, now_ms);
    assert!(life.calm());
    if group_began == 1 {
        life.universe.cluster.borrow_mut().grow();
    }
    life.produce_at(1, 1_001, now_ms);
    assert!(life.calm());
    // The last entry does not name the other partition.
    life.produce_at(0, COPIED, now_ms);
    assert!(life.calm());
    life.leave(0);
    life.began = Some(1);
    life.universe.cluster.borrow_mut().group.unknown_from = Some(1);
    life.produce_at(1, COPIED, now_ms + 100);
    for id in 2_000..2_004 {
        life.produce_at(0, id, now_ms + 4 * WINDOW_MS);
        (0..100).for_each(|_| life.iterate_once());
    }
    life.universe.cluster.borrow_mut().group.unknown_from = None;
    assert!(life.calm());
    let cluster = life.universe.cluster.borrow();
    let name = format!("t-{COPIED}");
    cluster.clean.iter().flat_map(|log| log.committed(0)).filter(|(_, raw)| raw.name() == name).count()
}

#[test]
fn a_worker_that_knows_fewer_partitions_than_raw_has_processes_nothing() {
    let sabotage = Sabotage::Without(Safeguard::AllPartitions);
    let without = Setting { sabotage, ..Setting::sound() };
    for group_began in [1, 2] {
        assert_eq!(forwarded_with_an_old_assignment(&Setting::sound(), group_began), 1);
        let forwarded = forwarded_with_an_old_assignment(&without, group_began);
        assert_eq!(forwarded, 2, "the history does not depend on it");
    }
}

#[test]
fn windows_in_memory_are_kept_when_raw_grows() {
    let setting = Setting::sound();
    let mut life = Life::quiet(&setting, 1, Choices::short_topic);
    let now_ms = life.universe.cluster.borrow().wall_ms();
    (0..10).for_each(|id| life.produce_at(0, id, now_ms));
    assert!(life.calm());
    let read = || {
        let all = setting.metrics.render();
        all.lines()
            .filter(|line| line.starts_with("dedupd_restored_ids_total"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let before = read();
    life.universe.cluster.borrow_mut().grow();
    life.produce_at(1, COPIED, now_ms + 100);
    life.produce_at(1, 1_000, now_ms + 100);
    assert!(life.calm());
    assert_eq!(read(), before, "ids were read again");
    assert_eq!(life.ids_in_clean(0..2), 11, "the copy was not dropped, or an id is missing");
}
