//! One round: a cluster, a load, faults, their end, and the audit.

use std::path::Path;
use std::time::Duration;

use dedupd::clock::monotonic;

use super::evidence;
use super::faults::Faults;
use super::programs::{AllCounts, Programs};
use super::progress::{OffsetClient, PartitionProgress, Progress, committed, unread};
use super::recipe::Recipe;
use super::rekeyed;
use super::sides::{self, Expected};
use super::support::load::{StreamClock, Target};
use super::support::pipe::{compare, firsts};
use super::support::{Findings, Kafka, Load, Pipe, Scope, TopicAudit, Traces, compare_chain};
use super::verdict::Verdict;

pub const PARTITIONS: usize = 4;
/// Maximum time from the end of the last fault until every committed offset is at the end of its partition.
pub const RECOVERY: Duration = Duration::from_mins(1);
/// A partition that takes longer than `RECOVERY` is late. One that takes longer than this is stuck.
const STUCK: Duration = Duration::from_mins(2);
/// Maximum lag in seconds of load. A larger lag would only extend the end of the round.
const WAITING_S: u64 = 10;
/// Number of records after the last transaction of other programs: enough for every partition.
const AT_END: u64 = 1_000;

pub fn run(recipe: &Recipe, dir: &Path) -> Verdict {
    let settings = recipe.broker_settings();
    let settings: Vec<(&str, &str)> = settings.iter().map(|(key, value)| (*key, value.as_str())).collect();
    let nodes = Kafka::cluster(recipe.brokers, &settings);
    let pipe = Pipe::new(&nodes[0], "torture", PARTITIONS);
    if recipe.side_partitions > 0 {
        sides::create(&pipe, recipe.side_partitions);
    }
    if recipe.rekeys > 0 {
        rekeyed::create(&pipe);
    }
    let clock = recipe.clock();
    let mut faults = Faults::start(&pipe, &nodes, recipe);
    let mut verdict = Verdict::of(recipe);
    (verdict.sent, verdict.programs) = std::thread::scope(|scope| {
        let programs = Programs::start(scope, (&pipe, &nodes), recipe, clock.as_ref());
        under_faults(programs, &mut faults, recipe, (&pipe, clock.clone()))
    });
    let rekeyed = rekeyed::offset_clients(&pipe, recipe);
    let (partitions, recovery) = recovered(&pipe, &rekeyed, &mut faults);
    verdict.recovery = recovery;
    verdict.unread = partitions.iter().map(PartitionProgress::unread).sum();
    verdict.unread_sources = unread(&rekeyed).unwrap_or_default();
    let failing = verdict.recovery.is_none_or(|took| took > RECOVERY) || !faults.counts.exits.is_empty();
    let pages = if failing { evidence::of_running(&pipe, recipe, &faults) } else { String::new() };
    verdict.problems.extend(faults.stop());
    verdict.counts = faults.counts.clone();
    let (findings, expected) = audit(&pipe, &partitions, recipe.scope);
    verdict.findings = findings;
    if recovery.is_some() {
        verdict.problems.extend(faults.audit().err());
    }
    if recovery.is_some() && recipe.rekeys > 0 {
        verdict.chain = compare_chain(pipe.kafka, &rekeyed::loaded_topics(&pipe, recipe), &pipe.clean);
    }
    if recipe.side_partitions > 0 {
        verdict.sides = expected.compare(&pipe, recipe.side_partitions);
    }
    verdict.rewrites = evidence::rewrites(&pipe);
    verdict.hidden = evidence::hidden(&pipe, recipe);
    verdict.between = Traces::of(&pipe).intervals_with_commits(&faults.counts.kills_ms);
    verdict.torn = evidence::torn(&pipe);
    if !verdict.passed() {
        let kept = dir.join(recipe.seed.to_string());
        evidence::keep(&kept, &pipe, &nodes, &format!("{verdict}\n{partitions:?}\n{pages}"));
        verdict.logs = Some(kept);
    }
    verdict
}

