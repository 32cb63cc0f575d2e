//! Helm, the validator of Kubernetes' schemas, and what the chart renders.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde::Deserialize;
use serde_json::Value;

pub const TOP: &str = env!("CARGO_MANIFEST_DIR");
pub const CHART: &str = "deploy/helm/dedupd";
/// Helm that is built by `go install` supports only the oldest version by default.
const KUBERNETES: &str = "1.37.0";

pub fn text(path: &str) -> String {
    std::fs::read_to_string(Path::new(TOP).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn program(path: &str) -> PathBuf {
    let file = Path::new(TOP).join(".integration").join(path);
    assert!(file.is_file(), "{} is not installed: run scripts/setup integration", file.display());
    file
}

/// The stdout and stderr of a program.
pub fn printed(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs a command of Helm on the chart, with further arguments.
pub fn helm(command: &[&str], more: &[&str]) -> Output {
    helm_on(Path::new(CHART), command, more)
}

/// The same on a copy of the chart.
pub fn helm_on(chart: &Path, command: &[&str], more: &[&str]) -> Output {
    let mut run = Command::new(program("bin/helm"));
    run.args(command).arg(chart).args(["--kube-version", KUBERNETES]).args(more);
    run.current_dir(TOP).output().expect("helm starts")
}

/// The value files beside the chart: names without the common end.
pub fn value_files() -> Vec<String> {
    let files = std::fs::read_dir(Path::new(TOP).join(CHART).join("ci")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> =
        names.map(|name| name.strip_suffix("-values.yaml").expect("a value file").to_owned()).collect();
    names.sort();
    names
}

/// The arguments for a value file; none for the default values.
pub fn values(name: &str) -> Vec<String> {
    if name == "default" {
        return Vec::new();
    }
    vec!["--values".to_owned(), format!("{CHART}/ci/{name}-values.yaml")]
}

/// What the chart renders with a value file, in a release named dedupd.
pub struct Rendered {
    pub text: String,
    pub resources: Vec<Value>,
}

impl Rendered {
    pub fn of(name: &str) -> Self {
        let arguments = values(name);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = helm(&["template", "dedupd"], &arguments);
        assert!(output.status.success(), "{name}: {}", printed(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        Self { resources: documents(&text), text }
    }

    pub fn kinds(&self, kind: &str) -> Vec<&Value> {
        self.resources.iter().filter(|resource| resource["kind"] == kind).collect()
    }

    /// The resource of this kind and name.
    pub fn get(&self, kind: &str, name: &str) -> &Value {
        let found = self.kinds(kind).into_iter().find(|resource| resource["metadata"]["name"] == name);
        found.unwrap_or_else(|| panic!("no {kind} {name} in\n{}", self.text))
    }
}

/// The documents of a YAML text.
pub fn documents(text: &str) -> Vec<Value> {
    let all = serde_norway::Deserializer::from_str(text).map(|one| Value::deserialize(one).unwrap());
    all.filter(|document| !document.is_null()).collect()
}

/// What the validator reports about a text, with unknown fields as errors.
pub fn validate(text: &str) -> Output {
    let mut file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let mut run = Command::new(program("kubernetes/bin/kubernetes-validate"));
    run.args(["--kubernetes-version", KUBERNETES, "--strict"]).arg(file.path());
    run.output().expect("kubernetes-validate starts")
}
