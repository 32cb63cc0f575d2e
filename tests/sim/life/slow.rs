//! Local state that takes many minutes to load.

mod link;
mod search;

use dedupd::metrics::PartitionState;

use super::*;
pub use link::{after_an_outage, evidence_over_a_slow_link, over_a_slow_link};
pub use search::{SlowSearch, restore_forgotten_slowly, search_slowly};

/// Simulated time to read one stored block.
const BLOCK_TIME: Duration = Duration::from_millis(600);
/// Records of the partition with much state. Each transaction has eight.
const RECORDS: usize = 8_000;

/// What happened while local state was loaded.
#[derive(Debug)]
pub struct SlowLoad {
    /// Simulated time of the load.
    pub took: Duration,
    /// Simulated time of the longest iteration. The supervisor ends a process with an iteration of a minute.
    pub longest: Duration,
    /// Records of another partition that were written to clean meanwhile.
    pub forwarded: usize,
    /// The different texts that the status page showed about the progress.
    pub progress: Vec<String>,
    /// Violations of the guarantees.
    pub violations: Vec<String>,
}

/// Restarts a worker whose store is slow, with much state in one partition and little in another.
pub fn load_slowly(setting: &Setting) -> SlowLoad {
    let mut life = Life::quiet(setting, 2, Choices::plain);
    life.produce_to(0, RECORDS);
    assert!(life.calm(), "the records are not processed");
    life.leave(0);
    life.universe.block_time.set(BLOCK_TIME);
    let mut slow = SlowLoad {
        took: Duration::ZERO,
        longest: Duration::ZERO,
        forwarded: 0,
        progress: Vec::new(),
        violations: Vec::new(),
    };
    life.start(0);
    let (began, before) = (life.now(), life.forwarded());
    loop {
        let at = life.now();
        life.universe.cluster.borrow_mut().group.balance(at, &mut fastrand::Rng::with_seed(1));
        assert!(life.universe.iterate(0), "the worker has ended");
        slow.longest = slow.longest.max(life.now() - at);
        match life.shown() {
            Some(text) if slow.progress.last() != Some(&text) => slow.progress.push(text),
            Some(_) => {}
            None if slow.progress.is_empty() => {}
            None => break,
        }
        slow.took = life.now() - began;
        life.produce_to(1, 1);
    }
    slow.forwarded = life.forwarded() - before;
    let calmed = life.calm();
    slow.violations = life.end(calmed).violations;
    slow
}

impl Life {
    fn now(&self) -> Duration {
        self.universe.cluster.borrow().now
    }

    /// Records of the second partition in clean.
    fn forwarded(&self) -> usize {
        self.universe.cluster.borrow().clean[1].committed(0).count()
    }

    /// The progress of the load, as the status page shows it.
    fn shown(&self) -> Option<String> {
        let status = self.status.as_ref()?;
        let workers = status.snapshot().workers;
        let partition = workers.first()?.partitions.iter().find(|it| it.partition == 0)?;
        partition.reason.clone().filter(|reason| reason.contains("local state"))
    }

    /// Whether the status page shows that the records of the partition are processed.
    fn is_running(&self) -> bool {
        let workers = self.status.as_ref().map(|status| status.snapshot().workers).unwrap_or_default();
        let mut partitions = workers.first().into_iter().flat_map(|worker| &worker.partitions);
        partitions.any(|it| it.partition == 0 && it.state == PartitionState::Running)
    }
}
