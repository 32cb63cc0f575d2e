//! An id is forgotten while the partition that owns it waits.

use std::sync::mpsc::sync_channel;

use super::*;
use crate::sim::operator::rule;
use crate::sim::raw::SimRecord;
use dedupd::control::{Answer, Request, RequestError};
use dedupd::dedupe::{Identity, Schemas};

const FORGOTTEN_ID: u64 = 7;

impl Life {
    fn identity_of_first(&self, partition: usize) -> Identity {
        let record = self.universe.cluster.borrow().raw[partition].records().next().unwrap().clone();
        rule(0).identify(&SimRecord(record), &Schemas::default()).ok().flatten().unwrap()
    }

    fn forget(&mut self, identity: Identity) -> Result<Answer, RequestError> {
        let (answer, answers) = sync_channel(1);
        let request = Request { identity, partition: None, forget: true, answer, abandoned: Arc::default() };
        self.controls[0].as_ref().unwrap().send(request).unwrap();
        (0..5).for_each(|_| assert!(self.universe.iterate(0), "the worker has ended"));
        answers.try_recv().unwrap()
    }

    /// Processes a copy of the id in the second partition, with this time. Returns whether it was forwarded.
    fn forwards_a_copy(&mut self, at_ms: i64) -> bool {
        let count = |life: &Self| life.universe.cluster.borrow().clean[1].committed(0).count();
        let before = count(self);
        self.produce_at(1, FORGOTTEN_ID, at_ms);
        (0..200).for_each(|_| assert!(self.universe.iterate(0), "the worker has ended"));
        count(self) > before
    }
}

/// The owner of the id is in the first partition. A later record of that partition is rejected, so it waits.
#[test]
fn an_id_of_a_partition_that_waits_for_a_rejected_record_is_forgotten() {
    for scope in [Scope::Topic, Scope::Partition] {
        let mut life = Life::quiet(&Setting::sound(), 2, |chance| {
            let mut choices = Choices::short_topic(chance);
            (choices.scope, choices.retry) = (scope, Some(Duration::from_mins(1)));
            choices
        });
        let now_ms = life.universe.cluster.borrow().wall_ms();
        life.produce_at(0, FORGOTTEN_ID, now_ms);
        life.produce_at(1, 1_000, now_ms);
        assert!(life.calm());
        {
            let mut cluster = life.universe.cluster.borrow_mut();
            let Cluster { chance, raw, .. } = &mut *cluster;
            raw[0].produce_rejected(1 << 40, chance, now_ms);
        }
        life.iterate_while(|life| !life.reason(0).is_some_and(|reason| reason.contains("attempt 4")));
        // The other partition runs again.
        (0..60).for_each(|_| assert!(life.universe.iterate(0)));
        if scope == Scope::Topic {
            assert!(!life.forwards_a_copy(now_ms + 100), "the waiting partition decides");
        }
        let waits = life.reason(0);
        assert!(waits.as_ref().is_some_and(|reason| reason.contains("attempt")), "{waits:?}");
        let answer = life.forget(life.identity_of_first(0)).unwrap();
        assert_eq!(life.reason(0), waits, "it waits on");
        let places: Vec<PartitionId> = answer.places.iter().filter_map(|place| place.partition).collect();
        assert_eq!((places, answer.not_ready), (vec![0], vec![]), "{scope:?}");
        assert!(life.forwards_a_copy(now_ms + 100), "{scope:?}");
        assert!(life.calm(), "{scope:?}");
    }
}

#[test]
fn a_request_whose_requester_has_gone_is_not_carried_out() {
    let mut life = Life::quiet(&Setting::sound(), 2, Choices::short_topic);
    let now_ms = life.universe.cluster.borrow().wall_ms();
    life.produce_at(0, FORGOTTEN_ID, now_ms);
    assert!(life.calm());
    let identity = life.identity_of_first(0);
    let (answer, answers) = sync_channel(1);
    let abandoned = Arc::new(AtomicBool::new(true));
    let request = Request { identity, partition: None, forget: true, answer, abandoned };
    life.controls[0].as_ref().unwrap().send(request).unwrap();
    (0..5).for_each(|_| assert!(life.universe.iterate(0), "the worker has ended"));
    assert!(answers.try_recv().is_err());
    assert!(!life.forwards_a_copy(now_ms + 100), "the id was forgotten");
    life.forget(identity).unwrap();
    assert!(life.forwards_a_copy(now_ms + 100));
}
