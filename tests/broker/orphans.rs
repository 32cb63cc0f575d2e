//! Partitions of a group always get an owner, on a real Apache Kafka.
//!
//! With the cooperative protocol, partitions are revoked from a member in one rebalance and assigned in the next,
//! which that member requests. A static member that is killed in between gets its old assignment again without a
//! rebalance, so no member requests the next one. The same happens to partitions that are added while all static
//! members are down. Failpoints require the `failpoints` feature, which `make test` enables.
#![cfg_attr(
    not(feature = "failpoints"),
    allow(dead_code, unused_imports, reason = "used only with failpoints")
)]

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use crate::support::{Pipe, Running, Scope, shared_kafka, wait_until};
use dedupd::clock::monotonic;

const PARTITIONS: usize = 4;
const LIMIT: Duration = Duration::from_mins(1);
/// Maximum time from the restart of the last member until every partition is running. Without a forced rebalance, partitions
/// never get an owner.
const OWNED_WITHIN: Duration = Duration::from_secs(75);
/// How long this must last: during a rebalance the old owner may still run all partitions.
const STAYS: Duration = Duration::from_secs(3);
/// Number of parallel rounds, each with its own group.
const PARALLEL: usize = 5;

/// The number of partitions that it runs, `None` without a response.
fn running_partitions(process: &Running) -> Option<f64> {
    process.metric("dedupd_partitions{state=\"running\"}")
}

/// The time until all partitions are running in these members and stay running, `None` if that took too long.
fn owned(members: &[&Running], partitions: usize) -> Option<Duration> {
    let began = monotonic();
    let mut since = None;
    let mut shares = vec![0.0; members.len()];
    while began.elapsed() < OWNED_WITHIN + STAYS {
        for (share, member) in shares.iter_mut().zip(members) {
            *share = running_partitions(member).unwrap_or(*share);
        }
        let running: f64 = shares.iter().sum();
        since = if running >= partitions as f64 { since.or_else(|| Some(began.elapsed())) } else { None };
        if since.is_some_and(|since| began.elapsed().saturating_sub(since) > STAYS) {
            return since;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    None
}

/// One kill: the member, the failpoint, how often it is reached before, and whether the other member is killed too.
#[derive(Debug, Clone, Copy)]
struct Kill {
    first: bool,
    point: &'static str,
    passing: u32,
    both: bool,
}

impl Kill {
    const fn of(first: bool, point: &'static str, passing: u32, both: bool) -> Self {
        Self { first, point, passing, both }
    }
}

/// The second member joins a group in which the first one owns all partitions. The last two are similar to others, and
/// run only with a higher `DEDUPD_KILLS`.
#[cfg(feature = "failpoints")]
const KILLS: [Kill; 10] = [
    Kill::of(true, "after_revoke", 1, false),
    Kill::of(true, "after_revoke", 1, true),
    Kill::of(true, "before_unassign", 1, false),
    Kill::of(true, "after_unassign", 1, false),
    Kill::of(true, "after_unassign", 1, true),
    Kill::of(false, "before_assign", 1, false),
    Kill::of(false, "after_assign", 1, true),
    Kill::of(false, "before_assign", 2, false),
    Kill::of(false, "after_assign", 2, false),
    Kill::of(true, "before_unassign", 1, true),
];

#[cfg(feature = "failpoints")]
fn round(number: usize, kill: Kill) -> Result<Duration, String> {
    let pipe = Pipe::new(shared_kafka(), &format!("orphans-{number}"), PARTITIONS);
    let sidecars = ["a", "b"].map(|name| pipe.sidecar(name).scoped(Scope::Partition));
    let armed = usize::from(!kill.first);
    let start = |member: usize| {
        let sidecar = sidecars[member].clone();
        let failpoint = format!("{}:{}", kill.point, kill.passing);
        if member == armed { sidecar.with("DEDUPD_FAILPOINT", &failpoint).start() } else { sidecar.start() }
    };
    let load = pipe.load(PARTITIONS, 300);
    let mut members = vec![start(0)];
    members[0].wait_running(PARTITIONS, LIMIT);
    members.push(start(1));
    let ended = members[armed].wait(LIMIT);
    assert_eq!(ended.code(), None, "{kill:?} was not reached:\n{}", members[armed].text());
    if kill.both {
        members[1 - armed].kill9();
        members[1 - armed] = sidecars[1 - armed].start();
    }
    members[armed] = sidecars[armed].start();
    let took = owned(&[&members[0], &members[1]], PARTITIONS);
    load.finish();
    let Some(took) = took else {
        let shares = [running_partitions(&members[0]), running_partitions(&members[1])];
        let ready = [members[0].is_ready(), members[1].is_ready()];
        return Err(format!(
            "{kill:?}: after {OWNED_WITHIN:?} the members run {shares:?} partitions, ready {ready:?}"
        ));
    };
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    pipe.assert_exactly_once();
    Ok(took)
}

#[test]
#[cfg(feature = "failpoints")]
fn a_kill_at_any_step_of_a_rebalance_leaves_no_partition_without_an_owner() {
    let kills: usize = std::env::var("DEDUPD_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(8);
    shared_kafka();
    let waiting: Mutex<VecDeque<_>> = Mutex::new((0..kills).map(|n| (n, KILLS[n % KILLS.len()])).collect());
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..PARALLEL {
            scope.spawn(|| {
                loop {
                    let Some((number, kill)) = waiting.lock().unwrap().pop_front() else { return };
                    match round(number, kill) {
                        Ok(took) => println!("{kill:?}: every partition runs after {took:?}"),
                        Err(what) => failed.lock().unwrap().push(what),
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} of {kills} kills left orphans:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn partitions_that_are_added_while_the_only_member_is_down_get_an_owner() {
    let pipe = Pipe::new(shared_kafka(), "added", 2);
    // Longer than the member is down on the slowest machine: a member whose session has expired joins as a new one,
    // which causes a rebalance by itself.
    let sidecar = pipe.sidecar("a").with("DEDUPD_GROUP__SESSION_TIMEOUT", "45s");
    let load = pipe.load(2, 300);
    let member = sidecar.start();
    member.wait_running(2, LIMIT);
    load.more(300);
    // At a start, partitions are added to the other topics only for a group that has committed offsets.
    wait_until("a commit", LIMIT, || (member.outcome("forwarded") > 0).then_some(()));
    member.kill9();
    pipe.kafka.grow_topic(&pipe.raw, PARTITIONS);
    load.finish();
    let load = pipe.load(PARTITIONS, 300);
    let member = sidecar.start();
    let took = owned(&[&member], PARTITIONS);
    load.more(600);
    load.finish();
    assert!(took.is_some(), "{:?} partitions run after {OWNED_WITHIN:?}", running_partitions(&member));
    println!("every partition runs after {took:?}");
    assert!(member.metric("dedupd_forced_rebalances_total") >= Some(1.0), "{}", member.text());
    for settled in ["dedupd_group_unassigned_partitions", "dedupd_group_lag_records{partition=\"3\"}"] {
        wait_until(settled, LIMIT, || (member.metric(settled) == Some(0.0)).then_some(()));
    }
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    pipe.assert_exactly_once();
}
