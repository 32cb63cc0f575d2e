//! Kills and freezes of instances and brokers, sequentially and at the same time.

use std::time::{Duration, Instant};

use dedupd::clock::monotonic;

use super::recipe::Recipe;
use super::sides;
use super::support::tamper::tamper;
use super::support::{Kafka, Pipe, Running, Scope, Sidecar, child, now_ms};

/// Delay until a process that ended by itself is restarted, as a supervisor would do.
const RESTART_DELAY: Duration = Duration::from_secs(1);
/// Maximum time from SIGTERM to the end of an instance while brokers are killed and frozen.
const STOPS_WITHIN: Duration = Duration::from_mins(1);
/// Half of the faults wait until the group commits again, but no longer than this.
const COMMITS_WITHIN: Duration = Duration::from_secs(20);
/// Half of the instance kills wait until its transaction is open, but no longer than this.
const OPENS_WITHIN: Duration = Duration::from_secs(10);

/// Durations in milliseconds: the share of short ones, and the ranges of short and long ones.
struct Lengths(f64, std::ops::Range<u64>, std::ops::Range<u64>);

/// Short durations end during start and restore. Long ones exceed the session timeout (6 s) and the transaction
/// timeout (5 s).
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
    /// An instance that has to end cleanly before this time.
    Stopping(Instant),
}

/// Counts of injected faults, and unexpected exits.
#[derive(Clone, Debug, Default)]
pub struct FaultCounts {
    pub instance_kills: usize,
    pub instance_freezes: usize,
    pub instance_stops: usize,
    pub broker_kills: usize,
    pub broker_freezes: usize,
    /// Kills of instances whose transaction was open at the coordinator.
    pub open: usize,
    /// The times of all kills, in epoch milliseconds.
    pub kills_ms: Vec<i64>,
    /// Processes that ended by themselves: name, exit status and the end of the log.
    pub exits: Vec<String>,
}

impl FaultCounts {
    /// Whether the round has enough faults to be valid.
    pub fn suffice(&self) -> bool {
        self.instance_kills > 1 && self.broker_kills > 1 && self.open > 0
    }
}

/// The processes of a round.
pub struct Faults<'a> {
    random: fastrand::Rng,
    scope: Scope,
    pause_ms: u64,
    next: Instant,
    /// The next fault waits until more than this is committed, or until the limit.
    after: Option<(u64, Instant)>,
    /// An instance that is killed when its transaction is open, or at the limit.
    pending_kill: Option<(usize, Instant)>,
    nodes: &'a [Kafka],
    sidecars: Vec<Sidecar>,
    pub running: Vec<Option<Running>>,
    instances: Vec<Condition>,
    brokers: Vec<Condition>,
    pub counts: FaultCounts,
}

impl<'a> Faults<'a> {
    /// Starts the instances.
    pub fn start(pipe: &Pipe<'_>, nodes: &'a [Kafka], recipe: &Recipe) -> Self {
        let names = ["a", "b", "c"].into_iter().take(recipe.instances);
        let with_sides = |sidecar| {
            if recipe.side_partitions > 0 { sides::configured(pipe, sidecar) } else { sidecar }
        };
        let sidecar = |name| Sidecar { workers: recipe.workers, ..pipe.sidecar(name).scoped(recipe.scope) };
        let sidecars: Vec<Sidecar> = names.map(|name| with_sides(sidecar(name))).collect();
        Self {
            random: fastrand::Rng::with_seed(recipe.seed.rotate_left(32)),
            scope: recipe.scope,
            pause_ms: recipe.pause_ms,
            next: monotonic() + Duration::from_secs(3),
            after: None,
            pending_kill: None,
            nodes,
            running: sidecars.iter().map(|sidecar| Some(sidecar.start())).collect(),
            instances: vec![Condition::Up; sidecars.len()],
            brokers: vec![Condition::Up; nodes.len()],
            sidecars,
            counts: FaultCounts::default(),
        }
    }

    /// Ends the faults that are due, and injects another one when it is time. `committed` is the sum of the committed
    /// offsets.
    pub fn step(&mut self, now: Instant, committed: u64) {
        self.end_faults(|until| until <= now);
        self.notice_exits(now);
        if let Some((at, limit)) = self.pending_kill {
            let owner = if self.scope == Scope::Topic { self.active() } else { Some(at) };
            if let Some(owner) = owner.filter(|owner| self.is_open(*owner)) {
                self.pending_kill = None;
                self.kill(owner, true, now);
            } else if now >= limit {
                self.pending_kill = None;
                self.kill_instance(at, now);
            }
        }
        if now < self.next
            || self.after.is_some_and(|(more_than, limit)| committed <= more_than && now < limit)
        {
            return;
        }
        self.next = now + Duration::from_millis(self.random.u64(200..self.pause_ms));
        self.after = self.random.bool().then_some((committed, now + COMMITS_WITHIN));
        let instance = self.random.usize(..self.instances.len());
        // Most faults of spares change nothing.
        let hits_active = self.random.bool();
        let instance = self.active().filter(|_| hits_active).unwrap_or(instance);
        let broker = self.random.usize(..self.brokers.len());
        match self.random.u8(..100) {
            0..20 => self.kill_instance(instance, now),
            20..40 => self.pending_kill = self.pending_kill.or(Some((instance, now + OPENS_WITHIN))),
            40..50 => self.freeze_instance(instance, now),
            50..57 => self.stop_instance(instance, now),
            57..87 => self.kill_broker(broker, now),
            _ => self.freeze_broker(broker, now),
        }
    }

