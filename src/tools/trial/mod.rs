//! `dedupd try`: the promise on a Kafka of the user's, with topics of its own, and kills.

mod child;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use dedupd_audit as audit;
use indicatif::HumanCount;
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use testkit::generate::{self, EventShape, GenerateError, Options, Summary};
use testkit::pipe;

use super::demo::{COMPARED, ID};
use super::generate::failure;
use super::properties;
use crate::app::{ExitError, runtime, signal};
use crate::cli::{Exit, TryArgs};
use crate::clock::monotonic;
use crate::kafka::connection::{Probe, attach_tokens};
use child::Child;

/// How often the child is killed.
const KILLS: u64 = 2;
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Between two questions for the committed offsets.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum wait for the last records after all are written, and for the child to stop.
const PATIENCE: Duration = Duration::from_mins(2);
/// Shortest time for the records: two restarts are within it, and there are records after each.
const SHORTEST: Duration = Duration::from_secs(15);
/// Bytes of a value.
const SIZE: usize = 200;
/// Share of the records that are repeated on purpose.
const REPEATED: f64 = 0.1;

/// The names of what a trial makes.
struct Names {
    raw: String,
    clean: String,
    state: String,
    group: String,
    /// Directory of the local state and the log.
    dir: PathBuf,
}

impl Names {
    fn new() -> Self {
        let prefix = format!("dedupd-try-{:08x}", fastrand::u32(..));
        let [raw, clean, state] = ["raw", "clean", "clean.dedupd"].map(|part| format!("{prefix}.{part}"));
        let dir = std::env::temp_dir().join(&prefix);
        Self { raw, clean, state, group: prefix, dir }
    }
}

/// Runs the trial. The exit code is that of the audit.
pub fn command(args: &TryArgs) -> Result<Exit, ExitError> {
    let seconds = args.records / u64::from(args.rate);
    if seconds < SHORTEST.as_secs() {
        return Err(ExitError::usage(format!(
            "--records {} at --rate {} a second are written in {seconds} s, but two kills and restarts need {} s; give more records, or a \
             lower rate",
            args.records,
            args.rate,
            SHORTEST.as_secs()
        )));
    }
    let trial = Trial::new(args)?;
    let probe = Probe::connect(trial.config.clone(), &args.bootstrap_servers, &trial.names.raw, "WRITE")?;
    std::fs::create_dir(&trial.names.dir).map_err(|why| {
        ExitError::new(Exit::State, format!("{} cannot be created: {why}", trial.names.dir.display()))
    })?;
    let stop = stop_at_a_signal()?;
    let Names { raw, clean, state, .. } = &trial.names;
    println!("topics       {raw}, {clean}, {state} on {}: removed at the end", args.bootstrap_servers);
    let ended = trial.run(&stop, &probe).map_err(|failed| match failed.exit {
        Exit::StartUp => {
            let what = "a trial has random names, so that it needs permissions for the prefix dedupd-try-";
            ExitError::new(failed.exit, format!("{} ({what})", failed.message))
        }
        _ => failed,
    });
    if matches!(ended, Ok(Exit::No)) {
        println!(
            "the topics {raw}, {clean} and {state}, the group {} and the directory {} are kept",
            trial.names.group,
            trial.names.dir.display()
        );
        return ended;
    }
    trial.remove();
    ended
}

/// A flag that is set at the first signal.
fn stop_at_a_signal() -> Result<Arc<AtomicBool>, ExitError> {
    let (runtime, stop) = (runtime()?, Arc::new(AtomicBool::new(false)));
    let flag = Arc::clone(&stop);
    thread::spawn(move || {
        runtime.block_on(async {
            signal().await;
            flag.store(true, Ordering::Release);
            println!("\nstopping, and removing what was made");
            std::future::pending::<()>().await;
        });
    });
    Ok(stop)
}

struct Trial<'a> {
    args: &'a TryArgs,
    properties: Vec<(String, String)>,
    names: Names,
    /// Of the clients that neither produce nor belong to the child.
    config: ClientConfig,
    began: std::time::Instant,
}

