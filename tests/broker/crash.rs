//! Kills the real binary with SIGKILL on a real Apache Kafka, at failpoints and at random times.
//!
//! Each test ends with an audit that shares no code with the pipeline. Failpoints require the `failpoints`
//! feature, which `make test` enables.

use std::time::Duration;

use crate::support::tamper::tamper;
use crate::support::{Pipe, Scope, Traces, now_ms, shared_kafka};

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
        let ended = armed.wait(Duration::from_secs(30));
        assert_eq!(ended.code(), None, "{point} was not reached:\n{}", armed.text());
        assert!(armed.text().contains(&format!("failpoint {point} reached")));
    }
    let last = sidecar.start();
    pipe.finish(load, [&last]);
}

/// One to three instances that share the partitions, killed at random under load; local state is sometimes deleted, sometimes
/// replaced by an older copy.
#[test]
fn random_kills_lose_and_repeat_nothing() {
    let kills: usize = std::env::var("DEDUPD_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    let seed: u64 = std::env::var("DEDUPD_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(20_261_121);
    println!("replay with DEDUPD_SEED={seed} DEDUPD_KILLS={kills}");
    let mut random = fastrand::Rng::with_seed(seed);
    let pipe = Pipe::new(shared_kafka(), "kills", PARTITIONS);
    let load = pipe.load(PARTITIONS, 3_000);
    let sidecars = ["a", "b", "c"].map(|name| pipe.sidecar(name).scoped(Scope::Partition));
    let mut running: Vec<_> = sidecars.iter().map(|_| None).collect();
    running[0] = Some(sidecars[0].start());
    let (mut killed, mut open, mut times) = (0, 0, Vec::new());
    while killed < kills {
        let at = random.usize(..sidecars.len());
        // Mostly short times, so that many kills happen during start and restore.
        std::thread::sleep(Duration::from_millis(random.u64(50..1_500)));
        match running[at].take() {
            Some(process) => {
                let process: crate::support::Running = process;
                assert!(process.ended().is_none(), "unexpected end:\n{}", process.text());
                process.kill9();
                killed += 1;
                times.push(now_ms());
                open += usize::from(pipe.kafka.has_open_transaction(&sidecars[at].transactional_id(0)));
                tamper(&mut random, &sidecars[at].state_dir);
                if at == 0 || random.bool() {
                    running[at] = Some(sidecars[at].start());
                }
            }
            None => running[at] = Some(sidecars[at].start()),
        }
    }
    let sent = load.finish();
    if running.iter().all(Option::is_none) {
        running[0] = Some(sidecars[0].start());
    }
    pipe.wait_caught_up(PARTITIONS, CATCH_UP);
    let findings = pipe.assert_exactly_once();
    assert_eq!(findings.raw as u64, sent);
    let traces = Traces::of(&pipe);
    let (between, aborted) = (traces.intervals_with_commits(&times), traces.aborted);
    println!("{killed} kills, {open} inside an open transaction, {aborted} aborted; {sent} records");
    println!("transactions were committed in {between} of {} intervals between kills", killed - 1);
    assert!(between >= kills / 4, "commits between only {between} of {killed} kills");
    assert!(open >= kills / 20, "only {open} of {killed} kills were inside an open transaction");
}
