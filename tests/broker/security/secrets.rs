//! No secret is ever printed, for every way to configure it and after every error.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use dedupd::clock::monotonic;

use super::{LIMIT, Properties, sasl, shared};
use crate::support::secured::{TRUSTED, variable};
use crate::support::{Pipe, Running, Sidecar, wait_until};

const TOKEN: &str = "token-canary-0123456789";
const HASH_KEY: &str = "c0ffee00c0ffee00c0ffee00c0ffee00";

/// Everything that a healthy process outputs: its HTTP pages and its command line.
fn all_output(running: &Running) -> String {
    let pages = ["/", "/metrics", "/status.json", "/config", "/readyz", "/livez", "/state?id=x"];
    let mut output: String = pages.iter().filter_map(|page| running.get(page)).collect();
    let secret = format!("Authorization: Bearer {TOKEN}");
    output += &running.request("GET", "/state?id=x", &[&secret], "", LIMIT).unwrap();
    let wrong = "Authorization: Bearer token-canary-012345678X";
    output += &running.request("GET", "/state?id=x", &[wrong], "", LIMIT).unwrap();
    let processes =
        Command::new("ps").args(["-o", "args", "-p", &running.pid().to_string()]).output().unwrap();
    output += &String::from_utf8_lossy(&processes.stdout);
    output
}

fn assert_absent(output: &str, secrets: &[&str]) {
    for secret in secrets {
        let at = output.find(secret);
        assert!(
            at.is_none(),
            "{secret} is printed: ...{}",
            &output[at.unwrap().saturating_sub(300)..][..400]
        );
    }
}

/// With the most verbose log level.
fn verbose(sidecar: Sidecar, dir: &std::path::Path) -> Sidecar {
    let (token, key) = (dir.join("token"), dir.join("key"));
    fs::write(&token, TOKEN).unwrap();
    fs::write(&key, HASH_KEY).unwrap();
    sidecar
        .with("RUST_LOG", "trace")
        .with("DEDUPD_HTTP__TOKEN_FILE", &token.display().to_string())
        .with("DEDUPD_IDENTITY__HASH", "siphash")
        .with("DEDUPD_IDENTITY__KEY_FILE", &key.display().to_string())
}

#[test]
fn a_secret_is_never_printed_for_any_way_to_configure_it() {
    let secured = shared();
    let pipe = Pipe::new(&secured.kafka, "canary", 1);
    let file = pipe.dir.path().join("password");
    fs::write(&file, format!("{TRUSTED}\n")).unwrap();
    let path = file.display().to_string();
    for (instance, mechanism, name, value) in [
        ("env", "PLAIN", "sasl.password", TRUSTED),
        ("file", "SCRAM-SHA-512", "sasl.password.file", path.as_str()),
    ] {
        let mut properties = sasl("sasl_ssl", mechanism, "trusted", "");
        properties.retain(|(name, _)| *name != "sasl.password");
        properties.push((name, value));
        let sidecar = secured.through(pipe.sidecar(instance), "SASLTLS", &properties);
        let sidecar = verbose(sidecar, pipe.dir.path()).with(&variable("debug"), "all");
        let running = sidecar.start();
        running.wait_ready(LIMIT);
        let output = all_output(&running);
        assert!(output.contains("looked_into"), "the token of the token file was rejected: {output}");
        assert_eq!(running.stop(), Some(0));
        let log = running.text();
        assert!(
            log.lines().count() > 200 && log.contains("SASL"),
            "not verbose: {} lines",
            log.lines().count()
        );
        let check = Command::new(env!("CARGO_BIN_EXE_dedupd"))
            .args(["check", "--print", "--raw", &pipe.raw, "--clean", &pipe.clean])
            .args(["--bootstrap-servers", &sidecar.bootstrap])
            .envs(sidecar.environment.iter().cloned())
            .output()
            .unwrap();
        assert_eq!(check.status.code(), Some(0), "{}", String::from_utf8_lossy(&check.stderr));
        let shown = String::from_utf8_lossy(&[check.stdout, check.stderr].concat()).into_owned();
        assert!(shown.contains("\"sasl.password\" = \"***\""), "{shown}");
        for output in [&output, &log, &shown] {
            assert_absent(output, &[TRUSTED, TOKEN, HASH_KEY]);
        }
    }
}

