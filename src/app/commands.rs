//! The commands: one function per command, and their dispatch from the command line.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::ProgressBar;

use super::{Ended, begin_log, begin_log_quietly, check, run, runtime, signal};
use crate::cli::{Command, Exit, GenerateArgs, IdForm, PlanArgs, WhenFull};
use crate::clock;
use crate::config::{self, AsTyped, Config, Properties, Property};
use crate::dedupe::{Hasher, IdSource, IdSourceError, IdentityRule};
use crate::demo;
use crate::generate::{self, EventShape, GenerateError, Summary};
use crate::kafka::{self, Sample, SampleError, Sampling};
use crate::plan::{Fits, IdKind, Plan, Workload};

/// Runs a command. `Ok` has the exit code of a command that completed.
pub fn command(command: Command) -> Result<Exit, Ended> {
    match command {
        Command::Run(args) => {
            let config = load(args.config_file(), args.overrides())?;
            let recent = begin_log(args.log_format());
            run(config, recent)?;
        }
        Command::Check(args) => {
            let config = load(args.config_file(), args.overrides())?;
            begin_log(args.log_format());
            print!("{}", config.show());
            let topology = check(&config)?;
            topology.warnings.iter().for_each(|warning| println!("# warning: {warning}"));
            println!("# {} partitions; all checks passed", topology.partitions);
        }
        Command::Demo(args) => {
            begin_log_quietly();
            return demo::run(&args);
        }
        Command::Generate(args) => println!("{}", generate(&args)?),
        Command::Plan(args) => print!("{}", plan(&args)?),
        Command::State(args) => return super::state::command(&args.command),
        Command::Audit(args) => {
            let report = super::audit::command(&args, &load(args.config_file(), args.overrides())?)?;
            if args.json() {
                println!("{}", report.to_json());
            } else {
                println!("{report}");
            }
            return Ok(if report.is_clean() { Exit::Done } else { Exit::Failed });
        }
    }
    Ok(Exit::Done)
}

fn load(file: Option<&Path>, flags: AsTyped) -> Result<Config, Ended> {
    config::load(file, flags).map_err(|error| Ended::new(Exit::Usage, error.to_string()))
}

/// `dedupd plan`: the text to print.
fn plan(args: &PlanArgs) -> Result<String, Ended> {
    let bloom = args.bloom.unwrap_or(args.exact);
    if bloom < args.exact {
        return Err(Ended::new(
            Exit::Usage,
            "--bloom is shorter than --exact; give a longer time, or leave --bloom out".to_owned(),
        ));
    }
    let slots = match (args.overflow, args.max_ids) {
        (WhenFull::Evict, Some(slots)) => Some(slots),
        (WhenFull::Shrink, None) => None,
        (WhenFull::Evict, None) | (WhenFull::Shrink, Some(_)) => {
            return Err(Ended::new(
                Exit::Usage,
                "--overflow evict and --max-ids require each other; give both, or neither".to_owned(),
            ));
        }
    };
    let sample = args.raw.as_deref().map(|topic| sampled(args, topic)).transpose()?;
    let live = sample.clone().unwrap_or_default();
    let plan = Plan::of(Workload {
        slots,
        events_per_second: args.events.unwrap_or(live.events_per_second),
        duplicates: args.duplicates.unwrap_or_else(|| live.duplicates()),
        ids: match args.ids {
            IdForm::Uuid => IdKind::Uuid,
            IdForm::Text => IdKind::Text,
        },
        exact: args.exact,
        bloom,
        slices: args.slices,
        false_positive_rate: args.false_positive_rate,
        partitions: args.partitions.unwrap_or(live.partitions).max(1),
    });
    let fits = args.memory.map(|memory| Fits::of(&plan.asked, memory.0 as u64));
    if args.json {
        return Ok(format!("{}\n", serde_json::json!({ "plan": plan, "fits": fits, "sample": sample })));
    }
    let fits = fits.map(|fits| fits.to_string()).unwrap_or_default();
    let sample = sample.map(|sample| sample.to_string()).unwrap_or_default();
    Ok(format!("{sample}{plan}{fits}"))
}

/// Rate, duplicates and partitions, measured on a live topic.
fn sampled(args: &PlanArgs, topic: &str) -> Result<Sample, Ended> {
    let usage = |what: String| Ended::new(Exit::Usage, what);
    let parse = |text: &String| {
        text.parse().map_err(|error: IdSourceError| {
            usage(format!("--id {text} {error}; give key, header:NAME, json:/pointer or value"))
        })
    };
    let sources: Vec<IdSource> = args.id.iter().map(parse).collect::<Result<_, _>>()?;
    let sampling = Sampling {
        bootstrap_servers: args.bootstrap_servers.clone().unwrap_or_default(),
        properties: properties(&args.properties)?,
        topic: topic.to_owned(),
        records: args.sample,
    };
    let bar = ProgressBar::new(args.sample);
    let rule = IdentityRule::new(sources, Hasher::Xxh3);
    let sample = kafka::sample(&sampling, &rule, clock::wall_ms(), &|read| bar.set_position(read));
    bar.finish_and_clear();
    let sample = sample.map_err(|failed| {
        let exit = if matches!(failed, SampleError::Settings(_)) { Exit::Usage } else { Exit::Operator };
        Ended::new(exit, failed.to_string())
    })?;
    if sample.with_id == 0 {
        return Err(usage(format!(
            "none of the {} records read from topic {topic} has an id; correct --id, or give --events, --duplicates and \
             --partitions",
            sample.read
        )));
    }
    Ok(sample)
}

/// The properties of the command line, with the values of `NAME.file` read.
fn properties(given: &[Property]) -> Result<Vec<(String, String)>, Ended> {
    let given: Properties = given.iter().cloned().collect();
    let read = given.with_files_read().map_err(|problems| Ended::new(Exit::Usage, problems.to_string()))?;
    Ok(read.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

/// `dedupd generate`: runs until all records are written or a signal arrives.
fn generate(args: &GenerateArgs) -> Result<Summary, Ended> {
    let options = generate::Options {
        bootstrap_servers: args.bootstrap_servers.clone(),
        properties: properties(&args.properties)?,
        topic: args.topic.clone(),
        partitions: args.partitions,
        shape: EventShape {
            seed: args.seed.unwrap_or_else(|| fastrand::u64(..)),
            size: args.size.0,
            duplicates: args.duplicates,
            keys: args.keys,
        },
        records: args.records,
        rate: args.rate,
        cut_acks: args.cut_acks,
    };
    let stop = Arc::new(AtomicBool::new(false));
    let stop_requested = Arc::clone(&stop);
    runtime()?.block_on(async {
        tokio::spawn(async move {
            signal().await;
            stop_requested.store(true, Ordering::Release);
        });
        let bar = args.records.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
        let done = tokio::task::spawn_blocking(move || {
            let summary = generate::run(&options, &stop, |progress| bar.set_position(progress.delivered));
            bar.finish_and_clear();
            summary
        });
        let summary = done.await.map_err(|e| Ended::failed(format!("the generator panicked: {e}")))?;
        summary.map_err(|error| {
            let is_usage = matches!(error, GenerateError::Settings(_));
            Ended::new(if is_usage { Exit::Usage } else { Exit::Operator }, error.to_string())
        })
    })
}
