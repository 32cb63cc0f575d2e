//! A rolling restart with the delays of Kubernetes: SIGTERM, some seconds without the process while the pod is replaced, and a
//! start with the same name and volume. The settings are those of the Helm chart, with a shorter session.

use std::collections::BTreeSet;
use std::time::Duration;

use dedupd::clock::monotonic;

use crate::spares::{rebalances, settled_rebalances};
use crate::support::{Pipe, Running, Scope, Sidecar, shared_kafka, wait_until};

const PARTITIONS: usize = 6;
const LIMIT: Duration = Duration::from_mins(1);
/// From the end of a process to the start of the next one with its name: the pod is deleted, scheduled, its volume mounted.
const POD_START: Duration = Duration::from_secs(5);
/// The chart has 45 s. A test waits for the end of one session.
const SESSION: &str = "30s";
/// The longest hand-over that does not wait for the end of a session.
const HANDED_OVER: Duration = Duration::from_secs(20);

/// The numbers of the partitions that run.
fn partitions(process: &Running) -> Option<BTreeSet<u64>> {
    let status = process.status()?;
    let workers = status["workers"].as_array()?;
    let all = workers.iter().filter_map(|worker| worker["partitions"].as_array()).flatten();
    all.filter(|it| it["state"] == "running").map(|it| it["partition"].as_u64()).collect()
}

/// What a kubelet does to a pod that is replaced.
fn replace(process: &mut Running, sidecar: &Sidecar) {
    assert_eq!(process.stop(), Some(0), "{}", process.text());
    std::thread::sleep(POD_START);
    *process = sidecar.start();
}

/// Waits until both run half of the partitions, and returns which.
fn wait_shared(running: &[Running; 2]) -> [BTreeSet<u64>; 2] {
    wait_until("both to run three partitions", LIMIT, || {
        let shares = [partitions(&running[0])?, partitions(&running[1])?];
        shares.iter().all(|share| share.len() == PARTITIONS / 2).then_some(shares)
    })
}

/// Two pods in partition scope.
fn sharing(pipe: &Pipe<'_>, on_stop: &str) -> [Sidecar; 2] {
    ["dedupd-0", "dedupd-1"].map(|name| {
        let shares = pipe.sidecar(name).scoped(Scope::Partition);
        shares.with("DEDUPD_GROUP__ON_STOP", on_stop).with("DEDUPD_GROUP__SESSION_TIMEOUT", SESSION)
    })
}

#[test]
fn a_rolling_restart_in_partition_scope_moves_no_partition() {
    let pipe = Pipe::new(shared_kafka(), "rolling", PARTITIONS);
    let sidecars = sharing(&pipe, "remain");
    let load = pipe.load(PARTITIONS, 1_000);
    let mut running = sidecars.each_ref().map(Sidecar::start);
    wait_shared(&running);
    // The last rebalance can follow when both run half of the partitions.
    settled_rebalances(&running[0], PARTITIONS / 2);
    let shares = wait_shared(&running);
    // From the highest number to the lowest, as a StatefulSet.
    for (stopped, other) in [(1, 0), (0, 1)] {
        let before = settled_rebalances(&running[other], PARTITIONS / 2);
        replace(&mut running[stopped], &sidecars[stopped]);
        let restarted = monotonic();
        running[stopped].wait_running(PARTITIONS / 2, LIMIT);
        println!("{} resumed its partitions after {:?}", sidecars[stopped].instance, restarted.elapsed());
        load.more(1_000);
        let now = [0, 1].map(|at| partitions(&running[at]).unwrap());
        assert_eq!(now, shares, "{}", running[stopped].text());
        assert_eq!(rebalances(&running[other]), before, "{}", running[other].text());
    }
    // Scale in: the partitions of a pod that does not return move when its session ends.
    let stopped = monotonic();
    assert_eq!(running[1].stop(), Some(0), "{}", running[1].text());
    running[0].wait_running(PARTITIONS, LIMIT);
    println!("the partitions of the removed pod run elsewhere after {:?}", stopped.elapsed());
    assert!(stopped.elapsed() > POD_START, "the session does not cover the start of a pod");
    pipe.finish(load, [&running[0]]);
}

#[test]
fn an_instance_that_leaves_hands_its_partitions_over_and_gets_them_back() {
    let pipe = Pipe::new(shared_kafka(), "rolling-leave", PARTITIONS);
    let sidecars = sharing(&pipe, "leave");
    let load = pipe.load(PARTITIONS, 1_000);
    let mut running = sidecars.each_ref().map(Sidecar::start);
    wait_shared(&running);
    let before = settled_rebalances(&running[0], PARTITIONS / 2);
    let stopped = monotonic();
    assert_eq!(running[1].stop(), Some(0), "{}", running[1].text());
    running[0].wait_running(PARTITIONS, LIMIT);
    assert!(stopped.elapsed() < HANDED_OVER, "{:?}\n{}", stopped.elapsed(), running[0].text());
    running[1] = sidecars[1].start();
    wait_shared(&running);
    assert!(rebalances(&running[0]) > before + 1, "an assignment and a revocation");
    pipe.finish(load, &running);
}

#[test]
fn a_rolling_restart_in_topic_scope_hands_over_once_and_at_once() {
    let pipe = Pipe::new(shared_kafka(), "rolling-topic", PARTITIONS);
    let sidecars = ["dedupd-0", "dedupd-1"]
        .map(|name| pipe.sidecar(name).with("DEDUPD_GROUP__SESSION_TIMEOUT", SESSION));
    let load = pipe.load(PARTITIONS, 1_000);
    let first = sidecars[0].start();
    first.wait_running(PARTITIONS, LIMIT);
    let mut running = [first, sidecars[1].start()];
    let is_spare = |process: &Running| process.has_role("spare") && process.is_ready();
    wait_until("the spare", LIMIT, || is_spare(&running[1]).then_some(()));
    let before = rebalances(&running[0]);
    replace(&mut running[1], &sidecars[1]);
    wait_until("the spare to return", LIMIT, || is_spare(&running[1]).then_some(()));
    assert_eq!(rebalances(&running[0]), before, "a spare has no influence: {}", running[0].text());
    load.more(1_000);
    let stopped = monotonic();
    running[0].signal("TERM");
    running[1].wait_running(PARTITIONS, LIMIT);
    println!("handed over in {:?}", stopped.elapsed());
    assert!(stopped.elapsed() < HANDED_OVER, "{:?}\n{}", stopped.elapsed(), running[1].text());
    assert_eq!(running[0].wait(LIMIT).code(), Some(0), "{}", running[0].text());
    std::thread::sleep(POD_START);
    running[0] = sidecars[0].start();
    wait_until("the former active instance to be a spare", LIMIT, || is_spare(&running[0]).then_some(()));
    pipe.finish(load, &running);
}
