//! A pair of nodes that tears transactions. The transaction coordinators and the raw topics are on node 1. Node 2 has the
//! partitions that lose their markers, because it is killed while a transaction is open or about to be committed.

use std::time::Duration;

use crate::support::{Kafka, Pipe, Running, Sidecar, wait_until};

const LIMIT: Duration = Duration::from_mins(1);
/// Number of partitions of the group's offsets, as in the settings of all test brokers.
const OFFSETS: usize = 4;

/// The topics on node 2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Away {
    Clean,
    State,
    Both,
}

pub struct Cluster {
    pub first: Kafka,
    pub second: Kafka,
}

impl Cluster {
    /// The offsets of groups are on node 1.
    pub fn start() -> Self {
        Self::start_after(|first| first.commit_offset("first", "first", 0, 0))
    }

    /// The offsets of groups are on node 2.
    pub fn with_offsets_away() -> Self {
        let cluster = Self::start_after(|_| {});
        cluster.first.create_topic_on("__consumer_offsets", &[2; OFFSETS]);
        cluster.first.alter_topic_config("__consumer_offsets", &[("cleanup.policy", "compact")]);
        cluster
    }

    /// The internal topics are created while node 1 is the only one.
    fn start_after(create: impl FnOnce(&Kafka)) -> Self {
        let first =
            Kafka::start_with(&[("transaction.abort.timed.out.transaction.cleanup.interval.ms", "50")]);
        first.create_topic("first", 1, &[]);
        first.fence("first");
        create(&first);
        let second = first.second();
        Self { first, second }
    }

    pub fn pipe(&self, name: &str, partitions: usize, away: Away) -> Pipe<'_> {
        let pipe = Pipe::on_first_node(&self.first, name, partitions);
        let node = |is_away: bool| vec![if is_away { 2 } else { 1 }; partitions];
        self.first.create_topic_on(&pipe.clean, &node(away != Away::State));
        self.first.create_topic_on(&format!("{}.dedupd", pipe.clean), &node(away != Away::Clean));
        pipe
    }

    /// Kills node 2, which has this topic.
    pub fn lose(&self, topic: &str) {
        self.second.kill9();
        self.wait_lost(topic);
    }

    /// Waits until the partitions of a topic have no leader.
    pub fn wait_lost(&self, topic: &str) {
        wait_until("the partitions to have no leader", LIMIT, || {
            (self.first.partitions(topic) == 0).then_some(())
        });
    }
}

/// No transaction times out until those of all cases are open and node 2 is detected as failed, even if the machine stalls for
/// seconds: the broker would end it, with all its markers.
pub fn sidecar(pipe: &Pipe<'_>, torn: Option<&str>) -> Sidecar {
    let sidecar = pipe
        .sidecar("a")
        .with("DEDUPD_GROUP__SESSION_TIMEOUT", "45s")
        .with("DEDUPD_BATCH__TRANSACTION_TIMEOUT", "40s")
        .with("DEDUPD_BATCH__INTERVAL", "400ms");
    match torn {
        Some(rule) => sidecar.with("DEDUPD_WITHOUT", rule),
        None => sidecar,
    }
}

pub fn assert_crashed(armed: &Running, point: &str) {
    armed.wait(LIMIT);
    assert!(armed.text().contains(&format!("failpoint {point} reached")), "{}", armed.text());
}
