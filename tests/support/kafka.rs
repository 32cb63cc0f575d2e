//! A real Apache Kafka broker as a child process that can be killed, stopped and frozen.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock};
use std::thread;
use std::time::Duration;

use dedupd::clock::monotonic;
use rdkafka::ClientConfig;
use rdkafka::admin::AdminClient;
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::BaseConsumer;

use super::child;
use super::jvm::{QUICK_JIT, class_archive, class_path, shared_classes, tool};
use super::ports::free_port;
use super::proxy::Proxy;

const START_LIMIT: Duration = Duration::from_mins(1);
const STOP_LIMIT: Duration = Duration::from_secs(30);
const CLUSTER_ID: &str = "MkU3OEVBNTcwNTJENDM2Qg";
const SETTINGS: &str = include_str!("../../scripts/kafka/server.properties");
/// Pseudo settings whose values are appended to broker settings.
const LISTENERS: &str = "further listeners";
const PROTOCOLS: &str = "their protocols";
/// A pseudo setting: a further option of the JVM.
pub const JVM: &str = "option of the JVM";
/// The nodes of a cluster share a machine.
const HEAP_OF_ONE: &str = "-Xmx1g";
const HEAP_OF_SEVERAL: &str = "-Xmx512m";
/// The JVM's default: slower to warm up, faster afterwards.
const FULL_JIT: &str = "-XX:+TieredCompilation";

/// A single-node broker on 127.0.0.1 with its own ports and log directory.
///
/// A drop kills it and removes its directory, which is kept and printed if the test panics. The process never
/// outlives the test process. The next start removes directories of test processes that have ended.
pub struct Kafka {
    dir: PathBuf,
    jit: &'static str,
    jvm_options: Vec<String>,
    bootstrap: String,
    /// The address of this node. `bootstrap` may contain several.
    pub(super) address: String,
    proxied: Proxied,
    controller: u16,
    /// Number of nodes in the cluster, including this one, at its start.
    pub(super) nodes: usize,
    child: Mutex<Option<Child>>,
    pub(super) admin: OnceLock<AdminClient<DefaultClientContext>>,
    /// Consumers without a subscription, by group and isolation level.
    pub(super) consumers: Mutex<HashMap<(String, &'static str), Arc<BaseConsumer>>>,
    started_in: Duration,
}

/// The role of a node in its cluster.
#[derive(Clone, Copy)]
struct Place {
    /// The port of its own controller, or of the first node's controller.
    controller: u16,
    controls: bool,
    /// Number of nodes in the cluster.
    nodes: usize,
}

/// The second listener: the broker listens on `upstream` and advertises `advertised` to clients.
struct Proxied {
    upstream: u16,
    advertised: u16,
}

impl Kafka {
    /// A broker with the settings of `scripts/kafka/server.properties`.
    pub fn start() -> Kafka {
        Kafka::start_with(&[])
    }

    /// A broker with other or further settings.
    pub fn start_with(overrides: &[(&str, &str)]) -> Kafka {
        Kafka::launch(QUICK_JIT, overrides)
    }

    /// A broker with further listeners, each with a name, a port and a protocol.
    pub fn start_listening(listeners: &[(&str, u16, &str)], overrides: &[(&str, &str)]) -> Kafka {
        let (mut addresses, mut protocols) = (String::new(), String::new());
        for (name, port, protocol) in listeners {
            write!(addresses, ",{name}://127.0.0.1:{port}").unwrap();
            write!(protocols, ",{name}:{protocol}").unwrap();
        }
        let further =
            [&[(LISTENERS, addresses.as_str()), (PROTOCOLS, protocols.as_str())], overrides].concat();
        Kafka::launch(QUICK_JIT, &further)
    }

    /// A broker with the JVM's full compiler, for benchmarks and for what runs for minutes.
    pub fn start_for_long(overrides: &[(&str, &str)]) -> Kafka {
        Kafka::launch(FULL_JIT, overrides)
    }

    /// A second broker in this cluster: node 2, without its own controller.
    pub fn second(&self) -> Kafka {
        let overrides = [("process.roles", "broker"), ("node.id", "2")];
        let place = || Place { controller: self.controller, controls: false, nodes: 2 };
        Kafka::launch_at(place, self.jit, &overrides)
    }

