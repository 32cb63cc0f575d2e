//! `dedupd forget`, against the server that answers it.

use std::net::SocketAddr;
use std::time::Duration;

use dedupd::control::{Answer, OwnerPlace, WindowPart};
use dedupd::http::{AdminApi, ClientLimits, Token};

use super::Server;
use super::admin::{SECRET, answering};

/// The exit code of `dedupd forget`, and what it prints.
fn forget(address: SocketAddr, token: Option<&str>, id: &[&str]) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().unwrap();
    let token_file = token.map(|token| {
        let path = dir.path().join("token");
        std::fs::write(&path, token).unwrap();
        format!("token_file = \"{}\"\n", path.display())
    });
    let file = format!("[http]\nlisten = \"{address}\"\n{}", token_file.unwrap_or_default());
    let config = dir.path().join("dedupd.toml");
    std::fs::write(&config, file).unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_dedupd"));
    let output = command.arg("forget").arg("--config").arg(config).args(id).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

fn place(offset: Option<u64>) -> OwnerPlace {
    let partition = offset.map(|_| 3);
    OwnerPlace { journal: 0, partition, kind: None, offset, time_ms: 0, part: WindowPart::Exact }
}

#[test]
fn the_forget_command_reports_what_the_instance_has_done() {
    for (places, not_ready, code, printed) in [
        (vec![place(Some(17)), place(None)], vec![], 0, "first had by record 3@17, in a filter"),
        (vec![], vec![], 1, "the id is not stored (partitions looked into: 0, 3); check the id, or ask"),
        (vec![], vec![5], 1, "the state of partitions 5 is not restored yet"),
        (vec![place(Some(17))], vec![5], 1, "so the id may still be there; repeat when /readyz says ready"),
    ] {
        let answer = Answer { identity: "ab".to_owned(), places, looked_into: vec![0, 3], not_ready };
        let server = answering(ClientLimits::default(), Duration::ZERO, answer);
        let (ended, text) = forget(server.address, Some(SECRET), &["x"]);
        assert!(ended == Some(code) && text.contains(printed), "{ended:?}: {text}");
    }
    let server = answering(ClientLimits::default(), Duration::ZERO, Answer::default());
    for id in [&["x", "y"][..], &[""]] {
        let (ended, text) = forget(server.address, Some(SECRET), id);
        assert!(ended == Some(2) && text.contains("give the id once for each of the 1 parts"), "{text}");
    }
    let (ended, text) = forget(server.address, Some(SECRET), &["x".repeat(70_000).as_str()]);
    assert!(ended == Some(2) && text.contains("64 KiB") && text.contains("--identity"), "{text}");
    // An id that looks like a flag.
    let (ended, text) = forget(server.address, Some(SECRET), &["--", "--x"]);
    assert!(ended == Some(1) && text.contains("not stored"), "{text}");
    // What stands for an id.
    let identity = "0b1c2d3e4f5061728394a5b6c7d8e9fa";
    let (ended, text) = forget(server.address, Some(SECRET), &["--identity", identity]);
    assert!(ended == Some(1) && text.contains("not stored"), "{text}");
    let (ended, text) = forget(server.address, Some(SECRET), &["--identity", "00"]);
    assert!(ended == Some(2) && text.contains("32 hex digits"), "{text}");
    for id in [&["--identity", "0b1c"][..], &["--identity", identity, "x"], &[]] {
        let (ended, text) = forget(server.address, Some(SECRET), id);
        assert!(ended == Some(2), "{text}");
    }
}

#[test]
fn the_forget_command_names_what_it_lacks() {
    let mut server = answering(ClientLimits::default(), Duration::ZERO, Answer::default());
    let (ended, text) = forget(server.address, None, &["x"]);
    assert!(ended == Some(2) && text.contains("http.token_file is not set"), "{text}");
    let (ended, text) = forget(server.address, Some("short"), &["x"]);
    assert!(ended == Some(2) && text.contains("the token is too short"), "{text}");
    let (ended, text) = forget(server.address, Some("another secret of some length"), &["x"]);
    assert!(ended == Some(2) && text.contains("rejects the token in /"), "{text}");
    server.stop();
    let (ended, text) = forget(server.address, Some(SECRET), &["x"]);
    assert!(ended == Some(1) && text.contains("the id is not forgotten: check --listen"), "{text}");

    let without = Server::start(ClientLimits::default());
    let (ended, text) = forget(without.address, Some(SECRET), &["x"]);
    assert!(ended == Some(2) && text.contains("has no token: set its http.token_file"), "{text}");
    let admin = AdminApi { token: Token::new(SECRET), ..AdminApi::default() };
    let starting = Server::start_with(ClientLimits::default(), admin);
    let (ended, text) = forget(starting.address, Some(SECRET), &["x"]);
    assert!(ended == Some(1) && text.contains("the workers have not started yet"), "{text}");
}