    /// Restarts processes that ended by themselves.
    pub fn revive(&mut self, now: Instant) {
        self.end_faults(|until| until <= now);
    }

    /// Ends all faults. Brokers may still be starting afterwards.
    pub fn heal(&mut self) {
        self.end_faults(|_| true);
    }

    fn end_faults(&mut self, is_due: impl Fn(Instant) -> bool) {
        for (at, condition) in self.brokers.iter_mut().enumerate() {
            match *condition {
                Condition::Down(until) if is_due(until) => self.nodes[at].restart_unawaited(),
                Condition::Frozen(until) if is_due(until) => self.nodes[at].sigcont(),
                _ => continue,
            }
            *condition = Condition::Up;
        }
        for (at, condition) in self.instances.iter_mut().enumerate() {
            match *condition {
                Condition::Down(until) if is_due(until) => self.running[at] = Some(self.sidecars[at].start()),
                Condition::Frozen(until) if is_due(until) => {
                    self.running[at].as_ref().unwrap().signal("CONT");
                }
                _ => continue,
            }
            *condition = Condition::Up;
        }
    }

    /// Records processes that ended without a kill.
    pub fn notice_exits(&mut self, now: Instant) {
        for (at, slot) in self.running.iter_mut().enumerate() {
            let ended = slot.as_ref().and_then(|process| Some((process.ended()?, process.text())));
            let Some((status, text)) = ended else { continue };
            let name = &self.sidecars[at].instance;
            if !matches!(self.instances[at], Condition::Stopping(_)) || !status.success() {
                self.counts.exits.push(format!("instance {name}: {status}: {}", last_lines(&text, 3)));
            }
            *slot = None;
            self.instances[at] = Condition::Down(now + RESTART_DELAY);
        }
        for (at, condition) in self.instances.iter_mut().enumerate() {
            if matches!(*condition, Condition::Stopping(until) if until <= now) {
                let name = &self.sidecars[at].instance;
                self.counts.exits.push(format!("instance {name} does not end after SIGTERM"));
                *condition = Condition::Up;
            }
        }
        for (at, condition) in self.brokers.iter_mut().enumerate() {
            if *condition == Condition::Up && self.nodes[at].has_exited() {
                let text = last_lines(&self.nodes[at].log(), 5);
                self.counts.exits.push(format!("broker {}: {text}", at + 1));
                *condition = Condition::Down(now + RESTART_DELAY);
            }
        }
    }

    fn kill_instance(&mut self, at: usize, now: Instant) {
        let was_active = self.is_active(at);
        self.kill(at, was_active, now);
    }

    /// Nothing that takes time is between the check for an open transaction and the kill.
    fn kill(&mut self, at: usize, was_active: bool, now: Instant) {
        let Some(process) = self.running[at].take() else { return };
        process.kill9();
        self.counts.instance_kills += 1;
        self.counts.kills_ms.push(now_ms());
        self.counts.open += usize::from(was_active && self.is_open(at));
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

    /// Whether the instance can have a transaction. In topic scope the active one can, and a frozen one does not answer.
    fn is_active(&self, at: usize) -> bool {
        let Some(process) = &self.running[at] else { return false };
        self.scope == Scope::Partition
            || self.instances[at] == Condition::Up
                && process.metric("dedupd_role{role=\"active\"}") == Some(1.0)
    }

    /// The active instance in topic scope.
    fn active(&self) -> Option<usize> {
        (0..self.instances.len()).find(|at| self.scope == Scope::Topic && self.is_active(*at))
    }

    fn stop_instance(&mut self, at: usize, now: Instant) {
        if let (Some(process), Condition::Up) = (&self.running[at], self.instances[at])
            && process.handles_signals()
        {
            process.signal("TERM");
            self.counts.instance_stops += 1;
            self.instances[at] = Condition::Stopping(now + STOPS_WITHIN);
        }
    }

    fn freeze_instance(&mut self, at: usize, now: Instant) {
        if let (Some(process), Condition::Up) = (&self.running[at], self.instances[at]) {
            child::signal(process.pid(), "STOP");
            self.counts.instance_freezes += 1;
            self.instances[at] = Condition::Frozen(now + INSTANCE_FROZEN.draw(&mut self.random));
        }
    }

    fn kill_broker(&mut self, at: usize, now: Instant) {
        if !matches!(self.brokers[at], Condition::Down(_)) {
            self.nodes[at].kill9();
            self.counts.broker_kills += 1;
            self.counts.kills_ms.push(now_ms());
            self.brokers[at] = Condition::Down(now + BROKER_DOWN.draw(&mut self.random));
        }
    }

    fn freeze_broker(&mut self, at: usize, now: Instant) {
        if self.brokers[at] == Condition::Up && !self.nodes[at].has_exited() {
            self.nodes[at].sigstop();
            self.counts.broker_freezes += 1;
            self.brokers[at] = Condition::Frozen(now + BROKER_FROZEN.draw(&mut self.random));
        }
    }

    /// Runs `dedupd audit`. The error is its output.
    pub fn audit(&self) -> Result<(), String> {
        self.sidecars[0].audit()
    }

    /// Sends SIGTERM to all instances, and returns an error for each one that does not end cleanly.
    pub fn stop(&mut self) -> Vec<String> {
        let all: Vec<Running> = self.running.iter_mut().filter_map(Option::take).collect();
        for process in &all {
            process.signal("TERM");
        }
        let ends = all.iter().map(|process| process.wait_within(Duration::from_secs(30)));
        let wrong = ends.filter(|end| end.is_none_or(|status| !status.success()));
        wrong.map(|end| format!("after SIGTERM, an instance ended with {end:?}")).collect()
    }
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n    ")
}
