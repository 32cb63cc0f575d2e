//! One of three instances cannot take over, in topic scope: a healthy one is active soon, however often a supervisor restarts the broken one.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use dedupd::clock::monotonic;

use crate::support::{Pipe, Running, Sidecar, shared_kafka, wait_until};

pub const PARTITIONS: usize = 4;
const LIMIT: Duration = Duration::from_mins(1);
/// The longest time without an active instance.
const TAKEOVER: Duration = Duration::from_secs(6 + 3);
/// The same on a machine that stalls for seconds, which the fastest of some rounds does not show.
const STALLED: Duration = Duration::from_secs(6 + 30);
/// After this time a supervisor restarts an instance.
const RESTART: Duration = Duration::from_secs(2);
const ROUNDS: usize = 4;
/// The session timeout of instances whose end does not wait for it, and what is less than it on a machine that stalls.
const LONG_SESSION: &str = "30s";
const BEFORE_LONG_SESSION: Duration = Duration::from_secs(20);

/// An instance with its supervisor, which has to be tended.
pub struct Supervised {
    pub sidecar: Sidecar,
    pub running: Running,
    ended: Option<Instant>,
    /// The exit codes of its ends.
    pub codes: Vec<Option<i32>>,
    /// Done before a restart.
    pub before_restart: fn(&Sidecar),
}

impl Supervised {
    pub fn start(sidecar: Sidecar) -> Self {
        let running = sidecar.start();
        Self { sidecar, running, ended: None, codes: Vec::new(), before_restart: |_| () }
    }

    /// Starts it, and waits until it is a spare.
    pub fn spare(sidecar: Sidecar) -> Self {
        let started = Self::start(sidecar);
        wait_until("the spare", LIMIT, || started.running.has_role("spare").then_some(()));
        started
    }

    /// Starts it with a directory that does not show a takeover that was not completed, as on a volume that does not persist.
    pub fn forgetful(sidecar: Sidecar) -> Self {
        let forget = |sidecar: &Sidecar| std::fs::write(sidecar.state_dir.join("lock"), "").unwrap();
        Self { before_restart: forget, ..Self::start(sidecar) }
    }

    pub fn tend(&mut self) {
        let Some(status) = self.running.ended() else { return };
        if self.ended.is_none() {
            self.codes.push(status.code());
        }
        if self.ended.get_or_insert_with(monotonic).elapsed() >= RESTART {
            self.ended = None;
            (self.before_restart)(&self.sidecar);
            self.running = self.sidecar.start();
        }
    }

    /// How often it has joined the group.
    fn joins(&self) -> usize {
        self.running.text().matches("joining it to become active").count()
    }

    /// How often it has left the group to the others first.
    fn waits(&self) -> usize {
        self.running.text().matches("leaving the group to the other instances first").count()
    }
}

fn is_active(running: &Running) -> bool {
    running.metric("dedupd_partitions{state=\"running\"}") == Some(PARTITIONS as f64)
}

/// How the active instance ends, and whether the broken one goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// By `kill -9`.
    Killed,
    /// By `kill -9`, and the healthy spare is frozen until the broken one has joined the group and ended, or waits for the others.
    BrokenFirst,
    /// By SIGTERM, and the same: the session of a member is that of the broken instance.
    StoppedBrokenFirst,
}

