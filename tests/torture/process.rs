//! A process of dedupd that is killed, frozen, stopped and restarted.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::support::{Running, child};

/// Delay until a process that ended by itself is restarted, as a supervisor would do.
pub const RESTART_DELAY: Duration = Duration::from_secs(1);
/// Maximum time from SIGTERM to the end of a process while brokers are killed and frozen.
const STOPS_WITHIN: Duration = Duration::from_mins(1);

/// Durations in milliseconds: the share of short ones, and the ranges of short and long ones.
pub struct Lengths(pub f64, pub Range<u64>, pub Range<u64>);

/// Short durations end during start and restore. Long ones exceed the session timeout (6 s) and the transaction
/// timeout (5 s).
pub const PROCESS_DOWN: Lengths = Lengths(0.7, 0..1_500, 1_500..16_000);
pub const PROCESS_FROZEN: Lengths = Lengths(0.5, 100..4_000, 5_500..16_000);

impl Lengths {
    pub fn draw(&self, random: &mut fastrand::Rng) -> Duration {
        let Lengths(short, ..) = self;
        let range = if random.f64() < *short { self.1.clone() } else { self.2.clone() };
        Duration::from_millis(random.u64(range))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Up,
    Down(Instant),
    Frozen(Instant),
    /// A process that has to end cleanly before this time.
    Stopping(Instant),
}

pub struct Process {
    pub name: String,
    start: Box<dyn Fn() -> Running>,
    /// A message with which it may fail after SIGTERM while faults are injected.
    accepted: Option<&'static str>,
    pub running: Option<Running>,
    pub condition: Condition,
}

impl Process {
    pub fn start(name: String, start: impl Fn() -> Running + 'static) -> Self {
        let running = Some(start());
        Self { name, start: Box::new(start), accepted: None, running, condition: Condition::Up }
    }

    pub fn accepting(self, message: &'static str) -> Self {
        Self { accepted: Some(message), ..self }
    }

    /// Ends its fault if it is due.
    pub fn end_fault(&mut self, is_due: impl Fn(Instant) -> bool) {
        match self.condition {
            Condition::Down(until) if is_due(until) => self.running = Some((self.start)()),
            Condition::Frozen(until) if is_due(until) => self.running.as_ref().unwrap().signal("CONT"),
            _ => return,
        }
        self.condition = Condition::Up;
    }

    /// Describes an end without a kill, and a stop that takes too long.
    pub fn unexpected_exit(&mut self, now: Instant) -> Option<String> {
        let ended = self.running.as_ref().and_then(|process| Some((process.ended()?, process.text())));
        let stops = if let Condition::Stopping(until) = self.condition { Some(until) } else { None };
        if let Some((status, text)) = ended {
            self.running = None;
            self.condition = Condition::Down(now + RESTART_DELAY);
            let is_accepted = self.accepted.is_some_and(|message| text.contains(message));
            let is_expected = stops.is_some() && (status.success() || is_accepted);
            return (!is_expected).then(|| format!("{}: {status}: {}", self.name, last_lines(&text, 3)));
        }
        let is_late = stops.is_some_and(|until| until <= now);
        is_late.then(|| {
            self.condition = Condition::Up;
            format!("{} does not end after SIGTERM", self.name)
        })
    }

    /// Kills it. Returns whether it was running.
    pub fn kill(&mut self) -> bool {
        self.running.take().inspect(Running::kill9).is_some()
    }

    pub fn is_up(&self) -> bool {
        self.running.is_some() && self.condition == Condition::Up
    }

    /// Sends SIGTERM. Returns whether that was possible.
    pub fn stop(&mut self, now: Instant) -> bool {
        self.signal("TERM", Condition::Stopping(now + STOPS_WITHIN), Running::handles_signals)
    }

    /// Freezes it until this time. Returns whether that was possible.
    pub fn freeze(&mut self, until: Instant) -> bool {
        self.signal("STOP", Condition::Frozen(until), |_| true)
    }

    fn signal(&mut self, name: &str, next: Condition, accepts: impl Fn(&Running) -> bool) -> bool {
        let running = self.running.as_ref().filter(|running| accepts(running));
        let Some(running) = running.filter(|_| self.condition == Condition::Up) else { return false };
        child::signal(running.pid(), name);
        self.condition = next;
        true
    }
}

pub fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n    ")
}
