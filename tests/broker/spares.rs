//! One active instance and spares, with `dedupe.scope = "topic"`: who processes, who waits, and how long nobody does.

use std::time::Duration;

use dedupd::clock::monotonic;

use crate::support::{Kafka, Pipe, Running, Scope, Sidecar, shared_kafka, wait_until};

const PARTITIONS: usize = 6;
const LIMIT: Duration = Duration::from_mins(1);
/// The session timeout of the instances, and the longest additional time without an active one.
const TAKEOVER: Duration = Duration::from_secs(6 + 3);
/// The longest additional time on a machine that stalls for seconds.
const TAKEOVER_STALLED: Duration = Duration::from_secs(6 + 20);
/// The session timeout of instances that resume before it has passed, and the time that they have for that.
const LONG_SESSION: &str = "30s";
const BEFORE_LONG_SESSION: Duration = Duration::from_secs(20);
/// How often the number of rebalances is the same before none is pending: for three seconds, or more while the machine stalls.
const UNCHANGED: usize = 30;

/// The number of its assignments and revocations.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
pub fn rebalances(process: &Running) -> u64 {
    process.value("dedupd_rebalances_total") as u64
}

/// The same, when it runs this number of partitions and no rebalance is pending: a member that leaves causes one.
pub fn settled_rebalances(process: &Running, partitions: usize) -> u64 {
    let (mut last, mut unchanged) = (None, 0);
    wait_until("the end of all rebalances", LIMIT, || {
        let runs_all = process.metric("dedupd_partitions{state=\"running\"}") == Some(partitions as f64);
        let count = runs_all.then(|| rebalances(process));
        unchanged = if count.is_some() && count == last { unchanged + 1 } else { 0 };
        last = count;
        std::thread::sleep(Duration::from_millis(100));
        count.filter(|_| unchanged >= UNCHANGED)
    })
}

/// Measures takeovers. Stalls of the machine delay single ones, so the fastest one counts, and there are more of them while all
/// were slow.
fn assert_takeovers(mut takeover: impl FnMut() -> Duration) {
    let mut fastest = Duration::MAX;
    for round in 0..4 {
        if round >= 2 && fastest < TAKEOVER {
            break;
        }
        let took = takeover();
        println!("one active instance after {took:?}");
        assert!(took < TAKEOVER_STALLED, "{took:?}");
        fastest = fastest.min(took);
    }
    assert!(fastest < TAKEOVER, "{fastest:?}");
}

/// Waits until one process is active with all partitions and the others are spares. Returns its place.
fn wait_one_active(processes: &[&Running]) -> usize {
    wait_until("one active instance, the others spares", LIMIT, || {
        let active: Vec<usize> =
            (0..processes.len()).filter(|at| processes[*at].has_role("active")).collect();
        let [active] = active[..] else { return None };
        let all = processes[active].metric("dedupd_partitions{state=\"running\"}") == Some(PARTITIONS as f64);
        let spares = processes.iter().filter(|process| process.has_role("spare") && process.is_ready());
        (all && spares.count() == processes.len() - 1).then_some(active)
    })
}