    /// The nodes of one cluster, each a broker and a controller, started together.
    pub fn cluster(count: usize, overrides: &[(&str, &str)]) -> Vec<Kafka> {
        let controllers: Vec<u16> = (0..count).map(|_| free_port()).collect();
        let voters: Vec<String> =
            (1..).zip(&controllers).map(|(id, port)| format!("{id}@127.0.0.1:{port}")).collect();
        let voters = voters.join(",");
        archive_classes();
        let prepared = (1..).zip(&controllers).map(|(id, controller)| {
            let id = id.to_string();
            let own = [("node.id", id.as_str()), ("controller.quorum.voters", &voters)];
            let place = Place { controller: *controller, controls: true, nodes: count };
            Kafka::prepare(place, QUICK_JIT, &[&own, overrides].concat())
        });
        let mut nodes: Vec<Kafka> = prepared.collect();
        let addresses: Vec<String> = nodes.iter().map(|node| node.address.clone()).collect();
        for node in &mut nodes {
            node.bootstrap = addresses.join(",");
            node.spawn();
        }
        for node in &nodes {
            node.wait_serving().unwrap_or_else(|log| panic!("Kafka did not start:\n{log}"));
        }
        nodes
    }

    fn launch(jit: &'static str, overrides: &[(&str, &str)]) -> Kafka {
        Kafka::launch_at(|| Place { controller: free_port(), controls: true, nodes: 1 }, jit, overrides)
    }

    fn launch_at(place: impl Fn() -> Place, jit: &'static str, overrides: &[(&str, &str)]) -> Kafka {
        archive_classes();
        // Another process can take a free port before the broker binds it. Then the start is retried with other ports.
        for _ in 0..2 {
            let mut broker = Kafka::prepare(place(), jit, overrides);
            match broker.run() {
                Ok(started_in) => {
                    broker.started_in = started_in;
                    return broker;
                }
                Err(log) if log.contains("Address already in use") => {}
                Err(log) => panic!("Kafka did not start. The end of its log:\n{log}"),
            }
        }
        panic!("the ports of Kafka were in use twice")
    }

    /// Creates the directory, writes the settings, formats the storage.
    fn prepare(place: Place, jit: &'static str, overrides: &[(&str, &str)]) -> Kafka {
        let dir = fresh_dir();
        let (direct, controller) = (free_port(), place.controller);
        let own =
            if place.controls { format!("CONTROLLER://127.0.0.1:{controller},") } else { String::new() };
        let proxied = Proxied { upstream: free_port(), advertised: free_port() };
        let further = |key: &str| overrides.iter().find(|(k, _)| *k == key).map_or("", |(_, value)| *value);
        let listen = further(LISTENERS);
        let mut settings = format!(
            "{SETTINGS}{}\nlisteners={own}DIRECT://127.0.0.1:{direct},PROXIED://127.0.0.1:{}{listen}\n\
             advertised.listeners=DIRECT://127.0.0.1:{direct},PROXIED://127.0.0.1:{}{listen}\n\
             controller.quorum.voters=1@127.0.0.1:{controller}\nlog.dirs={}\n",
            protocols(further(PROTOCOLS)),
            proxied.upstream,
            proxied.advertised,
            dir.join("logs").display(),
        );
        for (key, value) in overrides.iter().filter(|(key, _)| ![LISTENERS, PROTOCOLS, JVM].contains(key)) {
            writeln!(settings, "{key}={value}").unwrap();
        }
        let file = dir.join("server.properties");
        fs::write(&file, settings).unwrap();
        let broker = Kafka {
            dir,
            jit,
            jvm_options: overrides
                .iter()
                .filter(|(key, _)| *key == JVM)
                .map(|(_, value)| (*value).to_owned())
                .collect(),
            bootstrap: format!("127.0.0.1:{direct}"),
            address: format!("127.0.0.1:{direct}"),
            proxied,
            controller,
            nodes: place.nodes,
            child: Mutex::new(None),
            admin: OnceLock::new(),
            consumers: Mutex::default(),
            started_in: Duration::ZERO,
        };
        let file = file.to_str().expect("a path in UTF-8");
        tool("kafka.tools.StorageTool", &["format", "-t", CLUSTER_ID, "-c", file]);
        broker
    }

    /// Starts the process and waits until it serves requests. Otherwise returns the end of its log.
    fn run(&self) -> Result<Duration, String> {
        let start = monotonic();
        self.spawn();
        self.wait_serving()?;
        Ok(start.elapsed())
    }

    fn spawn(&self) {
        self.spawn_with(&shared_classes());
    }