#[test]
fn a_secret_is_never_printed_after_errors() {
    let secured = shared();
    let pipe = Pipe::new(&secured.kafka, "spilled", 1);
    let key = fs::read_to_string(secured.file("trusted.key")).unwrap();
    let line = key.lines().nth(3).unwrap();
    let good = sasl("sasl_ssl", "PLAIN", "trusted", "wrong-canary");
    let cases: [(&str, Properties<'_>, i32); 4] = [
        ("a wrong password", &[], 3),
        ("a mistyped name", &[("sasl.pasword", "wrong-canary")], 2),
        ("a key without its certificate", &[("ssl.key.pem", &key), ("ssl.key.password", "wrong-canary")], 2),
        ("half a key", &[("ssl.key.pem", &key[..200]), ("ssl.certificate.pem", "wrong-canary")], 2),
    ];
    for (number, (what, more, code)) in cases.into_iter().enumerate() {
        let properties = [&good[..], more].concat();
        let sidecar = secured.through(pipe.sidecar(&format!("i{number}")), "SASLTLS", &properties);
        let running = verbose(sidecar, pipe.dir.path()).start();
        assert_eq!(
            running.wait(LIMIT).code(),
            Some(code),
            "{what}: {}",
            running.text().lines().last().unwrap()
        );
        println!("{what}: {}", running.text().lines().last().unwrap());
        assert_absent(&running.text(), &["wrong-canary", line]);
    }
}

/// 300 clients send single bytes or never read the response, while records are forwarded.
#[test]
fn slow_http_clients_do_not_delay_records() {
    let secured = shared();
    let pipe = Pipe::new(&secured.kafka, "besieged", 2);
    let running = pipe.sidecar("a").start();
    running.wait_running(2, LIMIT);
    let client = |request: &[u8]| {
        let mut client = TcpStream::connect(("127.0.0.1", running.port)).unwrap();
        client.set_nonblocking(true).unwrap();
        drop(client.write(request));
        client
    };
    let open = || client(b"GET /metrics HTTP/1.1\r\nX: ");
    let mut slow: Vec<TcpStream> = (0..150).map(|_| open()).collect();
    let request = || client(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    let mut unread: Vec<TcpStream> = (0..150).map(|_| request()).collect();
    let mut besiege = || {
        for client in &mut slow {
            if client.write(b"x").is_err() || client.read(&mut [0]).is_ok_and(|read| read == 0) {
                *client = open();
            }
        }
        unread.drain(..10);
        unread.extend((0..10).map(|_| request()));
        std::thread::sleep(Duration::from_millis(50));
    };
    let load = pipe.load(2, 2_000);
    let (began, mut took) = (monotonic(), Vec::new());
    while began.elapsed() < Duration::from_secs(8) {
        let start = monotonic();
        let page = running.page("/livez");
        assert!(page.starts_with("HTTP/1.1 200"), "{page}");
        took.push(start.elapsed());
        besiege();
    }
    took.sort_unstable();
    // A stall of the machine delays single responses.
    let (most, longest) = (took[took.len() * 3 / 4], took[took.len() - 1]);
    println!("three of four responses of /livez within {most:?}, all within {longest:?}");
    assert!(most < Duration::from_secs(1), "{took:?}");
    wait_until("a lag below the records of one second during the siege", LIMIT, || {
        besiege();
        running.metric("dedupd_lag_records{partition=\"0\"}").filter(|lag| *lag < 2_000.0)
    });
    pipe.finish(load, [&running]);
}
