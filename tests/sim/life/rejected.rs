//! A record that the broker rejects, while other partitions are read.

use super::*;

/// The attempt before which the partition waits for eight seconds.
const ATTEMPT: &str = "attempt 4";

/// In topic scope a record of the first partition is retried, and the producer is replaced while that partition waits. Returns how long the
/// other partition then processes no record, and the violations.
pub fn replace_the_producer_in_a_wait(setting: &Setting) -> (Duration, Vec<String>) {
    let mut life = Life::quiet(setting, 2, |chance| {
        let mut choices = Choices::plain(chance);
        (choices.scope, choices.retry) = (Scope::Topic, Some(Duration::from_mins(1)));
        choices
    });
    life.produce_ids([0]);
    life.produce_to(1, 1);
    assert!(life.calm(), "the records are not processed");
    {
        let mut cluster = life.universe.cluster.borrow_mut();
        let now_ms = cluster.wall_ms();
        let Cluster { chance, raw, .. } = &mut *cluster;
        raw[0].produce_rejected(1 << 40, chance, now_ms);
    }
    life.iterate_while(|life| !life.reason(0).is_some_and(|reason| reason.contains(ATTEMPT)));
    let (began, fenced) = {
        let mut cluster = life.universe.cluster.borrow_mut();
        cluster.fence(&life.universe.writer(0));
        (cluster.now, cluster.clean[1].committed(0).count())
    };
    life.universe.cluster.borrow_mut().produce_new_to(1, 1 << 41);
    life.iterate_while(|life| life.universe.cluster.borrow().clean[1].committed(0).count() == fenced);
    let took = life.universe.cluster.borrow().now - began;
    let calmed = life.calm();
    (took, life.end(calmed).violations)
}

impl Cluster {
    fn produce_new_to(&mut self, partition: usize, id: u64) {
        let now_ms = self.wall_ms();
        self.raw[partition].produce_id(id, &mut self.chance, now_ms);
    }
}

impl Life {
    /// Why a partition is not running, as the status page shows it.
    pub(super) fn reason(&self, partition: PartitionId) -> Option<String> {
        let workers = self.status.as_ref()?.snapshot().workers;
        workers.first()?.partitions.iter().find(|it| it.partition == partition)?.reason.clone()
    }
}
