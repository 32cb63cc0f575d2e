//! `dedupd check`: the start without its writes, and what a start would do now.

use super::plan;
use crate::app::{
    ExitError, check, check_host, check_read, check_start, prepare, scope_advice, settings,
    within_memory_limit,
};
use crate::cli::Exit;
use crate::config::{Config, Mode, RekeyConfig, Scope};
use crate::kafka::{Closing, Create, Forecast, Member, Settings, check_rekey, forecast};

/// Most members that are named.
const NAMED: usize = 8;

/// Prints the verdict and the findings; with `print` as comments, followed by the effective configuration.
pub fn command(config: Config, print: bool) -> Result<(), ExitError> {
    let config = &within_memory_limit(config);
    let mut lines = Vec::new();
    let checked = findings(config, &mut lines);
    let verdict = match &checked {
        Ok(()) => "all checks passed".to_owned(),
        Err(failed) => format!("failed with code {}; the reason stands last", failed.exit.code()),
    };
    let mark = if print { "# " } else { "" };
    println!("{mark}dedupd check: {verdict}");
    for line in &lines {
        println!("{mark}{line}");
    }
    if print {
        print!("{}", config.show());
    }
    checked
}

/// Goes through a start in its order.
fn findings(config: &Config, lines: &mut Vec<String>) -> Result<(), ExitError> {
    let prepared = prepare(config)?;
    let holder = check_host(config)?;
    if let Some(stage) = &config.rekey {
        lines.extend(rekey(config, stage));
    }
    let checks = check(config)?;
    lines.extend(checks.topology.warnings.iter().map(|warning| format!("warning: {warning}")));
    lines.extend(checks.planned.iter().cloned());
    lines.extend(notes(config, checks.topology.partitions));
    match forecast(&settings(config, 0), checks.topology.partitions, checks.state_partitions) {
        Ok(forecast) => {
            // Beside it, an instance waits for ever.
            if let Some(foreign) = forecast.foreign {
                return Err(ExitError::new(Exit::StartUp, foreign));
            }
            lines.push(format!("assignment: {}", assignment(config, checks.topology.partitions, &forecast)));
            lines.push(format!("restore: {}", restore(&forecast)));
            let notes = check_start(config, &prepared, &checks, &forecast)?;
            lines.extend(notes.iter().map(|note| format!("warning: {note}")));
        }
        Err(failed) => {
            check_read(&failed, "what a start would find")?;
            let why = failed.unretried();
            lines.push(format!("warning: it is not known what a start would restore: {why}"));
        }
    }
    let (scope, warnings) = scope_advice(config, &prepared)?;
    lines.push(format!("scope: {scope}"));
    lines.extend(warnings.iter().map(|warning| format!("warning: {warning}")));
    lines.push(not_checked(config, holder, !checks.planned.is_empty()));
    Ok(())
}

/// Settings that are valid, and may not be meant.
fn notes(config: &Config, partitions: usize) -> Vec<String> {
    let idle = config.group.workers.saturating_sub(partitions);
    let workers = (idle > 0).then(|| {
        format!(
            "note: group.workers = {} is above the number of partitions of raw, {partitions}: {idle} get none",
            config.group.workers
        )
    });
    let bypass = (config.dedupe.mode == Mode::Bypass)
        .then(|| "note: dedupe.mode = bypass: all records are forwarded, duplicates too".to_owned());
    workers.into_iter().chain(bypass).collect()
}

/// What only a start shows, in one line.
fn not_checked(config: &Config, holder: Option<String>, creates: bool) -> String {
    let group = &config.group.id;
    let mut what = vec![
        format!("joining group {group}"),
        format!("the permission on transactional ids that start with {group}."),
        "the contents of state.dir".to_owned(),
    ];
    what.extend(creates.then(|| "the permissions on topics that do not exist yet".to_owned()));
    what.extend(holder.map(|holder| format!("state.dir and http.listen, because {holder} uses state.dir")));
    format!("not checked: {}", what.join("; "))
}

/// What a start of `rekey` would find. Its problems are no failed check: it is another process, which may have credentials of its own.
fn rekey(config: &Config, stage: &RekeyConfig) -> Vec<String> {
    let to = stage.to.as_str();
    let settings = Settings { clean: to.to_owned(), group: stage.group.clone(), ..settings(config, 0) };
    let create = if config.topics.create { Create::Validate } else { Create::Never };
    match check_rekey(&settings, &stage.from, create, &Closing::default()) {
        Ok(checks) => {
            let raw = config.topics.raw.as_str();
            let apart = (to != raw).then(|| {
                format!("rekey.to = {to} is not topics.raw = {raw}: dedupd run does not read what dedupd rekey writes")
            });
            let warnings = checks.warnings.into_iter().chain(apart);
            let warnings = warnings.map(|warning| format!("warning: rekey: {warning}"));
            let planned = checks.planned.map(|what| format!("rekey: {what}; start it before dedupd run"));
            warnings.chain(planned).chain(["rekey: all checks passed".to_owned()]).collect()
        }
        Err(problems) => {
            let problems = problems.to_string();
            problems.lines().map(|it| format!("warning: rekey would not start: {it}")).collect()
        }
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
        "a start without local state reads about {ids} ids, in {records} offsets of the state topic, in about {:.1} s; with complete \
         local state about {:.1} s; the start of the group comes on top",
        times.state_topic_seconds, times.local_seconds
    )
}
