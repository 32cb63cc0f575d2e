//! `dedupd health`: the health check of a container, in which there is no other HTTP client. Other commands ask a running instance with
//! the same client.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use crate::app::ExitError;
use crate::cli::{Exit, HealthArgs};
use crate::config;

/// For connecting, and for each read and write, unless an answer may take longer.
const PATIENCE: Duration = Duration::from_secs(3);
/// For each read of an answer of the admin API. The instance answers within a minute: it may have to read the owners of a large window.
pub(super) const ADMIN_PATIENCE: Duration = Duration::from_secs(65);
/// Longest response that is read, in bytes. The status has some hundred for each partition.
const MAX_RESPONSE: u64 = 16 << 20;

/// Requests the health of an instance and prints the response.
pub fn command(args: &HealthArgs) -> Result<Exit, ExitError> {
    let listen = config::load_listen(args.instance.config.as_deref(), args.instance.overrides())?;
    let path = if args.live { "/livez" } else { "/readyz" };
    let address = reachable(listen);
    let response = request(address, path, None, None, PATIENCE).map_err(|error| {
        ExitError::new(Exit::No, format!(
            "no response from http://{address}{path}: {error}; check that the instance runs and that http.listen is its address"
        ))
    })?;
    let (code, body) = outcome(&response).ok_or_else(|| {
        ExitError::new(Exit::No, format!(
            "the response from http://{address}{path} is not HTTP; check that http.listen is the address of dedupd"
        ))
    })?;
    print!("{body}");
    Ok(if code == "200" { Exit::Done } else { Exit::No })
}

/// The address to connect to: loopback if the instance listens on all addresses.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// The status code and the body of the response of an instance, each part of which may take `patience`. With a body, which is JSON, the
/// request is a POST.
pub(super) fn ask(
    listen: SocketAddr,
    path: &str,
    token: Option<&str>,
    body: Option<&str>,
    patience: Duration,
) -> io::Result<(String, String)> {
    let response = request(reachable(listen), path, token, body, patience)?;
    let answer = outcome(&response).map(|(code, body)| (code.to_owned(), body.to_owned()));
    answer.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The answer of the admin API to a request about an id.
#[derive(Debug, Deserialize)]
pub(super) struct AdminAnswer {
    #[serde(default)]
    pub identity: String,
    /// Those that were found, or forgotten; `None` in an answer that has a reason instead.
    #[serde(rename = "found", alias = "forgotten")]
    pub owners: Option<Vec<OwnerAnswer>>,
    #[serde(default)]
    pub looked_into: Vec<u32>,
    #[serde(default)]
    pub not_ready: Vec<u32>,
    pub error: Option<String>,
}

/// An owner of the id; a filter does not have its place.
#[derive(Debug, Deserialize)]
pub(super) struct OwnerAnswer {
    pub partition: Option<u32>,
    pub offset: Option<u64>,
    pub kind: Option<String>,
    pub time_ms: i64,
}

/// Why an instance refuses a token, by the status code of its answer: the end of a sentence about it. `None` if it does not.
pub(super) fn refused_token(code: &str, token_file: Option<&Path>) -> Option<String> {
    match code {
        "401" => Some(format!(
            "rejects the token in {}: give the file that its http.token_file names; an instance reads it when it starts",
            token_file.unwrap_or(Path::new("")).display()
        )),
        "403" => Some("has no token: set its http.token_file, and restart it".to_owned()),
        _ => None,
    }
}

/// The response to a request. With HTTP/1.0 the server closes the connection after it, and does not split it.
fn request(
    address: SocketAddr,
    path: &str,
    token: Option<&str>,
    body: Option<&str>,
    patience: Duration,
) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let token = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let (method, content) = match body {
        None => ("GET", String::new()),
        Some(body) => {
            ("POST", format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()))
        }
    };
    let body = body.unwrap_or_default();
    write!(stream, "{method} {path} HTTP/1.0\r\nHost: {address}\r\n{token}{content}\r\n{body}")?;
    let mut response = Vec::new();
    stream.take(MAX_RESPONSE).read_to_end(&mut response)?;
    Ok(String::from_utf8_lossy(&response).into_owned())
}

/// The status code of a response, and its body. `None` if it is not an HTTP response.
fn outcome(response: &str) -> Option<(&str, &str)> {
    let (head, body) = response.split_once("\r\n\r\n")?;
    let mut words = head.split_whitespace();
    words.next().filter(|version| version.starts_with("HTTP/1."))?;
    let code = words.next()?;
    Some((code, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_200_is_healthy() {
        assert_eq!(outcome("HTTP/1.0 200 OK\r\na: b\r\n\r\nready\n"), Some(("200", "ready\n")));
        assert_eq!(
            outcome("HTTP/1.0 503 Service Unavailable\r\n\r\nnot ready\n"),
            Some(("503", "not ready\n"))
        );
        assert_eq!(outcome("HTTP/1.1 2000\r\n\r\n"), Some(("2000", "")));
        for broken in ["", "HTTP/1.0 200 OK\r\n", "SSH-2.0\r\n\r\n200", "HTTP/1.0\r\n\r\nready"] {
            assert_eq!(outcome(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn an_instance_that_listens_on_all_addresses_is_reached_by_loopback() {
        for (listen, expected) in [
            ("0.0.0.0:9464", "127.0.0.1:9464"),
            ("[::]:1", "[::1]:1"),
            ("10.0.0.1:9464", "10.0.0.1:9464"),
            ("127.0.0.2:5", "127.0.0.2:5"),
        ] {
            assert_eq!(reachable(listen.parse().unwrap()), expected.parse().unwrap());
        }
    }
}