#[test]
fn a_spare_takes_over_after_kill_9_and_the_killed_instance_returns_as_a_spare() {
    let pipe = Pipe::new(shared_kafka(), "spares-killed", PARTITIONS);
    let load = pipe.load(PARTITIONS, 2_000);
    let sidecars = ["a", "b", "c"].map(|name| pipe.sidecar(name));
    let mut running = vec![sidecars[0].start()];
    running[0].wait_running(PARTITIONS, LIMIT);
    running.extend(sidecars[1..].iter().map(Sidecar::start));
    assert_eq!(wait_one_active(&running.iter().collect::<Vec<_>>()), 0);
    let page = running[1].page("/readyz");
    assert!(page.contains("note: this instance is a spare; the active instance is a at 127.0.0.1"), "{page}");
    let page = running[1].page("/");
    assert!(page.contains("instance b (spare)"), "{page}");
    // Nothing changes while all are alive.
    let before = rebalances(&running[0]);
    let start = monotonic();
    while start.elapsed() < Duration::from_secs(20) {
        assert!(running[0].has_role("active") && running[1].has_role("spare"));
        std::thread::sleep(Duration::from_millis(500));
    }
    assert_eq!([before, 0, 0], [0, 1, 2].map(|at| rebalances(&running[at])));
    assert_takeovers(|| {
        let active = wait_one_active(&running.iter().collect::<Vec<_>>());
        let killed = monotonic();
        running[active].kill9();
        let others: Vec<&Running> =
            running.iter().enumerate().filter(|(at, _)| *at != active).map(|(_, it)| it).collect();
        wait_one_active(&others);
        let took = killed.elapsed();
        running[active] = sidecars[active].start();
        wait_until("the killed instance to be a spare", LIMIT, || {
            running[active].has_role("spare").then_some(())
        });
        took
    });
    pipe.finish(load, &running);
}

#[test]
fn a_clean_stop_hands_over_at_once() {
    let pipe = Pipe::new(shared_kafka(), "spares-stopped", PARTITIONS);
    let load = pipe.load(PARTITIONS, 2_000);
    for is_static in ["true", "false"] {
        let start = |name| {
            let sidecar = pipe.sidecar(name).with("DEDUPD_GROUP__STATIC_MEMBERSHIP", is_static);
            sidecar.with("DEDUPD_GROUP__SESSION_TIMEOUT", LONG_SESSION).start()
        };
        let active = start("a");
        active.wait_running(PARTITIONS, LIMIT);
        let spare = start("b");
        wait_until("the spare", LIMIT, || spare.has_role("spare").then_some(()));
        load.more(2_000);
        let stopped = monotonic();
        active.signal("TERM");
        spare.wait_running(PARTITIONS, LIMIT);
        println!("static membership {is_static}: handed over in {:?}", stopped.elapsed());
        // Without the hand-over the spare would wait for the end of the session.
        assert!(stopped.elapsed() < BEFORE_LONG_SESSION, "{:?}\n{}", stopped.elapsed(), spare.text());
        assert_eq!(active.wait(LIMIT).code(), Some(0), "{}", active.text());
        assert_eq!(spare.stop(), Some(0), "{}", spare.text());
    }
    let last = pipe.sidecar("a").start();
    pipe.finish(load, [&last]);
}

#[test]
fn instances_that_join_at_the_same_moment_converge_to_one() {
    let pipe = Pipe::new(shared_kafka(), "spares-together", PARTITIONS);
    let load = pipe.load(PARTITIONS, 2_000);
    for round in 0..4 {
        // All of them describe the group before the first one joins it, and then join within 0.1 s.
        let held = ["a", "b", "c"].map(|name| pipe.dir.path().join(format!("hold-{name}-{round}")));
        let running: Vec<Running> = ["a", "b", "c"]
            .iter()
            .zip(&held)
            .map(|(name, held)| {
                let point = format!("before_join:1:{}", held.display());
                pipe.sidecar(name).with("DEDUPD_FAILPOINT_HOLD", &point).start()
            })
            .collect();
        wait_until("all to see an empty group", LIMIT, || held.iter().all(|it| it.exists()).then_some(()));
        let released = monotonic();
        for (at, held) in held.iter().enumerate() {
            std::fs::remove_file(held).unwrap();
            std::thread::sleep(Duration::from_millis([0, 30, 60, 90][(at * round) % 4]));
        }
        let active = wait_one_active(&running.iter().collect::<Vec<_>>());
        println!("round {round}: one active instance after {:?}", released.elapsed());
        let joined = running.iter().filter(|process| rebalances(process) > 0).count();
        assert!(joined > 1, "only one instance has joined");
        // Those that have joined too leave, which causes further rebalances.
        let before = settled_rebalances(&running[active], PARTITIONS);
        load.more(6_000);
        assert_eq!(before, rebalances(&running[active]), "{}", running[active].text());
        for at in (0..3).filter(|at| *at != active).chain([active]) {
            assert_eq!(running[at].stop(), Some(0), "{}", running[at].text());
        }
    }
    let last = pipe.sidecar("a").start();
    pipe.finish(load, [&last]);
}