/// The producer, on a thread of its own.
struct TrialTraffic {
    sent: Arc<AtomicU64>,
    thread: JoinHandle<Result<Summary, GenerateError>>,
}

/// The traffic, with what the brokers are asked for.
fn options(args: &TryArgs, properties: &[(String, String)], raw: &str) -> Options {
    Options {
        bootstrap_servers: args.bootstrap_servers.clone(),
        properties: properties.to_vec(),
        topic: raw.to_owned(),
        partitions: Some(args.partitions),
        shape: EventShape {
            seed: fastrand::u64(..),
            size: SIZE,
            duplicates: REPEATED,
            keys: 10_000,
            repeatable: generate::REPEATABLE,
        },
        records: Some(args.records),
        rate: Some(args.rate),
        cut_acks: false,
    }
}

impl<'a> Trial<'a> {
    fn new(args: &'a TryArgs) -> Result<Self, ExitError> {
        let (properties, names) = (properties(&args.properties)?, Names::new());
        let config = options(args, &properties, &names.raw).client_config();
        let config = config.map_err(|error| ExitError::usage(error.to_string()))?;
        Ok(Self { args, properties, names, config, began: monotonic() })
    }

    fn say(&self, what: &str) {
        println!("{:>6.1} s     {what}", self.began.elapsed().as_secs_f64());
    }

    fn run(&self, stop: &Arc<AtomicBool>, probe: &Probe<'_>) -> Result<Exit, ExitError> {
        let traffic = self.traffic(stop);
        let mut child = Child::new(self.args, &self.properties, &self.names)?;
        // It makes the topic that the child reads.
        while traffic.sent.load(Ordering::Acquire) == 0 && !traffic.thread.is_finished() {
            thread::sleep(POLL_INTERVAL);
        }
        if traffic.sent.load(Ordering::Acquire) > 0 {
            println!("status page  http://{}/", child.listen);
            child.start()?;
            self.kill_twice(&mut child, &traffic, stop)?;
        }
        let written =
            traffic.thread.join().map_err(|_| ExitError::failed("the producer panicked".to_owned()))?;
        let summary = written.map_err(|error| failure(error, probe))?;
        if stop.load(Ordering::Acquire) {
            return Err(ExitError::failed("stopped by a signal, before the audit".to_owned()));
        }
        self.say(&format!("all records are written: {summary}"));
        self.await_all(&mut child, stop)?;
        child.stop(PATIENCE)?;
        self.say("all records are processed; auditing with code that dedupd does not use");
        let report = audit::run(&self.audited(), &audit::progress_bar())
            .map_err(|error| ExitError::failed(format!("audit: {error}")))?;
        if !report.is_clean() {
            println!("\n{report}\n");
            return Ok(Exit::No);
        }
        let (raw, clean) = (report.total.raw.records, report.total.clean_records);
        println!(
            "\n{} duplicates were removed, and {} records are in the clean topic exactly once, in order and unchanged, through {KILLS} \
             kills.",
            HumanCount(raw.saturating_sub(clean)),
            HumanCount(clean)
        );
        Ok(Exit::Done)
    }

    /// Starts the producer. Where it cannot cut acknowledgements, it repeats records on purpose only.
    fn traffic(&self, stop: &Arc<AtomicBool>) -> TrialTraffic {
        let open = options(self.args, &self.properties, &self.names.raw);
        let real = Options { cut_acks: true, ..open.clone() };
        println!(
            "traffic      {} records, {} a second; one in ten is written twice",
            HumanCount(self.args.records),
            self.args.rate
        );
        let (sent, stop) = (Arc::new(AtomicU64::new(0)), Arc::clone(stop));
        let counted = Arc::clone(&sent);
        let thread = thread::spawn(move || {
            let mut progress = |progress: generate::Progress| counted.store(progress.sent, Ordering::Release);
            match generate::run(&real, &stop, &mut progress) {
                Err(why @ (GenerateError::NotLocal { .. } | GenerateError::Encrypted { .. })) => {
                    let why = why.to_string();
                    let why = why.split_once(';').map_or(why.as_str(), |(why, _)| why);
                    println!("             and no more than those: {why}");
                    generate::run(&open, &stop, progress)
                }
                ended => ended,
            }
        });
        TrialTraffic { sent, thread }
    }

