//! Histories in topic scope: one worker has all partitions, and the others wait.

mod forgotten;
mod lagging;
mod late;
mod leftovers;
mod outdated;
mod pairs;
mod rewound;

use std::ops::Range;

use dedupd::dedupe::StoredOwner;

use super::*;
use crate::sim::raw::RawLog;

impl Life {
    pub(super) fn is_topic_wide(&self) -> bool {
        self.processes[0].choices.scope == Scope::Topic
    }

    /// Whether a process has to wait because another one is a member of the group. Two that look at the same moment both join.
    pub(super) fn is_spare(&self, worker: usize) -> bool {
        let mut cluster = self.universe.cluster.borrow_mut();
        let has_other = cluster.group.workers().any(|other| other != worker);
        self.is_topic_wide() && has_other && (cluster.chance.is_quiet() || cluster.chance.rng.u8(0..20) > 0)
    }

    /// The topic monitor sometimes reads where raw ends. In topic scope a worker leaves when another one is the active one.
    pub(super) fn elect(&mut self, worker: usize) {
        self.read_ends(worker);
        if !self.is_topic_wide() {
            return;
        }
        let leaves = self.universe.workers[worker].borrow().as_ref().is_some_and(SimWorker::gives_way);
        if leaves {
            self.leave(worker);
        }
    }

    fn read_ends(&mut self, worker: usize) {
        let is_topic_wide = self.is_topic_wide();
        let mut cluster = self.universe.cluster.borrow_mut();
        let Cluster { chance, raw, .. } = &mut *cluster;
        let is_due = chance.is_quiet()
            || if is_topic_wide { chance.rng.u8(0..4) == 0 } else { chance.of_markers(4) == 0 };
        if !is_due {
            return;
        }
        let ends_of = &self.ends[worker];
        let ends: BTreeMap<PartitionId, Offset> = (0..).zip(raw.iter().map(RawLog::end)).collect();
        ends_of.note(&ends, &ends, ends_of.fastest_ms());
        // The worker has iterated since it was found, and more may have been written.
        let [empty, up_to] = &self.found[worker];
        ends_of.note_empty(empty, up_to);
        let is_empty = |(id, from): &(PartitionId, Offset)| {
            let end = ends.get(id).copied().unwrap_or(0);
            *from < end && raw[*id as usize].next(*from).is_none()
        };
        let empty = ends_of.silent().into_iter().filter(is_empty).collect();
        self.found[worker] = [empty, ends];
    }
}

/// Partitions of the backlog.
const PARTITIONS: PartitionId = 12;
/// Length of the window, ms.
const WINDOW_MS: i64 = 2_000;
/// An id may stay longer than the window by one mark and the span of one block, ms.
const TOLERANCE_MS: i64 = WINDOW_MS / 256 + WINDOW_MS / 32 + 1;
/// How long a partition with unread records may deliver none before it counts as stalled.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time between the first and the last record of a partition, ms: six windows.
const BACKLOG_MS: i64 = 6 * WINDOW_MS;

/// A backlog of six windows in twelve partitions is read one partition after the other, in an order that the seed determines.
/// Each id has two records, in different partitions, at distances below and above the window. Between two partitions the client returns
/// nothing for so long that the others count as stalled. The process restarts in between, without local state for an odd seed, or with that
/// of a standby; in every fourth history the checkpoints are gone then. Returns the ids whose number of clean records is wrong.
pub fn read_unevenly(setting: &Setting, seed: u64, has_standby: bool) -> Vec<String> {
    let mut life = Life::quiet(setting, PARTITIONS as usize, Choices::short_topic);
    life.patience = PATIENCE;
    let mut rng = fastrand::Rng::with_seed(seed);
    let expected = life.produce_pairs(&mut rng);
    let mut order: Vec<PartitionId> = (0..PARTITIONS).collect();
    rng.shuffle(&mut order);
    let restarts_at = rng.usize(1..order.len());
    let copy = SimDisk::memory();
    let mut standby = has_standby.then(|| life.standby_on(0, &copy));
    for (number, partition) in order.into_iter().enumerate() {
        if number == restarts_at {
            life.leave(0);
            if let Some(mut standby) = standby.take() {
                life.follow_to_the_end(&mut standby);
                standby.release();
                life.processes[0].store = copy.another();
            } else if seed % 2 == 1 && !has_standby {
                life.processes[0].store = SimDisk::memory();
            }
            if seed % 4 == 2 {
                life.universe.cluster.borrow_mut().lose_checkpoints();
            }
        }
        life.universe.cluster.borrow_mut().delivers_only = Some(partition);
        life.process_delivered(partition as usize);
        life.deliver_nothing();
        standby.iter_mut().for_each(|standby| life.follow_to_the_end(standby));
    }
    let cluster = life.universe.cluster.borrow();
    let all = || cluster.clean.iter().flat_map(|log| log.committed(0));
    let wrong = expected.into_iter().filter_map(|(id, (distance_ms, copies))| {
        let found = all().filter(|(_, raw)| raw.name() == format!("t-{id}")).count();
        (found != copies).then(|| format!("{found} of {copies} records of id {id}, {distance_ms} ms apart"))
    });
    wrong.collect()
}