#[test]
fn an_active_instance_that_was_frozen_becomes_a_spare() {
    let pipe = Pipe::new(shared_kafka(), "spares-frozen", PARTITIONS);
    let load = pipe.load(PARTITIONS, 2_000);
    let a = pipe.sidecar("a").start();
    a.wait_running(PARTITIONS, LIMIT);
    let b = pipe.sidecar("b").start();
    let mut active = wait_one_active(&[&a, &b]);
    for _ in 0..4 {
        let (frozen, other) = if active == 0 { (&a, &b) } else { (&b, &a) };
        frozen.signal("STOP");
        other.wait_running(PARTITIONS, LIMIT);
        let before = rebalances(other);
        load.more(2_000);
        frozen.signal("CONT");
        let next = wait_one_active(&[&a, &b]);
        assert_ne!(next, active);
        load.more(4_000);
        assert_eq!(before, rebalances(other), "the return of the frozen instance causes no rebalance");
        active = next;
    }
    pipe.finish(load, [&a, &b]);
}

#[test]
fn a_killed_instance_resumes_before_its_session_ends_although_a_spare_waits() {
    let pipe = Pipe::new(shared_kafka(), "spares-resumed", PARTITIONS);
    let load = pipe.load(PARTITIONS, 2_000);
    let sidecar = |name| pipe.sidecar(name).with("DEDUPD_GROUP__SESSION_TIMEOUT", LONG_SESSION);
    let sidecar_a = sidecar("a");
    let mut a = sidecar_a.start();
    a.wait_running(PARTITIONS, LIMIT);
    let b = sidecar("b").start();
    for _ in 0..3 {
        assert_eq!(wait_one_active(&[&a, &b]), 0);
        load.more(1_000);
        let killed = monotonic();
        a.kill9();
        a = sidecar_a.start();
        a.wait_running(PARTITIONS, LIMIT);
        println!("the same instance runs {:?} after kill -9", killed.elapsed());
        assert!(killed.elapsed() < BEFORE_LONG_SESSION, "{:?}\n{}", killed.elapsed(), a.text());
    }
    assert_eq!(rebalances(&b), 0);
    pipe.finish(load, [&a, &b]);
}

#[test]
fn a_process_with_the_name_of_the_active_instance_waits_until_that_one_has_left() {
    let pipe = Pipe::new(shared_kafka(), "spares-twins", PARTITIONS);
    let sidecar = pipe.sidecar("a");
    let first = sidecar.start();
    first.wait_running(PARTITIONS, LIMIT);
    let load = pipe.load(PARTITIONS, 2_000);
    let mut twin = sidecar.clone();
    twin.state_dir = pipe.dir.path().join("state-twin");
    let second = twin.start();
    wait_until("the reason", LIMIT, || {
        second
            .get("/readyz")
            .filter(|page| page.contains("503") && page.contains("same group.instance is in"))
    });
    load.more(6_000);
    assert_eq!((first.ended(), second.ended()), (None, None), "{}", second.text());
    first.kill9();
    second.wait_running(PARTITIONS, LIMIT);
    load.more(2_000);
    pipe.finish(load, [&second]);
}

