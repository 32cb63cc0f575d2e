//! A process that finds a recreated raw topic.

use super::*;
use crate::sim::config::RAW_IDS;

/// Iterations of a worker that finds another raw topic.
const FOREIGN_ITERATIONS: usize = 60;

impl Life {
    /// Runs a worker on a recreated raw topic, for which nothing may be committed. The original topic is restored
    /// afterwards.
    pub(super) fn try_other_topic(&mut self, process: usize, worker: usize) {
        let before = {
            let mut cluster = self.universe.cluster.borrow_mut();
            let is_bound = |offsets: &Offsets| offsets.pending.is_empty() && offsets.names(RAW_IDS[0]);
            // Another worker would commit with the same transactional id, also one that has left the group and joins again.
            let nobody = || self.universe.workers.iter().all(|it| it.borrow().is_none());
            let is_alone = !self.is_topic_wide() || nobody();
            if !is_alone || !cluster.offsets.iter().all(is_bound) || !cluster.chance.hit(Fault::Recreated) {
                return;
            }
            cluster.dead.remove(&worker);
            cluster.commits(&self.universe.writer(worker))
        };
        self.processes[process].choices.foreign = true;
        let started = self.worker(worker, process);
        *self.universe.workers[worker].borrow_mut() = Some(started);
        self.universe.is_trial.set(true);
        (0..FOREIGN_ITERATIONS).all(|_| self.universe.iterate(worker));
        self.universe.is_trial.set(false);
        self.processes[process].choices.foreign = false;
        let mut cluster = self.universe.cluster.borrow_mut();
        if cluster.commits(&self.universe.writer(worker)) > before {
            cluster.violations.push("committed for a raw topic with another id".to_owned());
        }
        self.universe.ended(&mut cluster, worker, Ok(()));
        *self.universe.workers[worker].borrow_mut() = None;
    }
}
