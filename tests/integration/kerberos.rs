//! GSSAPI with a real KDC (MIT Kerberos) and a real Apache Kafka: connections are authenticated with tickets, which are
//! renewed, and a ticket that cannot be acquired is reported with the reason.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use crate::support::kafka::JVM;
use crate::support::ports::free_port;
use crate::support::secured::variable;
use crate::support::{Kafka, Pipe, Running, Sidecar, child, wait_until};

const LIMIT: Duration = Duration::from_mins(1);
const REALM: &str = "TEST.LOCAL";
const CLIENT: &str = "dedupd@TEST.LOCAL";
const BROKER: &str = "kafka/127.0.0.1@TEST.LOCAL";
/// Lifetime of a ticket.
const LIFETIME: Duration = Duration::from_secs(30);
/// How long a connection may be used until it has to be authenticated again.
const SESSION_MS: &str = "10000";

/// A KDC with its database in a directory. It can be stopped and started.
struct Kdc {
    dir: tempfile::TempDir,
    port: u16,
    process: Mutex<Option<Running>>,
}

impl Kdc {
    fn start() -> Self {
        let kdc = Self { dir: tempfile::tempdir().unwrap(), port: free_port(), process: Mutex::default() };
        let (dir, port) = (kdc.dir.path().display(), kdc.port);
        let client = format!(
            "[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n rdns = false\n \
             dns_canonicalize_hostname = false\n udp_preference_limit = 1\n\
             [realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{port}\n }}\n"
        );
        let server = format!(
            "[kdcdefaults]\n kdc_listen = 127.0.0.1:{port}\n kdc_tcp_listen = 127.0.0.1:{port}\n\
             [realms]\n {REALM} = {{\n  database_name = {dir}/principal\n  key_stash_file = {dir}/stash\n  \
             max_life = {}s\n }}\n",
            LIFETIME.as_secs()
        );
        fs::write(kdc.file("krb5.conf"), client).unwrap();
        fs::write(kdc.file("kdc.conf"), server).unwrap();
        kdc.admin("kdb5_util", &["create", "-s", "-r", REALM, "-P", "master"]);
        for (principal, keytab) in [(BROKER, "broker.keytab"), (CLIENT, "client.keytab")] {
            kdc.admin("kadmin.local", &["-r", REALM, "addprinc", "-randkey", principal]);
            let path = kdc.file(keytab);
            kdc.admin("kadmin.local", &["-r", REALM, "ktadd", "-k", path.to_str().unwrap(), principal]);
        }
        kdc.run();
        kdc
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn environment(&self) -> [(&'static str, PathBuf); 2] {
        [("KRB5_CONFIG", self.file("krb5.conf")), ("KRB5_KDC_PROFILE", self.file("kdc.conf"))]
    }

    fn admin(&self, program: &str, arguments: &[&str]) {
        let output =
            Command::new(installed(program)).args(arguments).envs(self.environment()).output().unwrap();
        assert!(
            output.status.success(),
            "{program} {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Starts the process, and waits until it has opened its port.
    fn run(&self) {
        let mut command = child::tied(installed("krb5kdc"));
        command.arg("-n").args(["-P", self.file("pid").to_str().unwrap()]).envs(self.environment());
        let running = Running::start(command, self.port, self.file("kdc.log"));
        wait_until(&format!("the KDC:\n{}", running.text()), LIMIT, || {
            std::net::TcpStream::connect(("127.0.0.1", self.port)).ok()
        });
        *self.process.lock().unwrap() = Some(running);
    }

    fn stop(&self) {
        self.process.lock().unwrap().take();
    }
}

/// The path of a program that may be outside of `PATH`.
fn installed(program: &str) -> PathBuf {
    let path = Path::new("/usr/sbin").join(program);
    assert!(path.exists(), "{} is missing: run scripts/setup integration", path.display());
    path
}

/// A KDC and a broker in its realm.
struct Kerberized {
    kdc: Kdc,
    kafka: Kafka,
    listener: u16,
}

fn shared() -> &'static Kerberized {
    static SHARED: OnceLock<Kerberized> = OnceLock::new();
    SHARED.get_or_init(Kerberized::start)
}

impl Kerberized {
    fn start() -> Self {
        let (kdc, listener) = (Kdc::start(), free_port());
        let login = format!(
            "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true keyTab=\"{}\" \
             principal=\"{BROKER}\";",
            kdc.file("broker.keytab").display()
        );
        let conf = format!("-Djava.security.krb5.conf={}", kdc.file("krb5.conf").display());
        let kafka = Kafka::start_listening(
            &[("KERBEROS", listener, "SASL_PLAINTEXT")],
            &[
                (JVM, &conf),
                ("sasl.enabled.mechanisms", "GSSAPI"),
                ("sasl.kerberos.service.name", "kafka"),
                ("listener.name.kerberos.gssapi.sasl.jaas.config", &login),
                ("listener.name.kerberos.gssapi.connections.max.reauth.ms", SESSION_MS),
            ],
        );
        Self { kdc, kafka, listener }
    }

    /// The sidecar with this keytab and its own cache of tickets.
    fn through(&self, mut sidecar: Sidecar, keytab: &str) -> Sidecar {
        sidecar.bootstrap = format!("127.0.0.1:{}", self.listener);
        let cache = format!("FILE:{}", sidecar.state_dir.with_extension("tickets").display());
        let keytab = self.kdc.file(keytab).display().to_string();
        let properties = [
            ("security.protocol", "sasl_plaintext"),
            ("sasl.mechanism", "GSSAPI"),
            ("sasl.kerberos.principal", CLIENT),
            ("sasl.kerberos.keytab", &keytab),
            ("sasl.kerberos.min.time.before.relogin", "10000"),
        ];
        let sidecar = properties.iter().fold(sidecar, |it, (name, value)| it.with(&variable(name), value));
        sidecar.with("KRB5_CONFIG", self.kdc.file("krb5.conf").to_str().unwrap()).with("KRB5CCNAME", &cache)
    }
}

#[test]
fn tickets_are_renewed_and_connections_authenticated_again_during_a_run() {
    let it = shared();
    let pipe = Pipe::new(&it.kafka, "kerberos", 2);
    let load = pipe.load(2, 300);
    // The copies of the load have other content.
    let sidecar = pipe.sidecar("a").with("DEDUPD_IDENTITY__COMPARE", "off");
    let sidecar = it.through(sidecar, "client.keytab");
    let running = sidecar.start();
    running.wait_running(2, LIMIT);
    std::thread::sleep(LIFETIME * 3);
    load.finish();
    pipe.wait_caught_up(2, LIMIT);
    assert_eq!(running.metric("dedupd_ready"), Some(1.0));
    assert_eq!(running.complaints(), Vec::<String>::new());
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    pipe.assert_exactly_once();
    sidecar.audit().unwrap();
}

#[test]
fn a_missing_ticket_is_reported_and_the_process_continues_when_there_is_one() {
    let it = shared();
    let pipe = Pipe::new(&it.kafka, "keytab", 1);
    let running = it.through(pipe.sidecar("a"), "later.keytab").start();
    let words = ["Kerberos", "sasl.kerberos.keytab"];
    let page = wait_until(&format!("{words:?} on /readyz, see {}", running.log.display()), LIMIT, || {
        running.get("/readyz").filter(|page| words.iter().all(|word| page.contains(word)))
    });
    println!("{}", page.lines().last().unwrap_or_default());
    assert!(page.starts_with("HTTP/1.1 503"), "{page}");
    fs::copy(it.kdc.file("client.keytab"), it.kdc.file("later.keytab")).unwrap();
    running.wait_ready(Duration::from_mins(2));
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

#[test]
fn an_outage_of_the_kdc_that_outlasts_the_ticket_is_temporary() {
    let it = Kerberized::start();
    let pipe = Pipe::new(&it.kafka, "kdc.outage", 1);
    let load = pipe.load(1, 200);
    let running = it.through(pipe.sidecar("a"), "client.keytab").start();
    running.wait_running(1, LIMIT);
    it.kdc.stop();
    std::thread::sleep(LIFETIME * 2);
    assert!(running.get("/livez").unwrap().starts_with("HTTP/1.1 200"));
    println!("{:?}", running.get("/readyz"));
    println!("{}", running.complaints().join("\n"));
    it.kdc.run();
    running.wait_ready(Duration::from_mins(2));
    pipe.finish(load, [&running]);
}
