//! Kafka Connect with one connector, and `PostgreSQL`, as processes on 127.0.0.1.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::{Kafka, Running, child, jvm::QUICK_JIT, ports::free_port, wait_until};

pub const LIMIT: Duration = Duration::from_mins(2);

/// A worker of Kafka Connect in standalone mode. It stores its offsets when it stops only, so a kill makes it write again what it has written.
pub struct Connect {
    dir: PathBuf,
    port: u16,
}

impl Connect {
    /// A worker that writes to `kafka`, with these settings of its own and a connector with those.
    pub fn new(kafka: &Kafka, dir: &Path, worker: &str, connector: &str) -> Self {
        let port = free_port();
        let worker = format!(
            "bootstrap.servers={}\nlisteners=http://127.0.0.1:{port}\noffset.storage.file.filename={}\n\
             offset.flush.interval.ms=3600000\nplugin.discovery=service_load\n{worker}",
            kafka.bootstrap(),
            dir.join("offsets").display(),
        );
        std::fs::write(dir.join("worker.properties"), worker).unwrap();
        std::fs::write(dir.join("connector.properties"), format!("name=connector\n{connector}")).unwrap();
        Self { dir: dir.to_owned(), port }
    }

    /// Starts it and waits until its task runs.
    pub fn start(&self) -> Running {
        let libs = installed("connect/libs");
        let mut java = child::tied("java");
        java.args([QUICK_JIT, "-Xmx512m", "-cp", libs.join("*").to_str().unwrap()])
            .arg("org.apache.kafka.connect.cli.ConnectStandalone")
            .args(["worker.properties", "connector.properties"].map(|file| self.dir.join(file)));
        let running = Running::start(java, self.port, self.dir.join("connect.log"));
        wait_until(&format!("the connector, see {}", running.log.display()), LIMIT, || {
            assert!(running.ended().is_none(), "Kafka Connect has ended:\n{}", running.text());
            let status = running.get("/connectors/connector/status")?;
            assert!(!status.contains("FAILED"), "{status}");
            status.contains(r#""tasks":[{"id":0,"state":"RUNNING""#).then_some(())
        });
        running
    }
}

/// What `scripts/setup integration` has installed under this name.
pub fn installed(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(".integration").join(name);
    assert!(path.exists(), "{} is missing; run scripts/setup integration", path.display());
    path
}

/// Waits until a topic has this number of records.
pub fn wait_records(kafka: &Kafka, topic: &str, count: usize, of: &Running) {
    wait_until(&format!("{count} records in {topic}, see {}", of.log.display()), LIMIT, || {
        if kafka.partitions(topic) == 0 {
            return None;
        }
        let ends = (0..kafka.partitions(topic)).map(|p| kafka.watermarks(topic, i32::try_from(p).unwrap()).1);
        (ends.sum::<i64>() >= i64::try_from(count).unwrap()).then_some(())
    });
}

/// A database server with the write-ahead log that logical decoding needs. Everybody on this machine may log in.
pub struct Postgres {
    running: Running,
    programs: PathBuf,
    pub port: u16,
}

impl Postgres {
    pub fn start(dir: &Path) -> Self {
        let programs = std::fs::read_dir("/usr/lib/postgresql").ok().into_iter().flatten().flatten();
        let programs =
            programs.map(|version| version.path().join("bin")).find(|bin| bin.join("initdb").exists());
        let programs = programs.expect("no PostgreSQL in /usr/lib/postgresql; run scripts/setup integration");
        let (port, home) = (free_port(), dir.join("postgres"));
        std::fs::create_dir(&home).unwrap();
        let data = home.join("data");
        let mut by = Vec::new();
        if rustix::process::getuid().is_root() {
            // The server refuses to run as root.
            by.extend([
                "setpriv",
                "--reuid=postgres",
                "--regid=postgres",
                "--clear-groups",
                "--pdeathsig=KILL",
            ]);
            run(Command::new("chmod").arg("711").arg(dir));
            run(Command::new("chown").arg("postgres:postgres").arg(&home));
        }
        let as_user = |program: &str| {
            let mut words = by.iter().map(PathBuf::from).collect::<Vec<_>>();
            words.push(programs.join(program));
            words
        };
        let initdb = as_user("initdb");
        let mut command = Command::new(&initdb[0]);
        run(command
            .args(&initdb[1..])
            .current_dir("/")
            .args(["-A", "trust", "-U", "postgres", "-N", "-D"])
            .arg(&data));
        let server = as_user("postgres");
        let mut command = child::tied(&server[0]);
        command.args(&server[1..]).current_dir("/").args(["-p", &port.to_string(), "-D"]).arg(&data);
        for setting in
            ["listen_addresses=127.0.0.1", "unix_socket_directories=", "wal_level=logical", "fsync=off"]
        {
            command.args(["-c", setting]);
        }
        let running = Running::start(command, port, dir.join("postgres.log"));
        wait_until(&format!("PostgreSQL, see {}", running.log.display()), LIMIT, || {
            assert!(running.ended().is_none(), "PostgreSQL has ended:\n{}", running.text());
            running.text().contains("ready to accept connections").then_some(())
        });
        Self { running, programs, port }
    }

    /// Executes statements, each in a transaction of its own.
    pub fn execute(&self, statements: &[&str]) {
        let mut psql = Command::new(self.programs.join("psql"));
        psql.args([
            "-q",
            "-v",
            "ON_ERROR_STOP=1",
            "-h",
            "127.0.0.1",
            "-U",
            "postgres",
            "-p",
            &self.port.to_string(),
        ]);
        for statement in statements {
            psql.args(["-c", statement]);
        }
        run(&mut psql);
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.running.signal("QUIT");
        self.running.wait_within(Duration::from_secs(10));
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
