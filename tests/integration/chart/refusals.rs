//! The schema of the chart's values names what is wrong. tests/deploy/chart.rs compares its keys with those of dedupd.

use super::helm::{helm, printed};

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
        ("topics[0].mode=rekey", "missing properties 'from', 'to'"),
        ("livenessProbe.httpGet=a", "'/livenessProbe': additional properties 'httpGet'"),
        ("topics[0].raw=a", "missing property 'clean'"),
        ("resources.limits=2Gi", "'/resources/limits': got string, want object"),
        (
            "resources.limits.memory=512Mi",
            "resources: dedupd-events requests 1Gi of memory, more than its limit of 512Mi; set both",
        ),
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

/// Kubernetes would reject the pods, and the `StatefulSet` would have none.
#[test]
fn a_request_above_its_limit_is_rejected_in_any_unit() {
    let template = |resources: &str| {
        let topics = format!(r#"topics=[{{"raw":"a","clean":"b","resources":{resources}}}]"#);
        helm(&["template", "dedupd"], &["--set-json", &topics])
    };
    // The other one of the two is that of values.yaml.
    for (resources, named) in [
        (r#"{"limits":{"memory":"512Mi"}}"#, "dedupd-a requests 1Gi of memory, more than its limit of 512Mi"),
        (r#"{"limits":{"memory":1073741823}}"#, "dedupd-a requests 1Gi of memory, more than its limit"),
        (r#"{"requests":{"memory":"3G"}}"#, "dedupd-a requests 3G of memory, more than its limit of 2Gi"),
        (r#"{"limits":{"cpu":"900m"}}"#, "dedupd-a requests 1 of cpu, more than its limit of 900m"),
        (r#"{"limits":{"cpu":0.5}}"#, "dedupd-a requests 1 of cpu, more than its limit of 0.5"),
    ] {
        let output = template(resources);
        let message = printed(&output);
        assert!(!output.status.success() && message.contains(named), "{resources}: {message}");
    }
    for resources in [
        r#"{"limits":{"memory":"1048576Ki"}}"#,
        r#"{"limits":{"memory":1073741824}}"#,
        r#"{"requests":{"memory":"2147483648"}}"#,
        r#"{"requests":{"memory":"2.1G"}}"#,
        r#"{"limits":{"cpu":"1000m"}}"#,
        r#"{"limits":{"cpu":1}}"#,
        r#"{"requests":{"cpu":"4"}}"#,
        r#"{"requests":{"memory":"3Gi"},"limits":{"memory":"3Gi"}}"#,
    ] {
        let output = template(resources);
        assert!(output.status.success(), "{resources}: {}", printed(&output));
    }
}
