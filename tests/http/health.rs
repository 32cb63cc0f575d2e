//! `dedupd health`, against the server whose status it reports.

use std::net::SocketAddr;

use dedupd::http::ClientLimits;

use super::{Server, running};

/// The exit code of `dedupd health`, and what it prints.
fn health(address: SocketAddr, flags: &[&str]) -> (Option<i32>, String) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_dedupd"));
    let output = command.arg("health").args(flags).env("DEDUPD_HTTP__LISTEN", address.to_string()).output();
    let output = output.unwrap();
    (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[test]
fn the_health_command_reports_what_the_instance_reports() {
    let mut server = Server::start(ClientLimits::default());
    let everywhere = SocketAddr::new([0, 0, 0, 0].into(), server.address.port());
    assert_eq!(health(everywhere, &[]), (Some(1), "not ready\nworker 0: is starting\n".to_owned()));
    assert_eq!(health(everywhere, &["--live"]), (Some(0), "alive\n".to_owned()));
    server.status.publish(0, running());
    assert_eq!(health(server.address, &[]), (Some(0), "ready\n".to_owned()));
    let listen = server.address.to_string();
    let wrong = "127.0.0.1:1".parse().unwrap();
    assert_eq!(health(wrong, &["--listen", &listen]).0, Some(0), "a flag overrides the environment");
    server.status.fail("worker 0 panicked");
    assert_eq!(health(server.address, &["--live"]), (Some(1), "failed: worker 0 panicked\n".to_owned()));
    server.stop();
    let (code, text) = health(server.address, &[]);
    assert!(code == Some(1) && text.contains(&format!("no response from http://{listen}/readyz")), "{text}");
}

#[test]
fn the_health_command_ignores_all_keys_but_the_address() {
    let server = Server::start(ClientLimits::default());
    server.status.publish(0, running());
    let health = |file: &str, variables: &[(&str, &str)]| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dedupd.toml");
        std::fs::write(&path, file).unwrap();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_dedupd"));
        let command = command.args(["health", "--config"]).arg(path).envs(variables.iter().copied());
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let listen = format!("http.listen = \"{}\"\n", server.address);
    for (rest, variable) in [
        // Each is valid together with what only the process of the instance has, such as a flag.
        ("", ("DEDUPD_WINDOW__BLOOM", "12h")),
        ("identity.hash = \"xxh3\"\nidentity.key_file = \"k\"", ("DEDUPD_GROUP__WORKERS", "2")),
        ("unknown.key = 1", ("DEDUPD_HTTP__TOKEN_FILES", "t")),
    ] {
        assert_eq!(health(&format!("{listen}{rest}"), &[variable]), (Some(0), String::new()), "{rest}");
    }
    let (code, text) = health("http.listen = \"here\"\nwindow.exact = 1", &[]);
    assert!(code == Some(2) && text.contains("http.listen") && !text.contains("window"), "{text}");
    let (code, text) = health("http.listen.port = 1", &[]);
    assert!(code == Some(2) && text.contains("http.listen"), "{text}");
}

#[test]
fn health_follows_the_status_of_the_workers() {
    let server = Server::start(ClientLimits::default());
    let answer = server.request("GET", "/readyz");
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.ends_with("not ready\nworker 0: is starting\n"), "{answer}");
    assert!(server.request("GET", "/livez").starts_with("HTTP/1.1 200 "));

    server.status.publish(0, running());
    let answer = server.request("GET", "/readyz");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nready\n"), "{answer}");

    server.status.fail("worker 0 panicked");
    let answer = server.request("GET", "/livez");
    assert!(
        answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("failed: worker 0 panicked\n"),
        "{answer}"
    );
    assert!(server.request("GET", "/readyz").starts_with("HTTP/1.1 503 "));
}
