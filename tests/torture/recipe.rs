//! The parameters of a round: drawn from its seed, unless the environment sets them.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use dedupd::clock::wall_ms;

use super::round::PARTITIONS;
use super::support::load::StreamClock;
use super::support::{Scope, now_ms};

/// The rounds to run. Variables are used only with `TORTURE=1`, which `make torture` sets.
pub struct Plan {
    /// `SEED`: the seed of the first round. The following rounds increment it. The default comes from the clock.
    seed: u64,
    /// `ROUNDS`: the number of rounds.
    rounds: u64,
    /// `DURATION`: how long faults are injected in a round.
    duration: Duration,
    /// `INSTANCES`, `WORKERS` of each, `BROKERS` (1 or 3), `RATE` in records per second, `CLEANUP_MS` as
    /// `transaction.abort.timed.out.transaction.cleanup.interval.ms`, `PAUSE_MS` between two faults at most, `UPSTREAMS`,
    /// `FOREIGN`, `HOSTILE`, `LAG` (0 or 1), `SIDES` (partitions), `SCOPE` (`topic` or `partition`), `STANDBY` (0 or 1) and `REKEY`
    /// (processes, 0 without it).
    fixed: Fixed,
    /// `OTHER`: the binary of another build. Every second start of an instance uses it, as during a rolling upgrade.
    other: Option<PathBuf>,
    /// `TORTURE_DIR`: the directory for results and the logs of failed rounds.
    pub dir: PathBuf,
}

#[derive(Default)]
struct Fixed {
    instances: Option<usize>,
    workers: Option<usize>,
    brokers: Option<usize>,
    rate: Option<u64>,
    cleanup_ms: Option<u64>,
    pause_ms: Option<u64>,
    upstreams: Option<usize>,
    foreign: Option<usize>,
    hostile: Option<usize>,
    lag: Option<u8>,
    side_partitions: Option<usize>,
    scope: Option<Scope>,
    standby: Option<u8>,
    rekeys: Option<usize>,
}

impl Plan {
    /// Without `TORTURE`: a short round in each scope with two instances, whose broker is killed every few seconds.
    pub fn from_environment() -> Self {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("torture");
        if env::var_os("TORTURE").is_none() {
            let fixed = Fixed {
                instances: Some(2),
                workers: Some(1),
                brokers: Some(1),
                rate: Some(3_000),
                cleanup_ms: Some(50),
                pause_ms: Some(2_500),
                upstreams: Some(1),
                foreign: Some(1),
                hostile: Some(1),
                lag: Some(0),
                side_partitions: Some(2),
                scope: None,
                standby: None,
                rekeys: None,
            };
            let duration = Duration::from_secs(30);
            return Self { seed: 20_261_122, rounds: 2, duration, fixed, other: None, dir };
        }
        let fixed = Fixed {
            instances: variable("INSTANCES"),
            workers: variable("WORKERS"),
            brokers: variable("BROKERS"),
            rate: variable("RATE"),
            cleanup_ms: variable("CLEANUP_MS"),
            pause_ms: variable("PAUSE_MS"),
            upstreams: variable("UPSTREAMS"),
            foreign: variable("FOREIGN"),
            hostile: variable("HOSTILE"),
            lag: variable("LAG"),
            side_partitions: variable("SIDES"),
            scope: variable("SCOPE"),
            standby: variable("STANDBY"),
            rekeys: variable("REKEY"),
        };
        let duration = variable::<String>("DURATION").unwrap_or_else(|| "300s".to_owned());
        Self {
            seed: variable("SEED").unwrap_or_else(|| wall_ms().unsigned_abs() / 1_000),
            rounds: variable("ROUNDS").unwrap_or(10),
            duration: humantime::parse_duration(&duration).unwrap_or_else(|e| panic!("DURATION: {e}")),
            fixed,
            other: variable("OTHER"),
            dir: variable::<String>("TORTURE_DIR").map_or(dir, PathBuf::from),
        }
    }

