//! A history in which another program has a transaction open in the clean topic.

use super::*;
use crate::sim::tx_log::{Fate, Producer};

/// The number of the other program.
pub const FOREIGN: Producer = Producer::MAX - 1;

/// How long the transaction is open: many transaction timeouts.
const OPEN: Duration = Duration::from_mins(5);
/// A purge takes about this long on a real broker.
const ITERATION_TIME: Duration = Duration::from_millis(300);

/// What the worker did that does not own the blocked partition.
#[derive(Debug)]
pub struct Beside {
    /// How often its transactional id was initialised meanwhile.
    pub initialised: u64,
    /// Records that it forwarded meanwhile.
    pub forwarded: usize,
    /// Violations of the guarantees, after the transaction was aborted.
    pub violations: Vec<String>,
}

/// Two workers own a partition each. One stops; another program opens a transaction in its clean partition, and the worker
/// starts again. `None` when one worker owns both partitions with this seed, before or after the start.
pub fn open_a_foreign_transaction(setting: &Setting, seed: u64) -> Option<Beside> {
    let mut chance = Chance::new(seed);
    chance.quiet();
    let choices = Choices::one_id_blocks(&mut chance);
    let universe =
        Universe::new(Cluster::new(chance, 2, None), (2, false), setting.sabotage, choices.max_records);
    let mut life = Life::new(setting, universe, choices);
    (0..2).for_each(|partition| life.produce_to(partition, 20));
    assert!(life.calm(), "the records are not processed");
    let owners = |life: &Life| [0, 1].map(|p| life.universe.cluster.borrow().group.worker_of(p));
    let [Some(owner), Some(other)] = owners(&life) else { return None };
    life.leave(owner);
    let record = Rc::clone(life.universe.cluster.borrow().clean[0].committed(0).next()?.1);
    let began = life.universe.cluster.borrow().now;
    life.universe.cluster.borrow_mut().clean[0].append(FOREIGN, began, Some(record));
    life.start(owner);
    life.balance();
    if owner == other || owners(&life) != [Some(owner), Some(other)] {
        return None;
    }
    let seen = |life: &Life| {
        let cluster = life.universe.cluster.borrow();
        (cluster.initialised(&writer(other)), cluster.clean[1].committed(0).count())
    };
    let before = seen(&life);
    while life.universe.cluster.borrow().now < began + OPEN {
        life.universe.cluster.borrow_mut().advance(ITERATION_TIME);
        life.produce_to(1, 1);
        life.balance();
        life.universe.iterate(owner);
        (0..20).for_each(|_| {
            life.universe.iterate(other);
        });
    }
    let after = seen(&life);
    let now = life.universe.cluster.borrow().now;
    life.universe.cluster.borrow_mut().clean[0].mark(FOREIGN, now, Fate::Aborted);
    let calmed = life.calm();
    let violations = life.end(calmed).violations;
    Some(Beside { initialised: after.0 - before.0, forwarded: after.1 - before.1, violations })
}

impl Life {
    fn balance(&self) {
        let mut cluster = self.universe.cluster.borrow_mut();
        let cluster = &mut *cluster;
        cluster.group.balance(cluster.now, &mut cluster.chance.rng);
    }
}
