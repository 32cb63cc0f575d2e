//! Kills and freezes of instances and brokers, one after another and at the same time.

use std::time::{Duration, Instant};

use dedupd::clock::monotonic;

use super::recipe::Recipe;
use super::support::tamper::tamper;
use super::support::{Kafka, Pipe, Running, Sidecar, child, now_ms};

/// Until a process that ended by itself is started again, as a supervisor would.
const AGAIN: Duration = Duration::from_secs(1);
/// Every other fault waits until the group commits again, but no longer than this.
const COMMITS_WITHIN: Duration = Duration::from_secs(20);
/// Every other kill of an instance waits until its transaction is open, but no longer than this.
const OPENS_WITHIN: Duration = Duration::from_secs(10);

/// Milliseconds: how often short, and the ranges of short and long.
struct Lengths(f64, std::ops::Range<u64>, std::ops::Range<u64>);

/// Around the start and the restore; beyond the session (6 s) and the transaction timeout (5 s).
const INSTANCE_DOWN: Lengths = Lengths(0.7, 0..1_500, 1_500..16_000);
const INSTANCE_FROZEN: Lengths = Lengths(0.5, 100..4_000, 5_500..16_000);
const BROKER_DOWN: Lengths = Lengths(0.6, 0..2_000, 2_000..16_000);
const BROKER_FROZEN: Lengths = Lengths(0.6, 100..3_000, 3_000..16_000);

impl Lengths {
    fn draw(&self, random: &mut fastrand::Rng) -> Duration {
        let Lengths(short, ..) = self;
        let range = if random.f64() < *short { self.1.clone() } else { self.2.clone() };
        Duration::from_millis(random.u64(range))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Up,
    Down(Instant),
    Frozen(Instant),
}

/// What was done, and what happened.
#[derive(Clone, Debug, Default)]
pub struct Deeds {
    pub instance_kills: usize,
    pub instance_freezes: usize,
    pub broker_kills: usize,
    pub broker_freezes: usize,
    /// Kills of instances whose transaction was open, as the coordinator knows it.
    pub open: usize,
    /// When anything was killed, epoch milliseconds.
    pub kills_ms: Vec<i64>,
    /// Processes that ended by themselves: which, how, and the end of the log.
    pub exits: Vec<String>,
}

impl Deeds {
    /// Whether enough was done for the round to count.
    pub fn suffice(&self) -> bool {
        self.instance_kills > 1 && self.broker_kills > 1 && self.open > 0
    }
}

/// The processes of a round.
pub struct Faults<'a> {
    random: fastrand::Rng,
    pause_ms: u64,
    next: Instant,
    /// What has to be committed before the next fault, and until when that is waited for.
    after: Option<(u64, Instant)>,
    /// An instance that is killed when its transaction is open, or at the limit.
    hunted: Option<(usize, Instant)>,
    nodes: &'a [Kafka],
    sidecars: Vec<Sidecar>,
    pub running: Vec<Option<Running>>,
    instances: Vec<Condition>,
    brokers: Vec<Condition>,
    pub deeds: Deeds,
}

impl<'a> Faults<'a> {
    /// Starts the instances.
    pub fn start(pipe: &Pipe<'_>, nodes: &'a [Kafka], recipe: &Recipe) -> Self {
        let names = ["a", "b", "c"].into_iter().take(recipe.instances);
        let sidecars: Vec<Sidecar> =
            names.map(|name| Sidecar { workers: recipe.workers, ..pipe.sidecar(name) }).collect();
        Self {
            random: fastrand::Rng::with_seed(recipe.seed.rotate_left(32)),
            pause_ms: recipe.pause_ms,
            next: monotonic() + Duration::from_secs(3),
            after: None,
            hunted: None,
            nodes,
            running: sidecars.iter().map(|sidecar| Some(sidecar.start())).collect(),
            instances: vec![Condition::Up; sidecars.len()],
            brokers: vec![Condition::Up; nodes.len()],
            sidecars,
            deeds: Deeds::default(),
        }
    }

    /// Ends the faults that are over, and begins another one when it is time. `committed` tells what the group
    /// has committed in all.
    pub fn step(&mut self, now: Instant, committed: u64) {
        self.end_faults(|until| until <= now);
        self.notice_exits(now);
        if let Some((at, _)) = self.hunted.filter(|(at, limit)| now >= *limit || self.is_open(*at)) {
            self.hunted = None;
            self.kill_instance(at, now);
        }
        if now < self.next
            || self.after.is_some_and(|(more_than, limit)| committed <= more_than && now < limit)
        {
            return;
        }
        self.next = now + Duration::from_millis(self.random.u64(200..self.pause_ms));
        self.after = self.random.bool().then_some((committed, now + COMMITS_WITHIN));
        let instance = self.random.usize(..self.instances.len());
        let broker = self.random.usize(..self.brokers.len());
        match self.random.u8(..100) {
            0..20 => self.kill_instance(instance, now),
            20..40 => self.hunted = self.hunted.or(Some((instance, now + OPENS_WITHIN))),
            40..52 => self.freeze_instance(instance, now),
            52..85 => self.kill_broker(broker, now),
            _ => self.freeze_broker(broker, now),
        }
    }

