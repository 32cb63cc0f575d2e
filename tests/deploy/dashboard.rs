//! The dashboard: the fields of each panel that Grafana and its users require.

use std::collections::BTreeSet;

use serde_json::Value;

use super::queries::{dashboard, panels};

#[test]
fn every_panel_has_a_title_a_description_a_unit_and_a_legend() {
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
fn every_query_uses_the_selected_data_source() {
    let text = dashboard().to_string();
    let uids: BTreeSet<&str> =
        text.split("\"uid\":\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert_eq!(uids, BTreeSet::from(["${datasource}", "-- Grafana --", "dedupd"]));
    let dashboard = dashboard();
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    let names: Vec<_> = variables.map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["datasource", "topic", "group", "instance", "partition"],
        "the data source must be first, because the others query it"
    );
}

/// "All" instances are those of the chosen topics, so that each panel that filters by instance also filters by topic.
#[test]
fn the_instances_are_those_of_the_chosen_topics_and_groups() {
    let dashboard = dashboard();
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let instance = variables.iter().find(|it| it["name"] == "instance").unwrap();
    let definition = instance["definition"].as_str().unwrap();
    assert!(definition.contains("raw=~\"$topic\", group=~\"$group\""), "{definition}");
    assert_eq!((&instance["includeAll"], &instance["allValue"]), (&true.into(), &Value::Null));
    let mut joined = 0;
    for panel in panels() {
        for target in panel["targets"].as_array().unwrap() {
            let expr = target["expr"].as_str().unwrap();
            let of = &panel["title"];
            // Those of `rekey` are none of them: it writes the topic that they read.
            let filter = if expr.contains("dedupd_rekey_") {
                "{clean=~\"$topic\""
            } else {
                "{instance=~\"$instance\""
            };
            assert!(expr.contains(filter), "{of} shows all instances: {expr}");
            // A series of each version that ran in the time of the panel; one of them must remain.
            let join = "group_left (raw, group) max by (job, instance, raw, group) (dedupd_info{raw=~\"$topic\", group=~\"$group\"";
            assert_eq!(expr.matches("group_left (raw").count(), expr.matches(join).count(), "{of}");
            joined += usize::from(expr.contains(join));
        }
    }
    assert!(joined > 8, "{joined}");
}

#[test]
fn panels_have_unique_ids_and_do_not_overlap() {
    let dashboard = dashboard();
    let all = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = all.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), all.len());
    let mut covered = BTreeSet::new();
    for panel in all {
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{}", panel["title"]);
        for column in at("x")..at("x") + at("w") {
            for line in at("y")..at("y") + at("h") {
                assert!(covered.insert((column, line)), "{} overlaps another panel", panel["title"]);
            }
        }
    }
}

#[test]
fn the_dashboard_matches_the_schema_of_grafana_11_and_12() {
    let dashboard = dashboard();
    assert!((36..=41).contains(&dashboard["schemaVersion"].as_u64().unwrap()));
    assert_eq!((&dashboard["uid"], &dashboard["title"]), (&Value::from("dedupd"), &Value::from("dedupd")));
    assert_eq!(dashboard["id"], Value::Null, "Grafana assigns the id at import");
    let types = ["row", "stat", "timeseries"];
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(types.contains(&panel["type"].as_str().unwrap()), "{}", panel["type"]);
    }
}