/// Ends the active instance. Returns the time until the healthy spare is active, or `None` when it is not for `limit`.
fn take_over(
    start: Start,
    active: &Running,
    healthy: &Running,
    broken: &mut Supervised,
    limit: Duration,
) -> Option<Duration> {
    if start != Start::Killed {
        healthy.signal("STOP");
    }
    let since = monotonic();
    if start == Start::StoppedBrokenFirst {
        assert_eq!(active.stop(), Some(0), "{}", active.text());
    } else {
        active.kill9();
    }
    if start != Start::Killed {
        let (ends, waits) = (broken.codes.len(), broken.waits());
        wait_until("the broken instance to end or to wait", LIMIT, || {
            broken.tend();
            (broken.codes.len() > ends || broken.waits() > waits).then_some(())
        });
        healthy.signal("CONT");
    }
    while since.elapsed() < limit {
        broken.tend();
        if is_active(healthy) {
            return Some(since.elapsed());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    None
}

/// Two healthy instances take over from each other while a third one is broken, which is started when one of them is active. `why` is what its `/readyz` then
/// shows, and it does not join; `None` when it is ready. A round in which the machine stalls proves nothing, and another one follows. Returns the broken one.
pub fn assert_takeovers(
    pipe: &Pipe<'_>,
    start: Start,
    broken: impl FnOnce() -> Supervised,
    why: Option<&str>,
) -> Supervised {
    let load = pipe.load(PARTITIONS, 1_000);
    let sidecars = ["a", "b"].map(|name| pipe.sidecar(name));
    let mut running = vec![sidecars[0].start()];
    running[0].wait_running(PARTITIONS, LIMIT);
    load.more(1_000);
    running.push(sidecars[1].start());
    let mut broken = broken();
    let mut holds = false;
    for round in 0..ROUNDS {
        let (active, healthy) = (round % 2, (round + 1) % 2);
        wait_until("both spares", LIMIT, || {
            broken.tend();
            (running[healthy].has_role("spare") && broken.running.has_role("spare")).then_some(())
        });
        let page = wait_until("what /readyz is to show", LIMIT, || {
            let page = broken.running.get("/readyz")?;
            why.map_or_else(|| page.contains("200 OK"), |why| page.contains(why)).then_some(page)
        });
        assert_eq!(page.contains("503"), why.is_some(), "{page}");
        let joins = broken.joins();
        let took = take_over(start, &running[active], &running[healthy], &mut broken, STALLED);
        let took = took.unwrap_or_else(|| panic!("{}\n{}", running[healthy].text(), broken.running.text()));
        println!(
            "{start:?}, {why:?}: active after {took:?}, the broken instance ended with {:?}",
            broken.codes
        );
        holds |= took < TAKEOVER && (why.is_none() || broken.joins() == joins);
        running[active] = sidecars[active].start();
        if holds && round > 0 {
            break;
        }
    }
    assert!(
        holds,
        "each round takes too long, or the broken instance joins in it: {}",
        broken.running.text()
    );
    pipe.finish(load, &running);
    broken
}

/// With a reason that can be known before, the broken instance is not ready and never joins.
pub fn assert_never_joins(pipe: &Pipe<'_>, why: &str, broken: impl FnOnce() -> Supervised) {
    let broken = assert_takeovers(pipe, Start::Killed, broken, Some(&format!("could not take over: {why}")));
    assert_eq!(broken.codes.len(), 0, "{}", broken.running.text());
}

#[test]
fn a_spare_with_another_identity_rule_is_not_ready_and_keeps_nobody_out() {
    let pipe = Pipe::new(shared_kafka(), "takeover-rule", PARTITIONS);
    let broken = pipe.sidecar("broken").with("DEDUPD_IDENTITY__FROM", "[\"json:/other\"]");
    assert_never_joins(&pipe, "the group's offset for partition", || Supervised::start(broken));
}

/// A limit on the size of files is an error like that of a full disk.
#[test]
fn a_spare_that_cannot_write_is_not_ready_and_keeps_nobody_out() {
    let pipe = Pipe::new(shared_kafka(), "takeover-full", PARTITIONS);
    let broken = pipe.sidecar("broken").with_file_limit(700 << 10);
    assert_never_joins(&pipe, "cannot write", || Supervised::start(broken));
}

/// An error like that of a volume that is read-only, or is gone.
#[test]
fn a_spare_without_its_directory_is_not_ready_and_keeps_nobody_out() {
    let pipe = Pipe::new(shared_kafka(), "takeover-gone", PARTITIONS);
    let broken = pipe.sidecar("broken");
    assert_never_joins(&pipe, "cannot write", || {
        let broken = Supervised::spare(broken);
        std::fs::rename(&broken.sidecar.state_dir, pipe.dir.path().join("gone")).unwrap();
        broken
    });
}

#[test]
fn a_spare_that_does_not_reach_the_schema_registry_is_not_ready_and_keeps_nobody_out() {
    let pipe = Pipe::new(shared_kafka(), "takeover-registry", PARTITIONS);
    // Nothing listens there.
    let broken = pipe.sidecar("broken").with("DEDUPD_SCHEMAS__REGISTRY", "http://127.0.0.1:1");
    assert_never_joins(&pipe, "GET http://127.0.0.1:1/", || Supervised::start(broken));
}

/// A registry that accepts connections and never answers, as long as the listener exists.
fn silent_registry() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (listener, url)
}

#[test]
fn a_spare_whose_schema_registry_never_answers_is_not_ready_and_keeps_nobody_out() {
    let pipe = Pipe::new(shared_kafka(), "takeover-silent", PARTITIONS);
    let (_listener, url) = silent_registry();
    let broken = pipe.sidecar("broken").with("DEDUPD_SCHEMAS__REGISTRY", &url);
    assert_never_joins(&pipe, &format!("GET {url}/"), || Supervised::start(broken));
}

#[test]
fn an_instance_that_starts_with_a_silent_registry_lets_another_start_go_first() {
    let pipe = Pipe::new(shared_kafka(), "takeover-start", PARTITIONS);
    let load = pipe.load(PARTITIONS, 1_000);
    let (_listener, url) = silent_registry();
    for round in 0..ROUNDS {
        // It has seen an empty group, and joins while the broken one waits.
        let gate = pipe.dir.path().join(format!("gate-{round}"));
        let healthy = pipe.sidecar("healthy").held_at("before_join", &gate).start();
        wait_until("an empty group", LIMIT, || gate.exists().then_some(()));
        let broken = pipe.sidecar("broken").with("DEDUPD_SCHEMAS__REGISTRY", &url);
        let broken = Supervised::start(broken);
        let is_checked = || broken.waits() > 0 || broken.joins() > 0;
        wait_until("the checks of the broken instance", LIMIT, || is_checked().then_some(()));
        std::fs::remove_file(&gate).unwrap();
        wait_until("one spare", LIMIT, || {
            (healthy.has_role("spare") || broken.running.has_role("spare")).then_some(())
        });
        if broken.joins() == 0 {
            healthy.wait_running(PARTITIONS, LIMIT);
            load.more(1_000);
            pipe.finish(load, [&healthy, &broken.running]);
            return;
        }
        // It joins when the machine stalls for longer than it waits.
        assert_eq!((healthy.stop(), broken.running.stop()), (Some(0), Some(0)));
    }
    panic!("the broken instance goes first in each round");
}

/// What ends it like `kill -9` while it restores, and is not known before: as the kernel does for memory.
fn killed(pipe: &Pipe<'_>) -> Sidecar {
    pipe.sidecar("broken").with("DEDUPD_FAILPOINT", "after_assign:1")
}

#[test]
fn an_instance_that_is_killed_while_it_takes_over_lets_the_others_go_first() {
    let pipe = Pipe::new(shared_kafka(), "takeover-killed", PARTITIONS);
    let broken = killed(&pipe);
    let broken = assert_takeovers(&pipe, Start::StoppedBrokenFirst, || Supervised::forgetful(broken), None);
    assert!(!broken.codes.is_empty(), "it was not killed");
}

#[test]
fn an_instance_that_was_killed_while_it_took_over_goes_last_from_then_on() {
    let pipe = Pipe::new(shared_kafka(), "takeover-last", PARTITIONS);
    let broken = killed(&pipe);
    let broken = assert_takeovers(&pipe, Start::BrokenFirst, || Supervised::start(broken), None);
    assert!(!broken.codes.is_empty(), "it was not killed");
}

/// The control of the test above: the first time nothing shows that it will be killed, and both sessions pass.
#[test]
fn an_instance_that_was_not_killed_before_does_not_go_last() {
    let pipe = Pipe::new(shared_kafka(), "takeover-first", PARTITIONS);
    assert_starved(&pipe, Start::BrokenFirst, killed(&pipe), |_| ());
}

/// The broken instance keeps the healthy one out for longer than the tests above allow, which shows that they depend on what is missing here.
pub fn assert_starved(pipe: &Pipe<'_>, start: Start, broken: Sidecar, before_restart: fn(&Sidecar)) {
    let load = pipe.load(PARTITIONS, 1_000);
    let active = pipe.sidecar("a").start();
    active.wait_running(PARTITIONS, LIMIT);
    load.more(1_000);
    let healthy = pipe.sidecar("b").start();
    let mut broken = Supervised { before_restart, ..Supervised::start(broken) };
    wait_until("both spares", LIMIT, || {
        (healthy.has_role("spare") && broken.running.has_role("spare")).then_some(())
    });
    let took = take_over(start, &active, &healthy, &mut broken, TAKEOVER);
    assert_eq!(took, None, "{:?}", broken.codes);
    broken.running.kill9();
    healthy.wait_running(PARTITIONS, LIMIT);
    pipe.finish(load, [&healthy]);
}

/// The control of the test above.
#[test]
fn an_instance_that_counts_as_active_while_it_takes_over_keeps_the_others_out() {
    let pipe = Pipe::new(shared_kafka(), "takeover-starved", PARTITIONS);
    assert_starved(&pipe, Start::StoppedBrokenFirst, killed(&pipe), |sidecar| {
        let lock = sidecar.state_dir.join("lock");
        let text = std::fs::read_to_string(&lock).unwrap();
        std::fs::write(&lock, format!("{}\nactive\n", text.lines().next().unwrap())).unwrap();
    });
}

/// The worker of the active instance panics within a transaction. Returns the time until the spare is active.
fn take_over_after_a_panic(name: &str, adjust: fn(Sidecar) -> Sidecar) -> Duration {
    let pipe = Pipe::new(shared_kafka(), name, PARTITIONS);
    let load = pipe.load(PARTITIONS, 1_000);
    let sidecar = |name| pipe.sidecar(name).with("DEDUPD_GROUP__SESSION_TIMEOUT", LONG_SESSION);
    let panicking = adjust(sidecar("a").with("DEDUPD_FAILPOINT_PANIC", "after_send_offsets:50"));
    let panics = panicking.start();
    panics.wait_running(PARTITIONS, LIMIT);
    let spare = sidecar("b").start();
    assert_eq!(panics.wait(LIMIT).code(), Some(7), "{}", panics.text());
    let ended = monotonic();
    let lock = std::fs::read_to_string(panicking.state_dir.join("lock")).unwrap();
    assert_eq!(lock.lines().nth(1), Some("taking over"), "restarted, it would not let the others go first");
    spare.wait_running(PARTITIONS, LIMIT);
    let took = ended.elapsed();
    println!("active {took:?} after the end of the one that panicked");
    pipe.finish(load, [&spare]);
    took
}

#[test]
fn an_instance_whose_worker_panics_leaves_the_group() {
    let took = take_over_after_a_panic("takeover-panic", |it| it);
    assert!(took < BEFORE_LONG_SESSION, "{took:?}");
}

/// The control of the test above.
#[test]
fn an_instance_that_panics_and_does_not_leave_the_group_keeps_the_others_out() {
    let took = take_over_after_a_panic("takeover-stays", |it| it.with("DEDUPD_WITHOUT", "resignation"));
    assert!(took > BEFORE_LONG_SESSION, "{took:?}");
}
