//! Several members of one group that share the partitions, on a real Apache Kafka: joining, leaving, frozen, with the same
//! instance id.

use std::time::Duration;

use crate::support::{Pipe, Running, Scope, Sidecar, shared_kafka, wait_until};

const PARTITIONS: usize = 6;
const LIMIT: Duration = Duration::from_mins(1);

fn sidecar(pipe: &Pipe<'_>, name: &str) -> Sidecar {
    pipe.sidecar(name).scoped(Scope::Partition)
}

fn running_partitions(process: &Running) -> f64 {
    process.metric("dedupd_partitions{state=\"running\"}").unwrap_or(0.0)
}

#[test]
fn one_of_two_processes_with_the_same_instance_ends() {
    let pipe = Pipe::new(shared_kafka(), "twins", PARTITIONS);
    let sidecar = sidecar(&pipe, "a");
    let first = sidecar.start();
    first.wait_running(PARTITIONS, LIMIT);
    let load = pipe.load(PARTITIONS, 2_000);
    load.more(2_000);
    let mut twin = sidecar.clone();
    twin.state_dir = pipe.dir.path().join("state-twin");
    let second = twin.start();
    let both = [&first, &second];
    wait_until("one of them to end", LIMIT, || both.iter().find_map(|process| process.ended()));
    load.more(6_000);
    load.finish();
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    let codes: Vec<_> = both.iter().filter_map(|process| process.ended()).map(|s| s.code()).collect();
    let texts = || format!("first:\n{}\nsecond:\n{}", first.text(), second.text());
    assert_eq!(codes, [Some(5)], "{}", texts());
    let left = if first.ended().is_some() { &first } else { &second };
    assert!(left.text().contains("group.instance"), "{}", left.text());
    pipe.assert_exactly_once();
}

#[test]
fn a_frozen_instance_is_replaced_and_loses_nothing_when_it_continues() {
    let pipe = Pipe::new(shared_kafka(), "frozen", PARTITIONS);
    let load = pipe.load(PARTITIONS, 3_000);
    let (a, b) = (sidecar(&pipe, "a").start(), sidecar(&pipe, "b").start());
    for (frozen, other) in [(&a, &b), (&b, &a)] {
        wait_until("both to run partitions", LIMIT, || {
            let shares = [running_partitions(&a), running_partitions(&b)];
            (shares.iter().sum::<f64>() >= PARTITIONS as f64 && shares.iter().all(|share| *share > 0.0))
                .then_some(())
        });
        load.more(2_000);
        frozen.signal("STOP");
        // Longer than the session timeout of 6 s and the transaction timeout of 5 s: the other one owns all partitions.
        other.wait_running(PARTITIONS, LIMIT);
        load.more(2_000);
        frozen.signal("CONT");
        load.more(2_000);
    }
    pipe.finish(load, [&a, &b]);
}

#[test]
fn instances_that_join_and_leave_under_load_lose_nothing() {
    let pipe = Pipe::new(shared_kafka(), "rebalances", PARTITIONS);
    // Static members rejoin without a rebalance. Here each join and leave must cause one.
    let sidecars =
        ["a", "b", "c"].map(|name| sidecar(&pipe, name).with("DEDUPD_GROUP__STATIC_MEMBERSHIP", "false"));
    let load = pipe.load(PARTITIONS, 3_000);
    let stays = sidecars[0].start();
    stays.wait_running(PARTITIONS, LIMIT);
    let mut guests: [Option<Running>; 2] = [None, None];
    let mut changes = 0;
    while changes < 24 {
        let at = changes % guests.len();
        match guests[at].take() {
            None => {
                let guest = sidecars[at + 1].start();
                wait_until("its first partition", LIMIT, || (running_partitions(&guest) > 0.0).then_some(()));
                guests[at] = Some(guest);
            }
            Some(guest) => assert_eq!(guest.stop(), Some(0), "{}", guest.text()),
        }
        changes += 1;
        load.more(500);
    }
    load.finish();
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    let rebalances = stays.metric("dedupd_rebalances_total").unwrap();
    assert!(rebalances >= 20.0, "{rebalances}");
    assert_eq!(stays.stop(), Some(0), "{}", stays.text());
    pipe.assert_exactly_once();
}

#[test]
fn three_workers_share_one_process() {
    let pipe = Pipe::new(shared_kafka(), "workers", PARTITIONS);
    let sidecar = pipe.sidecar("a").sharing(3);
    let load = pipe.load(PARTITIONS, 4_000);
    for round in 0..3 {
        let running = sidecar.start();
        running.wait_running(PARTITIONS, LIMIT);
        running.wait_even(3, 2, LIMIT);
        load.more(2_000);
        if round == 0 {
            running.kill9();
        } else {
            assert_eq!(running.stop(), Some(0), "{}", running.text());
        }
    }
    let running = sidecar.start();
    pipe.finish(load, [&running]);
}