    /// Kills the child when it works, after a third and after two thirds of the records.
    fn kill_twice(
        &self,
        child: &mut Child,
        traffic: &TrialTraffic,
        stop: &AtomicBool,
    ) -> Result<(), ExitError> {
        let mut kills = 0;
        let mut ended_at = None;
        while kills < KILLS && !stop.load(Ordering::Acquire) {
            thread::sleep(POLL_INTERVAL);
            child.check()?;
            if traffic.thread.is_finished() {
                // Its error has more detail than that of the child.
                if traffic.sent.load(Ordering::Acquire) < self.args.records {
                    return Ok(());
                }
                if ended_at.get_or_insert_with(monotonic).elapsed() > PATIENCE {
                    let what = "dedupd run processes no records any more, and was not killed twice: if it had processed all of them, \
                                give more --records or a lower --rate";
                    return Err(child.failed(what));
                }
            }
            let due = self.args.records * (kills + 1) / (KILLS + 1);
            if traffic.sent.load(Ordering::Acquire) < due || child.processed() == 0 {
                continue;
            }
            kills += 1;
            child.kill()?;
            if kills == KILLS {
                child.lose_state()?;
                self.say("kill 2: SIGKILL, and its local state is deleted");
            } else {
                self.say("kill 1: SIGKILL during the load");
            }
            child.start()?;
        }
        Ok(())
    }

    /// Waits until the group has committed the end of raw.
    fn await_all(&self, child: &mut Child, stop: &AtomicBool) -> Result<(), ExitError> {
        let unread = |why: KafkaError| {
            let what = format!("committed offsets cannot be read: {why}");
            if is_denied(&why) {
                return ExitError::new(Exit::StartUp, what);
            }
            ExitError::new(Exit::Unreachable, format!("{what}; check that the brokers run, then try again"))
        };
        let reader = pipe::reader(&self.config, &self.names.group).map_err(unread)?;
        let partitions = i32::try_from(self.args.partitions).unwrap_or(i32::MAX);
        let began = monotonic();
        loop {
            child.check()?;
            // A broker that restarts answers with errors.
            let consumed = pipe::is_consumed(&reader, &self.names.raw, partitions);
            if matches!(consumed, Ok(true)) {
                return Ok(());
            }
            let is_final = consumed.as_ref().is_err_and(is_denied);
            if is_final || began.elapsed() > PATIENCE || stop.load(Ordering::Acquire) {
                consumed.map_err(unread)?;
                let what = format!("not all records are processed after {} s", began.elapsed().as_secs());
                return Err(child.failed(&what));
            }
            thread::sleep(ASK_INTERVAL);
        }
    }

    fn audited(&self) -> audit::Options {
        audit::Options {
            properties: self.properties.clone(),
            compare: COMPARED.map(str::to_owned).to_vec(),
            ..audit::Options::new(
                &self.args.bootstrap_servers,
                &self.names.raw,
                &self.names.clean,
                ID,
                attach_tokens,
            )
        }
    }

    /// Removes what it has made, and names what is left.
    fn remove(&self) {
        let Names { raw, clean, state, group, dir } = &self.names;
        match pipe::remove(&self.config, &[raw, clean, state], group) {
            Ok(left) => left
                .iter()
                .for_each(|(what, why)| println!("{what} could not be deleted: {why}; delete it by hand")),
            Err(why) => println!(
                "the topics {raw}, {clean} and {state} and the group {group} could not be deleted: {why}; delete them by hand"
            ),
        }
        if let Err(why) = remove_dir(dir) {
            println!("{} could not be deleted: {why}; delete it by hand", dir.display());
        }
    }
}

/// Waiting does not help.
fn is_denied(why: &KafkaError) -> bool {
    matches!(
        why.rdkafka_error_code(),
        Some(RDKafkaErrorCode::GroupAuthorizationFailed | RDKafkaErrorCode::TopicAuthorizationFailed)
    )
}

/// Removes a directory that may not exist.
fn remove_dir(dir: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        ended => ended,
    }
}
