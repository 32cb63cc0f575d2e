//! The dashboard against the schemas that Grafana publishes, as types in its Foundation SDK (Go): `grafana/main.go`.

use std::path::Path;
use std::process::Command;

const TOP: &str = env!("CARGO_MANIFEST_DIR");
const DASHBOARD: &str = "dashboards/dedupd.json";

/// The problems of a dashboard, one per line.
fn problems(dashboard: &Path) -> String {
    let mut go = Command::new("go");
    go.current_dir(Path::new(TOP).join("tests/integration/grafana")).args(["run", "."]).arg(dashboard);
    let output = go.output().expect("go is installed: run scripts/setup integration");
    let text = String::from_utf8(output.stderr).unwrap();
    // The first run fetches the SDK.
    let text: String = text.lines().filter(|line| !line.starts_with("go: downloading ")).collect();
    assert_eq!(output.status.success(), text.is_empty(), "{text}");
    text
}

#[test]
fn the_dashboard_matches_the_published_schemas() {
    let dashboard = Path::new(TOP).join(DASHBOARD);
    assert_eq!(problems(&dashboard), "");
    // What the check finds: a field of another type, one that is missing, one that does not exist, a month that does not exist.
    let text = std::fs::read_to_string(dashboard).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("broken.json");
    for (from, to, named) in [
        ("\"showPercentChange\": false", "\"showPercentChange\": 1", "showPercentChange"),
        ("\"percentChangeColorMode\"", "\"percentageColour\"", "percentChangeColorMode: required"),
        ("\"legendFormat\"", "\"legendform\"", "legendform"),
        ("\"fiscalYearStartMonth\": 0", "\"fiscalYearStartMonth\": 12", "must be < 12"),
    ] {
        assert!(text.contains(from), "{from}");
        std::fs::write(&broken, text.replacen(from, to, 1)).unwrap();
        let problems = problems(&broken);
        assert!(problems.contains(named), "{to}: {problems:?}");
    }
}
