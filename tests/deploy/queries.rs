//! The queries of the dashboard and the alerts, and their metrics and labels.

use serde_json::Value;

use super::programs::text;

/// One expression, and the panel, annotation, variable or alert that uses it.
#[derive(Debug, Clone)]
pub struct Workload {
    pub by: String,
    pub expr: String,
}

/// The dashboard as JSON.
pub fn dashboard() -> Value {
    serde_json::from_str(&text("dashboards/dedupd.json")).expect("the dashboard is JSON")
}

/// The panels, without rows.
pub fn panels() -> Vec<Value> {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    panels.filter(|panel| panel["type"] != "row").cloned().collect()
}

/// All queries of the dashboard, with variables replaced as Grafana does for "All".
pub fn of_the_dashboard() -> Vec<Workload> {
    let mut found = Vec::new();
    for panel in panels() {
        for target in panel["targets"].as_array().expect("targets") {
            let by = format!("panel {}, {}", panel["title"], target["refId"]);
            found.push(Workload { by, expr: replaced(target["expr"].as_str().expect("an expression")) });
        }
    }
    let dashboard = dashboard();
    for annotation in dashboard["annotations"]["list"].as_array().expect("annotations") {
        if let Some(expr) = annotation["expr"].as_str() {
            found.push(Workload { by: format!("annotation {}", annotation["name"]), expr: replaced(expr) });
        }
    }
    for variable in dashboard["templating"]["list"].as_array().expect("variables") {
        let definition = variable["definition"].as_str().unwrap_or_default();
        let series = definition.strip_prefix("label_values(").and_then(|rest| rest.rsplit_once(", "));
        if let Some((series, _)) = series {
            found.push(Workload { by: format!("variable {}", variable["name"]), expr: replaced(series) });
        }
    }
    found
}

/// The expressions of the alerts, by name.
pub fn of_the_alerts() -> Vec<Workload> {
    let rules: Value = serde_norway::from_str(&text("config/alerts.yml")).expect("alerts.yml is YAML");
    let groups = rules["groups"].as_array().expect("groups").iter();
    let rules = groups.flat_map(|group| group["rules"].as_array().expect("rules").clone());
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    rules.map(|rule| Workload { by: text(&rule["alert"]), expr: text(&rule["expr"]) }).collect()
}

fn replaced(expr: &str) -> String {
    let all = |expr: String, name: &str| expr.replace(name, ".*");
    let expr = expr.replace("$__rate_interval", "1m");
    let expr = ["$topic", "$group", "$instance", "$partition"].into_iter().fold(expr, all);
    assert!(!expr.contains('$'), "a variable that this test does not support: {expr}");
    expr
}

/// A selector of an expression: the metric's name, and the label, operator and value of each matcher.
#[derive(Debug, PartialEq, Eq)]
pub struct Selector {
    pub metric: String,
    pub matchers: Vec<(String, String, String)>,
}

/// The selectors of metrics that begin with `dedupd_` or `process_`.
pub fn selectors(expr: &str) -> Vec<Selector> {
    let mut found = Vec::new();
    let mut rest = expr;
    while let Some(at) = ["dedupd_", "process_"].iter().filter_map(|start| rest.find(start)).min() {
        let tail = &rest[at..];
        let end = tail.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(tail.len());
        let (metric, after) = tail.split_at(end);
        let inside = after.strip_prefix('{').and_then(|inside| inside.split_once('}'));
        let matchers = inside.map_or_else(Vec::new, |(inside, _)| inside.split(',').map(matcher).collect());
        found.push(Selector { metric: metric.to_owned(), matchers });
        rest = inside.map_or(after, |(_, after)| after);
    }
    found
}

fn matcher(text: &str) -> (String, String, String) {
    let text = text.trim();
    let at = text.find(['=', '!']).unwrap_or_else(|| panic!("no matcher: {text}"));
    let (label, rest) = text.split_at(at);
    let (operator, value) = rest.split_once('"').expect("a quoted value");
    (label.to_owned(), operator.to_owned(), value.trim_end_matches('"').to_owned())
}