#[test]
fn an_instance_of_topic_scope_does_not_take_over_a_group_of_partition_scope() {
    let pipe = Pipe::new(shared_kafka(), "spares-upgrade", PARTITIONS);
    let load = pipe.load(PARTITIONS, 2_000);
    let old = ["a", "b"].map(|name| pipe.sidecar(name).scoped(Scope::Partition).start());
    wait_until("both to share the partitions", LIMIT, || {
        let shares =
            old.each_ref().map(|it| it.metric("dedupd_partitions{state=\"running\"}").unwrap_or(0.0));
        (shares.iter().sum::<f64>() >= PARTITIONS as f64 && shares.iter().all(|it| *it > 0.0)).then_some(())
    });
    load.more(2_000);
    assert_eq!(old[1].stop(), Some(0));
    let refused = pipe.sidecar("b").start();
    let page = wait_until("the reason", LIMIT, || {
        refused.get("/readyz").filter(|page| page.contains("could not take over: the group's offset"))
    });
    assert!(
        page.contains("503") && page.contains("\"partition\", but the configured scope is \"topic\""),
        "{page}"
    );
    assert!(refused.has_role("spare"), "{}", refused.text());
    old[0].wait_running(PARTITIONS, LIMIT);
    load.more(4_000);
    assert_eq!(rebalances(&refused), 0);
    assert_eq!(old[0].stop(), Some(0));
    assert_eq!(refused.wait(LIMIT).code(), Some(4), "{}", refused.text());
    let again = pipe.sidecar("a").scoped(Scope::Partition).start();
    again.wait_running(PARTITIONS, LIMIT);
    load.more(2_000);
    pipe.finish(load, [&again]);
}

#[test]
fn an_instance_of_partition_scope_leaves_a_group_of_topic_scope_alone() {
    let pipe = Pipe::new(shared_kafka(), "spares-mixed", PARTITIONS);
    let load = pipe.load(PARTITIONS, 2_000);
    let sidecars = ["a", "b"].map(|name| pipe.sidecar(name));
    let active = sidecars[0].start();
    active.wait_running(PARTITIONS, LIMIT);
    // All partitions have an offset.
    load.more(2_000);
    let before = settled_rebalances(&active, PARTITIONS);
    let other = sidecars[1].clone().scoped(Scope::Partition);
    let refused = other.start();
    assert_eq!(refused.wait(LIMIT).code(), Some(4), "{}", refused.text());
    let text = refused.text();
    assert!(text.contains("\"topic\", but the configured scope is \"partition\""), "{text}");
    assert_eq!(rebalances(&active), before);
    // Neither is it the next one that joins an empty group.
    load.finish();
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    assert_eq!(active.stop(), Some(0));
    assert_eq!(other.start().wait(LIMIT).code(), Some(4));
    pipe.assert_exactly_once();

    // The remedy in the message; offsets that are reset to their current values have no checkpoint.
    for word in ["set topics.state to a new topic", "--reset-offsets --to-current"] {
        assert!(text.contains(word), "{text}");
    }
    for partition in 0..i32::try_from(PARTITIONS).unwrap() {
        let (offset, _) = pipe.kafka.committed(&pipe.group(), &pipe.raw, partition).unwrap();
        pipe.kafka.commit_offset(&pipe.group(), &pipe.raw, partition, offset);
    }
    let refused = other.start();
    assert_eq!(refused.wait(LIMIT).code(), Some(4), "{}", refused.text());
    let words = "was written with dedupe.scope = \"topic\", but the configured scope is \"partition\"";
    assert!(refused.text().contains(words), "{}", refused.text());
    let changed = other.with("DEDUPD_TOPICS__STATE", "spares-mixed.state-of-partitions");
    for _ in 0..2 {
        let running = changed.start();
        running.wait_running(PARTITIONS, LIMIT);
        assert_eq!(running.stop(), Some(0), "{}", running.text());
    }
}