/// Reads a backlog of six windows, one partition after the other, then some later records of the first partition.
fn read_a_backlog(setting: &Setting, smallest_slice: Option<u64>) -> Life {
    let mut life = Life::quiet(setting, PARTITIONS as usize, |chance| {
        let mut choices = Choices::short_topic(chance);
        // Many small transactions.
        (choices.max_records, choices.smallest_slice) = (9, smallest_slice);
        choices
    });
    life.produce_pairs(&mut fastrand::Rng::with_seed(1));
    for partition in 0..PARTITIONS {
        life.universe.cluster.borrow_mut().delivers_only = Some(partition);
        life.process_delivered(partition as usize);
    }
    life.universe.cluster.borrow_mut().delivers_only = Some(0);
    // The horizon is that of the commit before the last one.
    for step in 0..3 {
        life.produce_ids((1 << 40) + 30 * step..(1 << 40) + 30 * (step + 1));
        life.process_delivered(0);
    }
    life
}

impl Life {
    fn ids_in_clean(&self, partitions: Range<PartitionId>) -> u64 {
        let cluster = self.universe.cluster.borrow();
        partitions.map(|id| cluster.clean[id as usize].committed(0).count() as u64).sum()
    }

    /// Owners of a partition that the store has outside of slices.
    fn stored(&self, partition: PartitionId) -> u64 {
        let mut store = self.processes[0].store.another();
        let mut count = 0;
        for journal in store.stored_journals() {
            store.acquire_lease(journal.into());
            let counted = store.scan(journal.into(), &mut |run| {
                let of_partition = |it: &&StoredOwner| it.at.partition == partition && it.identity.is_some();
                count += run.owners.iter().filter(of_partition).count() as u64;
                Ok(())
            });
            counted.unwrap();
        }
        count
    }
}

/// Restores the state of a backlog of six windows without local state. Returns the number of ids that were forwarded, and of those that the
/// restored store has.
pub fn restore_a_long_log(setting: &Setting) -> (u64, u64) {
    let mut life = read_a_backlog(setting, Some(10));
    life.leave(0);
    let forwarded = life.ids_in_clean(0..PARTITIONS);
    life.processes[0].store = SimDisk::memory();
    life.produce_ids([1 << 50]);
    life.process_delivered(0);
    (forwarded, (0..PARTITIONS).map(|partition| life.stored(partition)).sum())
}

/// Reads a backlog of six windows. Only the first partition has later records. Returns the number of ids that were forwarded in the other ones,
/// and of those that the store has.
pub fn expire_idle_partitions(setting: &Setting) -> (u64, u64) {
    let mut life = read_a_backlog(setting, None);
    // A transaction adds one partition.
    for step in 0..30 {
        life.produce_ids((1 << 41) + 9 * step..(1 << 41) + 9 * (step + 1));
        life.process_delivered(0);
    }
    let idle = 1..PARTITIONS;
    (life.ids_in_clean(idle.clone()), idle.map(|partition| life.stored(partition)).sum())
}

/// In partition scope with at most 100 ids, 100 ids arrive in one partition, then 400 in another one. Returns the number of ids that the
/// store has of each.
pub fn limit_an_idle_partition(setting: &Setting) -> (u64, u64) {
    let life = limited(setting);
    (life.stored(0), life.stored(1))
}

fn limited(setting: &Setting) -> Life {
    let mut life = Life::quiet(setting, 2, |chance| {
        let mut choices = Choices::plain(chance);
        (choices.max_records, choices.most_ids) = (9, 100);
        choices
    });
    life.produce_ids(0..100);
    life.process_delivered(0);
    for step in 0..40 {
        life.produce_ids_to(1, (1 << 40) + 10 * step..(1 << 40) + 10 * (step + 1));
        life.process_delivered(1);
    }
    life
}

