//! Searches for the owners of forgotten ids in much local state: for a request, and in a restore.

use std::ops::Range;

use super::super::forgotten::{FORGOTTEN_IDS, evicting};
use super::*;

/// Simulated time to read one stored block.
const BLOCK_TIME: Duration = Duration::from_millis(100);

/// Ids in the partition, most of them in a block of their own. A search for longer than a minute is given up.
const IDS: u64 = 450;
/// The id to forget.
const FORGOTTEN_ID: u64 = 7;
/// Ids that a table evicts: as many that the local store has some hundred blocks, each with up to eight ids.
const OTHERS: Range<u64> = 100..8_000;

/// What happened while the blocks were searched.
#[derive(Debug)]
pub struct SlowSearch {
    /// Simulated time until the answer, or until the partition is running.
    pub took: Duration,
    /// Simulated time of the longest iteration.
    pub longest: Duration,
    /// Records of another partition that were written to clean meanwhile.
    pub forwarded: usize,
    /// Violations of the guarantees. The id is produced again after the answer, and has to be forwarded again.
    pub violations: Vec<String>,
}

/// Forgets an id of a partition whose table could have evicted others, so that all of its blocks are read, while records arrive in another
/// partition.
pub fn search_slowly(setting: &Setting) -> SlowSearch {
    let mut life = Life::quiet(setting, 2, |chance| {
        let mut choices = evicting(chance);
        choices.slots = 1 << 14;
        choices
    });
    life.produce_ids(0..IDS);
    assert!(life.calm(), "the records are not processed");
    life.universe.block_time.set(BLOCK_TIME);
    {
        let cluster = life.universe.cluster.borrow();
        life.requests.send_for(&cluster, &life.controls, (0, format!("0-{FORGOTTEN_ID}")), true);
    }
    let (began, before, mut longest) = (life.now(), life.forwarded(), Duration::ZERO);
    while life.requests.forgotten.is_empty() {
        life.produce_to(1, 1);
        let at = life.now();
        assert!(life.universe.iterate(0), "the worker has ended");
        longest = longest.max(life.now() - at);
        life.requests.receive(&life.universe.cluster.borrow());
    }
    let (took, forwarded) = (life.now() - began, life.forwarded() - before);
    life.universe.block_time.set(Duration::ZERO);
    life.produce_ids([FORGOTTEN_ID]);
    let calmed = life.calm();
    SlowSearch { took, longest, forwarded, violations: life.end(calmed).violations }
}

/// Restores a partition with many blocks and forget records into a table that evicts, over a slow store, while records arrive in
/// another partition. The forgotten ids have to be forwarded again.
pub fn restore_forgotten_slowly(setting: &Setting) -> SlowSearch {
    let mut life = Life::quiet(setting, 2, evicting);
    life.forget_evicted(OTHERS);
    life.processes[0].store = SimDisk::memory();
    life.universe.block_time.set(BLOCK_TIME);
    life.start(0);
    let (began, before, mut longest) = (life.now(), life.forwarded(), Duration::ZERO);
    while !life.is_running() {
        let at = life.now();
        life.universe.cluster.borrow_mut().group.balance(at, &mut fastrand::Rng::with_seed(1));
        assert!(life.universe.iterate(0), "the worker has ended");
        longest = longest.max(life.now() - at);
        life.produce_to(1, 1);
    }
    let (took, forwarded) = (life.now() - began, life.forwarded() - before);
    life.universe.block_time.set(Duration::ZERO);
    life.produce_ids(FORGOTTEN_IDS);
    let calmed = life.calm();
    SlowSearch { took, longest, forwarded, violations: life.end(calmed).violations }
}