    fn spawn_with(&self, classes: &[String]) {
        let log = File::options().create(true).append(true).open(self.log_file()).unwrap();
        let mut java = child::tied("java");
        let heap = if self.nodes > 2 { HEAP_OF_SEVERAL } else { HEAP_OF_ONE };
        java.args(classes)
            .args([self.jit, heap, "-Dorg.slf4j.simpleLogger.showDateTime=true", "-cp", &class_path()])
            .args(&self.jvm_options)
            .args(["kafka.Kafka"])
            .arg(self.dir.join("server.properties"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        *self.child.lock().unwrap() = Some(child::spawn(java));
    }

    /// Waits until all nodes are running and every partition has a leader.
    pub fn wait_serving(&self) -> Result<(), String> {
        let start = monotonic();
        while !self.serves() {
            if self.has_exited() || start.elapsed() > START_LIMIT {
                return Err(self.log_tail(60));
            }
        }
        Ok(())
    }

    /// Kills the process, as `kill -9` does.
    pub fn kill9(&self) {
        if let Some(mut child) = self.child.lock().unwrap().take() {
            child.kill().expect("the broker can be killed");
            child.wait().expect("the broker can be waited for");
        }
    }

    /// Restarts it on the same directory and ports. Kills it first if it is running. Waits until it serves requests
    /// and every partition has a leader, and returns the duration.
    pub fn restart(&self) -> Duration {
        self.kill9();
        self.run().unwrap_or_else(|log| panic!("Kafka did not restart. The end of its log:\n{log}"))
    }

    /// Restarts it without waiting.
    pub fn restart_unawaited(&self) {
        self.kill9();
        self.spawn();
    }

    /// Sends SIGTERM and waits until it has ended.
    pub fn stop(&self) {
        let Some(pid) = self.pid() else { return };
        child::signal(pid, "TERM");
        super::wait_until("Kafka to stop", STOP_LIMIT, || self.has_exited().then_some(()));
        self.child.lock().unwrap().take();
    }

    /// Freezes the process: connections stay open, and it does not respond.
    pub fn sigstop(&self) {
        child::signal(self.pid().expect("a running broker"), "STOP");
    }

    /// Continues the process.
    pub fn sigcont(&self) {
        child::signal(self.pid().expect("a running broker"), "CONT");
    }

    /// Whether the process has ended, by a kill or by itself.
    pub fn has_exited(&self) -> bool {
        self.child.lock().unwrap().as_mut().is_none_or(|child| child.try_wait().unwrap().is_some())
    }

    /// The process id, while it is running.
    pub fn pid(&self) -> Option<u32> {
        self.child.lock().unwrap().as_ref().map(Child::id)
    }

    /// `host:port` of the listener without the proxy.
    pub fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// Starts the proxy in front of the second listener. Its clients use [`Proxy::bootstrap`]. Only one proxy at a
    /// time is possible, because there is one advertised port.
    pub fn proxy(&self) -> Proxy {
        Proxy::start(self.proxied.advertised, self.proxied.upstream)
    }

    /// A client configuration for the direct listener.
    pub fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.bootstrap);
        config.set("reconnect.backoff.ms", "20").set("reconnect.backoff.max.ms", "200");
        config
    }

    /// Time from the start of the process until it served requests, without formatting the storage.
    pub fn started_in(&self) -> Duration {
        self.started_in
    }

    /// The directory of the broker.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn log_file(&self) -> PathBuf {
        self.dir.join("broker.log")
    }

    /// The log of the broker since its first start.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log_file()).unwrap_or_default()).into_owned()
    }

    fn log_tail(&self, lines: usize) -> String {
        let log = self.log();
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        self.kill9();
        if thread::panicking() {
            eprintln!("the broker's directory is kept until the next test run: {}", self.dir.display());
        } else if let Err(error) = fs::remove_dir_all(&self.dir) {
            eprintln!("cannot remove {}: {error}", self.dir.display());
        }
    }
}

/// The line with the protocol of each listener, if there are more listeners than in [`SETTINGS`].
fn protocols(further: &str) -> String {
    let key = "listener.security.protocol.map=";
    let known = SETTINGS.lines().find(|line| line.starts_with(key)).unwrap();
    if further.is_empty() { String::new() } else { format!("\n{known}{further}") }
}

/// Creates the archive of [`shared_classes`] if there is none: a broker writes it when it stops.
fn archive_classes() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if class_archive().exists() {
            return;
        }
        let place = Place { controller: free_port(), controls: true, nodes: 1 };
        let broker = Kafka::prepare(place, QUICK_JIT, &[]);
        let part = broker.dir.join("classes.jsa");
        broker.spawn_with(&[format!("-XX:ArchiveClassesAtExit={}", part.display())]);
        broker.wait_serving().unwrap_or_else(|log| panic!("Kafka did not start:\n{log}"));
        broker.stop();
        fs::rename(part, class_archive()).ok(); // a JVM that cannot write archives starts more slowly
    });
}

/// A new directory in cargo's directory for tests. The first call removes those of test processes that have ended.
fn fresh_dir() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let root = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    if count == 0 {
        for entry in fs::read_dir(root).unwrap().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let owner = name.strip_prefix("kafka-").and_then(|rest| rest.split('-').next());
            if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                fs::remove_dir_all(entry.path()).ok(); // two test processes may remove the same one
            }
        }
    }
    let dir = root.join(format!("kafka-{}-{count}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    dir
}
