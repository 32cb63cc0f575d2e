//! The real binary as a process: start, HTTP requests, signals.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use dedupd::clock::monotonic;

use super::{Scope, child, ports::free_port, wait_until};

const SCOPE: &str = "DEDUPD_DEDUPE__SCOPE";

/// The start parameters of a sidecar.
#[derive(Clone, Debug)]
pub struct Sidecar {
    pub bootstrap: String,
    pub raw: String,
    pub clean: String,
    pub instance: String,
    pub state_dir: PathBuf,
    pub environment: Vec<(String, String)>,
    pub workers: usize,
    /// The binary. The default is the build under test.
    pub program: PathBuf,
    pub config: Option<PathBuf>,
    /// Maximum size of each file that it writes.
    pub file_limit: Option<u64>,
}

impl Sidecar {
    /// A sidecar of the pipe, with its state below `dir`.
    pub fn new(bootstrap: &str, raw: &str, clean: &str, instance: &str, dir: &Path) -> Self {
        let quick = [
            ("DEDUPD_TOPICS__CREATE", "true"),
            ("DEDUPD_GROUP__SESSION_TIMEOUT", "6s"),
            ("DEDUPD_BATCH__TRANSACTION_TIMEOUT", "5s"),
            ("DEDUPD_IDENTITY__FROM", "[\"json:/id\"]"),
            // With the `failpoints` feature: windows of some hundred ids have sealed slices.
            ("DEDUPD_SMALLEST_SLICE", "50"),
        ];
        Self {
            bootstrap: bootstrap.to_owned(),
            raw: raw.to_owned(),
            clean: clean.to_owned(),
            instance: instance.to_owned(),
            state_dir: dir.join(format!("state-{instance}")),
            environment: quick.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            workers: 1,
            program: PathBuf::from(env!("CARGO_BIN_EXE_dedupd")),
            config: None,
            file_limit: None,
        }
    }

    /// Adds an environment variable.
    pub fn with(mut self, key: &str, value: &str) -> Self {
        self.environment.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Adds a configuration file with this text.
    pub fn with_file(mut self, text: &str) -> Self {
        let path = self.state_dir.with_extension("toml");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        self.config = Some(path);
        self
    }

    /// Holds the process at this failpoint: it creates the file `gate`, and continues when that is removed.
    pub fn held_at(self, failpoint: &str, gate: &Path) -> Self {
        self.with("DEDUPD_FAILPOINT_HOLD", &format!("{failpoint}:1:{}", gate.display()))
    }

    /// Makes writes fail that would extend a file beyond this number of bytes.
    pub fn with_file_limit(mut self, bytes: u64) -> Self {
        self.file_limit = Some(bytes);
        self
    }

    /// Sets where an id counts once.
    pub fn scoped(self, scope: Scope) -> Self {
        self.with(SCOPE, scope.name())
    }

    /// Sets the number of workers, which share the partitions.
    pub fn sharing(self, workers: usize) -> Self {
        Self { workers, ..self.scoped(Scope::Partition) }
    }

    /// The transactional id of one of its workers, with the default group. In topic scope all instances have the same.
    pub fn transactional_id(&self, worker: usize) -> String {
        let is_partition =
            self.environment.iter().any(|(key, value)| key == SCOPE && value == Scope::Partition.name());
        let last = if is_partition { format!("{}.{worker}", self.instance) } else { "active".to_owned() };
        format!("dedupd.{}.{}.{last}", self.raw, self.clean)
    }

    /// Runs `dedupd audit` with its configuration. Returns what it prints, as an error if it finds one.
    pub fn audit(&self) -> Result<String, String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dedupd"));
        command
            .args([
                "audit",
                "--bootstrap-servers",
                &self.bootstrap,
                "--raw",
                &self.raw,
                "--clean",
                &self.clean,
            ])
            .envs(self.environment.iter().cloned());
        if let Some(path) = &self.config {
            command.arg("--config").arg(path);
        }
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let printed = text(&output.stdout) + &text(&output.stderr);
        if output.status.success() { Ok(printed) } else { Err(printed) }
    }

    /// Compares only ids: every copy of a load whose records all differ is a duplicate, and no conflict.
    pub fn comparing_ids(self) -> Self {
        self.with("DEDUPD_IDENTITY__COMPARE", "json:/id")
    }

