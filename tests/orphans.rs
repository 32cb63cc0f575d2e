//! Partitions of a group always find an owner, on a real Apache Kafka.
//!
//! With the cooperative protocol a member gives partitions up in one rebalance and they are assigned in the next,
//! which that member requests. A static member that is killed in between gets its old assignment back without a
//! rebalance, so nobody requests the next one. The same happens to partitions that are added while all static
//! members are away. The named points need the `failpoints` feature, with which `make test` builds.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]
#![cfg_attr(
    not(feature = "failpoints"),
    allow(dead_code, unused_imports, reason = "what the kills use is not there without named points")
)]

mod support;

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use dedupd::clock::monotonic;
use support::{Pipe, Running, shared_kafka, wait_until};

const PARTITIONS: usize = 4;
const LIMIT: Duration = Duration::from_mins(1);
/// From the restart of the last member to the moment in which every partition runs.
const OWNED: Duration = Duration::from_secs(25);
/// For how long that has to last: in the middle of a rebalance the old owner may still run everything.
const STAYS: Duration = Duration::from_secs(3);
/// Rounds at the same time, each with a group of its own.
const LANES: usize = 5;

fn running_partitions(process: &Running) -> f64 {
    process.metric("dedupd_partitions{state=\"running\"}").unwrap_or(0.0)
}

/// How long it took until every partition runs in one of these, and stays; `None` when it did not happen in time.
fn owned(members: &[&Running], partitions: usize) -> Option<Duration> {
    let began = monotonic();
    let mut since = None;
    while began.elapsed() < OWNED + STAYS {
        let running: f64 = members.iter().map(|member| running_partitions(member)).sum();
        since = if running >= partitions as f64 { since.or_else(|| Some(began.elapsed())) } else { None };
        if since.is_some_and(|since| began.elapsed().saturating_sub(since) > STAYS) {
            return since;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    None
}

/// One kill: of which member, at which passing of which point, and whether the other one is killed too.
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

/// The second member joins a group in which the first one has everything. The last two differ little from others, and
/// are left out unless `DEDUPD_KILLS` asks for more.
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
    let sidecars = [pipe.sidecar("a"), pipe.sidecar("b")];
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
            "{kill:?}: after {OWNED:?} the members run {shares:?} partitions, ready {ready:?}"
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
        for _ in 0..LANES {
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
fn partitions_that_are_added_while_the_only_member_is_away_get_an_owner() {
    let pipe = Pipe::new(shared_kafka(), "added", 2);
    // Longer than the member is away on the slowest machine: a member whose session has ended joins as a new one, and
    // then nothing has to be forced.
    let sidecar = pipe.sidecar("a").with("DEDUPD_GROUP__SESSION_TIMEOUT", "45s");
    let load = pipe.load(2, 300);
    let member = sidecar.start();
    member.wait_running(2, LIMIT);
    load.more(300);
    // Only for a group that has read raw before are the other topics grown at a start.
    wait_until("a commit", LIMIT, || (member.outcome("forwarded") > 0).then_some(()));
    member.kill9();
    pipe.kafka.grow_topic(&pipe.raw, PARTITIONS);
    load.finish();
    let load = pipe.load(PARTITIONS, 300);
    let member = sidecar.start();
    let took = owned(&[&member], PARTITIONS);
    load.more(600);
    load.finish();
    assert!(took.is_some(), "{} partitions run after {OWNED:?}", running_partitions(&member));
    println!("every partition runs after {took:?}");
    assert!(member.metric("dedupd_forced_rebalances_total") >= Some(1.0), "{}", member.text());
    for settled in ["dedupd_group_unassigned_partitions", "dedupd_group_lag_records{partition=\"3\"}"] {
        wait_until(settled, LIMIT, || (member.metric(settled) == Some(0.0)).then_some(()));
    }
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    pipe.assert_exactly_once();
}
