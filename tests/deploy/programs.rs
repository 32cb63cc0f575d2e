//! Prometheus and its tool, as `scripts/setup` provides them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub const TOP: &str = env!("CARGO_MANIFEST_DIR");

/// A file of the repository.
pub fn text(path: &str) -> String {
    std::fs::read_to_string(Path::new(TOP).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Where a program is: on the PATH, or where `scripts/setup` puts it.
pub fn program(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain([Path::new(TOP).join(".prometheus")]);
    let found = places.map(|place| place.join(name)).find(|file| file.is_file());
    found.unwrap_or_else(|| panic!("{name} is not installed: run scripts/setup"))
}

/// What `promtool` says, run in a folder.
pub fn promtool(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(program("promtool")).current_dir(folder).args(arguments).output().expect("promtool starts")
}

/// All that a program printed.
pub fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
