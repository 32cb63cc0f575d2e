//! `dedupd check`: the effective configuration, the checks of a start, and what a start would do now.

use super::plan;
use crate::app::{
    ExitError, check, check_start, scope_advice, settings, start_forecast, within_memory_limit,
};
use crate::config::{Config, RekeyConfig, Scope};
use crate::kafka::{Closing, Forecast, Member, RekeyTopics, Settings, check_rekey};

/// Most members that are named.
const NAMED: usize = 8;

/// Prints the configuration and the results.
pub fn command(config: Config) -> Result<(), ExitError> {
    let config = &within_memory_limit(config);
    print!("{}", config.show());
    if let Some(stage) = &config.rekey {
        println!("{}", rekey(config, stage));
    }
    let topology = check(config)?;
    topology.warnings.iter().for_each(|warning| println!("# warning: {warning}"));
    let (scope, schemas) = scope_advice(config)?;
    println!("# scope: {scope}");
    if let Some(note) = schemas {
        println!("# warning: {note}");
    }
    match start_forecast(config, topology.partitions) {
        Ok(forecast) => {
            println!("# assignment: {}", assignment(config, topology.partitions, &forecast));
            println!("# restore: {}", restore(&forecast));
            check_start(config, &topology, &forecast)?;
        }
        Err(failed) => {
            println!("# warning: it is not known what a start would restore: {}", failed.unretried());
        }
    }
    println!("# {} partitions; all checks passed", topology.partitions);
    Ok(())
}

/// What a start of `rekey` would find, in one or more lines. Its problems are no failed check: it is another process, which may have
/// credentials of its own.
fn rekey(config: &Config, stage: &RekeyConfig) -> String {
    let to = stage.to.as_str();
    let settings = Settings { clean: to.to_owned(), group: stage.group.clone(), ..settings(config, 0) };
    match check_rekey(&settings, &RekeyTopics { from: &stage.from, to }, &Closing::default()) {
        Ok(checks) => {
            let warnings = checks.warnings.iter().map(|warning| format!("# warning: rekey: {warning}\n"));
            warnings.chain(["# rekey: all checks passed".to_owned()]).collect()
        }
        Err(problems) => format!("# warning: rekey would not start: {problems}")
            .replace('\n', "\n# warning: rekey would not start: "),
    }
}

/// Which partitions an instance with this configuration would get, in one line.
fn assignment(config: &Config, partitions: usize, forecast: &Forecast) -> String {
    let lag = format!("; lag {}", forecast.lag);
    let members: Vec<String> = forecast.members.iter().take(NAMED).map(described).collect();
    let more = if forecast.members.len() > NAMED { ", ..." } else { "" };
    let group = &config.group.id;
    match (config.dedupe.scope, forecast.members.len()) {
        (Scope::Topic, 0) => {
            format!("group {group} has no member; the next instance gets all {partitions} partitions{lag}")
        }
        (Scope::Topic, _) => format!(
            "the active instance of group {group} is {}{more}; further instances are spares{lag}",
            members.join(", ")
        ),
        (Scope::Partition, 0) => format!(
            "group {group} has no member; the next instance, with {}, gets all {partitions} partitions{lag}",
            workers(config.group.workers)
        ),
        (Scope::Partition, count) => format!(
            "group {group} has the members {}{more}; with {} more each gets {} to {} partitions{lag}",
            members.join(", "),
            workers(config.group.workers),
            partitions / (count + config.group.workers),
            partitions.div_ceil(count + config.group.workers)
        ),
    }
}

fn workers(count: usize) -> String {
    if count == 1 { "1 worker".to_owned() } else { format!("{count} workers") }
}

/// `a.0 at 10.0.0.7 (6 partitions)`.
fn described(member: &Member) -> String {
    let count = member.partitions.len();
    let noun = if count == 1 { "partition" } else { "partitions" };
    format!("{} at {} ({count} {noun})", member.worker, member.host)
}

/// What a restore of all partitions would read, and how long it would take, in one line.
fn restore(forecast: &Forecast) -> String {
    let Forecast { ids, records, .. } = forecast;
    if *records == 0 {
        return "the state topic has nothing to restore".to_owned();
    }
    let times = plan::restore(*ids);
    format!(
        "all partitions have about {ids} ids, in {records} offsets of the state topic: about {:.1} s from local state, {:.1} s \
         from the state topic, and the start of the group",
        times.local_seconds, times.state_topic_seconds
    )
}
