//! A Docker engine: the one that runs, or one that `scripts/containers/engine` starts with stand-ins for its images.

use std::path::Path;
use std::process::{Command, Output, Stdio};

pub const TOP: &str = env!("CARGO_MANIFEST_DIR");
const SCRIPT: &str = "scripts/containers/engine";

/// An engine. Dropping it stops the one that was started for it.
pub struct Engine {
    environment: Vec<(String, String)>,
}

impl Engine {
    pub fn start() -> Self {
        let output = script("up");
        assert!(output.status.success(), "{SCRIPT} up failed; its messages are above");
        let lines = String::from_utf8(output.stdout).unwrap();
        let pairs = lines.lines().filter_map(|line| line.split_once('='));
        Self { environment: pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect() }
    }

    /// The options of `docker build` for this engine.
    pub fn build_options(&self) -> Vec<&str> {
        let given = self.environment.iter().find(|(name, _)| name == "BUILD_OPTIONS");
        given.map_or_else(Vec::new, |(_, value)| value.split_whitespace().collect())
    }

    /// Runs `docker` in the repository.
    pub fn attempt(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("docker");
        command.args(arguments).current_dir(TOP).stdin(Stdio::null());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.output().expect("docker is installed: run scripts/setup integration")
    }

    /// What `docker` prints to stdout. Panics with both outputs if it fails.
    pub fn docker(&self, arguments: &[&str]) -> String {
        let output = self.attempt(arguments);
        let [text, errors] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
        assert!(output.status.success(), "docker {} failed:\n{text}{errors}", arguments.join(" "));
        text.trim_end().to_owned()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let output = script("down");
        assert!(output.status.success() || std::thread::panicking(), "{SCRIPT} down failed");
    }
}

fn script(argument: &str) -> Output {
    let mut command = Command::new(Path::new(TOP).join(SCRIPT));
    command.arg(argument).stdin(Stdio::null()).stderr(Stdio::inherit());
    command.output().expect("the script can be started")
}
