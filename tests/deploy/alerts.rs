//! The alerts: Prometheus accepts them, their unit tests pass, and these tests detect a changed rule.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::programs::{TOP, printed, promtool, text};
use super::queries;

#[test]
fn prometheus_accepts_configuration_and_rules() {
    for arguments in [["check", "config", "config/prometheus.yml"], ["check", "rules", "config/alerts.yml"]] {
        let output = promtool(Path::new(TOP), &arguments);
        let text = printed(&output);
        assert!(output.status.success() && text.contains("SUCCESS"), "{text}");
        assert!(!text.contains("FAILED") && !text.to_lowercase().contains("duplicate"), "{text}");
    }
}

#[test]
fn every_alert_fires_when_it_should_and_only_then() {
    let output = promtool(Path::new(TOP), &["test", "rules", "config/alerts.test.yml"]);
    assert!(output.status.success(), "{}", printed(&output));
    let tests = text("config/alerts.test.yml");
    for alert in queries::of_the_alerts() {
        assert!(tests.contains(&format!("alertname=\"{}\"", alert.by)), "{} has no test", alert.by);
    }
}

/// Changes of one rule each, which the tests must detect.
const CHANGES: [(&str, &str); 30] = [
    ("up{job=\"dedupd\"} == 0", "up == 0"),
    (
        "(dedupd_ready == 0)\n          * on (job, instance) group_left (raw, group) dedupd_info{scope!=",
        "(dedupd_ready == 1)\n          * on (job, instance) group_left (raw, group) dedupd_info{scope!=",
    ),
    ("dedupd_info{scope=\"rekey\"}\n        for: 5m", "dedupd_info{scope=\"rekey\"}\n        for: 4m"),
    ("(delta(dedupd_rekey_lag_records[10m])) > 0", "(delta(dedupd_rekey_lag_records[10m])) >= 0"),
    ("max by (job, group) (dedupd_role", "min by (job, group) (dedupd_role"),
    ("on (job, group)\n          max by (job, group)", "on (job)\n          max by (job)"),
    ("unassigned_partitions > 0", "unassigned_partitions > 2"),
    ("{reason=\"not_fetched\"}", ""),
    ("{reason=\"not_fetched\"}[1h])) > 3", "{reason=\"not_fetched\"}[1h])) > 0"),
    ("[15m]) > 2", "[15m]) > 5"),
    ("(deriv(dedupd_lag_records[15m])) > 0", "(deriv(dedupd_lag_records[15m])) > -1000"),
    ("> 60 *", "> 0 *"),
    ("> 9 *", "> 11 *"),
    ("dedupd_raw_start_offset > 0", "dedupd_raw_start_offset >= 0"),
    ("{reason=\"gap\"}", ""),
    ("(dedupd_offset_resets_total{reason=\"gap\"}) > 0", "(dedupd_offset_resets_total{reason=\"gap\"}) > 2"),
    ("dedupd_raw_hanging_seconds > 300", "dedupd_raw_hanging_seconds > 280"),
    ("> 0.05 *", "> 0.01 *"),
    ("dedupd_transaction_reduced_records > 0", "dedupd_transaction_reduced_records >= 0"),
    ("(dedupd_lag_records) > on", "(2 * dedupd_lag_records) > on"),
    ("dedupd_torn_transactions_total[1h])) > 0", "dedupd_torn_transactions_total[1h])) > 1"),
    ("(0.99 *", "(0.4 *"),
    ("dedupd_evicted_ids_total[1h]) > 0", "dedupd_evicted_ids_total[1h]) >= 0"),
    ("miss_rate > 0.01", "miss_rate > 0.0001"),
    ("rate > dedupd_false_positive_rate_promised", "rate >= dedupd_false_positive_rate_promised"),
    ("=~\"duplicate|conflict\"}[15m])) > 0.01", "=~\"duplicate|conflict\"}[15m])) > 0.0001"),
    ("{outcome=\"conflict\"}[15m]", "{outcome=\"conflict\"}[2h]"),
    ("{state=\"restoring\"} > 0", "{state=\"restoring\"} > 1"),
    ("(dedupd_standby_lag_records[15m]) > 10000", "(dedupd_standby_lag_records[15m]) >= 12"),
    ("(dedupd_standby_lag_records[15m]) >= 0", "(dedupd_standby_lag_records[15m]) >= -2000"),
];

