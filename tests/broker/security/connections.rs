//! Connections: valid certificates, users and passwords work, and invalid ones are reported with the reason.

use std::process::Command;
use std::time::Duration;

use dedupd::clock::monotonic;

use super::{LIMIT, Properties, TLS, sasl, shared};
use crate::support::ports::free_port;
use crate::support::secured::TRUSTED;
use crate::support::{Pipe, Secured, wait_until};

/// Runs traffic through this listener and checks that it arrives exactly once.
fn assert_works(name: &str, listener: &str, properties: Properties<'_>) {
    let secured = shared();
    let pipe = Pipe::new(&secured.kafka, name, 2);
    let load = pipe.load(2, 1_000);
    let running = secured.through(pipe.sidecar("a"), listener, properties).start();
    running.wait_running(2, LIMIT);
    load.more(1_000);
    pipe.finish(load, [&running]);
}

#[test]
fn records_are_forwarded_over_tls() {
    assert_works("tls", "TLS", TLS);
}

#[test]
fn records_are_forwarded_over_tls_with_a_client_certificate() {
    let own = [("ssl.certificate.location", "@trusted.crt"), ("ssl.key.location", "@trusted.key")];
    assert_works("mtls", "MTLS", &[TLS, &own].concat());
}

#[test]
fn records_are_forwarded_with_plain_and_scram() {
    assert_works("plain", "SASLTLS", &sasl("sasl_ssl", "PLAIN", "trusted", TRUSTED));
    assert_works("scram", "SASLTLS", &sasl("sasl_ssl", "SCRAM-SHA-512", "trusted", TRUSTED));
    assert_works("bare", "SASLPLAIN", &sasl("sasl_plaintext", "SCRAM-SHA-512", "trusted", TRUSTED));
}

/// The expected result: exit code 3, or alive and not ready.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fate {
    Ends,
    Waits,
}

fn assert_reported(name: &str, listener: &str, properties: Properties<'_>, fate: Fate, words: &[&str]) {
    let secured = shared();
    let pipe = Pipe::new(&secured.kafka, name, 1);
    let began = monotonic();
    let running = secured.through(pipe.sidecar("a"), listener, properties).start();
    let has = |text: &str| words.iter().all(|word| text.contains(word));
    let page =
        wait_until(&format!("{words:?} on /readyz of {name}: {}", running.log.display()), LIMIT, || {
            running.get("/readyz").filter(|page| has(page))
        });
    assert!(page.starts_with("HTTP/1.1 503"), "{page}");
    println!(
        "{name} ({fate:?}, reported after {:?}): {}",
        began.elapsed(),
        page.lines().last().unwrap_or_default()
    );
    match fate {
        Fate::Ends => {
            let code = running.wait(LIMIT).code();
            assert_eq!(code, Some(3), "{}", running.text());
            assert!(has(running.text().lines().last().unwrap()), "{}", running.text());
        }
        Fate::Waits => {
            assert!(running.get("/livez").unwrap().starts_with("HTTP/1.1 200"));
            assert!(has(&running.text()), "{}", running.text());
            assert_eq!(running.ended(), None);
            assert_eq!(running.stop(), Some(0), "{}", running.text());
        }
    }
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
}

/// Name, listener, client properties and expected words of a client that cannot connect.
type Rejected<'a> = (&'a str, &'a str, Properties<'a>, &'a [&'a str]);

