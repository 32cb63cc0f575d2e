//! Kills the real binary with SIGKILL on a real Apache Kafka, at failpoints and at random times.
//!
//! Each test ends with an audit that shares no code with the pipeline. Failpoints require the `failpoints`
//! feature, which `make test` enables.

use std::time::Duration;

use crate::support::tamper::tamper;
use crate::support::{Kafka, Pipe, Running, Scope, Sidecar, Traces, now_ms, shared_kafka};

const PARTITIONS: usize = 4;
const CATCH_UP: Duration = Duration::from_mins(1);

/// Kills at every failpoint of the commit, the third time it is reached. The state is kept.
#[test]
#[cfg(feature = "failpoints")]
fn a_crash_at_any_step_of_the_commit_loses_and_repeats_nothing() {
    let pipe = Pipe::new(shared_kafka(), "points", PARTITIONS);
    let sidecar = pipe.sidecar("a");
    let load = pipe.load(PARTITIONS, 4_000);
    let points = [
        "before_store",
        "after_store",
        "after_drain",
        "after_state_records",
        "after_send_offsets",
        "before_commit",
        "after_commit",
        "after_apply",
        "after_begin_seal",
        "after_slice",
        "after_seal",
    ];
    for point in points {
        let armed = sidecar.clone().with("DEDUPD_FAILPOINT", &format!("{point}:3")).start();
        let ended = armed.wait(Duration::from_mins(2));
        assert_eq!(ended.code(), None, "{point} was not reached:\n{}", armed.text());
        assert!(armed.text().contains(&format!("failpoint {point} reached")));
    }
    let last = sidecar.start();
    pipe.finish(load, [&last]);
}

/// One to three instances that share the partitions, killed at random under load; local state is sometimes deleted, sometimes
/// replaced by an older copy.
struct Victims<'p> {
    pipe: &'p Pipe<'static>,
    random: fastrand::Rng,
    sidecars: [Sidecar; 3],
    running: [Option<Running>; 3],
    /// When each was killed, epoch milliseconds.
    kills_ms: Vec<i64>,
    /// Number of kills inside an open transaction.
    open: usize,
}

impl<'p> Victims<'p> {
    fn start(pipe: &'p Pipe<'static>, seed: u64) -> Self {
        let sidecars = ["a", "b", "c"].map(|name| pipe.sidecar(name).scoped(Scope::Partition));
        let running = [Some(sidecars[0].start()), None, None];
        let random = fastrand::Rng::with_seed(seed);
        Self { pipe, random, sidecars, running, kills_ms: Vec::new(), open: 0 }
    }

    /// Kills so many instances, with pauses of at most `pause_ms` between two kills or starts.
    fn kill(&mut self, kills: usize, pause_ms: u64) {
        let all = self.kills_ms.len() + kills;
        while self.kills_ms.len() < all {
            let at = self.random.usize(..self.sidecars.len());
            std::thread::sleep(Duration::from_millis(self.random.u64(50..pause_ms)));
            let Some(process) = self.running[at].take() else {
                self.running[at] = Some(self.sidecars[at].start());
                continue;
            };
            assert!(process.ended().is_none(), "unexpected end:\n{}", process.text());
            process.kill9();
            self.kills_ms.push(now_ms());
            self.open += usize::from(is_open(self.pipe.kafka, &self.sidecars[at].transactional_id(0)));
            tamper(&mut self.random, &self.sidecars[at].state_dir);
            if at == 0 || self.random.bool() {
                self.running[at] = Some(self.sidecars[at].start());
            }
        }
    }

    /// Number of intervals between kills in which transactions were committed, and of aborted transactions.
    fn traces(&self) -> (usize, usize) {
        let traces = Traces::of(self.pipe);
        (traces.intervals_with_commits(&self.kills_ms), traces.aborted)
    }
}

/// Whether the transaction is open. A busy broker may not respond to the first requests.
fn is_open(kafka: &Kafka, transactional_id: &str) -> bool {
    (0..10).find_map(|_| kafka.transaction_state(transactional_id)).is_some_and(|state| state == "Ongoing")
}

#[test]
fn random_kills_lose_and_repeat_nothing() {
    let kills: usize = std::env::var("DEDUPD_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    let seed: u64 = std::env::var("DEDUPD_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(20_261_121);
    println!("replay with DEDUPD_SEED={seed} DEDUPD_KILLS={kills}");
    let (open_least, between_least) = (kills / 20, kills / 4);
    let pipe = Pipe::new(shared_kafka(), "kills", PARTITIONS);
    let load = pipe.load(PARTITIONS, 3_000);
    let mut victims = Victims::start(&pipe, seed);
    // Mostly short times, so that many kills happen during start and restore.
    victims.kill(kills, 1_500);
    // On a slow machine, too many of them do. The further ones also happen later.
    let is_short = |victims: &Victims<'_>| victims.open < open_least || victims.traces().0 < between_least;
    while victims.kills_ms.len() < 4 * kills && is_short(&victims) {
        victims.kill(kills.div_ceil(4), 5_000);
    }
    let sent = load.finish();
    if victims.running.iter().all(Option::is_none) {
        victims.running[0] = Some(victims.sidecars[0].start());
    }
    pipe.wait_caught_up(PARTITIONS, CATCH_UP);
    let findings = pipe.assert_exactly_once();
    assert_eq!(findings.raw as u64, sent);
    let (killed, open, (between, aborted)) = (victims.kills_ms.len(), victims.open, victims.traces());
    println!("{killed} kills, {open} inside an open transaction, {aborted} aborted; {sent} records");
    println!("transactions were committed in {between} of {} intervals between kills", killed - 1);
    assert!(between >= between_least, "commits between only {between} of {killed} kills");
    assert!(open >= open_least, "only {open} of {killed} kills were inside an open transaction");
}
