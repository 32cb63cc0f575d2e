//! One function a command, and the way from the command line to it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::ProgressBar;

use super::{Ended, begin_log, begin_log_quietly, check, run, runtime, signal, window_of};
use crate::audit::{self, AuditError, MissingId, Report};
use crate::cli::{Command, Exit, GenerateArgs, IdForm, PlanArgs, WhenFull};
use crate::config::{self, AsTyped, Config, OnMissing};
use crate::demo;
use crate::generate::{self, Shape, Summary};
use crate::plan::{Fits, IdKind, Plan, Question};

/// Does what the command line says; the exit code is that of a command that came to its end.
pub fn command(command: Command) -> Result<Exit, Ended> {
    match command {
        Command::Run(args) => {
            let config = load(args.config_file(), args.overrides())?;
            begin_log(args.log_format());
            run(config)?;
        }
        Command::Check(args) => {
            let config = load(args.config_file(), args.overrides())?;
            begin_log(args.log_format());
            print!("{}", config.show());
            let topology = check(&config)?;
            topology.warnings.iter().for_each(|warning| println!("# warning: {warning}"));
            println!("# {} partitions; everything needed is there", topology.partitions);
        }
        Command::Demo(args) => {
            begin_log_quietly();
            return demo::run(&args);
        }
        Command::Generate(args) => println!("{}", generate(&args)?),
        Command::Plan(args) => print!("{}", plan(&args)?),
        Command::Audit(args) => {
            let report = audit(&load(args.config_file(), args.overrides())?)?;
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

/// `dedupd audit`: exactly what the configuration promises.
fn audit(config: &Config) -> Result<Report, Ended> {
    let options = audit::Options {
        bootstrap_servers: config.kafka.bootstrap_servers.clone(),
        properties: config.kafka.properties.iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect(),
        raw: config.topics.raw.as_str().to_owned(),
        clean: config.topics.clean.as_str().to_owned(),
        id: config.identity.from.clone(),
        missing_id: match config.identity.on_missing {
            OnMissing::Forward => MissingId::Forwarded,
            OnMissing::Drop | OnMissing::DeadLetter | OnMissing::Stop => MissingId::Withheld,
        },
        window: Some(match config.window.on_probable {
            // What a filter has seen goes to clean once more.
            config::OnProbable::Forward => config.window.exact,
            config::OnProbable::Drop | config::OnProbable::DeadLetter => window_of(config),
        }),
        allow_gone: false,
        samples: 10,
    };
    audit::run(&options, &audit::progress_bar())
        .map_err(|error: AuditError| Ended::new(Exit::Operator, error.to_string()))
}

/// `dedupd plan`: the text to print.
fn plan(args: &PlanArgs) -> Result<String, Ended> {
    let bloom = args.bloom.unwrap_or(args.exact);
    if bloom < args.exact {
        return Err(Ended::new(
            Exit::Usage,
            "--bloom is shorter than --exact: make it longer, or leave it out".to_owned(),
        ));
    }
    let slots = match (args.overflow, args.max_ids) {
        (WhenFull::Evict, Some(slots)) => Some(slots),
        (WhenFull::Shrink, None) => None,
        (WhenFull::Evict, None) | (WhenFull::Shrink, Some(_)) => {
            return Err(Ended::new(
                Exit::Usage,
                "--overflow evict and --max-ids go together: give both, or neither".to_owned(),
            ));
        }
    };
    let plan = Plan::of(Question {
        slots,
        events_per_second: args.events,
        duplicates: args.duplicates,
        ids: match args.ids {
            IdForm::Uuid => IdKind::Uuid,
            IdForm::Text => IdKind::Text,
        },
        exact: args.exact,
        bloom,
        slices: args.slices,
        false_positive_rate: args.false_positive_rate,
        partitions: args.partitions,
    });
    let fits = args.memory.map(|memory| Fits::of(&plan.asked, memory.0 as u64));
    if args.json {
        return Ok(format!("{}\n", serde_json::json!({ "plan": plan, "fits": fits })));
    }
    Ok(fits.map_or_else(|| plan.to_string(), |fits| format!("{plan}{fits}")))
}

/// `dedupd generate`: until all is written or a signal comes.
fn generate(args: &GenerateArgs) -> Result<Summary, Ended> {
    let options = generate::Options {
        bootstrap_servers: args.bootstrap_servers.clone(),
        properties: args.properties.iter().map(|p| (p.name.clone(), p.value.clone())).collect(),
        topic: args.topic.clone(),
        partitions: args.partitions,
        shape: Shape {
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
    let told = Arc::clone(&stop);
    runtime()?.block_on(async {
        tokio::spawn(async move {
            signal().await;
            told.store(true, Ordering::Release);
        });
        let bar = args.records.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
        let done = tokio::task::spawn_blocking(move || {
            let summary = generate::run(&options, &stop, |progress| bar.set_position(progress.delivered));
            bar.finish_and_clear();
            summary
        });
        let summary = done.await.map_err(|e| Ended::failed(format!("the generator panicked: {e}")))?;
        summary.map_err(|e| Ended::new(Exit::Operator, e.to_string()))
    })
}
