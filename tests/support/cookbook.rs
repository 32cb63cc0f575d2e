//! The recipes of `docs/cookbook.md`, run as they stand there: only servers, ports and directories are replaced.

use std::process::Command;
use std::time::Duration;

use super::{Kafka, Pipe, Running, child, ports::free_port, rekey::wait_rekeyed};

const PAGE: &str = include_str!("../../docs/cookbook.md");
const LIMIT: Duration = Duration::from_mins(1);

/// One recipe.
#[derive(Debug)]
pub struct Recipe {
    config: String,
    commands: Vec<String>,
    /// The outcomes of the records of its test, as the page states them.
    pub seen: Vec<(String, u64)>,
    /// Environment of its commands, to change a setting.
    pub environment: Vec<(String, String)>,
}

/// The text of the first block that opens and closes with these marks.
fn between<'t>(text: &'t str, open: &str, close: &str) -> &'t str {
    let (_, rest) = text.split_once(open).unwrap_or_else(|| panic!("no {open:?} in {text}"));
    rest.split_once(close).unwrap_or_else(|| panic!("no {close:?} in {text}")).0
}

/// The recipe with this number.
pub fn recipe(number: usize) -> Recipe {
    let sections: Vec<&str> = PAGE.split("\n## ").skip(1).collect();
    let text = sections[number - 1];
    assert!(text.starts_with(&format!("{number}. ")), "{text}");
    let outcome = |text: &str| {
        let (name, count) = text.trim().split_once(' ').unwrap();
        (name.to_owned(), count.parse().unwrap())
    };
    Recipe {
        config: between(text, "```toml\n", "```").to_owned(),
        commands: between(text, "\n\n```\n", "```").lines().map(str::to_owned).collect(),
        seen: between(text, "\nSeen: `", "`").split(',').map(outcome).collect(),
        environment: Vec::new(),
    }
}

/// The number of recipes.
pub fn count() -> usize {
    PAGE.matches("\n## ").count()
}

impl Recipe {
    fn table(&self) -> toml::Table {
        self.config.parse().unwrap()
    }

    /// A string of its configuration.
    pub fn text(&self, section: &str, key: &str) -> String {
        self.table()[section][key].as_str().unwrap().to_owned()
    }

    /// Its raw and clean topic.
    pub fn pipe<'k>(&self, kafka: &'k Kafka) -> Pipe<'k> {
        let topic = |key: &str| self.text("topics", key);
        Pipe { kafka, raw: topic("raw"), clean: topic("clean"), dir: tempfile::tempdir().unwrap() }
    }

    /// Runs all its commands, and compares the outcomes with the page. Returns their output.
    pub fn play(&self, pipe: &Pipe<'_>) -> String {
        let mut all = String::new();
        for line in &self.commands {
            match line.split(' ').nth(1).unwrap() {
                "run" => {
                    let running = self.service(line, pipe);
                    pipe.wait_caught_up(pipe.kafka.partitions(&pipe.raw), LIMIT);
                    let seen: Vec<_> =
                        self.seen.iter().map(|(name, count)| (name.as_str(), *count)).collect();
                    running.wait_outcomes(&seen);
                    let uncompared = running.metric("dedupd_duplicates_not_compared_total");
                    assert_eq!(uncompared, Some(0.0), "identity.compare finds nothing");
                    assert_eq!(running.stop(), Some(0), "{}", running.text());
                }
                "rekey" => {
                    let running = self.service(line, pipe);
                    let table = self.table();
                    let (to, from) = (&table["rekey"]["to"], table["rekey"]["from"].as_array().unwrap());
                    let from: Vec<&str> = from.iter().map(|topic| topic.as_str().unwrap()).collect();
                    let group = format!("dedupd.rekey.{}", to.as_str().unwrap());
                    wait_rekeyed(pipe.kafka, &group, &from, &running.log);
                    assert_eq!(running.stop(), Some(0), "{}", running.text());
                }
                _ => {
                    let (code, text) = self.command(line, pipe);
                    assert_eq!(code, Some(0), "{line}:\n{text}");
                    all += &text;
                }
            }
        }
        all
    }

    /// Runs a command that ends. Returns its exit code and output.
    pub fn command(&self, line: &str, pipe: &Pipe<'_>) -> (Option<i32>, String) {
        ended(&mut self.prepared(line, pipe))
    }

    fn service(&self, line: &str, pipe: &Pipe<'_>) -> Running {
        let port = free_port();
        let mut command = self.prepared(line, pipe);
        command.args(["--listen", &format!("127.0.0.1:{port}")]);
        Running::start(command, port, pipe.dir.path().join("service.log"))
    }

    /// The command of a line, without its own address.
    pub fn prepared(&self, line: &str, pipe: &Pipe<'_>) -> Command {
        let file = pipe.dir.path().join("dedupd.toml");
        let here = |text: &str| text.replace("localhost:9092", pipe.kafka.bootstrap());
        std::fs::write(&file, here(&self.config)).unwrap();
        let line = here(&line.replace(" --listen 127.0.0.1:9465", ""));
        let words = line.strip_prefix("dedupd ").unwrap_or_else(|| panic!("{line} is no command of dedupd"));
        let words =
            words.split(' ').map(|word| if word == "dedupd.toml" { file.to_str().unwrap() } else { word });
        let mut command = child::tied(env!("CARGO_BIN_EXE_dedupd"));
        command
            .args(words)
            .env("DEDUPD_STATE__DIR", pipe.dir.path().join("state"))
            .env("DEDUPD_HTTP__LISTEN", format!("127.0.0.1:{}", free_port()))
            .envs(self.environment.iter().cloned())
            .env_remove("RUST_LOG");
        command
    }
}

/// The exit code and the output of a command.
pub fn ended(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}
