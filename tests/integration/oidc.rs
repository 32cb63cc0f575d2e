//! OAUTHBEARER with tokens of a real OIDC provider (Keycloak) on a real Apache Kafka: every command authenticates, tokens are
//! refreshed, and a token that cannot be acquired or is rejected is reported with the reason.

mod assertion;
mod https;
mod keycloak;

use std::process::{Command, Output};
use std::time::Duration;

use dedupd::clock::monotonic;

use crate::gate::Gate;
use crate::support::secured::variable;
use crate::support::{Pipe, Rekey, Running, Sidecar, wait_until};
use keycloak::{LIFETIME, SECRET, endpoint, properties, shared};

const LIMIT: Duration = Duration::from_mins(1);

type Properties = Vec<(String, String)>;

fn with(mut sidecar: Sidecar, properties: &Properties) -> Sidecar {
    sidecar.bootstrap = shared().bootstrap();
    properties.iter().fold(sidecar, |sidecar, (name, value)| sidecar.with(&variable(name), value))
}

/// The properties with a token endpoint on this port.
fn by_port(port: u16) -> Properties {
    properties(&endpoint(port), "dedupd", SECRET)
}

fn run(arguments: &[&str], properties: &Properties) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dedupd"));
    command.args(arguments).args(["--bootstrap-servers", &shared().bootstrap()]);
    for (name, value) in properties {
        command.args(["-X", &format!("{name}={value}")]);
    }
    command.output().unwrap()
}

fn assert_runs(arguments: &[&str], properties: &Properties) {
    let output = run(arguments, properties);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let all = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {all}");
    assert!(!all.contains(SECRET), "{all}");
}

/// The reason on `/readyz`, with these words.
fn wait_reported(running: &Running, words: &[&str]) -> String {
    let what = format!("{words:?} on /readyz, see {}", running.log.display());
    let page = wait_until(&what, LIMIT, || {
        running.get("/readyz").filter(|page| words.iter().all(|word| page.contains(word)))
    });
    assert!(page.starts_with("HTTP/1.1 503"), "{page}");
    println!("{}", page.lines().last().unwrap_or_default());
    page
}

/// The start ends with code 3, and `/readyz` and the last line have these words.
fn assert_start_ends(name: &str, properties: &Properties, words: &[&str]) {
    let pipe = Pipe::new(&shared().kafka, name, 1);
    let began = monotonic();
    let running = with(pipe.sidecar("a"), properties).start();
    wait_reported(&running, words);
    assert_eq!(running.wait(LIMIT).code(), Some(3), "{}", running.text());
    println!("{name}: ended after {:?}", began.elapsed());
    let last = running.text().lines().last().unwrap_or_default().to_owned();
    assert!(words.iter().all(|word| last.contains(word)), "{last}");
}

/// The errors of other commands have these words, and no secret.
fn assert_commands_report(properties: &Properties, words: &[&str]) {
    for arguments in [
        ["audit", "--raw", "none", "--clean", "nothing", "--id", "key"].as_slice(),
        &["generate", "--topic", "none"],
        &["check", "--raw", "none", "--clean", "nothing", "--id", "key"],
    ] {
        let output = run(arguments, properties);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        println!("{stderr}");
        assert!(
            !output.status.success() && words.iter().all(|word| stderr.contains(word)),
            "{words:?}: {stderr}"
        );
        assert!(!stderr.contains("canary"), "{stderr}");
    }
}

#[test]
fn tokens_are_refreshed_and_connections_authenticated_again_during_a_run() {
    let oidc = shared();
    let gate = Gate::start(oidc.keycloak.port);
    let pipe = Pipe::new(&oidc.kafka, "refreshed", 2);
    let load = pipe.load(2, 300);
    // The copies of the load have other content.
    let sidecar = pipe.sidecar("a").with("DEDUPD_IDENTITY__COMPARE", "off");
    let running = with(sidecar, &by_port(gate.port)).start();
    running.wait_running(2, LIMIT);
    let at_start = gate.connections();
    std::thread::sleep(LIFETIME * 3);
    let refreshed = gate.connections() - at_start;
    load.finish();
    pipe.wait_caught_up(2, LIMIT);
    println!("{at_start} token requests until running, {refreshed} in three lifetimes");
    // Each of several clients refreshes its token after 80 % of its lifetime.
    assert!(refreshed >= 9, "{refreshed} token requests");
    let authenticated = running.metric("dedupd_ready");
    assert_eq!(authenticated, Some(1.0));
    assert_eq!(running.complaints(), Vec::<String>::new());
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    pipe.assert_exactly_once();
}

