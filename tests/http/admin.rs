//! The admin API: what requires the token, and what it does.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dedupd::control::{Answer, Control, LogFilter};
use dedupd::dedupe::{Hasher, IdSource, IdentityRule};
use dedupd::http::{AdminApi, ClientLimits, Token};

use super::Server;

/// A server whose admin API answers with this token after `delay`.
fn controlled(limits: ClientLimits, delay: Duration) -> Server {
    let rule = IdentityRule::new(vec![IdSource::Key], Hasher::Xxh3);
    let control = Control::new(rule, 1);
    let requests = control.connect(0);
    std::thread::spawn(move || {
        for request in requests {
            std::thread::sleep(delay);
            request.answer.send(Ok(Answer::default())).ok();
        }
    });
    let admin = AdminApi { token: Token::new(SECRET), ..AdminApi::default() };
    admin.control.set(control).unwrap();
    Server::start_with(limits, admin)
}

const SECRET: &str = "a secret of some length";

#[test]
fn only_the_admin_api_has_the_longer_time_limit() {
    let limits = ClientLimits { connection: Duration::from_millis(300), ..ClientLimits::default() };
    let server = controlled(limits, Duration::from_millis(900));
    let find = |headers: &str| {
        let mut client = server.connect();
        write!(client, "GET /state?id=x HTTP/1.1\r\nHost: x\r\n{headers}\r\n").unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    };
    let answer = find(&format!("Authorization: Bearer {SECRET}\r\n"));
    assert!(answer.starts_with("HTTP/1.1 404 ") && answer.contains("looked_into"), "{answer}");
    assert!(find("Authorization: Bearer something else\r\n").starts_with("HTTP/1.1 401 "));
    assert!(find("").starts_with("HTTP/1.1 401 "));
}

#[test]
fn a_request_without_the_token_is_rejected_before_its_body_is_read() {
    let server = controlled(ClientLimits::default(), Duration::ZERO);
    let post = |headers: &str, body: &[u8]| {
        let mut client = server.connect();
        let kind = "Content-Type: application/json\r\nContent-Length: 1000000";
        write!(client, "POST /forget HTTP/1.1\r\nHost: x\r\n{kind}\r\n{headers}\r\n").unwrap();
        drop(client.write_all(body));
        let mut answer = [0; 12];
        match client.read_exact(&mut answer) {
            Ok(()) => String::from_utf8_lossy(&answer).into_owned(),
            Err(error) => error.kind().to_string(),
        }
    };
    assert_eq!(post("", b""), "HTTP/1.1 401");
    let secret = format!("Authorization: Bearer {SECRET}\r\n");
    let answer = post(&secret, &vec![b'x'; 200_000]);
    // The server closes the connection while the client is sending. The reset can arrive before the response.
    let rejected = ["HTTP/1.1 413", "connection reset"].contains(&answer.as_str());
    assert!(rejected, "a large body with the token was accepted: {answer}");
}

#[test]
fn the_filter_of_the_log_is_replaced_with_the_token_only() {
    let texts = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&texts);
    let log = LogFilter::new(move |text| match text {
        "nonsense=" => Err("no level".to_owned()),
        text => {
            seen.lock().unwrap().push(text.to_owned());
            Ok("as set".to_owned())
        }
    });
    let admin = AdminApi { token: Token::new(SECRET), log, ..AdminApi::default() };
    let server = Server::start_with(ClientLimits::default(), admin);
    let post = |headers: &str, body: &str| {
        let mut client = server.connect();
        let length = body.len();
        write!(client, "POST /log HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{headers}\r\n{body}")
            .unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    };
    let secret = format!("Authorization: Bearer {SECRET}\r\n");
    assert!(post("", "debug").starts_with("HTTP/1.1 401 "));
    let answer = post(&secret, "info,dedupd::kafka=debug\n");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\"filter\":\"as set\""), "{answer}");
    assert!(post(&secret, "").starts_with("HTTP/1.1 200 "));
    let answer = post(&secret, "nonsense=");
    assert!(
        answer.starts_with("HTTP/1.1 400 ") && answer.contains("invalid filter: no level; send"),
        "{answer}"
    );
    assert!(server.request("GET", "/log").starts_with("HTTP/1.1 405 "));
    assert_eq!(*texts.lock().unwrap(), ["info,dedupd::kafka=debug", ""]);
}
