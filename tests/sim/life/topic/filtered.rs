//! A partition has to be restored, and a filter has owners of it and of another one.

use super::*;
use dedupd::ports::StoreError;

/// Ids of each of the two partitions in one step.
const IDS: u64 = 10;
/// Steps of half a second each: ten times the exact part of the window.
const STEPS: u64 = 40;

/// The ids that arrive in a partition.
fn ids_of(partition: u64) -> Range<u64> {
    (partition << 40)..(partition << 40) + IDS * STEPS
}

/// Reads records of two partitions for so long that filters have ids of both. The worker leaves then.
fn filtered(setting: &Setting) -> Life {
    let mut life = Life::quiet(setting, 2, Choices::filtered_topic);
    for step in 0..STEPS {
        for partition in [0, 1] {
            let first = ids_of(partition).start + IDS * step;
            life.produce_ids_to(partition as usize, first..first + IDS);
        }
        life.process_delivered(0);
        life.process_delivered(1);
        life.universe.cluster.borrow_mut().advance(Duration::from_millis(500));
    }
    // What waits to be sealed, and to become a filter.
    (0..100).for_each(|_| life.iterate_once());
    life.leave(0);
    life
}

/// As after a crash: the head of one partition is gone, and the filters are not.
#[test]
fn one_partition_in_a_filter_is_restored_with_all_others_and_without_a_restart() {
    let mut life = filtered(&Setting::sound());
    let lost = life.processes[0].store.clone().clear(0.into());
    assert_eq!(lost, Err(StoreError::InFilter(0.into())), "no filter has ids of both partitions");
    let before = life.ids_in_clean(0..2);
    assert_eq!(before, 2 * IDS * STEPS);
    // Each id arrives again in the other partition.
    life.produce_ids_to(0, ids_of(1));
    life.produce_ids_to(1, ids_of(0));
    let calmed = life.calm();
    assert_eq!((life.ids_in_clean(0..2), life.universe.cleared.get()), (before, 1));
    assert_eq!(life.end(calmed).violations, [""; 0]);
}
