//! The group is reset to the first record of a partition, and its ids arrive in another one first: the owners that are undone are in slices, or
//! in filters that have those of both partitions.

use super::*;
use crate::sim::universe::Sabotage;
use dedupd::pipeline::OnRewind;

/// Ids of each of the two partitions in one step.
const IDS: u64 = 10;
/// Steps of half a second each: ten times the exact part of a window with filters.
const STEPS: u64 = 40;

/// Simulated time of a slice of an undo.
const SLICE_TIME: Duration = Duration::from_millis(50);

/// The ids that arrive in a partition.
fn ids_of(partition: u64) -> Range<u64> {
    (partition << 40)..(partition << 40) + IDS * STEPS
}

/// Reads records of two partitions, until both have old ids in slices or filters. The worker leaves then.
fn processed(setting: &Setting, filters: bool) -> Life {
    let mut life = Life::quiet(setting, 2, |chance| Choices::rewinding_topic(chance, filters));
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
    assert_eq!(life.ids_in_clean(0..2), 2 * IDS * STEPS);
    life
}

/// Sets the group back to the first record of partition 0.
fn rewind(life: &Life) {
    let mut cluster = life.universe.cluster.borrow_mut();
    let first = cluster.raw[0].low();
    cluster.offsets[0].settled = Some((first, String::new()));
}

/// How many ids of partition 0 are forwarded in partition 1, and how many in both.
fn forwarded_again(life: &mut Life) -> (u64, u64) {
    let (all, second) = (life.ids_in_clean(0..2), life.ids_in_clean(1..2));
    rewind(life);
    life.produce_ids_to(1, ids_of(0));
    life.deliver_only(Some(1));
    life.process_delivered(1);
    let in_second = life.ids_in_clean(1..2) - second;
    life.deliver_only(None);
    life.process_delivered(0);
    (in_second, life.ids_in_clean(0..2) - all)
}

#[test]
fn undone_owners_do_not_count_in_slices() {
    let (undone, mut life) = (IDS * STEPS, processed(&Setting::sound(), false));
    assert_eq!(forwarded_again(&mut life), (undone, undone));
    assert!(life.universe.undo_slices.get() > 0, "all were undone at once");
    let keeps = Setting { sabotage: Sabotage::SliceKeepsRemoved, ..Setting::sound() };
    let (in_second, _) = forwarded_again(&mut processed(&keeps, false));
    assert!(in_second < undone / 2, "the history does not depend on it: {in_second} ids");
}

/// The process is killed while it undoes owners of partition 0, after some slices.
fn killed_while_undoing() -> Life {
    let mut life = processed(&Setting::sound(), false);
    rewind(&life);
    life.universe.block_time.set(SLICE_TIME);
    let (now, slices) =
        (|life: &Life| life.universe.cluster.borrow().now, |life: &Life| life.universe.undo_slices.get());
    let mut longest = Duration::ZERO;
    while slices(&life) < 3 {
        let before = (now(&life), slices(&life));
        life.iterate_once();
        longest = longest.max((now(&life) - before.0) * u32::from(slices(&life) > before.1));
    }
    assert!(longest < 3 * SLICE_TIME, "{longest:?}");
    life.universe.cluster.borrow_mut().dead.insert(0);
    life.end_dead();
    life.universe.block_time.set(Duration::ZERO);
    life
}

#[test]
fn an_undo_takes_several_iterations_and_is_completed_after_a_crash_in_between() {
    let undone = IDS * STEPS;
    assert_eq!(forwarded_again(&mut killed_while_undoing()), (undone, undone));
}

#[test]
fn local_state_that_was_undone_in_part_is_not_used_when_the_group_is_not_rewound_any_more() {
    let before = processed(&Setting::sound(), false).universe.cluster.borrow().offsets[0].settled.clone();
    let mut life = killed_while_undoing();
    life.universe.cluster.borrow_mut().offsets[0].settled = before;
    let all = life.ids_in_clean(0..2);
    life.produce_ids_to(1, ids_of(0));
    life.process_delivered(1);
    assert_eq!(life.ids_in_clean(0..2), all);
}

#[test]
fn windows_with_undone_owners_in_filters_are_restored_without_a_restart() {
    let mut life = processed(&Setting::sound(), true);
    let (undone, cleared) = (IDS * STEPS, life.universe.cleared.get());
    assert_eq!(forwarded_again(&mut life), (undone, undone));
    assert!(life.universe.cleared.get() > cleared, "no filter had an undone owner");
    assert!(life.calm(), "the worker does not continue");
}

/// A tool saves the offset of partition 0 with its metadata, and sets it again after more records. Returns what has ended the worker, and how many of
/// these records are forwarded twice.
fn set_back_with_its_checkpoint(keeps_local_state: bool) -> (Vec<String>, u64) {
    let mut life = Life::quiet(&Setting::sound(), 2, |chance| {
        let mut choices = Choices::rewinding_topic(chance, false);
        choices.on_rewind = OnRewind::Stop;
        choices
    });
    life.produce_ids_to(0, 0..5);
    assert!(life.calm());
    let saved = life.universe.cluster.borrow().offsets[0].settled.clone();
    life.produce_ids_to(0, 5..10);
    assert!(life.calm());
    // The last entry has no section of partition 0.
    life.produce_ids_to(1, 10..11);
    assert!(life.calm());
    assert_eq!(life.ids_in_clean(0..2), 11);
    life.leave(0);
    if !keeps_local_state {
        life.processes[0].store = SimDisk::memory();
    }
    life.universe.cluster.borrow_mut().offsets[0].settled = saved;
    life.calm();
    let ended = life.universe.cluster.borrow().violations.clone();
    (ended, life.ids_in_clean(0..2) - 11)
}

#[test]
fn an_offset_that_is_set_back_with_its_own_checkpoint_is_a_rewind() {
    for keeps_local_state in [false, true] {
        let (ended, twice) = set_back_with_its_checkpoint(keeps_local_state);
        let is_stopped = ended.iter().any(|what| what.contains("the group was rewound"));
        assert!(is_stopped && twice == 0, "local state: {keeps_local_state}, {twice} twice, {ended:?}");
    }
}
