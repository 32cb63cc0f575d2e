//! Standby copies: a process follows the state topic of the partitions that its workers do not own.

use super::*;
use dedupd::pipeline::{Fatal, Standby, StandbyPace};
use dedupd::ports::Committed;

use crate::sim::store::is_damage;
use crate::sim::universe::SimWorld;

/// Most iterations of a standby between two steps of the workers.
const ITERATIONS: usize = 12;

impl Life {
    /// Whether the processes of the history follow the state topic.
    pub(super) fn follows(seed: u64) -> bool {
        seed.is_multiple_of(2)
    }

    /// Advances the standby of each process that has one, and starts some.
    pub(super) fn stand_by(&mut self) {
        if !self.has_standbys {
            return;
        }
        for process in 0..self.processes.len() {
            if self.can_follow(process) {
                self.advance_standby(process);
            } else {
                self.standbys[process] = None;
            }
        }
    }

    /// In topic scope a spare follows, and the active instance does not. In partition scope the process of a worker follows.
    fn can_follow(&self, process: usize) -> bool {
        let runs = |worker: usize| self.universe.workers[worker].borrow().is_some();
        let is_dead = |worker: &usize| self.universe.cluster.borrow().dead.contains(worker);
        if self.is_topic_wide() {
            let has_died = self.standbys[process].is_some() && is_dead(&process);
            return !runs(process) && !has_died;
        }
        let workers =
            if self.universe.shared { 0..self.universe.workers.len() } else { process..process + 1 };
        workers.into_iter().any(|worker| runs(worker) && !is_dead(&worker))
    }

    fn advance_standby(&mut self, process: usize) {
        let iterations = {
            let rng = &mut self.universe.cluster.borrow_mut().chance.rng;
            if rng.bool() { 0 } else { rng.usize(1..=ITERATIONS) }
        };
        if iterations == 0 {
            return;
        }
        if self.standbys[process].is_none() {
            let started = self.standby(process);
            self.standbys[process] = Some(started);
        }
        let Some(standby) = &mut self.standbys[process] else { return };
        for _ in 0..iterations {
            let committed = {
                let mut cluster = self.universe.cluster.borrow_mut();
                if cluster.chance.rng.u8(0..3) == 0 { Some(committed(&cluster)) } else { None }
            };
            committed.into_iter().for_each(|committed| standby.note_group(committed));
            let result = standby.iterate();
            let mut cluster = self.universe.cluster.borrow_mut();
            match result {
                Ok(StandbyPace::CaughtUp) => {
                    self.universe.caught_up.set(self.universe.caught_up.get() + 1);
                }
                Ok(StandbyPace::Behind) if !cluster.dead.contains(&process) => {}
                ended => {
                    standby_ended(&self.universe, &mut cluster, process, ended.map(drop));
                    drop(cluster);
                    self.standbys[process] = None;
                    return;
                }
            }
        }
    }

    /// Starts the standby of a process; in topic scope this is the start of the process.
    fn standby(&mut self, process: usize) -> Standby<SimWorld> {
        if self.is_topic_wide() {
            self.choose_store(process);
            self.configure(process);
            self.universe.cluster.borrow_mut().dead.remove(&process);
        }
        self.standby_on(process, &self.processes[process].store)
    }

    /// A standby with the configuration of a process.
    pub(super) fn standby_on(&self, process: usize, store: &SimDisk) -> Standby<SimWorld> {
        let universe = &self.universe;
        let choices = self.processes[process].choices;
        let partitions = universe.cluster.borrow().raw.len();
        let without = self.setting.sabotage.without();
        let options = choices.options(universe.writer(process), partitions, universe.load_part, without);
        let log = SimLog::new(universe, process).of_standby();
        let store = SimStore::new(universe, process, store.another()).of_standby();
        let report = WorkerReport::new(self.setting.metrics.clone(), Arc::new(status(1)), 0);
        Standby::new(log, store, SimClock(Rc::clone(universe), process), options, report)
    }

    /// Advances a standby until its copies were read to the end.
    pub(super) fn follow_to_the_end(&self, standby: &mut Standby<SimWorld>) {
        // The workers are idle, so their process is not busy either.
        self.universe.cluster.borrow_mut().dead.clear();
        for _ in 0..200 {
            standby.note_group(committed(&self.universe.cluster.borrow()));
            standby.iterate().unwrap();
            self.universe.cluster.borrow_mut().now += Duration::from_millis(10);
        }
        assert!(standby.status().complete > 0, "nothing is followed");
    }

    /// Ends the standby of a process whose worker starts in topic scope. Returns whether the process ran.
    pub(super) fn hand_over(&mut self, process: usize) -> bool {
        let is_dead = self.universe.cluster.borrow().dead.contains(&process);
        let standby = self.standbys[process].take().filter(|_| self.is_topic_wide() && !is_dead);
        standby.is_some_and(|mut standby| {
            standby.release();
            let handed_over = &self.universe.handed_over;
            handed_over.set(handed_over.get() + 1);
            !self.universe.cluster.borrow().dead.contains(&process)
        })
    }
}

/// What the group has committed.
fn committed(cluster: &Cluster) -> Vec<Committed> {
    let of = |(partition, offsets): (usize, &Offsets)| {
        let (offset, metadata) = offsets.settled.clone().unzip();
        let partition = PartitionId::try_from(partition).unwrap();
        Committed { partition, offset, metadata: metadata.unwrap_or_default() }
    };
    cluster.offsets.iter().enumerate().map(of).collect()
}

/// The process ends with its standby. In topic scope it has no other part.
fn standby_ended(universe: &Universe, cluster: &mut Cluster, process: usize, how: Result<(), Fatal>) {
    if !universe.is_topic_wide {
        return universe.ended(cluster, process, how);
    }
    match how {
        Err(Fatal::State(what)) if !cluster.dead.contains(&process) && is_damage(cluster, &what) => {
            cluster.condemned.insert(process);
        }
        Err(fatal) if !cluster.dead.contains(&process) => {
            cluster.violations.push(format!("standby {process} failed: {fatal}"));
        }
        _ => {}
    }
    universe.crash(cluster, process);
}