    /// Starts the process.
    pub fn start(&self) -> Running {
        self.start_on(free_port())
    }

    /// Starts the process with its HTTP endpoint on this port.
    pub fn start_on(&self, port: u16) -> Running {
        let program = self.program.as_path();
        let shell = Path::new("sh");
        let mut command = child::tied(if self.file_limit.is_some() { shell } else { program });
        if let Some(bytes) = self.file_limit {
            // With the signal ignored, the write fails as on a full disk. The unit is 512 bytes.
            let limited = format!("trap '' XFSZ; ulimit -f {}; exec \"$@\"", bytes / 512);
            command.args(["-c", &limited, "sh"]).arg(program);
        }
        command
            .args(["run", "--bootstrap-servers", &self.bootstrap, "--raw", &self.raw, "--clean", &self.clean])
            .args(["--instance", &self.instance, "--workers", &self.workers.to_string()])
            .args(["--listen", &format!("127.0.0.1:{port}")])
            .arg("--state-dir")
            .arg(&self.state_dir)
            .env_remove("RUST_LOG");
        if let Some(path) = &self.config {
            command.arg("--config").arg(path);
        }
        command.envs(self.environment.iter().cloned());
        Running::start(command, port, self.state_dir.with_extension("log"))
    }
}

/// A running sidecar. It is killed when dropped.
pub struct Running {
    child: Mutex<Child>,
    pub port: u16,
    /// The log of all its starts.
    pub log: PathBuf,
    /// Length of the log at this start.
    before: u64,
}

impl Running {
    /// Starts a command of [`child::tied`] that listens on `port`, with its output appended to a log.
    pub fn start(mut command: Command, port: u16, log: PathBuf) -> Self {
        std::fs::create_dir_all(log.parent().unwrap()).unwrap();
        let file = File::options().create(true).append(true).open(&log).unwrap();
        let before = file.metadata().unwrap().len();
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        Self { child: Mutex::new(child::spawn(command)), port, log, before }
    }

    pub fn pid(&self) -> u32 {
        self.child.lock().unwrap().id()
    }

    /// Kills the process, as `kill -9` does.
    pub fn kill9(&self) {
        let mut child = self.child.lock().unwrap();
        child.kill().ok();
        child.wait().unwrap();
    }

    pub fn signal(&self, name: &str) {
        child::signal(self.pid(), name);
    }

    /// Whether it has installed its signal handlers.
    pub fn handles_signals(&self) -> bool {
        {
            let text = self.text();
            text.contains("status page and metrics at") || text.contains("status at http://")
        }
    }

