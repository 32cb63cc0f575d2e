//! The process that is tried.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{self, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{Names, remove_dir};
use crate::app::ExitError;
use crate::cli::{Exit, TryArgs};
use crate::clock::monotonic;
use crate::tools::demo::{COMPARED, ID};
use crate::tools::health;

const ANSWER: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Longest time that the process gets to stop when the trial ends early.
const LAST_PATIENCE: Duration = Duration::from_secs(15);
/// How many of the last lines of its log are shown.
const SHOWN_LINES: usize = 5;

/// `dedupd run` with settings for the trial. A drop kills it.
pub(super) struct Child {
    program: PathBuf,
    args: Vec<String>,
    /// The properties of the client, which may be secret: other users can read the arguments of a process.
    environment: Vec<(String, String)>,
    state: PathBuf,
    log: PathBuf,
    /// Its status page.
    pub listen: SocketAddr,
    process: Option<process::Child>,
}

impl Child {
    pub fn new(args: &TryArgs, properties: &[(String, String)], names: &Names) -> Result<Self, ExitError> {
        let program = std::env::current_exe()
            .map_err(|why| ExitError::failed(format!("the path of this program is not known: {why}")))?;
        let listen =
            free_address().map_err(|why| ExitError::failed(format!("no free port on 127.0.0.1: {why}")))?;
        let state = names.dir.join("state");
        let arguments = [
            ["run", "--instance=try", "--create", "--bootstrap-servers"].map(str::to_owned).to_vec(),
            vec![args.bootstrap_servers.clone()],
            vec![
                format!("--raw={}", names.raw),
                format!("--clean={}", names.clean),
                format!("--state={}", names.state),
                format!("--group={}", names.group),
                format!("--id={ID}"),
                format!("--listen={listen}"),
                format!("--state-dir={}", state.display()),
            ],
        ];
        let property = |(name, value): &(String, String)| {
            let name = name.to_ascii_uppercase().replace('.', "_");
            (format!("DEDUPD_KAFKA__PROPERTIES__{name}"), value.clone())
        };
        let compared = format!("[\"{}\"]", COMPARED.join("\",\""));
        let compared = ("DEDUPD_IDENTITY__COMPARE".to_owned(), compared);
        Ok(Self {
            program,
            args: arguments.concat(),
            environment: properties.iter().map(property).chain([compared]).collect(),
            state,
            log: names.dir.join("dedupd.log"),
            listen,
            process: None,
        })
    }

    pub fn start(&mut self) -> Result<(), ExitError> {
        let failed = |why: std::io::Error| ExitError::failed(format!("dedupd run cannot be started: {why}"));
        let log = File::options().create(true).append(true).open(&self.log).map_err(failed)?;
        let mut command = Command::new(&self.program);
        // Settings of the user are for another pipeline.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("DEDUPD_"))
        {
            command.env_remove(name);
        }
        command.args(&self.args).envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.process = Some(command.spawn().map_err(failed)?);
        Ok(())
    }

    /// Fails if the process has ended by itself.
    pub fn check(&mut self) -> Result<(), ExitError> {
        let ended = self.process.as_mut().and_then(|process| process.try_wait().ok().flatten());
        ended.map_or(Ok(()), |status| Err(self.ended(status)))
    }

    fn ended(&self, status: ExitStatus) -> ExitError {
        let failed = self.failed(&format!("dedupd run ended by itself ({status})"));
        let exit = [Exit::Usage, Exit::StartUp, Exit::State, Exit::Operator, Exit::Unreachable]
            .into_iter()
            .find(|exit| status.code() == Some(i32::from(exit.code())));
        ExitError::new(exit.unwrap_or(Exit::Failed), failed.message)
    }

    /// A failure with the last lines of its log.
    pub fn failed(&self, what: &str) -> ExitError {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().rev().take(SHOWN_LINES).collect();
        let lines: Vec<_> = lines.into_iter().rev().collect();
        ExitError::failed(format!("{what}; its last lines:\n{}", lines.join("\n")))
    }

    /// Number of records that it has processed since its start; 0 while it does not answer.
    pub fn processed(&self) -> u64 {
        let Ok((_, body)) = health::ask(self.listen, "/status.json", None, None, ANSWER) else { return 0 };
        let status: serde_json::Value = serde_json::from_str(&body).unwrap_or_default();
        let records = status.get("records").and_then(serde_json::Value::as_object);
        records.into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum()
    }

    pub fn kill(&mut self) -> Result<(), ExitError> {
        let Some(mut process) = self.process.take() else { return Ok(()) };
        let killed = process.kill().and_then(|()| process.wait());
        killed.map(drop).map_err(|why| ExitError::failed(format!("dedupd run cannot be killed: {why}")))
    }

    /// Deletes its local state.
    pub fn lose_state(&self) -> Result<(), ExitError> {
        let why =
            |why| ExitError::new(Exit::State, format!("{} cannot be deleted: {why}", self.state.display()));
        remove_dir(&self.state).map_err(why)
    }

    /// Stops it with SIGTERM.
    pub fn stop(&mut self, patience: Duration) -> Result<(), ExitError> {
        let Some(process) = self.process.as_mut() else { return Ok(()) };
        let began = monotonic();
        kill_process(Pid::from_child(process), Signal::TERM)
            .map_err(|why| ExitError::failed(format!("dedupd run cannot be stopped: {why}")))?;
        while began.elapsed() < patience {
            match process.try_wait() {
                Ok(Some(status)) if status.success() => {
                    self.process = None;
                    return Ok(());
                }
                Ok(Some(status)) => return Err(self.ended(status)),
                _ => std::thread::sleep(POLL_INTERVAL),
            }
        }
        Err(self.failed("dedupd run does not stop"))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // One that is killed is a member of the group until its session ends, and the group cannot be deleted before.
        if self.stop(LAST_PATIENCE).is_err() {
            self.kill().ok();
        }
    }
}

/// An address that is free now.
fn free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}