    /// Starts what ended by itself again.
    pub fn revive(&mut self, now: Instant) {
        self.end_faults(|until| until <= now);
    }

    /// Ends all faults. Brokers may still be on their way up.
    pub fn heal(&mut self) {
        self.end_faults(|_| true);
    }

    fn end_faults(&mut self, over: impl Fn(Instant) -> bool) {
        for (at, condition) in self.brokers.iter_mut().enumerate() {
            match *condition {
                Condition::Down(until) if over(until) => self.nodes[at].restart_unawaited(),
                Condition::Frozen(until) if over(until) => self.nodes[at].sigcont(),
                _ => continue,
            }
            *condition = Condition::Up;
        }
        for (at, condition) in self.instances.iter_mut().enumerate() {
            match *condition {
                Condition::Down(until) if over(until) => self.running[at] = Some(self.sidecars[at].start()),
                Condition::Frozen(until) if over(until) => {
                    self.running[at].as_ref().unwrap().signal("CONT");
                }
                _ => continue,
            }
            *condition = Condition::Up;
        }
    }

    /// A process that is not there although nobody killed it.
    pub fn notice_exits(&mut self, now: Instant) {
        for (at, slot) in self.running.iter_mut().enumerate() {
            let ended = slot.as_ref().and_then(|process| Some((process.ended()?, process.text())));
            let Some((status, text)) = ended else { continue };
            let name = &self.sidecars[at].instance;
            self.deeds.exits.push(format!("instance {name}: {status}: {}", last_lines(&text, 3)));
            *slot = None;
            self.instances[at] = Condition::Down(now + AGAIN);
        }
        for (at, condition) in self.brokers.iter_mut().enumerate() {
            if *condition == Condition::Up && self.nodes[at].has_exited() {
                let text = last_lines(&self.nodes[at].log(), 5);
                self.deeds.exits.push(format!("broker {}: {text}", at + 1));
                *condition = Condition::Down(now + AGAIN);
            }
        }
    }

    fn kill_instance(&mut self, at: usize, now: Instant) {
        let Some(process) = self.running[at].take() else { return };
        process.kill9();
        self.deeds.instance_kills += 1;
        self.deeds.kills_ms.push(now_ms());
        self.deeds.open += usize::from(self.is_open(at));
        tamper(&mut self.random, &self.sidecars[at].state_dir);
        self.instances[at] = Condition::Down(now + INSTANCE_DOWN.draw(&mut self.random));
    }

    fn is_open(&self, at: usize) -> bool {
        let sidecar = &self.sidecars[at];
        let up = self.nodes.iter().zip(&self.brokers).filter(|(_, condition)| **condition == Condition::Up);
        let nodes: Vec<&Kafka> = up.map(|(node, _)| node).collect();
        (0..sidecar.workers)
            .map(|worker| sidecar.transactional_id(worker))
            .any(|id| nodes.iter().any(|node| node.has_open_transaction(&id)))
    }

    fn freeze_instance(&mut self, at: usize, now: Instant) {
        if let (Some(process), Condition::Up) = (&self.running[at], self.instances[at]) {
            child::signal(process.pid(), "STOP");
            self.deeds.instance_freezes += 1;
            self.instances[at] = Condition::Frozen(now + INSTANCE_FROZEN.draw(&mut self.random));
        }
    }

    fn kill_broker(&mut self, at: usize, now: Instant) {
        if !matches!(self.brokers[at], Condition::Down(_)) {
            self.nodes[at].kill9();
            self.deeds.broker_kills += 1;
            self.deeds.kills_ms.push(now_ms());
            self.brokers[at] = Condition::Down(now + BROKER_DOWN.draw(&mut self.random));
        }
    }

    fn freeze_broker(&mut self, at: usize, now: Instant) {
        if self.brokers[at] == Condition::Up && !self.nodes[at].has_exited() {
            self.nodes[at].sigstop();
            self.deeds.broker_freezes += 1;
            self.brokers[at] = Condition::Frozen(now + BROKER_FROZEN.draw(&mut self.random));
        }
    }

    /// Asks all instances to stop; what is wrong with how they do.
    pub fn stop(&mut self) -> Vec<String> {
        let all: Vec<Running> = self.running.iter_mut().filter_map(Option::take).collect();
        for process in &all {
            process.signal("TERM");
        }
        let ends = all.iter().map(|process| process.wait_within(Duration::from_secs(30)));
        let wrong = ends.filter(|end| end.is_none_or(|status| !status.success()));
        wrong.map(|end| format!("asked to stop, an instance ended as {end:?}")).collect()
    }
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n    ")
}