    /// The exit status, if it has ended.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.child.lock().unwrap().try_wait().unwrap()
    }

    /// Waits for its end.
    pub fn wait(&self, limit: Duration) -> ExitStatus {
        wait_until(&format!("the end of {}", self.log.display()), limit, || self.ended())
    }

    /// The exit status, or `None` if it did not end within the limit.
    pub fn wait_within(&self, limit: Duration) -> Option<ExitStatus> {
        let start = monotonic();
        while start.elapsed() < limit {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }

    /// Sends SIGTERM and returns the exit code. Waits until the process has installed its signal handlers, which it does before
    /// it logs the address of the status page.
    pub fn stop(&self) -> Option<i32> {
        let deadline = monotonic() + Duration::from_secs(10);
        while !self.handles_signals() && self.ended().is_none() && monotonic() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.signal("TERM");
        self.wait(Duration::from_secs(15)).code()
    }

    /// The log since this start.
    pub fn text(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        let before = usize::try_from(self.before).unwrap().min(bytes.len());
        String::from_utf8_lossy(&bytes[before..]).into_owned()
    }

    /// Warnings and errors of the log since this start, without those about slow commits, which depend on the machine.
    pub fn complaints(&self) -> Vec<String> {
        let is_complaint = |line: &&str| line.contains(" WARN ") || line.contains(" ERROR ");
        let text = self.text();
        let complaints = text.lines().filter(is_complaint).filter(|line| !line.contains("a commit took"));
        complaints.map(str::to_owned).collect()
    }

    /// A page of its HTTP endpoint with the status line, `None` without a response.
    pub fn get(&self, path: &str) -> Option<String> {
        self.request("GET", path, &[], "", Duration::from_secs(20))
    }

    /// The response to a request with the status line, `None` without a response in time.
    pub fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[&str],
        body: &str,
        limit: Duration,
    ) -> Option<String> {
        let mut socket = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        socket.set_read_timeout(Some(limit)).ok()?;
        let headers: String = headers.iter().flat_map(|header| [*header, "\r\n"]).collect();
        let length = body.len();
        write!(
            socket,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
        .ok()?;
        let mut page = String::new();
        socket.read_to_string(&mut page).ok()?;
        Some(page)
    }

    pub fn is_ready(&self) -> bool {
        self.get("/readyz").is_some_and(|page| page.starts_with("HTTP/1.1 200"))
    }

    /// Whether it has this role: joining, active or spare.
    pub fn has_role(&self, role: &str) -> bool {
        self.metric(&format!("dedupd_role{{role=\"{role}\"}}")) == Some(1.0)
    }

    /// Waits until it is ready. Otherwise panics with its log.
    pub fn wait_ready(&self, limit: Duration) {
        let start = monotonic();
        while !self.is_ready() {
            let in_time = self.ended().is_none() && start.elapsed() < limit;
            assert!(in_time, "{} is not ready:\n{}", self.log.display(), self.text());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until it runs this number of partitions.
    pub fn wait_running(&self, partitions: usize, limit: Duration) {
        let start = monotonic();
        let count = || self.metric("dedupd_partitions{state=\"running\"}");
        while count() != Some(partitions as f64) {
            let in_time = self.ended().is_none() && start.elapsed() < limit;
            assert!(in_time, "{} does not run {partitions} partitions:\n{}", self.log.display(), self.text());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The status page as JSON.
    pub fn status(&self) -> Option<serde_json::Value> {
        let page = self.get("/status.json")?;
        serde_json::from_str(page.split_once("\r\n\r\n")?.1.trim()).ok()
    }

    /// Waits until it has this number of workers, each with this number of partitions.
    pub fn wait_even(&self, workers: usize, partitions: usize, limit: Duration) {
        wait_until("as many partitions for each worker", limit, || {
            let status = self.status()?;
            let found = status["workers"].as_array()?;
            let even = found.iter().all(|one| one["partitions"].as_array().map(Vec::len) == Some(partitions));
            (found.len() == workers && even).then_some(())
        });
    }

    /// Waits until these are the numbers of records with these outcomes. Records are counted some time after their offsets are
    /// committed: the store is written and the markers are awaited between the two.
    pub fn wait_outcomes(&self, expected: &[(&str, u64)]) {
        let start = monotonic();
        loop {
            let counted: Vec<_> = expected.iter().map(|(name, _)| (*name, self.outcome(name))).collect();
            if counted == expected {
                return;
            }
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "{counted:?} instead of {expected:?}\n{}",
                self.text()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Number of records with this outcome, from the metrics page.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
    pub fn outcome(&self, outcome: &str) -> u64 {
        self.value(&format!("dedupd_records_total{{outcome=\"{outcome}\"}}")) as u64
    }

    /// Number of transactions with this result, from the metrics page.
    pub fn transactions(&self, result: &str) -> f64 {
        self.value(&format!("dedupd_transactions_total{{result=\"{result}\"}}"))
    }

    /// The response to `GET path`.
    pub fn page(&self, path: &str) -> String {
        self.get(path).unwrap_or_else(|| panic!("no response to {path}:\n{}", self.text()))
    }

    /// The value of the metric line that begins with `name`.
    pub fn value(&self, name: &str) -> f64 {
        let page = self.page("/metrics");
        value_in(&page, name).unwrap_or_else(|| panic!("{name} is not in the metrics:\n{page}"))
    }

    /// The value of the metric line that begins with `name`; `None` also without a response.
    pub fn metric(&self, name: &str) -> Option<f64> {
        value_in(&self.get("/metrics")?, name)
    }
}

fn value_in(page: &str, name: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill9();
        if std::thread::panicking() {
            let text = self.text();
            let lines: Vec<&str> = text.lines().collect();
            let end = lines[lines.len().saturating_sub(80)..].join("\n");
            eprintln!("the end of {}:\n{end}", self.log.display());
        }
    }
}