/// Injects faults for the duration of the round, then ends them and the transactions of other programs. Returns the number of
/// sent records, and of these transactions.
fn under_faults(
    programs: Programs<'_>,
    faults: &mut Faults<'_>,
    recipe: &Recipe,
    (pipe, clock): (&Pipe<'_>, Option<StreamClock>),
) -> (u64, AllCounts) {
    let mut config = pipe.kafka.client_config();
    // A plain producer that retries forever: a record that it writes twice is a further repeat.
    config.set("acks", "all").set("message.timeout.ms", "0").set("linger.ms", "5");
    let topics = rekeyed::loaded_topics(pipe, recipe);
    let missing = if recipe.rekeys > 0 { 0.05 } else { 0.0 };
    let target = Target { topics: &topics, partitions: PARTITIONS, scope: recipe.copies(), missing, clock };
    let load = Load::seeded(&config, target, recipe.rate, recipe.seed);
    let progress = Committed::start(pipe, recipe);
    let start = monotonic();
    // A slow machine gets more time, so that the round has enough faults.
    let least = |faults: &Faults<'_>| {
        if faults.counts.suffice(recipe) { recipe.duration } else { recipe.duration * 2 }
    };
    while start.elapsed() < least(faults) {
        faults.step(monotonic(), progress.instances.last());
        let written = load.sent() + programs.written();
        load.hold(progress.waiting(written) > WAITING_S * recipe.rate);
        std::thread::sleep(Duration::from_millis(20));
    }
    faults.heal();
    let programs = programs.finish();
    // The committed offset reaches the end of a partition when its last record is not in an aborted transaction.
    load.hold(false);
    load.more(AT_END);
    (load.finish(), programs)
}

/// The progress during the load.
struct Committed {
    /// What the instances have committed of raw.
    instances: Progress,
    /// What `rekey` has committed of the source topics, and the records of raw that are not committed: raw contains copies, so
    /// their number does not follow from that of the written records.
    rekeyed: Option<(Progress, Progress)>,
}

impl Committed {
    fn start(pipe: &Pipe<'_>, recipe: &Recipe) -> Self {
        let of_raw = || [OffsetClient::of(pipe, PARTITIONS)];
        let (instances, raw) = (of_raw(), of_raw());
        let sources = rekeyed::offset_clients(pipe, recipe);
        let rekeyed = (recipe.rekeys > 0)
            .then(|| (Progress::start(move || committed(&sources)), Progress::start(move || unread(&raw))));
        Self { instances: Progress::start(move || committed(&instances)), rekeyed }
    }

    /// Number of records that wait, when this number is written.
    fn waiting(&self, written: u64) -> u64 {
        match &self.rekeyed {
            None => written.saturating_sub(self.instances.last()),
            Some((sources, raw)) => written.saturating_sub(sources.last()).max(raw.last()),
        }
    }
}

/// Waits until everything is committed, first the source topics. Returns the progress of the partitions, and the time since the brokers served
/// requests again, `None` if not everything was committed.
fn recovered(
    pipe: &Pipe<'_>,
    rekeyed: &[OffsetClient],
    faults: &mut Faults<'_>,
) -> (Vec<PartitionProgress>, Option<Duration>) {
    pipe.kafka.wait_serving().unwrap_or_else(|log| panic!("the brokers do not restart:\n{log}"));
    let start = monotonic();
    let client = OffsetClient::of(pipe, PARTITIONS);
    let mut last = Vec::new();
    while start.elapsed() < STUCK || last.is_empty() {
        faults.notice_exits(monotonic());
        faults.revive(monotonic());
        let is_rekeyed = unread(rekeyed) == Some(0);
        if let Some(partitions) = client.partition_progress() {
            if is_rekeyed && partitions.iter().all(|partition| partition.unread() == 0) {
                return (partitions, Some(start.elapsed()));
            }
            last = partitions;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    (last, None)
}

/// Audits the raw records below the committed offset. Unread records are not lost.
fn audit(pipe: &Pipe<'_>, partitions: &[PartitionProgress], scope: Scope) -> (Findings, Expected) {
    let (mut all, mut expected) = (Findings::default(), Expected::default());
    let mut topic = TopicAudit::default();
    for partition in partitions {
        let mut raw = pipe.kafka.records_of(&pipe.raw, partition.partition);
        raw.retain(|record| record.offset < partition.committed);
        let clean = pipe.kafka.records_of(&pipe.clean, partition.partition);
        let forwarded = match scope {
            Scope::Topic => topic.add(&raw, &clean),
            Scope::Partition => {
                all.add(compare(&raw, &clean));
                firsts(&raw).iter().map(|record| record.offset).collect()
            }
        };
        expected.add(&raw, &forwarded);
    }
    all.add(topic.finish());
    (all, expected)
}
