//! The schema of the chart's values names what is wrong, and has exactly the keys of dedupd.

use std::collections::{BTreeMap, BTreeSet};

use dedupd::config::{Shape, keys};
use serde_json::Value;

use super::helm::{CHART, helm, printed, text};

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

#[test]
fn wrong_values_are_rejected_by_name() {
    for (value, named) in [
        ("config.window.exakt=1h", "'/config/window': additional properties 'exakt'"),
        ("config.windows.exact=1h", "'/config': additional properties 'windows'"),
        ("config.group.instance=a", "'/config/group': additional properties 'instance'"),
        ("config.dedupe.scope=all", "'/config/dedupe/scope': value must be one of 'topic', 'partition'"),
        ("replicas=0", "'/replicas': minimum: got 0, want 1"),
        ("replica=2", "additional properties 'replica'"),
        ("topics=null", "missing property 'topics'"),
        ("topics[0].raw=a", "missing property 'clean'"),
        ("resources.limits=2Gi", "'/resources/limits': got string, want object"),
        ("persistence.size=large", "'/persistence/size': 'large' does not match pattern"),
        ("podAntiAffinity=maybe", "'/podAntiAffinity': value must be one of"),
        ("networkPolicy.kafkaPorts={kafka}", "'/networkPolicy/kafkaPorts/0': got string, want integer"),
    ] {
        let output = helm(&["template", "dedupd"], &["--set", value]);
        let message = printed(&output);
        assert!(!output.status.success() && message.contains(named), "{value}: {message}");
    }
    let twice = r#"topics=[{"raw":"a.b","clean":"c"},{"raw":"A_b","clean":"d"}]"#;
    let output = helm(&["template", "dedupd"], &["--set-json", twice]);
    assert!(printed(&output).contains("topics: a.b and A_b both have the name a-b"), "{}", printed(&output));
    let long = format!("topics=[{{\"raw\":\"{}\",\"clean\":\"c\"}}]", "a".repeat(60));
    let output = helm(&["template", "dedupd"], &["--set-json", &long]);
    assert!(printed(&output).contains("is longer than 52 characters"), "{}", printed(&output));
}
