//! Another process fences the producer of a worker, and only the aborts of the worker show it.

use super::*;
use dedupd::pipeline::Fatal;

/// More than are needed.
const STEPS: usize = 2_000;

#[test]
fn fencings_that_only_aborts_show_end_the_process_too() {
    let mut life = Life::quiet(&Setting::sound(), 1, Choices::plain);
    life.universe.fences_aborts.set(true);
    life.universe.cluster.borrow_mut().chance = Chance::with_only(1, &[Fault::Abort]);
    let ended = (0..STEPS).find_map(|_| {
        life.produce_to(0, 20);
        let mut cluster = life.universe.cluster.borrow_mut();
        let Cluster { now, group, chance, .. } = &mut *cluster;
        group.balance(*now, &mut chance.rng);
        drop(cluster);
        life.start(0);
        life.universe.workers[0].borrow_mut().as_mut()?.iterate().err()
    });
    assert!(matches!(ended, Some(Fatal::Fenced(_))), "{ended:?}");
}
