//! The dashboard: what Grafana and its reader need of each panel.

use std::collections::BTreeSet;

use serde_json::Value;

use super::questions::{dashboard, panels};

#[test]
fn every_panel_has_a_title_a_line_of_what_it_shows_a_unit_and_a_legend() {
    for panel in panels() {
        let title = panel["title"].as_str().unwrap();
        let description = panel["description"].as_str().unwrap_or_default();
        assert!(!title.is_empty() && description.ends_with('.') && !description.contains('\n'), "{title}");
        assert!(
            panel["fieldConfig"]["defaults"]["unit"].as_str().is_some_and(|unit| !unit.is_empty()),
            "{title}"
        );
        for target in panel["targets"].as_array().unwrap() {
            assert!(target["legendFormat"].as_str().is_some_and(|legend| !legend.is_empty()), "{title}");
        }
    }
}

#[test]
fn everything_asks_the_chosen_data_source() {
    let text = dashboard().to_string();
    let uids: BTreeSet<&str> =
        text.split("\"uid\":\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert_eq!(uids, BTreeSet::from(["${datasource}", "-- Grafana --", "dedupd"]));
    let dashboard = dashboard();
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    let names: Vec<_> = variables.map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["datasource", "instance", "partition"], "the data source first: the others ask it");
}

#[test]
fn panels_have_their_own_number_and_place() {
    let dashboard = dashboard();
    let all = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = all.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), all.len());
    let mut taken = BTreeSet::new();
    for panel in all {
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{}", panel["title"]);
        for column in at("x")..at("x") + at("w") {
            for line in at("y")..at("y") + at("h") {
                assert!(taken.insert((column, line)), "{} covers another", panel["title"]);
            }
        }
    }
}

#[test]
fn what_a_grafana_of_version_11_or_12_reads_is_there() {
    let dashboard = dashboard();
    assert!((36..=41).contains(&dashboard["schemaVersion"].as_u64().unwrap()));
    assert_eq!((&dashboard["uid"], &dashboard["title"]), (&Value::from("dedupd"), &Value::from("dedupd")));
    assert_eq!(dashboard["id"], Value::Null, "an imported dashboard gets its number from Grafana");
    let known = ["row", "stat", "timeseries"];
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(known.contains(&panel["type"].as_str().unwrap()), "{}", panel["type"]);
    }
}