/// Checks all cases at the same time: most of the time each one waits for further attempts to connect.
fn assert_all_reported(fate: Fate, cases: &[Rejected<'_>]) {
    std::thread::scope(|all| {
        for (name, listener, properties, words) in cases {
            all.spawn(move || assert_reported(name, listener, properties, fate, words));
        }
    });
}

#[test]
fn a_rejected_certificate_is_reported_with_the_reason() {
    let untrusted = [("security.protocol", "ssl"), ("ssl.ca.location", "@stranger.pem")];
    let issuer = ["CN=ca", "its issuer is not among the trusted ones", "ssl.ca.location"];
    let client = ["does not accept this client's certificate", "ssl.certificate.location"];
    let cases: [Rejected<'_>; 4] = [
        ("untrusted", "TLS", &untrusted, &issuer),
        ("misnamed", "MISNAMED", TLS, &["CN=misnamed", "not for the host"]),
        ("expired", "EXPIRED", TLS, &["CN=expired", "it has expired"]),
        ("uncertified", "MTLS", TLS, &client),
    ];
    assert_all_reported(Fate::Ends, &cases);
}

#[test]
fn a_wrong_password_or_mechanism_is_reported() {
    let user = |mechanism, password| sasl("sasl_ssl", mechanism, "trusted", password);
    let (plain, scram) = (user("PLAIN", "wrong"), user("SCRAM-SHA-512", "wrong"));
    let other = user("SCRAM-SHA-256", TRUSTED);
    let password = ["does not accept the user or password", "sasl.password"];
    let cases: [Rejected<'_>; 3] = [
        ("pw.plain", "SASLTLS", &plain, &password),
        ("pw.scram", "SASLTLS", &scram, &password),
        ("mechanism", "SASLTLS", &other, &["does not offer this SASL mechanism", "PLAIN,SCRAM-SHA-512"]),
    ];
    assert_all_reported(Fate::Ends, &cases);
}

#[test]
fn a_port_with_another_protocol_is_reported_and_retried() {
    let plain = sasl("sasl_plaintext", "PLAIN", "trusted", TRUSTED);
    let requires_tls = ["this port seems to require TLS", "security.protocol"];
    let cases: [Rejected<'_>; 4] = [
        ("tls.to.plain", "SASLPLAIN", TLS, &["this port does not seem to use TLS", "security.protocol"]),
        ("plain.to.tls", "TLS", &[], &requires_tls),
        ("sasl.to.tls", "SASLTLS", &plain, &requires_tls),
        ("plain.to.sasl", "SASLPLAIN", &[], &["this port seems to require SASL"]),
    ];
    assert_all_reported(Fate::Waits, &cases);
}

/// Runs the commands that read and write topics against a listener: the exit code, and the error contains the words.
fn assert_commands_report(
    secured: &Secured,
    servers: &str,
    properties: Properties<'_>,
    code: i32,
    words: &[&str],
) {
    for arguments in
        [["audit", "--raw", "none", "--clean", "nothing"].as_slice(), &["generate", "--topic", "none"]]
    {
        let began = monotonic();
        let mut command = Command::new(env!("CARGO_BIN_EXE_dedupd"));
        command.args(arguments).args(["--bootstrap-servers", servers]);
        if arguments[0] == "audit" {
            command.args(["--id", "key"]);
        }
        for (name, value) in properties {
            command.args(["-X", &format!("{name}={}", secured.resolve(value))]);
        }
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        println!("{} after {:?}: {stderr}", arguments[0], began.elapsed());
        assert!(words.iter().all(|word| stderr.contains(word)), "{words:?}: {stderr}");
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
        assert!(!stderr.contains("wrong-canary"), "{stderr}");
    }
}

#[test]
fn audit_and_generate_report_why_they_cannot_connect() {
    let secured = shared();
    let at = |listener: &str| secured.at(listener);
    let unused = format!("127.0.0.1:{}", free_port());
    let wrong = sasl("sasl_ssl", "PLAIN", "trusted", "wrong-canary");
    let untrusted = [("security.protocol", "ssl"), ("ssl.ca.location", "@stranger.pem")];
    let plain = sasl("sasl_plaintext", "PLAIN", "trusted", "wrong-canary");
    let no_sasl = ["this port does not use SASL", "security.protocol"];
    let cases: [(String, Properties<'_>, i32, &[&str]); 6] = [
        (secured.kafka.bootstrap().to_owned(), &plain, 8, &no_sasl),
        (unused, &[], 8, &["no connection to 127.0.0.1", "Connection refused", "check that the broker runs"]),
        (at("SASLPLAIN"), TLS, 8, &["this port does not seem to use TLS", "security.protocol"]),
        (at("TLS"), &[], 8, &["this port seems to require TLS"]),
        (at("SASLTLS"), &wrong, 3, &["does not accept the user or password", "sasl.password"]),
        (at("TLS"), &untrusted, 3, &["its issuer is not among the trusted ones"]),
    ];
    std::thread::scope(|all| {
        for (servers, properties, code, words) in &cases {
            all.spawn(|| assert_commands_report(secured, servers, properties, *code, words));
        }
    });
}

/// A broker that stops during handshakes looks like one that rejects certificates and passwords.
#[test]
fn a_broker_that_restarts_repeatedly_does_not_end_the_process() {
    let secured = Secured::start();
    let pipe = Pipe::new(&secured.kafka, "restarts", 2);
    let load = pipe.load(2, 500);
    let properties = sasl("sasl_ssl", "SCRAM-SHA-512", "trusted", TRUSTED);
    let running = secured.through(pipe.sidecar("a"), "SASLTLS", &properties).start();
    running.wait_running(2, LIMIT);
    for round in 0..4 {
        load.more(300);
        if round % 2 == 0 {
            secured.kafka.kill9();
        } else {
            // It refuses connections while it shuts down.
            secured.kafka.stop();
        }
        secured.kafka.restart();
        running.wait_running(2, Duration::from_mins(1));
    }
    load.more(300);
    pipe.finish(load, [&running]);
}

/// While the password is wrong, the process is alive and not ready, and reports the reason. It continues when the
/// password is right again.
#[test]
fn a_password_changed_on_the_broker_is_a_temporary_outage() {
    let secured = Secured::start();
    let pipe = Pipe::new(&secured.kafka, "rotated", 1);
    let properties = sasl("sasl_ssl", "SCRAM-SHA-512", "trusted", TRUSTED);
    let running = secured.through(pipe.sidecar("a"), "SASLTLS", &properties).start();
    running.wait_running(1, LIMIT);
    secured.set_password("trusted", "another-passphrase");
    // Open connections are not authenticated again.
    secured.kafka.kill9();
    secured.kafka.restart();
    let words = "does not accept the user or password";
    let page = wait_until("the reason on /readyz", Duration::from_mins(1), || {
        running.get("/readyz").filter(|page| page.contains(words))
    });
    assert!(page.starts_with("HTTP/1.1 503"), "{page}");
    assert!(running.get("/livez").unwrap().starts_with("HTTP/1.1 200"));
    secured.set_password("trusted", TRUSTED);
    running.wait_ready(Duration::from_mins(1));
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}