/// Three ids arrive within a 256th of a window, and later ones so that two of the three have left it. A window drops them together. The state is restored,
/// and copies of the three arrive. Returns the number of copies that were forwarded.
pub fn restore_the_edge_of_a_window(setting: &Setting) -> u64 {
    let mut life = Life::quiet(setting, 1, Choices::short_one_id_blocks);
    let first_ms = life.universe.cluster.borrow().wall_ms();
    let last_ms = first_ms + WINDOW_MS + 4;
    let first = (0..3).zip((first_ms..).step_by(3));
    // They are restored in several iterations.
    first.chain((3..300).map(|id| (id, last_ms))).for_each(|(id, at_ms)| life.produce_at(0, id, at_ms));
    life.process_delivered(0);
    life.leave(0);
    let before = life.ids_in_clean(0..1);
    life.processes[0].store = SimDisk::memory();
    for _ in 0..60 {
        // Expired owners are deleted once per second.
        life.universe.cluster.borrow_mut().advance(Duration::from_secs(1));
        life.iterate_once();
    }
    (0..3).for_each(|id| life.produce_at(0, id, last_ms));
    life.process_delivered(0);
    life.ids_in_clean(0..1) - before
}

/// As [`limit_an_idle_partition`]. The state is then restored, and copies of all ids arrive: the window and the store must agree about what the limit
/// has dropped. Returns the number of copies that were forwarded.
pub fn restore_a_limited_partition(setting: &Setting) -> u64 {
    let mut life = limited(setting);
    life.leave(0);
    let before = life.ids_in_clean(0..1);
    life.processes[0].store = SimDisk::memory();
    life.produce_ids(0..100);
    life.process_delivered(0);
    life.ids_in_clean(0..1) - before
}

impl Cluster {
    /// The metadata of the committed offsets is gone, as after `kafka-consumer-groups.sh --reset-offsets --to-current`.
    fn lose_checkpoints(&mut self) {
        for offsets in &mut self.offsets {
            if let Some((_, metadata)) = &mut offsets.settled {
                metadata.clear();
            }
        }
    }
}

impl Life {
    /// Returns for each id the distance of its records in ms, and how many of them have to be forwarded.
    fn produce_pairs(&self, rng: &mut fastrand::Rng) -> BTreeMap<u64, (i64, usize)> {
        let pairs = self.produce_backlog(440, rng).into_iter();
        let distances = pairs.map(|(id, (first_ms, second_ms))| (id, second_ms - first_ms));
        distances.map(|(id, ms)| (id, (ms, if ms <= WINDOW_MS { 1 } else { 2 }))).collect()
    }

    /// Writes so many ids with two records each, in different partitions, over six windows. Returns their times, epoch ms.
    fn produce_backlog(&self, ids: usize, rng: &mut fastrand::Rng) -> BTreeMap<u64, (i64, i64)> {
        let mut cluster = self.universe.cluster.borrow_mut();
        let partitions = u32::try_from(cluster.raw.len()).unwrap();
        let begin_ms = cluster.wall_ms() - 2 * BACKLOG_MS;
        let (mut records, mut pairs) = (Vec::new(), BTreeMap::new());
        let below = [0, 1, 500, 1_000, 1_500, 1_900, WINDOW_MS];
        let above = [WINDOW_MS + TOLERANCE_MS, WINDOW_MS + 500, 2 * WINDOW_MS, 5 * WINDOW_MS];
        for (id, distance_ms) in (0..).zip(below.into_iter().chain(above).cycle().take(ids)) {
            let first = rng.u32(0..partitions);
            let second = (first + rng.u32(1..partitions)) % partitions;
            let at_ms = begin_ms + rng.i64(0..BACKLOG_MS - distance_ms);
            records.extend([(at_ms, first, id), (at_ms + distance_ms, second, id)]);
            pairs.insert(id, (at_ms, at_ms + distance_ms));
        }
        records.sort_unstable();
        let Cluster { chance, raw, .. } = &mut *cluster;
        for (at_ms, partition, id) in records {
            raw[partition as usize].produce_id(id, chance, at_ms);
        }
        pairs
    }

    /// The client returns no records for several times [`PATIENCE`].
    fn deliver_nothing(&mut self) {
        for _ in 0..12 {
            self.universe.cluster.borrow_mut().advance(Duration::from_secs(1));
            self.elect(0);
            assert!(self.universe.iterate(0), "the worker has ended");
        }
    }

    /// Processes the records of the partition that is delivered.
    fn process_delivered(&mut self, partition: usize) {
        let is_done = |cluster: &Cluster| {
            let committed = cluster.offsets[partition].settled.as_ref().map_or(0, |(offset, _)| *offset);
            cluster.raw[partition].next(committed).is_none()
        };
        for _ in 0..CALM_ITERATIONS {
            self.iterate_once();
            if is_done(&self.universe.cluster.borrow()) {
                return;
            }
        }
        panic!("the records of partition {partition} are not processed");
    }

    fn iterate_once(&mut self) {
        self.elect(0);
        self.start(0);
        assert!(self.universe.iterate(0), "the worker has ended");
        let mut cluster = self.universe.cluster.borrow_mut();
        let cluster = &mut *cluster;
        cluster.group.balance(cluster.now, &mut cluster.chance.rng);
    }
}
