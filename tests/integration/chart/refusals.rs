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
