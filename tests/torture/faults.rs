//! Kills and freezes of instances and brokers, sequentially and at the same time.

use std::cell::Cell;
use std::time::{Duration, Instant};

use dedupd::clock::monotonic;

use super::process::{Condition, Lengths, PROCESS_DOWN, PROCESS_FROZEN, Process, RESTART_DELAY, last_lines};
use super::recipe::Recipe;
use super::rekeyed::{self, RekeyCounts, RekeyFaults};
use super::sides;
use super::support::tamper::tamper;
use super::support::{Kafka, Pipe, Running, Scope, Sidecar, now_ms};

/// Half of the faults wait until the group commits again, but no longer than this.
const COMMITS_WITHIN: Duration = Duration::from_secs(20);
/// Half of the instance kills wait until its transaction is open, but no longer than this.
const OPENS_WITHIN: Duration = Duration::from_secs(10);

const BROKER_DOWN: Lengths = Lengths(0.6, 0..2_000, 2_000..16_000);
const BROKER_FROZEN: Lengths = Lengths(0.6, 100..3_000, 3_000..16_000);

/// Counts of injected faults, and unexpected exits.
#[derive(Clone, Debug, Default)]
pub struct FaultCounts {
    pub instance_kills: usize,
    pub instance_freezes: usize,
    pub instance_stops: usize,
    pub broker_kills: usize,
    pub broker_freezes: usize,
    pub rekeys: RekeyCounts,
    /// Kills of instances whose transaction was open at the coordinator.
    pub open: usize,
    /// The times of all kills of instances and brokers, in epoch milliseconds.
    pub kills_ms: Vec<i64>,
    /// Processes that ended by themselves: name, exit status and the end of the log.
    pub exits: Vec<String>,
}

impl FaultCounts {
    /// Whether the round has enough faults to be valid.
    pub fn suffice(&self, recipe: &Recipe) -> bool {
        let has_rekey_kills = recipe.rekeys == 0 || self.rekeys.kills > 1;
        self.instance_kills > 1 && self.broker_kills > 1 && self.open > 0 && has_rekey_kills
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
    instances: Vec<Process>,
    rekeys: RekeyFaults,
    brokers: Vec<Condition>,
    pub counts: FaultCounts,
}

impl<'a> Faults<'a> {
    /// Starts the processes.
    pub fn start(pipe: &Pipe<'_>, nodes: &'a [Kafka], recipe: &Recipe) -> Self {
        let names = ["a", "b", "c"].into_iter().take(recipe.instances);
        let configured = |sidecar| match recipe {
            Recipe { rekeys: 1.., .. } => rekeyed::configured(sidecar),
            Recipe { side_partitions: 1.., .. } => sides::configured(pipe, sidecar),
            _ => sidecar,
        };
        let sidecar = |name| {
            let scoped = pipe.sidecar(name).scoped(recipe.scope);
            let scoped = if recipe.standby { scoped.with("DEDUPD_STATE__STANDBY", "true") } else { scoped };
            let scoped = match recipe.window() {
                Some(window) => scoped.with("DEDUPD_WINDOW__EXACT", &window),
                None => scoped,
            };
            Sidecar { workers: recipe.workers, ..scoped }
        };
        let sidecars: Vec<Sidecar> = names.map(|name| configured(sidecar(name))).collect();
        let instance = |(at, sidecar): (usize, &Sidecar)| {
            let own = sidecar.clone();
            let other = recipe.other.clone().map(|program| Sidecar { program, ..own.clone() });
            let starts = Cell::new(at);
            Process::start(format!("instance {}", own.instance), move || {
                let start = starts.replace(starts.get() + 1);
                other.as_ref().filter(|_| start.is_multiple_of(2)).unwrap_or(&own).start()
            })
        };
        Self {
            random: fastrand::Rng::with_seed(recipe.seed.rotate_left(32)),
            scope: recipe.scope,
            pause_ms: recipe.pause_ms,
            next: monotonic() + Duration::from_secs(3),
            after: None,
            pending_kill: None,
            nodes,
            instances: sidecars.iter().enumerate().map(instance).collect(),
            rekeys: RekeyFaults::start(pipe, recipe),
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
        self.rekeys.step(now, &mut self.counts.rekeys);
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
        self.instances.iter_mut().chain(&mut self.rekeys.processes).for_each(|it| it.end_fault(&is_due));
    }

    /// The running processes of dedupd.
    pub fn running(&self) -> impl Iterator<Item = &Running> {
        let processes = self.instances.iter().chain(&self.rekeys.processes);
        processes.filter_map(|process| process.running.as_ref())
    }

    /// Records processes that ended without a kill.
    pub fn notice_exits(&mut self, now: Instant) {
        let processes = self.instances.iter_mut().chain(&mut self.rekeys.processes);
        self.counts.exits.extend(processes.filter_map(|process| process.unexpected_exit(now)));
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
        if !self.instances[at].kill() {
            return;
        }
        self.counts.instance_kills += 1;
        self.counts.kills_ms.push(now_ms());
        self.counts.open += usize::from(was_active && self.is_open(at));
        tamper(&mut self.random, &self.sidecars[at].state_dir);
        self.instances[at].condition = Condition::Down(now + PROCESS_DOWN.draw(&mut self.random));
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
        let instance = &self.instances[at];
        let Some(process) = &instance.running else { return false };
        self.scope == Scope::Partition || instance.condition == Condition::Up && process.has_role("active")
    }

    /// The active instance in topic scope.
    fn active(&self) -> Option<usize> {
        (0..self.instances.len()).find(|at| self.scope == Scope::Topic && self.is_active(*at))
    }

    fn stop_instance(&mut self, at: usize, now: Instant) {
        self.counts.instance_stops += usize::from(self.instances[at].stop(now));
    }

    fn freeze_instance(&mut self, at: usize, now: Instant) {
        let instance = &mut self.instances[at];
        if instance.is_up() {
            let until = now + PROCESS_FROZEN.draw(&mut self.random);
            self.counts.instance_freezes += usize::from(instance.freeze(until));
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
    pub fn audit(&self) -> Result<String, String> {
        self.sidecars[0].audit()
    }

    /// Sends SIGTERM to all processes, and returns an error for each one that does not end cleanly.
    pub fn stop(&mut self) -> Vec<String> {
        let all = self.instances.iter_mut().chain(&mut self.rekeys.processes);
        let all: Vec<(String, Running)> =
            all.filter_map(|process| Some((process.name.clone(), process.running.take()?))).collect();
        for (_, process) in &all {
            process.signal("TERM");
        }
        let ends = all.iter().map(|(name, process)| (name, process.wait_within(Duration::from_secs(30))));
        let wrong = ends.filter(|(_, end)| end.is_none_or(|status| !status.success()));
        wrong.map(|(name, end)| format!("after SIGTERM, {name} ended with {end:?}")).collect()
    }
}