/// Records pass an instance with these properties; audit and check succeed with them.
fn assert_deduplicates(pipe: &Pipe<'_>, properties: &Properties) {
    let sidecar = with(pipe.sidecar("a"), properties);
    pipe.through(2, &sidecar);
    sidecar.audit().unwrap();
    let topics = ["--raw", &pipe.raw, "--clean", &pipe.clean, "--id", "json:/id"];
    assert_runs(&[&["check"], &topics[..]].concat(), properties);
}

#[test]
fn every_command_authenticates() {
    let oidc = shared();
    let properties = by_port(oidc.keycloak.port);
    let generate = ["generate", "--topic", "commands.source", "--records", "2000", "--partitions", "2"];
    assert_runs(&generate, &properties);
    let pipe = Pipe::new(&oidc.kafka, "commands", 2);
    let mut rekey = Rekey::new(&oidc.kafka, &pipe.raw, "--from commands.source --id json:/id");
    rekey.bootstrap = oidc.bootstrap();
    rekey.environment.extend(properties.iter().map(|(name, value)| (variable(name), value.clone())));
    let rekeying = rekey.start();
    rekey.wait_done(&oidc.kafka, &["commands.source"]);
    assert_eq!(rekeying.stop(), Some(0), "{}", rekeying.text());
    assert_deduplicates(&pipe, &properties);
}

#[test]
fn a_rejected_client_secret_and_a_rejected_token_end_the_start_with_the_reason() {
    let oidc = shared();
    let own = endpoint(oidc.keycloak.port);
    let cases = [
        (
            "wrong.secret",
            properties(&own, "dedupd", "wrong-secret-canary"),
            ["unauthorized_client", "client.secret"],
        ),
        ("wrong.audience", properties(&own, "elsewhere", SECRET), ["invalid_token", "audience"]),
    ];
    for (name, properties, words) in &cases {
        assert_start_ends(name, properties, words);
        assert_commands_report(properties, words);
    }
}

#[test]
fn an_unreachable_provider_at_the_start_is_an_outage() {
    let oidc = shared();
    let gate = Gate::start(oidc.keycloak.port);
    gate.refuse(true);
    let pipe = Pipe::new(&oidc.kafka, "unreachable", 1);
    let running = with(pipe.sidecar("a"), &by_port(gate.port)).start();
    wait_reported(&running, &["no token", "sasl.oauthbearer.token.endpoint.url"]);
    std::thread::sleep(Duration::from_secs(15));
    assert!(running.get("/livez").unwrap().starts_with("HTTP/1.1 200"));
    gate.refuse(false);
    running.wait_ready(LIMIT);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

#[test]
fn an_outage_of_the_provider_that_outlasts_the_token_is_temporary() {
    let oidc = shared();
    let gate = Gate::start(oidc.keycloak.port);
    let pipe = Pipe::new(&oidc.kafka, "expired", 2);
    let load = pipe.load(2, 200);
    let running = with(pipe.sidecar("a"), &by_port(gate.port)).start();
    running.wait_running(2, LIMIT);
    gate.refuse(true);
    // The last token expires, and the broker ends the sessions.
    wait_reported(&running, &["token"]);
    assert!(running.get("/livez").unwrap().starts_with("HTTP/1.1 200"));
    std::thread::sleep(LIFETIME);
    gate.refuse(false);
    running.wait_ready(LIMIT);
    load.finish();
    pipe.wait_caught_up(2, LIMIT);
    println!("{} complaints:\n{}", running.complaints().len(), running.complaints().join("\n"));
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    pipe.assert_exactly_once();
}
