//! The admin API: what requires the token, and what it does.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dedupd::control::{Answer, Control, LogFilter, OwnerPlace, WindowPart};
use dedupd::dedupe::{Hasher, IdSource, IdentityRule};
use dedupd::http::{AdminApi, ClientLimits, Token};

use super::Server;

/// A server whose admin API answers with this token after `delay`, that no partition has the id.
fn controlled(limits: ClientLimits, delay: Duration) -> Server {
    answering(limits, delay, Answer::default())
}

pub fn answering(limits: ClientLimits, delay: Duration, answer: Answer) -> Server {
    let rule = IdentityRule::new(vec![IdSource::Key.into()], Hasher::Xxh3);
    let control = Control::new(rule, 1);
    let requests = control.connect(0);
    std::thread::spawn(move || {
        for request in requests {
            std::thread::sleep(delay);
            request.answer.send(Ok(answer.clone())).ok();
        }
    });
    let admin = AdminApi { token: Token::new(SECRET), ..AdminApi::default() };
    admin.control.set(control).unwrap();
    Server::start_with(limits, admin)
}

/// A filter of the log that rejects texts with a bracket.
pub fn logging() -> LogFilter {
    LogFilter::new(|text| if text.contains('{') { Err("a bracket".to_owned()) } else { Ok(text.to_owned()) })
}

pub const SECRET: &str = "a secret of some length";

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
    // RFC 9110 section 11.1: the scheme is case-insensitive.
    assert!(find(&format!("Authorization: bearer {SECRET}\r\n")).starts_with("HTTP/1.1 404 "));
    assert!(find("Authorization: Bearer something else\r\n").starts_with("HTTP/1.1 401 "));
    assert!(find("").starts_with("HTTP/1.1 401 "));
}

#[test]
fn an_id_of_a_partition_that_is_not_loaded_is_neither_found_nor_forgotten() {
    let place = OwnerPlace {
        journal: 0,
        partition: Some(0),
        kind: None,
        offset: Some(7),
        time_ms: 0,
        part: WindowPart::Exact,
    };
    for (places, not_ready, found, forgotten) in [
        (vec![], vec![], "404", "404"),
        (vec![], vec![1], "503", "503"),
        (vec![place.clone()], vec![], "200", "200"),
        (vec![place], vec![1], "200", "503"),
    ] {
        let answer = Answer { places, not_ready, ..Answer::default() };
        let server = answering(ClientLimits::default(), Duration::ZERO, answer);
        let request = |line: &str, body: &str| {
            let mut client = server.connect();
            let headers = format!("Authorization: Bearer {SECRET}\r\nContent-Type: application/json");
            let length = body.len();
            write!(
                client,
                "{line} HTTP/1.1\r\nHost: x\r\n{headers}\r\nContent-Length: {length}\r\n\r\n{body}"
            )
            .unwrap();
            let mut status = [0; 12];
            client.read_exact(&mut status).unwrap();
            String::from_utf8_lossy(&status[9..]).into_owned()
        };
        assert_eq!(request("GET /state?id=x", ""), found);
        assert_eq!(request("POST /forget", "{\"id\":\"x\"}"), forgotten);
    }
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
