//! The project of `docker-compose.yml`, and what its pages show.

use std::fs::read_to_string;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::engine::{Engine, TOP};
use crate::support::wait_until;

/// Not the name in the file: a demo that a developer runs keeps its volumes.
pub const PROJECT: &str = "dedupd-tests";
const BUILT: [&str; 3] = ["dedupd", "producer", "spare"];

/// A project. Dropping it removes its containers, volumes, networks and images.
pub struct Demo {
    pub engine: Engine,
}

impl Demo {
    /// The image of a service, as compose names it.
    pub fn image(service: &str) -> String {
        format!("{PROJECT}-{service}")
    }

    /// An engine without leftovers of an earlier run.
    pub fn prepare() -> Self {
        let demo = Self { engine: Engine::start() };
        demo.down();
        demo
    }

    /// Builds the image of the three services that have one.
    pub fn build(&self) {
        let mut arguments = vec!["build"];
        arguments.extend(self.engine.build_options());
        let images = BUILT.map(Self::image);
        for image in &images {
            arguments.extend(["--tag", image]);
        }
        arguments.push(".");
        self.engine.docker(&arguments);
    }

    /// `docker compose` with the profile of the spare.
    pub fn compose(&self, arguments: &[&str]) -> String {
        self.engine.docker(&composing(arguments))
    }

    pub fn down(&self) {
        self.compose(&["down", "--volumes", "--timeout", "20"]);
    }

    /// Starts services and waits until they are healthy.
    pub fn up(&self, services: &[&str]) {
        let up = ["up", "--detach", "--no-build", "--wait", "--wait-timeout", "180"];
        self.compose(&[&up, services].concat());
    }

    /// A field of the container of a service, as a Go template names it.
    pub fn inspect(&self, service: &str, field: &str) -> String {
        let container = self.compose(&["ps", "--all", "--quiet", service]);
        self.engine.docker(&["inspect", "--format", field, &container])
    }

    /// What exists of the project, as docker lists it.
    pub fn leftovers(&self) -> String {
        let label = format!("label=com.docker.compose.project={PROJECT}");
        let lists: [&[&str]; 3] = [&["ps", "--all"], &["volume", "ls"], &["network", "ls"]];
        lists.map(|list| self.engine.docker(&[list, &["--quiet", "--filter", &label]].concat())).join("")
    }
}

fn composing<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [&["compose", "--project-name", PROJECT, "--profile", "spare"], arguments].concat()
}

impl Drop for Demo {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for show in [&["ps", "--all"][..], &["logs", "--no-color", "--tail", "40"]] {
                let output = self.engine.attempt(&composing(show));
                eprintln!("{}", String::from_utf8_lossy(&output.stdout));
            }
        }
        self.engine.attempt(&composing(&["down", "--volumes", "--timeout", "5"]));
        let images = BUILT.map(Self::image);
        self.engine.attempt(&["rmi", "--force", &images[0], &images[1], &images[2]]);
    }
}

/// A page on loopback, without its head. `None` without a response of code 200.
pub fn page(port: u16, path: &str) -> Option<String> {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).ok()?;
    socket.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    write!(socket, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
    let mut page = String::new();
    socket.read_to_string(&mut page).ok()?;
    let (head, body) = page.split_once("\r\n\r\n")?;
    head.split(' ').nth(1).filter(|code| *code == "200")?;
    Some(body.to_owned())
}

/// `/status.json` of an instance. `Null` without a response.
pub fn status(port: u16) -> Value {
    page(port, "/status.json").map_or(Value::Null, |page| serde_json::from_str(&page).unwrap())
}

pub fn wait_for_role(port: u16, role: &str) {
    wait_until(role, Duration::from_mins(1), || (status(port)["role"] == role).then_some(()));
}

/// Waits until the instance on this port has processed all records.
pub fn wait_until_drained(port: u16) {
    let drained = || {
        let status = status(port);
        let partitions: Vec<_> = status["workers"]
            .as_array()?
            .iter()
            .flat_map(|worker| worker["partitions"].as_array().cloned().unwrap_or_default())
            .collect();
        let is_drained = |it: &Value| it["lag_records"] == 0 && it["next"] == it["committed"];
        (partitions.len() == 6 && partitions.iter().all(is_drained)).then_some(())
    };
    // Twice: the end of the log that the lag is measured against is a few seconds old.
    for _ in 0..2 {
        wait_until("a lag of 0", Duration::from_mins(1), drained);
        std::thread::sleep(Duration::from_secs(6));
    }
}

/// The data of a response of Prometheus. `None` without one.
pub fn prometheus(path: &str) -> Option<Value> {
    let response: Value = serde_json::from_str(&page(9090, &format!("/api/v1/{path}"))?).ok()?;
    (response["status"] == "success").then(|| response["data"].clone())
}

pub fn file(path: &str) -> String {
    read_to_string(Path::new(TOP).join(path)).unwrap()
}
