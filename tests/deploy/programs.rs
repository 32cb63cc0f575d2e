//! Prometheus and promtool, as `scripts/setup` installs them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub const TOP: &str = env!("CARGO_MANIFEST_DIR");

/// A file of the repository.
pub fn text(path: &str) -> String {
    std::fs::read_to_string(Path::new(TOP).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The path of a program: on the PATH, or where `scripts/setup` installs it.
pub fn program(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain([Path::new(TOP).join(".prometheus")]);
    let found = places.map(|place| place.join(name)).find(|file| file.is_file());
    found.unwrap_or_else(|| panic!("{name} is not installed: run scripts/setup"))
}

/// Runs `promtool` in a folder.
pub fn promtool(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(program("promtool")).current_dir(folder).args(arguments).output().expect("promtool starts")
}

/// The stdout and stderr of a program.
pub fn printed(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