#[test]
fn the_active_instance_stays_when_another_one_joins_its_group() {
    let pipe = Pipe::new(shared_kafka(), "spares-late", PARTITIONS);
    let load = pipe.load(PARTITIONS, 2_000);
    // It has seen an empty group, and joins after the other one.
    let held = pipe.dir.path().join("held");
    let point = format!("before_join:1:{}", held.display());
    let late = pipe.sidecar("b").with("DEDUPD_FAILPOINT_HOLD", &point).start();
    wait_until("an empty group", LIMIT, || held.exists().then_some(()));
    let active = pipe.sidecar("a").start();
    active.wait_running(PARTITIONS, LIMIT);
    load.more(2_000);
    std::fs::remove_file(&held).unwrap();
    wait_until("the late one to have joined", LIMIT, || (rebalances(&late) > 0).then_some(()));
    assert_eq!(wait_one_active(&[&active, &late]), 0, "{}", late.text());
    assert!(!active.text().contains("leaving the group"), "{}", active.text());
    load.more(2_000);
    pipe.finish(load, [&late, &active]);
}

#[test]
fn a_spare_takes_over_a_topic_that_has_grown() {
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, "spares-grown", 3);
    let a = pipe.sidecar("a").start();
    a.wait_running(3, LIMIT);
    let b = pipe.sidecar("b").start();
    wait_until("the spare", LIMIT, || b.has_role("spare").then_some(()));
    kafka.grow_topic(&pipe.raw, PARTITIONS);
    a.wait_running(PARTITIONS, LIMIT);
    let load = pipe.load(PARTITIONS, 2_000);
    load.more(2_000);
    assert_eq!(wait_one_active(&[&a, &b]), 0);
    assert_eq!(a.stop(), Some(0), "{}", a.text());
    b.wait_running(PARTITIONS, LIMIT);
    load.more(2_000);
    pipe.finish(load, [&b]);
}

#[test]
fn one_instance_is_active_after_an_outage_of_the_broker() {
    let kafka = Kafka::start();
    let pipe = Pipe::new(&kafka, "spares-outage", PARTITIONS);
    let load = pipe.load(PARTITIONS, 1_000);
    let a = pipe.sidecar("a").start();
    a.wait_running(PARTITIONS, LIMIT);
    let b = pipe.sidecar("b").start();
    assert_takeovers(|| {
        wait_one_active(&[&a, &b]);
        load.more(1_000);
        kafka.kill9();
        // Longer than the session timeout: the client of the active instance gives up its membership.
        std::thread::sleep(Duration::from_secs(8));
        wait_until("both to be not ready", LIMIT, || (!a.is_ready() && !b.is_ready()).then_some(()));
        kafka.restart();
        let restarted = monotonic();
        wait_one_active(&[&a, &b]);
        restarted.elapsed()
    });
    pipe.finish(load, [&a, &b]);
}

#[test]
fn a_dynamic_member_waits_until_the_group_has_removed_its_former_one() {
    let pipe = Pipe::new(shared_kafka(), "spares-dynamic", PARTITIONS);
    let load = pipe.load(PARTITIONS, 1_000);
    // The reason is there from the first description of the group until the session ends.
    let session = Duration::from_secs(20);
    let sidecar = pipe
        .sidecar("a")
        .with("DEDUPD_GROUP__STATIC_MEMBERSHIP", "false")
        .with("DEDUPD_GROUP__SESSION_TIMEOUT", "20s");
    let former = sidecar.start();
    former.wait_running(PARTITIONS, LIMIT);
    let killed = monotonic();
    former.kill9();
    let again = sidecar.start();
    let page = wait_until("the reason for not being ready", LIMIT, || {
        again.get("/readyz").filter(|page| page.contains("has removed the former member"))
    });
    assert!(page.starts_with("HTTP/1.1 503") && again.has_role("joining"), "{page}");
    again.wait_running(PARTITIONS, LIMIT);
    let limit = session + Duration::from_secs(15);
    assert!(killed.elapsed() < limit, "{:?}\n{}", killed.elapsed(), again.text());
    pipe.finish(load, [&again]);
}
