//! The Helm chart, as far as it can be checked without Helm. tests/integration/chart.rs renders it.

use std::collections::{BTreeMap, BTreeSet};

use dedupd::config::{Shape, keys};
use serde_json::Value;

use super::programs::{TOP, text};

const CHART: &str = "deploy/helm/dedupd";
/// Keys that the chart sets.
const NOT_IN_VALUES: [&str; 5] = ["topics.raw", "topics.clean", "group.instance", "state.dir", "http.listen"];

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
    // The stage before the service has no pods in this chart.
    let declared: Names = keys()
        .into_iter()
        .filter(|section| section.name != "rekey")
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
                let is_number = [".", "$topic.replicas"].contains(&expression);
                assert!(is_number || expression.ends_with("| quote"), "{name}: {line}");
                quoted += usize::from(!is_number);
            }
        }
    }
    assert!(quoted > 20, "{quoted}");
}
