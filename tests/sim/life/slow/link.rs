//! A connection to the broker on which records or commits take long, and outages of it.

use super::*;

/// Records of the history over a slow link, whose iterations end when all are in clean.
const BACKLOG: u64 = 2_000;
/// More records than a history with an outage processes.
const ENDLESS: u64 = 40_000;
/// Partitions of the history in which evidence is read slowly.
const PARTITIONS: usize = 60;
/// Records of the largest transaction.
const LARGE: usize = 1_809;
/// Time before the outage. The first half is not measured.
const BEFORE: Duration = Duration::from_secs(60);
/// Time of a measurement of the rate.
const MEASURED: Duration = Duration::from_secs(30);

/// What happened over a slow link.
#[derive(Debug)]
pub struct SlowLink {
    /// Simulated time of the longest iteration.
    pub longest: Duration,
    /// Longest simulated time without progress. After a minute, the supervisor ends the process.
    pub silent: Duration,
    /// Simulated time until all records were committed.
    pub took: Duration,
    /// Records in clean.
    pub clean: usize,
    /// Violations of the guarantees.
    pub violations: Vec<String>,
}

/// Records committed per second.
#[derive(Debug)]
pub struct Rates {
    /// Before the outage.
    pub before: f64,
    /// When `recovery` has passed since its end.
    pub after: f64,
}

fn large(chance: &mut Chance) -> Choices {
    let mut choices = Choices::plain(chance);
    choices.max_records = LARGE;
    choices
}

/// Processes a backlog over a link on which a record takes `record_time`.
pub fn over_a_slow_link(setting: &Setting, record_time: Duration) -> SlowLink {
    let mut life = Life::quiet(setting, 1, large);
    life.produce_ids(0..BACKLOG);
    life.start(0);
    life.universe.cluster.borrow_mut().pace.record_time = record_time;
    let mut longest = Duration::ZERO;
    while life.committed() < BACKLOG as usize {
        longest = longest.max(life.iterate_alone());
    }
    let (took, clean) = (life.now(), life.committed());
    life.universe.cluster.borrow_mut().pace = Default::default();
    let calmed = life.calm();
    let (_, _, silent) = life.universe.silence.get();
    SlowLink { longest, silent, took, clean, violations: life.end(calmed).violations }
}

/// Starts a worker whose last transactions are in many partitions, over a link on which it takes a second to read a block.
pub fn evidence_over_a_slow_link(setting: &Setting) -> SlowLink {
    let mut life = Life::quiet(setting, PARTITIONS, large);
    (0..PARTITIONS).for_each(|partition| life.produce_to(partition, 4));
    assert!(life.calm(), "the records are not processed");
    life.leave(0);
    let before = life.committed_anywhere();
    life.universe.cluster.borrow_mut().pace.evidence_time = Duration::from_secs(1);
    life.start(0);
    let began = life.now();
    (0..PARTITIONS).for_each(|partition| life.produce_to(partition, 10));
    let mut longest = Duration::ZERO;
    while life.committed_anywhere() < before + PARTITIONS {
        longest = longest.max(life.iterate_alone());
    }
    let (took, clean) = (life.now() - began, life.committed_anywhere() - before);
    let calmed = life.calm();
    let (_, _, silent) = life.universe.silence.get();
    SlowLink { longest, silent, took, clean, violations: life.end(calmed).violations }
}

/// Interrupts a worker under load for the time of an `outage`, when a commit takes `commit_time` before and after it.
pub fn after_an_outage(
    setting: &Setting,
    commit_time: Duration,
    (outage, recovery): (Duration, Duration),
) -> Rates {
    let mut life = Life::quiet(setting, 1, large);
    life.produce_ids(0..ENDLESS);
    life.start(0);
    {
        let mut cluster = life.universe.cluster.borrow_mut();
        (cluster.pace.record_time, cluster.pace.commit_time) = (Duration::from_micros(100), commit_time);
    }
    life.iterate_until(BEFORE - MEASURED);
    let before = life.rate();
    let end = life.now() + outage;
    life.universe.cluster.borrow_mut().pace.stuck_until = end;
    life.iterate_until(end + recovery);
    Rates { before, after: life.rate() }
}

impl Life {
    /// One iteration of the only worker. Returns how long it took.
    fn iterate_alone(&mut self) -> Duration {
        let at = self.now();
        self.universe.cluster.borrow_mut().group.balance(at, &mut fastrand::Rng::with_seed(1));
        assert!(self.universe.iterate(0), "the worker has ended");
        self.now() - at
    }

    fn iterate_until(&mut self, end: Duration) {
        while self.now() < end {
            self.iterate_alone();
        }
    }

    /// Records committed per second, from now on.
    fn rate(&mut self) -> f64 {
        let (began, before) = (self.now(), self.committed());
        self.iterate_until(began + MEASURED);
        (self.committed() - before) as f64 / (self.now() - began).as_secs_f64()
    }

    /// Records in the first partition of clean.
    fn committed(&self) -> usize {
        self.universe.cluster.borrow().clean[0].committed(0).count()
    }

    fn committed_anywhere(&self) -> usize {
        self.universe.cluster.borrow().clean.iter().map(|log| log.committed(0).count()).sum()
    }
}
