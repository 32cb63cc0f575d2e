//! What keeps partitions from the others for ever: a registry that an instance cannot reach, one that is killed whenever it restores in partition
//! scope, and a member of another program.

use std::time::Duration;

use dedupd::clock::monotonic;
use rdkafka::consumer::{BaseConsumer, Consumer};
use serde_json::json;

use crate::schemas::string;
use crate::spares::{rebalances, settled_rebalances};
use crate::support::{
    Draft, Isolation, Pipe, Running, Scope, Sidecar, StubRegistry, shared_kafka, wait_until,
};
use crate::takeovers::Supervised;

const PARTITIONS: usize = 4;
const LIMIT: Duration = Duration::from_mins(1);
/// Several times the session timeout.
const LONG: Duration = Duration::from_secs(20);
const SCHEMA: &str = r#"{"type":"record","name":"Order","fields":[{"name":"id","type":"string"}]}"#;
const LEAVES: &str = "leaving the group to the other instances";

/// A registry with one schema, or one that fails.
fn registry(works: bool) -> StubRegistry {
    let registry = StubRegistry::start();
    set_working(&registry, works);
    registry
}

fn set_working(registry: &StubRegistry, works: bool) {
    let status = if works { 200 } else { 503 };
    registry.set("schemas/types", status, json!(["AVRO"]));
    registry.set("schemas/ids/7", status, json!({ "schema": SCHEMA }));
}

/// An instance that needs the schema.
fn sidecar(pipe: &Pipe<'_>, name: &str, registry: &StubRegistry) -> Sidecar {
    let sidecar = pipe.sidecar(name).with("DEDUPD_IDENTITY__FROM", "[\"avro:/id\"]");
    sidecar.with("DEDUPD_SCHEMAS__REGISTRY", &registry.url())
}

/// Writes records, each twice, to these partitions.
fn send(pipe: &Pipe<'_>, partitions: usize, ids: std::ops::Range<u32>) {
    let draft = |n: u32| {
        let partition = i32::try_from(n as usize % partitions).unwrap();
        let value = [&[0], &7_u32.to_be_bytes()[..], &string(&format!("id-{n}"))].concat();
        Draft { partition, value: Some(value), ..Draft::default() }
    };
    pipe.kafka.send(&pipe.raw, &ids.flat_map(|n| [draft(n), draft(n)]).collect::<Vec<_>>());
}

/// Whether it runs this number of partitions, waiting for schemas or not.
fn has_running(process: &Running, count: usize) -> bool {
    let of = |state: &str| process.metric(&format!("dedupd_partitions{{state=\"{state}\"}}")).unwrap_or(0.0);
    of("running") + of("waiting") >= count as f64
}

fn wait_shared(running: [&Running; 2]) {
    wait_until("both to share the partitions", LIMIT, || {
        let shares =
            running.iter().all(|it| has_running(it, PARTITIONS / 2) && !has_running(it, PARTITIONS / 2 + 1));
        shares.then_some(())
    });
}

#[test]
fn an_active_instance_that_cannot_reach_its_registry_leaves_the_group_to_a_healthy_one() {
    let pipe = Pipe::new(shared_kafka(), "no-registry", PARTITIONS);
    let (works, fails) = (registry(true), registry(false));
    // The last partition has no record.
    send(&pipe, PARTITIONS - 1, 0..60);
    let broken = sidecar(&pipe, "broken", &fails).start();
    // Alone it comes back.
    wait_until("the lone instance to return", LIMIT, || {
        (broken.text().matches("joining it to become active").count() >= 2).then_some(())
    });
    let healthy = sidecar(&pipe, "healthy", &works).start();
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    healthy.wait_running(PARTITIONS, LIMIT);
    let page = wait_until("the reason", LIMIT, || {
        broken.get("/readyz").filter(|page| page.contains("could not take over: GET"))
    });
    assert!(page.contains("503") && broken.has_role("spare"), "{page}");
    assert!(broken.text().contains(LEAVES) && !healthy.text().contains(LEAVES), "{}", broken.text());
    assert_eq!([broken.stop(), healthy.stop()], [Some(0); 2]);
    assert_eq!(pipe.kafka.records(&pipe.clean, Isolation::Committed).len(), 60);
}

/// The control of the test above.
#[test]
fn an_active_instance_that_stays_without_its_registry_keeps_the_others_out() {
    let pipe = Pipe::new(shared_kafka(), "no-registry-stays", PARTITIONS);
    let (works, fails) = (registry(true), registry(false));
    send(&pipe, PARTITIONS, 0..60);
    let broken = sidecar(&pipe, "broken", &fails).with("DEDUPD_WITHOUT", "resignation").start();
    wait_until("the active instance", LIMIT, || broken.has_role("active").then_some(()));
    let healthy = sidecar(&pipe, "healthy", &works).start();
    wait_until("the spare", LIMIT, || healthy.has_role("spare").then_some(()));
    std::thread::sleep(LONG);
    assert!(healthy.has_role("spare") && broken.has_role("active"), "{}", healthy.text());
}

