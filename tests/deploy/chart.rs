//! The Helm chart, as far as it can be checked without Helm. tests/integration/chart.rs renders it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::DirEntry;
use std::path::{Path, PathBuf};

use dedupd::config::{Shape, keys};
use serde_json::Value;

use super::programs::{TOP, text};

const CHART: &str = "deploy/helm/dedupd";
/// Keys that the chart sets.
const NOT_IN_VALUES: [&str; 7] =
    ["topics.raw", "topics.clean", "group.instance", "state.dir", "http.listen", "rekey.from", "rekey.to"];

/// Names of keys by section.
type Names = BTreeMap<String, BTreeSet<String>>;

#[test]
fn the_schema_has_the_keys_of_dedupd() {
    let schema: Value = serde_json::from_str(&text(&format!("{CHART}/values.schema.json"))).unwrap();
    let sections = schema["definitions"]["config"]["properties"].as_object().unwrap();
    let in_schema: Names = sections
        .iter()
        .map(|(section, content)| {
            let properties = if section == "kinds" { &content["items"] } else { content };
            let names = properties["properties"].as_object().unwrap().keys().cloned();
            (section.clone(), names.collect())
        })
        .collect();
    let declared: Names = keys()
        .into_iter()
        .map(|section| {
            let (Shape::Section(keys) | Shape::Tables(keys)) = section.shape else {
                panic!("{} is no section", section.name);
            };
            let names = keys.iter().map(|key| key.name);
            let in_values =
                names.filter(|name| !NOT_IN_VALUES.contains(&format!("{}.{name}", section.name).as_str()));
            (section.name.to_owned(), in_values.map(str::to_owned).collect())
        })
        .collect();
    assert_eq!(in_schema, declared);
}

/// A value without quotes is a number, a boolean or null in YAML if it looks like one: a topic named 2024, on or no.
#[test]
fn every_rendered_text_is_quoted() {
    let folder = std::fs::read_dir(format!("{TOP}/{CHART}/templates")).unwrap();
    let names = folder.map(|file| file.unwrap().file_name().to_string_lossy().into_owned());
    let templates: Vec<String> = names.filter(|name| name != "NOTES.txt").collect();
    assert!(templates.len() >= 5, "{templates:?}");
    let mut quoted = 0;
    for name in templates {
        for line in text(&format!("{CHART}/templates/{name}")).lines() {
            for (_, rest) in line.match_indices(": {{ ").map(|(at, sign)| line.split_at(at + sign.len())) {
                let expression = rest.split(" }}").next().unwrap();
                // The numbers.
                let is_number = [".", "$topic.replicas", ".topic.mode"].contains(&expression);
                assert!(is_number || expression.ends_with("| quote"), "{name}: {line}");
                quoted += usize::from(!is_number);
            }
        }
    }
    assert!(quoted > 20, "{quoted}");
}

/// The files of a folder and of those below.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let below = |entry: DirEntry| {
        assert!(!entry.file_type().unwrap().is_symlink(), "{}: not in a copy", entry.path().display());
        if entry.file_type().unwrap().is_dir() { files(&entry.path()) } else { vec![entry.path()] }
    };
    entries.flat_map(below).collect()
}

/// A chart is packaged, copied and pushed alone.
#[test]
fn the_chart_has_no_links_and_its_copies_are_those_of_the_repository() {
    assert!(files(&Path::new(TOP).join(CHART)).len() > 15);
    for (copy, of) in [("alerts.yml", "config/alerts.yml"), ("dedupd.json", "dashboards/dedupd.json")] {
        let path = format!("{CHART}/files/{copy}");
        assert!(text(&path) == text(of), "{path} is outdated: cp {of} {path}");
    }
}

/// The image of a release is found by the default values, and the chart of a release has its version.
#[test]
fn chart_image_and_archive_have_the_version_of_the_program() {
    let version = env!("CARGO_PKG_VERSION");
    let chart: Value = serde_norway::from_str(&text(&format!("{CHART}/Chart.yaml"))).unwrap();
    assert_eq!((&chart["version"], &chart["appVersion"]), (&version.into(), &version.into()));
    let values: Value = serde_norway::from_str(&text(&format!("{CHART}/values.yaml"))).unwrap();
    assert_eq!(values["image"]["tag"], "", "the default is appVersion");
    assert!(
        text(&format!("{CHART}/templates/_pod.tpl"))
            .contains("default .root.Chart.AppVersion $values.image.tag")
    );
    let package = text("scripts/package");
    assert!(package.contains(r#"version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -1)"#));
    let first =
        text("Cargo.toml").lines().find_map(|line| line.strip_prefix("version = ").map(str::to_owned));
    assert_eq!(
        first.unwrap(),
        format!("\"{version}\""),
        "the first version of Cargo.toml, as in scripts/package"
    );
    // The tag of git is v<version>; that of the image must not have the v.
    let release = text(".github/workflows/release.yml");
    let tags: Vec<&str> = release.lines().filter_map(|line| line.trim().strip_prefix("tags: ${{")).collect();
    let [tag] = tags[..] else { panic!("{tags:?}") };
    assert!(tag.ends_with(":${{ steps.version.outputs.version }}"), "{tag}");
    assert!(release.contains("echo \"version=${GITHUB_REF_NAME#v}\" >> \"$GITHUB_OUTPUT\""));
    assert!(text("docs/kubernetes.md").contains(&format!("tag: {version} }}")));
}
