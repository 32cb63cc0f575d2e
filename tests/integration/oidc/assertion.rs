//! The assertion flow (JWT bearer, RFC 7523): the client signs an assertion, and a provider exchanges it for a token.
//!
//! Keycloak 26.4 does not serve this grant without authentication of the client, so the endpoint is part of the test: it
//! verifies the assertion with the client's public key, and returns a token of Keycloak, which the broker verifies.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::keycloak::{SECRET, endpoint, shared};
use super::{LIMIT, properties, with};
use crate::support::Pipe;
use crate::support::certificates::openssl;
use crate::support::ports::free_port;

const GRANT: &str = "grant_type=urn:ietf:params:oauth:grant-type:jwt-bearer";

#[test]
fn a_signed_assertion_is_exchanged_for_a_token() {
    let oidc = shared();
    let pipe = Pipe::new(&oidc.kafka, "assertion", 1);
    let dir = pipe.dir.path();
    openssl(dir, &["genrsa", "-out", "client.key", "2048"]);
    openssl(dir, &["rsa", "-in", "client.key", "-pubout", "-out", "client.pub"]);
    let exchange = Exchange::start(dir, oidc.keycloak.port);
    let mut properties = properties(&format!("http://127.0.0.1:{}/token", exchange.port), "", "");
    properties.retain(|(name, _)| !name.contains("client"));
    let own = [
        ("grant.type", "urn:ietf:params:oauth:grant-type:jwt-bearer"),
        ("assertion.private.key.file", dir.join("client.key").to_str().unwrap()),
        ("assertion.claim.iss", "dedupd"),
        ("assertion.claim.sub", "dedupd"),
        ("assertion.claim.aud", "the-provider"),
    ]
    .map(|(name, value)| (format!("sasl.oauthbearer.{name}"), value.to_owned()));
    properties.extend(own);
    let load = pipe.load(1, 300);
    let running = with(pipe.sidecar("a"), &properties).start();
    running.wait_running(1, LIMIT);
    pipe.finish(load, [&running]);
    let claims = exchange.claims.lock().unwrap();
    assert!(!claims.is_empty());
    for claim in claims.iter() {
        assert_eq!((&claim["iss"], &claim["aud"]), (&"dedupd".into(), &"the-provider".into()), "{claim}");
    }
}

/// A token endpoint that accepts only assertions with a valid signature. It listens until the test process ends.
struct Exchange {
    port: u16,
    /// The claims of the accepted assertions.
    claims: Arc<Mutex<Vec<serde_json::Value>>>,
}

impl Exchange {
    fn start(dir: &Path, keycloak: u16) -> Self {
        let port = free_port();
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let claims: Arc<Mutex<Vec<serde_json::Value>>> = Arc::default();
        let (accepted, dir) = (Arc::clone(&claims), dir.to_owned());
        thread::spawn(move || {
            for mut socket in listener.incoming().flatten() {
                let body = body_of(&mut socket);
                let answer = match verified(&dir, &body) {
                    Some(claim) => {
                        accepted.lock().unwrap().push(claim);
                        token(keycloak)
                    }
                    None => r#"{"error":"invalid_grant"}"#.to_owned(),
                };
                let length = answer.len();
                write!(
                    socket,
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{answer}"
                )
                .ok(); // the client may have gone
            }
        });
        Self { port, claims }
    }
}

/// The body of a request.
fn body_of(socket: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let mut part = [0; 4096];
    loop {
        let count = socket.read(&mut part).unwrap_or(0);
        text.extend_from_slice(&part[..count]);
        let all = String::from_utf8_lossy(&text).into_owned();
        if let Some((head, body)) = all.split_once("\r\n\r\n") {
            let length = head.to_lowercase();
            let length =
                length.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
            if count == 0 || body.len() >= length.unwrap_or(0) {
                return body.to_owned();
            }
        } else if count == 0 {
            return String::new();
        }
    }
}

/// The claims of a request's assertion, if its signature is valid.
fn verified(dir: &Path, body: &str) -> Option<serde_json::Value> {
    let body = body.replace("%3A", ":").replace("%3a", ":");
    assert!(body.contains(GRANT), "{body}");
    let assertion = body.split('&').find_map(|pair| pair.strip_prefix("assertion="))?;
    let (signed, signature) = assertion.rsplit_once('.')?;
    fs::write(dir.join("signed"), signed).unwrap();
    fs::write(dir.join("signature"), URL_SAFE_NO_PAD.decode(signature).ok()?).unwrap();
    openssl(dir, &["dgst", "-sha256", "-verify", "client.pub", "-signature", "signature", "signed"]);
    let claims = URL_SAFE_NO_PAD.decode(signed.split_once('.')?.1).ok()?;
    serde_json::from_slice(&claims).ok()
}

/// Keycloak's response for the client `dedupd`.
fn token(keycloak: u16) -> String {
    let form = format!("grant_type=client_credentials&client_id=dedupd&client_secret={SECRET}");
    let mut socket = TcpStream::connect(("127.0.0.1", keycloak)).unwrap();
    let url = endpoint(keycloak);
    let path = url.split_once("//").and_then(|(_, rest)| rest.split_once('/')).expect("a path").1;
    write!(
        socket,
        "POST /{path} HTTP/1.0\r\nHost: 127.0.0.1:{keycloak}\r\nContent-Type: application/x-www-form-urlencoded\r\n\
         Content-Length: {}\r\n\r\n{form}",
        form.len()
    )
    .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").expect("a response").1.to_owned()
}
