//! One round: a cluster, a load, faults, their end, and the audit.

use std::path::Path;
use std::time::Duration;

use dedupd::clock::monotonic;

use super::evidence;
use super::faults::Faults;
use super::progress::{Asker, Progress, Standing};
use super::recipe::Recipe;
use super::support::pipe::compare;
use super::support::{Findings, Kafka, Load, Pipe, Traces};
use super::verdict::Verdict;

pub const PARTITIONS: usize = 4;
/// From the end of the last fault until every partition is committed to its end.
pub const RECOVERY: Duration = Duration::from_mins(1);
/// A partition that comes later than that is late; one that is not there then either is stuck.
const STUCK: Duration = Duration::from_mins(2);
/// Seconds of load that may wait. More would only be more to catch up with at the end.
const WAITING_S: u64 = 10;

pub fn run(recipe: &Recipe, dir: &Path) -> Verdict {
    let settings = recipe.broker_settings();
    let settings: Vec<(&str, &str)> = settings.iter().map(|(key, value)| (*key, value.as_str())).collect();
    let nodes = Kafka::cluster(recipe.brokers, &settings);
    let pipe = Pipe::new(&nodes[0], "torture", PARTITIONS);
    let mut faults = Faults::start(&pipe, &nodes, recipe);
    let sent = under_faults(recipe, &pipe, &mut faults);

    let mut verdict = Verdict::of(recipe);
    verdict.sent = sent;
    let (standings, recovery) = recovered(&pipe, &mut faults);
    verdict.recovery = recovery;
    verdict.unread = standings.iter().map(Standing::unread).sum();
    let failing = verdict.recovery.is_none_or(|took| took > RECOVERY) || !faults.deeds.exits.is_empty();
    let pages = if failing { evidence::of_the_living(&pipe, &faults) } else { String::new() };
    verdict.problems.extend(faults.stop());
    verdict.deeds = faults.deeds.clone();
    verdict.findings = audit(&pipe, &standings);
    verdict.between = Traces::of(&pipe).intervals_with_commits(&faults.deeds.kills_ms);
    verdict.torn = evidence::torn(&pipe);
    if !verdict.passed() {
        let kept = dir.join(recipe.seed.to_string());
        evidence::keep(&kept, &pipe, &nodes, &format!("{verdict}\n{standings:?}\n{pages}"));
        verdict.logs = Some(kept);
    }
    verdict
}

/// Faults for as long as the round lasts, then their end. How many records were sent.
fn under_faults(recipe: &Recipe, pipe: &Pipe<'_>, faults: &mut Faults<'_>) -> u64 {
    let mut config = pipe.kafka.client_config();
    // A plain producer that never gives up: what it writes twice is one more repeat.
    config.set("acks", "all").set("message.timeout.ms", "0").set("linger.ms", "5");
    let load = Load::seeded(&config, &pipe.raw, PARTITIONS, recipe.rate, recipe.seed);
    let progress = Progress::start(Asker::of(pipe, PARTITIONS));
    let start = monotonic();
    // A slow machine gets more time, so that enough comes together.
    let least =
        |faults: &Faults<'_>| if faults.deeds.suffice() { recipe.duration } else { recipe.duration * 2 };
    while start.elapsed() < least(faults) {
        faults.step(monotonic(), progress.committed());
        load.hold(load.sent().saturating_sub(progress.committed()) > WAITING_S * recipe.rate);
        std::thread::sleep(Duration::from_millis(20));
    }
    faults.heal();
    load.finish()
}

/// Waits until everything is committed. How the partitions stand, and how long it took from when the brokers
/// served again; `None` when it did not come to that.
fn recovered(pipe: &Pipe<'_>, faults: &mut Faults<'_>) -> (Vec<Standing>, Option<Duration>) {
    pipe.kafka.wait_serving().unwrap_or_else(|log| panic!("the brokers do not come back:\n{log}"));
    let start = monotonic();
    let asker = Asker::of(pipe, PARTITIONS);
    let mut last = Vec::new();
    while start.elapsed() < STUCK || last.is_empty() {
        faults.notice_exits(monotonic());
        faults.revive(monotonic());
        if let Some(standings) = asker.standings() {
            if standings.iter().all(|standing| standing.unread() == 0) {
                return (standings, Some(start.elapsed()));
            }
            last = standings;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    (last, None)
}

/// Of raw, what lies below the committed offset: what is unread is not lost.
fn audit(pipe: &Pipe<'_>, standings: &[Standing]) -> Findings {
    let mut all = Findings::default();
    for standing in standings {
        let mut raw = pipe.kafka.records_of(&pipe.raw, standing.partition);
        raw.retain(|record| record.offset < standing.committed);
        all.add(compare(&raw, &pipe.kafka.records_of(&pipe.clean, standing.partition)));
    }
    all
}
