//! The start of a history, and the steps of one without faults that a test determines.

use super::*;
use dedupd::metrics::About;
use dedupd::pipeline::LoadPart;

impl Life {
    /// Empty stores, and workers that have not started.
    pub(super) fn new(setting: &Setting, universe: Universe, choices: Choices) -> Self {
        let workers = universe.workers.len();
        let process = |_| Process { store: SimDisk::memory(), older: Vec::new(), choices };
        let processes = if universe.shared { 1 } else { workers };
        Self {
            began: None,
            has_standbys: false,
            standbys: (0..processes).map(|_| None).collect(),
            setting: setting.clone(),
            processes: (0..processes).map(process).collect(),
            controls: vec![None; workers],
            status: None,
            requests: ForgetRequests::default(),
            ends: vec![StableEnds::default(); workers],
            found: vec![Default::default(); workers],
            patience: Duration::MAX,
            universe: Rc::new(universe),
        }
    }

    /// A cluster without records, and one worker that has not started.
    pub(super) fn quiet(
        setting: &Setting,
        partitions: usize,
        choices: impl FnOnce(&mut Chance) -> Choices,
    ) -> Self {
        let mut chance = Chance::new(1);
        chance.quiet();
        let choices = choices(&mut chance);
        let topic_ids = (choices.scope == Scope::Topic).then(|| Ids::new("t"));
        let mut cluster = Cluster::new(chance, partitions, topic_ids);
        cluster.forgets = choices.forgets();
        let mut universe = Universe::new(cluster, (1, false), setting.sabotage, choices.max_records);
        universe.load_part = LoadPart::default();
        Self::new(setting, universe, choices)
    }

    /// Iterates the only worker while that holds.
    pub(super) fn iterate_while(&mut self, is_so: impl Fn(&Self) -> bool) {
        for _ in 0..CALM_ITERATIONS {
            if !is_so(self) {
                return;
            }
            assert!(self.universe.iterate(0), "the worker has ended");
        }
        panic!("what is awaited does not happen");
    }

    /// Appends records with new and with repeated ids.
    pub(super) fn produce_to(&self, partition: usize, records: usize) {
        let mut cluster = self.universe.cluster.borrow_mut();
        let now_ms = cluster.wall_ms();
        let Cluster { chance, raw, .. } = &mut *cluster;
        (0..records).for_each(|_| raw[partition].produce(chance, now_ms));
    }

    /// Appends one record for each of these ids to the first partition.
    pub(super) fn produce_ids(&self, ids: impl IntoIterator<Item = u64>) {
        self.produce_ids_to(0, ids);
    }

    /// Appends a record with this id and time to a partition.
    pub(super) fn produce_at(&self, partition: usize, id: u64, at_ms: i64) {
        let mut cluster = self.universe.cluster.borrow_mut();
        let Cluster { chance, raw, .. } = &mut *cluster;
        raw[partition].produce_id(id, chance, at_ms);
    }

    /// Appends one record for each of these ids to a partition.
    pub(super) fn produce_ids_to(&self, partition: usize, ids: impl IntoIterator<Item = u64>) {
        let mut cluster = self.universe.cluster.borrow_mut();
        let now_ms = cluster.wall_ms();
        let Cluster { chance, raw, .. } = &mut *cluster;
        ids.into_iter().for_each(|id| raw[partition].produce_id(id, chance, now_ms));
    }
}

/// Processes ids that come with the first block of a partition, and nothing after them. Returns the number of ids that are sealed, and the violations.
pub fn seal_the_first_block(setting: &Setting) -> (u64, Vec<String>) {
    let choices = |chance: &mut Chance| {
        let mut choices = Choices::one_id_blocks(chance);
        (choices.smallest_slice, choices.interval) = (Some(10), Duration::from_secs(1));
        choices
    };
    let mut life = Life::quiet(setting, 1, choices);
    life.produce_ids(0..60);
    assert!(life.calm(), "the records are not processed");
    assert_eq!(life.universe.cluster.borrow().commits(&writer(0)), 1);
    life.iterate_while(|life| life.universe.sealed.get() == 0);
    let calmed = life.calm();
    (life.universe.sealed.get(), life.end(calmed).violations)
}

/// Whether every record is processed and nothing is open.
pub(super) fn is_idle(cluster: &Cluster) -> bool {
    let done = |partition: usize| {
        let fetch = cluster.group.position(partition).filter(|fetch| !fetch.paused);
        // Without a committed offset, there was nothing to commit since the group lost its offsets.
        let committed = cluster.offsets[partition].settled.as_ref().map(|(offset, _)| *offset);
        let at = fetch.and_then(|fetch| fetch.at);
        at.is_some_and(|at| cluster.raw[partition].next(committed.unwrap_or(at)).is_none())
    };
    cluster.is_settled() && cluster.group.is_settled() && (0..cluster.raw.len()).all(done)
}

/// The status of a process.
pub(super) fn status(workers: usize) -> Status {
    let about = About {
        version: String::new(),
        group: "group".to_owned(),
        instance: "sim".to_owned(),
        raw: "raw".to_owned(),
        clean: "clean".to_owned(),
        scope: "partition".to_owned(),
    };
    Status::new(about, workers)
}