    pub fn seeds(&self) -> impl Iterator<Item = u64> {
        self.seed..self.seed + self.rounds
    }
}

fn variable<T: FromStr>(name: &str) -> Option<T> {
    let text = env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not understood")))
}

/// One round.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub seed: u64,
    pub duration: Duration,
    pub instances: usize,
    pub workers: usize,
    pub brokers: usize,
    /// Records per second.
    pub rate: u64,
    pub cleanup_ms: u64,
    pub pause_ms: u64,
    /// Producers of raw that use transactions.
    pub upstreams: usize,
    /// Foreign programs in the clean topic, and in the side topics.
    pub foreign: usize,
    /// Producers of raw that choose ids and records to do harm.
    pub hostile: usize,
    /// Whether one partition lags by more than the window, which is short then.
    pub lags: bool,
    /// The partitions of the dead-letter topic and of the duplicates topic; 0 without these topics.
    pub side_partitions: usize,
    pub scope: Scope,
    /// Whether instances follow the state topic of partitions that they do not own.
    pub standby: bool,
    /// Processes of `rekey` between the source topics and raw; 0 without source topics.
    pub rekeys: usize,
    /// The binary of every second start of an instance.
    pub other: Option<PathBuf>,
}

impl Recipe {
    pub fn of(seed: u64, plan: &Plan) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        // All values are drawn, so that a fixed value does not change the others.
        let drawn = Fixed {
            instances: Some(random.usize(1..=3)),
            workers: Some(random.usize(1..=2)),
            brokers: Some(if random.u8(..10) < 7 { 1 } else { 3 }),
            rate: Some(random.u64(8_000..=20_000)),
            cleanup_ms: Some(if random.u8(..10) < 6 { 50 } else { 10_000 }),
            pause_ms: random.choice([2_500, 5_000, 10_000]),
            upstreams: random.choice([0, 1, 2]),
            foreign: random.choice([0, 1]),
            hostile: random.choice([0, 1]),
            lag: Some(u8::from(seed % 5 > 2)),
            side_partitions: random.choice([0, 2, PARTITIONS]),
            scope: Some(if seed.is_multiple_of(2) { Scope::Topic } else { Scope::Partition }),
            standby: Some(u8::from(!(seed / 2).is_multiple_of(2))),
            rekeys: None,
        };
        let fixed = &plan.fixed;
        let rekeys = fixed.rekeys.unwrap_or(0);
        // `rekey` is the stage before partition scope.
        let scope = Some(Scope::Partition).filter(|_| rekeys > 0).or(fixed.scope).or(drawn.scope).unwrap();
        let side_partitions = fixed.side_partitions.or(drawn.side_partitions).unwrap();
        let workers = fixed.workers.or(drawn.workers).unwrap();
        let lags = rekeys == 0 && fixed.lag.or(drawn.lag).unwrap() > 0;
        Self {
            seed,
            duration: plan.duration,
            instances: fixed.instances.or(drawn.instances).unwrap(),
            workers: if scope == Scope::Topic { 1 } else { workers },
            brokers: fixed.brokers.or(drawn.brokers).unwrap(),
            rate: fixed.rate.or(drawn.rate).unwrap(),
            cleanup_ms: fixed.cleanup_ms.or(drawn.cleanup_ms).unwrap(),
            pause_ms: fixed.pause_ms.or(drawn.pause_ms).unwrap(),
            // They repeat ids over a time that does not follow from the timestamps of the load.
            upstreams: if lags { 0 } else { fixed.upstreams.or(drawn.upstreams).unwrap() },
            foreign: fixed.foreign.or(drawn.foreign).unwrap(),
            hostile: if rekeys > 0 { 0 } else { fixed.hostile.or(drawn.hostile).unwrap() },
            lags,
            // With side topics, records without an id would be dead letters instead of clean records.
            side_partitions: if rekeys > 0 { 0 } else { side_partitions },
            scope,
            // Another build may not have the setting.
            standby: plan.other.is_none() && fixed.standby.or(drawn.standby).unwrap() > 0,
            rekeys,
            other: plan.other.clone(),
        }
    }

    /// Where the copies of an id are written: before `rekey`, in all partitions of all source topics.
    pub fn copies(&self) -> Scope {
        if self.rekeys > 0 { Scope::Topic } else { self.scope }
    }

    /// The timestamps of the load if a partition lags. They are in the past until the end of the round, and younger than the retention.
    pub fn clock(&self) -> Option<StreamClock> {
        const STEP_MS: i64 = 25;
        self.lags.then(|| StreamClock::new(now_ms() - 5 * 24 * 3_600_000, STEP_MS))
    }

    /// The length of the window if a partition lags: twice the distance of the copies of an id.
    pub fn window(&self) -> Option<String> {
        self.clock().map(|clock| format!("{}ms", 2 * clock.longest_repeat_ms(PARTITIONS)))
    }

    /// The command that repeats the round. Faults have the same order, but not the same times.
    pub fn replay(&self) -> String {
        let Self { seed, duration, instances, workers, brokers, rate, cleanup_ms, pause_ms, .. } = self;
        let Self { upstreams, foreign, hostile, side_partitions, scope, standby, rekeys, .. } = self;
        let duration = humantime::format_duration(*duration).to_string().replace(' ', "");
        let other = self.other.as_ref().map_or(String::new(), |path| format!(" OTHER={}", path.display()));
        format!(
            "make torture ROUNDS=1 SEED={seed} DURATION={duration} INSTANCES={instances} WORKERS={workers} \
             BROKERS={brokers} RATE={rate} CLEANUP_MS={cleanup_ms} PAUSE_MS={pause_ms} UPSTREAMS={upstreams} \
             FOREIGN={foreign} HOSTILE={hostile} LAG={} SIDES={side_partitions} SCOPE={} STANDBY={} REKEY={rekeys}{other}",
            u8::from(self.lags),
            scope.name(),
            u8::from(*standby)
        )
    }

    /// Broker settings in addition to those of all test brokers.
    pub fn broker_settings(&self) -> Vec<(&'static str, String)> {
        let mut settings = vec![(
            "transaction.abort.timed.out.transaction.cleanup.interval.ms",
            self.cleanup_ms.to_string(),
        )];
        if self.brokers > 1 {
            let replicated = [
                ("default.replication.factor", "3"),
                ("min.insync.replicas", "2"),
                ("offsets.topic.replication.factor", "3"),
                ("transaction.state.log.replication.factor", "3"),
                ("transaction.state.log.min.isr", "2"),
                ("share.coordinator.state.topic.replication.factor", "3"),
                ("share.coordinator.state.topic.min.isr", "2"),
            ];
            settings.extend(replicated.map(|(key, value)| (key, value.to_owned())));
        }
        settings
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, duration, instances, workers, brokers, rate, cleanup_ms, pause_ms, .. } = self;
        let Self { upstreams, foreign, hostile, side_partitions, scope, standby, rekeys, .. } = self;
        let lags = if self.lags { ", a partition that lags by more than the window" } else { "" };
        let (scope, builds) = (scope.name(), if self.other.is_some() { " of two builds" } else { "" });
        let standby = if *standby { " with standby copies" } else { "" };
        write!(
            f,
            "seed {seed}: {scope} scope, {duration:?}, {instances} instances of {workers} workers{builds}{standby}, {brokers} brokers, \
             {rate} records/s, cleanup interval {cleanup_ms} ms, up to {pause_ms} ms between faults, {upstreams} \
             upstreams with transactions, {foreign} foreign programs in clean and in side topics of {side_partitions} \
             partitions, {hostile} hostile producers{lags}, {rekeys} processes of rekey before it"
        )
    }
}