#[test]
fn the_alert_tests_detect_a_changed_rule() {
    let (rules, tests) = (text("config/alerts.yml"), text("config/alerts.test.yml"));
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("alerts.test.yml"), tests).unwrap();
    for (from, to) in CHANGES {
        assert_eq!(rules.matches(from).count(), 1, "{from}");
        std::fs::write(folder.path().join("alerts.yml"), rules.replace(from, to)).unwrap();
        let output = promtool(folder.path(), &["test", "rules", "alerts.test.yml"]);
        assert!(!output.status.success(), "no test fails after {from} is changed to {to}");
        assert!(
            printed(&output).contains("got"),
            "the tests failed for another reason: {}",
            printed(&output)
        );
    }
}

/// The address of docs/ is put before every path in one place: by the command in the file, and by a value of the chart.
#[test]
fn every_alert_has_a_page_and_every_page_an_alert() {
    let pages = std::fs::read_dir(Path::new(TOP).join("docs/alerts")).unwrap();
    let pages: BTreeSet<String> =
        pages.map(|page| page.unwrap().file_name().into_string().unwrap()).collect();
    let alerts: BTreeSet<String> =
        queries::of_the_alerts().iter().map(|alert| format!("{}.md", alert.by)).collect();
    assert_eq!(pages, alerts);
    let rules = text("config/alerts.yml");
    let command = rules.lines().find(|line| line.contains("sed -i")).unwrap();
    let command = command.trim_start_matches(['#', ' ']);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("alerts.yml"), &rules).unwrap();
    let ran = Command::new("sh").args(["-c", command]).current_dir(folder.path()).status().unwrap();
    assert!(ran.success(), "{command}");
    let output = promtool(folder.path(), &["check", "rules", "alerts.yml"]);
    assert!(output.status.success(), "{}", printed(&output));
    let published = std::fs::read_to_string(folder.path().join("alerts.yml")).unwrap();
    for (rules, base) in [(rules, "docs"), (published, "https://git.example.com/dedupd/docs")] {
        let rules: Value = serde_norway::from_str(&rules).unwrap();
        for rule in rules["groups"][0]["rules"].as_array().unwrap() {
            let name = rule["alert"].as_str().unwrap();
            assert_eq!(rule["annotations"]["runbook_url"], format!("{base}/alerts/{name}.md"));
        }
    }
}

/// Cause, place to look and remedy, in few words: it is read at night.
#[test]
fn every_page_has_a_cause_a_look_and_a_remedy() {
    let mut words = 0;
    for alert in queries::of_the_alerts() {
        let page = text(&format!("docs/alerts/{}.md", alert.by));
        let parts: Vec<&str> = page.split("\n\n").collect();
        let [title, cause, look, remedy] = parts[..] else { panic!("{}: {} parts", alert.by, parts.len()) };
        assert_eq!(title, format!("# {}", alert.by));
        for (part, name) in [(cause, "Cause"), (look, "Look"), (remedy, "Remedy")] {
            assert!(part.starts_with(&format!("**{name}.** ")), "{}: {part}", alert.by);
        }
        let count = page.split_whitespace().count();
        assert!((40..=90).contains(&count), "{}: {count} words", alert.by);
        words += count;
    }
    assert!(words <= 2_500, "{words}");
}

#[test]
fn every_alert_has_a_severity_a_summary_and_an_action() {
    let rules: Value = serde_norway::from_str(&text("config/alerts.yml")).unwrap();
    for rule in rules["groups"][0]["rules"].as_array().unwrap() {
        let severity = rule["labels"]["severity"].as_str().unwrap();
        assert!(["critical", "warning", "info"].contains(&severity), "{rule}");
        let annotation = |key: &str| rule["annotations"][key].as_str().unwrap_or_default().to_owned();
        assert!(annotation("summary").contains("{{ $labels.instance }}"), "{rule}");
        let description = annotation("description").to_lowercase();
        let verbs = ["read ", "look at", "raise ", "compare ", "set ", "keep "];
        assert!(verbs.iter().any(|verb| description.contains(verb)), "{}: no action", rule["alert"]);
    }
}
