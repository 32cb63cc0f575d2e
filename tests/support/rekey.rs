//! `dedupd rekey` as a process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::ports::free_port;
use super::{Kafka, Running, child, wait_until};

const LIMIT: Duration = Duration::from_mins(1);

/// The start parameters of a `rekey`.
#[derive(Debug)]
pub struct Rekey {
    pub bootstrap: String,
    to: String,
    flags: Vec<String>,
    pub environment: Vec<(String, String)>,
    instance: String,
    log: PathBuf,
    _dir: tempfile::TempDir,
}

impl Rekey {
    /// With these flags, separated by blanks, beside servers, target and instance.
    pub fn new(kafka: &Kafka, to: &str, flags: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self {
            bootstrap: kafka.bootstrap().to_owned(),
            to: to.to_owned(),
            flags: flags.split(' ').map(str::to_owned).collect(),
            environment: vec![("DEDUPD_GROUP__SESSION_TIMEOUT".to_owned(), "6s".to_owned())],
            instance: "a".to_owned(),
            log: dir.path().join("rekey.log"),
            _dir: dir,
        }
    }

    /// One of several instances, with its own log.
    #[must_use]
    pub fn instance(self, name: &str, log: PathBuf) -> Self {
        Self { instance: name.to_owned(), log, ..self }
    }

    pub fn start(&self) -> Running {
        let port = free_port();
        let mut command = child::tied(env!("CARGO_BIN_EXE_dedupd"));
        command
            .args(["rekey", "--bootstrap-servers", &self.bootstrap, "--to", &self.to])
            .args(["--instance", &self.instance, "--listen", &format!("127.0.0.1:{port}")])
            .args(&self.flags)
            .envs(self.environment.iter().cloned())
            .env_remove("RUST_LOG");
        Running::start(command, port, self.log.clone())
    }

    pub fn group(&self) -> String {
        format!("dedupd.rekey.{}", self.to)
    }

    /// Waits until every record of these topics is acknowledged and committed.
    pub fn wait_done(&self, kafka: &Kafka, topics: &[&str]) {
        wait_rekeyed(kafka, &self.group(), topics, &self.log);
    }
}

/// Waits until a group has committed every record of these topics. `log` is named if it does not.
pub fn wait_rekeyed(kafka: &Kafka, group: &str, topics: &[&str], log: &Path) {
    for topic in topics {
        for partition in 0..i32::try_from(kafka.partitions(topic)).unwrap() {
            let end = kafka.watermarks(topic, partition).1;
            wait_until(&format!("{topic}/{partition} to be rekeyed, see {}", log.display()), LIMIT, || {
                let committed = kafka.committed(group, topic, partition).map_or(0, |(at, _)| at);
                (committed >= end).then_some(())
            });
        }
    }
}
