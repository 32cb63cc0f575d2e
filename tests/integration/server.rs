//! Programs that serve HTTP: start, and wait for a page.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::support::{Running, wait_until};

/// Starts a command of [`crate::support::child::tied`] and waits until `path` is served. The process ends when it is dropped.
pub fn start_serving(command: Command, port: u16, log: PathBuf, path: &str, limit: Duration) -> Running {
    let server = Running::start(command, port, log);
    let what = format!("{path} on port {port}, see {}", server.log.display());
    wait_until(&what, limit, || {
        assert!(server.ended().is_none(), "the server has ended:\n{}", server.text());
        server.get(path).filter(|page| page.starts_with("HTTP/1.1 200"))
    });
    server
}
