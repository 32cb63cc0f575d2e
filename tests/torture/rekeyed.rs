//! Rounds with `rekey` before the instances: its source topics, its processes and their faults.

use std::time::{Duration, Instant};

use dedupd::clock::monotonic;

use super::process::{Condition, PROCESS_DOWN, PROCESS_FROZEN, Process};
use super::progress::OffsetClient;
use super::recipe::Recipe;
use super::round::PARTITIONS;
use super::support::{Pipe, Rekey, Sidecar};

const SOURCES: [&str; 2] = ["torture.orders", "torture.payments"];

/// A stop waits for acknowledgements and for the commit, which an outage can delay. After this failure nothing is lost: the
/// records are written again.
const STOPPED_LATE: &str =
    "rekey did not stop within 9 s; its last records are written again at the next start";

/// The topics that the load and the upstreams write to.
pub fn loaded_topics(pipe: &Pipe<'_>, recipe: &Recipe) -> Vec<String> {
    if recipe.rekeys > 0 { SOURCES.map(str::to_owned).to_vec() } else { vec![pipe.raw.clone()] }
}

/// Creates the source topics.
pub fn create(pipe: &Pipe<'_>) {
    for topic in SOURCES {
        pipe.kafka.create_topic(topic, PARTITIONS, &[]);
    }
}

/// A sidecar that also drops copies of records without an id.
pub fn configured(sidecar: Sidecar) -> Sidecar {
    sidecar.with("DEDUPD_IDENTITY__ON_MISSING", "source")
}

/// The consumer group of `rekey`.
pub fn group(pipe: &Pipe<'_>) -> String {
    format!("dedupd.rekey.{}", pipe.raw)
}

/// The progress of `rekey`: one client for each source topic, none without `rekey`.
pub fn offset_clients(pipe: &Pipe<'_>, recipe: &Recipe) -> Vec<OffsetClient> {
    let topics = SOURCES.iter().filter(|_| recipe.rekeys > 0);
    topics.map(|topic| OffsetClient::of_group(pipe.kafka, &group(pipe), topic, PARTITIONS)).collect()
}

/// Counts of injected faults.
#[derive(Clone, Copy, Debug, Default)]
pub struct RekeyCounts {
    pub kills: usize,
    pub freezes: usize,
    pub stops: usize,
}

/// The processes of `rekey`. Their faults are drawn apart from those of instances and brokers, and occur at the same time.
pub struct RekeyFaults {
    pub processes: Vec<Process>,
    random: fastrand::Rng,
    pause_ms: u64,
    next: Instant,
}

impl RekeyFaults {
    /// Starts the processes.
    pub fn start(pipe: &Pipe<'_>, recipe: &Recipe) -> Self {
        let flags = format!("--from {} --from {} --id json:/id", SOURCES[0], SOURCES[1]);
        let process = |number: usize| {
            let log = pipe.dir.path().join(format!("rekey-{number}.log"));
            let rekey = Rekey::new(pipe.kafka, &pipe.raw, &flags).instance(&number.to_string(), log);
            Process::start(format!("rekey {number}"), move || rekey.start()).accepting(STOPPED_LATE)
        };
        Self {
            processes: (1..=recipe.rekeys).map(process).collect(),
            random: fastrand::Rng::with_seed(recipe.seed.rotate_left(16)),
            pause_ms: recipe.pause_ms,
            next: monotonic() + Duration::from_secs(3),
        }
    }

    /// Injects a fault when it is time.
    pub fn step(&mut self, now: Instant, counts: &mut RekeyCounts) {
        if now < self.next || self.processes.is_empty() {
            return;
        }
        self.next = now + Duration::from_millis(self.random.u64(200..self.pause_ms));
        let at = self.random.usize(..self.processes.len());
        let (kind, process) = (self.random.u8(..100), &mut self.processes[at]);
        let down = now + PROCESS_DOWN.draw(&mut self.random);
        let frozen = now + PROCESS_FROZEN.draw(&mut self.random);
        match kind {
            0..60 if process.kill() => {
                process.condition = Condition::Down(down);
                counts.kills += 1;
            }
            60..85 => counts.freezes += usize::from(process.freeze(frozen)),
            85.. => counts.stops += usize::from(process.stop(now)),
            _ => {}
        }
    }
}