#[test]
fn a_member_that_cannot_reach_its_registry_leaves_its_partitions_to_the_others_until_it_does() {
    let pipe = Pipe::new(shared_kafka(), "no-registry-part", PARTITIONS);
    let registries = [registry(false), registry(false)];
    let [a, b] = [("a", &registries[0]), ("b", &registries[1])]
        .map(|(name, registry)| sidecar(&pipe, name, registry).scoped(Scope::Partition).start());
    wait_shared([&a, &b]);
    send(&pipe, PARTITIONS, 0..60);
    // While nobody reaches the registry, all partitions stay where they are.
    std::thread::sleep(LONG);
    assert!([&a, &b].iter().all(|it| !it.text().contains(LEAVES)), "{}\n{}", a.text(), b.text());
    set_working(&registries[0], true);
    let mut from = 60;
    wait_until("the healthy one to run all", LIMIT, || {
        send(&pipe, PARTITIONS, from..from + 60);
        from += 60;
        std::thread::sleep(Duration::from_millis(500));
        has_running(&a, PARTITIONS).then_some(())
    });
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    assert!(b.text().contains(LEAVES) && !b.is_ready(), "{}", b.text());
    set_working(&registries[1], true);
    wait_shared([&a, &b]);
    send(&pipe, PARTITIONS, from..from + 60);
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    assert_eq!([a.stop(), b.stop()], [Some(0); 2]);
    let clean = pipe.kafka.records(&pipe.clean, Isolation::Committed).len();
    assert_eq!(clean, from as usize + 60);
}

/// An instance in partition scope is killed while it runs, and from then on whenever it restores. Returns the time until the other one has all
/// partitions, if that is within `limit`.
fn share(name: &str, before_restart: fn(&Sidecar), limit: Duration) -> Option<Duration> {
    let pipe = Pipe::new(shared_kafka(), name, PARTITIONS);
    let load = pipe.load(PARTITIONS, 1_000);
    let [a, b] = ["a", "b"].map(|name| pipe.sidecar(name).scoped(Scope::Partition));
    let (other, broken) = (a.start(), b.start());
    wait_shared([&other, &broken]);
    // After a crash it resumes its partitions at once.
    let before = settled_rebalances(&other, PARTITIONS / 2);
    broken.kill9();
    let broken = b.start();
    broken.wait_running(PARTITIONS / 2, LIMIT);
    assert_eq!(rebalances(&other), before, "{}", other.text());
    broken.kill9();
    let mut broken = Supervised::start(b.with("DEDUPD_FAILPOINT", "after_assign:1"));
    broken.before_restart = before_restart;
    let since = monotonic();
    while since.elapsed() < limit {
        broken.tend();
        if has_running(&other, PARTITIONS) {
            println!("{:?}, the broken instance ended with {:?}", since.elapsed(), broken.codes);
            broken.running.kill9();
            pipe.finish(load, [&other]);
            return Some(since.elapsed());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    None
}

#[test]
fn an_instance_that_is_killed_whenever_it_restores_leaves_its_partitions_to_the_others() {
    assert!(share("shared-killed", |_| (), LIMIT).is_some());
}

/// The control of the test above.
#[test]
fn an_instance_that_counts_as_running_whenever_it_is_killed_keeps_its_partitions() {
    let counts = |sidecar: &Sidecar| {
        let lock = sidecar.state_dir.join("lock");
        let text = std::fs::read_to_string(&lock).unwrap();
        std::fs::write(&lock, format!("{}\nactive\n", text.lines().next().unwrap())).unwrap();
    };
    assert_eq!(share("shared-kept", counts, LONG), None);
}

#[test]
fn a_member_of_another_program_is_named_with_the_remedy() {
    let pipe = Pipe::new(shared_kafka(), "console", PARTITIONS);
    pipe.kafka.create_topic("console.other", 1, &[]);
    let mut config = pipe.kafka.client_config();
    let foreign: BaseConsumer =
        config.set("group.id", pipe.group()).set("client.id", "console").create().unwrap();
    foreign.subscribe(&["console.other"]).unwrap();
    wait_until("its assignment", LIMIT, || {
        drop(foreign.poll(Duration::from_millis(100)));
        (foreign.assignment().unwrap().count() > 0).then_some(())
    });
    let running = pipe.sidecar("a").start();
    let page = wait_until("the reason", LIMIT, || {
        drop(foreign.poll(Duration::ZERO));
        running.get("/readyz").filter(|page| page.contains("is not of dedupd"))
    });
    assert!(page.contains("503") && page.contains("the member console-"), "{page}");
    assert!(page.contains("stop it, or give it another group.id"), "{page}");
    assert!(
        running.has_role("joining") && !running.text().contains("this instance is a spare"),
        "{}",
        running.text()
    );
    let page = wait_until("the unassigned partitions", LIMIT, || {
        drop(foreign.poll(Duration::ZERO));
        running.get("/readyz").filter(|page| page.contains("its records are not read"))
    });
    assert!(!page.contains("restart one instance"), "{page}");
    drop(foreign);
    running.wait_running(PARTITIONS, LIMIT);
}
