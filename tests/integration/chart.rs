//! The Helm chart: what it renders is valid for Kubernetes, dedupd accepts the configuration, and it agrees with the plain
//! manifest.

#[path = "../deploy/configured.rs"]
mod configured;
mod helm;
mod refusals;

use dedupd::app::window_memory;
use dedupd::config::{Config, OnStop, Rekeying, Scope};
use serde_json::{Value, json};

use configured::{configuration, rekeying};
use helm::{Rendered, documents, printed, text, validate, value_files, values};

fn all() -> Vec<String> {
    [vec!["default".to_owned()], value_files()].concat()
}

fn pod(set: &Value) -> &Value {
    &set["spec"]["template"]["spec"]
}

fn container(set: &Value) -> &Value {
    &pod(set)["containers"][0]
}

/// The mount path of a volume of the container.
fn mount<'a>(set: &'a Value, volume: &str) -> &'a str {
    let mounts = container(set)["volumeMounts"].as_array().unwrap();
    let mount = mounts.iter().find(|mount| mount["name"] == volume).expect("a mount");
    mount["mountPath"].as_str().unwrap()
}

/// What the first pod of a set starts dedupd with.
struct Start {
    arguments: Vec<String>,
    file: (String, String),
    environment: [(String, String); 1],
}

fn start_of(rendered: &Rendered, set: &Value) -> Start {
    let words = container(set)["args"].as_array().unwrap().iter();
    let arguments: Vec<String> = words.map(|word| word.as_str().unwrap().to_owned()).collect();
    let name = set["metadata"]["name"].as_str().unwrap();
    assert_eq!(
        container(set)["env"][0],
        json!({ "name": "DEDUPD_GROUP__INSTANCE", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } })
    );
    let environment = [("DEDUPD_GROUP__INSTANCE".to_owned(), format!("{name}-0"))];
    let map = &rendered.get("ConfigMap", name)["data"];
    let toml = map["dedupd.toml"].as_str().unwrap().to_owned();
    Start { arguments, file: (format!("{}/dedupd.toml", mount(set, "config")), toml), environment }
}

/// The configuration of the first pod of a set, as dedupd reads it.
fn config_of(rendered: &Rendered, set: &Value) -> Config {
    let Start { arguments, file, environment } = start_of(rendered, set);
    configuration(&arguments, &file, &environment)
}

/// The same of a set of `rekey`.
fn rekeying_of(rendered: &Rendered, set: &Value) -> Rekeying {
    let Start { arguments, file, environment } = start_of(rendered, set);
    rekeying(&arguments, &file, &environment)
}

fn is_rekey(set: &Value) -> bool {
    container(set)["args"][0] == "rekey"
}

/// A quantity with the unit Mi or Gi, in MiB.
fn mebibytes(quantity: &Value) -> u64 {
    let text = quantity.as_str().unwrap();
    let number = |unit| text.strip_suffix(unit).map(|number: &str| number.parse::<u64>().unwrap());
    number("Mi").or_else(|| number("Gi").map(|number| number * 1024)).expect("a unit")
}

#[test]
fn helm_accepts_the_chart_with_every_value_file() {
    assert_eq!(value_files(), ["forty-topics", "one-topic", "partition-scope", "rekey", "secured"]);
    for name in all() {
        let arguments = values(&name);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = helm::helm(&["lint", "--strict"], &arguments);
        assert!(output.status.success(), "{name}: {}", printed(&output));
    }
}

#[test]
fn every_rendered_resource_is_valid_for_kubernetes() {
    for name in all() {
        let rendered = Rendered::of(&name);
        let report = validate(&rendered.text);
        let report_text = printed(&report);
        assert!(report.status.success(), "{name}: {report_text}");
        let operator = |resource: &&Value| resource["apiVersion"] == "monitoring.coreos.com/v1";
        let unknown = rendered.resources.iter().filter(operator).count();
        assert_eq!(report_text.matches("passed for resource").count() + unknown, rendered.resources.len());
    }
    // The validation can fail.
    let wrong = Rendered::of("default").text.replace("terminationGracePeriodSeconds", "gracePeriodSeconds");
    assert!(!validate(&wrong).status.success());
}

#[test]
fn dedupd_accepts_every_rendered_configuration() {
    for name in all() {
        let rendered = Rendered::of(&name);
        for set in rendered.kinds("StatefulSet").into_iter().filter(|set| !is_rekey(set)) {
            let config = config_of(&rendered, set);
            assert_eq!(config.state.dir.display().to_string(), mount(set, "state"));
            assert!(config.http.listen.ip().is_unspecified());
            assert_eq!(container(set)["ports"][0]["containerPort"], config.http.listen.port());
            assert_memory_fits(set, &config);
            // A member must be back before its session ends; a spare takes over only from a member that has left.
            let expected = match config.dedupe.scope {
                Scope::Partition => (OnStop::Remain, 45),
                Scope::Topic => (OnStop::Leave, 10),
            };
            assert_eq!((config.group.on_stop, config.group.session_timeout.as_secs()), expected, "{name}");
        }
    }
}

#[test]
fn rekey_is_a_set_without_local_state_whose_target_is_read_by_another_set() {
    let rendered = Rendered::of("rekey");
    let set = rendered.get("StatefulSet", "dedupd-rekey-events-raw");
    assert!(is_rekey(set) && set["spec"]["volumeClaimTemplates"].is_null());
    let mounts = container(set)["volumeMounts"].as_array().unwrap();
    assert!(mounts.iter().all(|mount| mount["name"] != "state"));
    let config = rekeying_of(&rendered, set);
    assert_eq!(config.rekey.from, ["orders", "payments"]);
    assert_eq!((config.instance.as_str(), config.create), ("dedupd-rekey-events-raw-0", true));
    assert_eq!(container(set)["ports"][0]["containerPort"], config.listen.port());
    let run = config_of(&rendered, rendered.get("StatefulSet", "dedupd-events-raw"));
    assert_eq!((run.topics.raw, run.dedupe.scope), (config.rekey.to, Scope::Partition));
}

#[test]
fn what_a_cluster_requires_of_pods_is_in_the_values() {
    let rendered = Rendered::of("secured");
    let set = rendered.get("StatefulSet", "dedupd-orders");
    let own = &set["spec"]["selector"]["matchLabels"];
    let spread = &pod(set)["topologySpreadConstraints"][0];
    assert_eq!((&spread["labelSelector"]["matchLabels"], &spread["maxSkew"]), (own, &json!(1)));
    assert_eq!(container(set)["env"][1], json!({ "name": "KRB5_CONFIG", "value": "/etc/krb5/krb5.conf" }));
    assert_eq!(mount(set, "krb5"), "/etc/krb5");
    let volumes = pod(set)["volumes"].as_array().unwrap();
    assert!(volumes.contains(&json!({ "name": "krb5", "configMap": { "name": "krb5" } })));
    let probe = &container(set)["livenessProbe"];
    assert_eq!((&probe["failureThreshold"], &probe["periodSeconds"]), (&json!(12), &json!(10)));
    assert_eq!(set["metadata"]["labels"]["example.com/owner"], "streams");
    assert_eq!(set["metadata"]["annotations"]["example.com/page"], "kafka");
    assert_eq!(set["spec"]["template"]["metadata"]["labels"]["example.com/cost"], "kafka");
    assert_eq!(pod(set)["serviceAccountName"], "dedupd");
    let account = rendered.get("ServiceAccount", "dedupd");
    assert_eq!(account["metadata"]["annotations"]["example.com/role"], "dedupd");
    assert!(Rendered::of("default").kinds("ServiceAccount").is_empty());
}

#[test]
fn a_copy_of_the_chart_has_the_alerts_and_the_dashboard() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy");
    let mut cp = std::process::Command::new("cp");
    let copied = cp.args(["-r", helm::CHART]).arg(&copy).current_dir(helm::TOP).status().unwrap();
    assert!(copied.success());
    let set = "prometheusRule.enabled=true,dashboard.enabled=true";
    let output = helm::helm_on(&copy, &["template", "dedupd"], &["--set", set]);
    assert!(output.status.success(), "{}", printed(&output));
    let resources = documents(&String::from_utf8(output.stdout).unwrap());
    let get = |name: &str| resources.iter().find(|it| it["metadata"]["name"] == name).unwrap();
    let dashboard = get("dedupd-dashboard");
    assert_eq!(dashboard["data"]["dedupd.json"], text("dashboards/dedupd.json"));
    assert_eq!(dashboard["metadata"]["labels"]["grafana_dashboard"], "1");
    assert_eq!(get("dedupd")["spec"], documents(&text("config/alerts.yml"))[0]);
}

/// The memory limit leaves at least 100 MiB for the windows.
fn assert_memory_fits(set: &Value, config: &Config) {
    let limit = mebibytes(&container(set)["resources"]["limits"]["memory"]) << 20;
    let derived = window_memory(limit, config.group.workers);
    let window = config.window.max_memory.unwrap_or(derived);
    assert!((100 << 20..=derived).contains(&window), "{window} of {limit} bytes");
}

#[test]
fn the_default_values_agree_with_the_plain_manifest() {
    let rendered = Rendered::of("default");
    let plain = documents(&text("deploy/kubernetes/dedupd.yaml"));
    let plain = |kind: &str| plain.iter().find(|resource| resource["kind"] == kind).unwrap();
    let (ours, theirs) = (rendered.get("StatefulSet", "dedupd-events"), plain("StatefulSet"));
    for field in ["replicas", "podManagementPolicy"] {
        assert_eq!(ours["spec"][field], theirs["spec"][field], "{field}");
    }
    for field in ["terminationGracePeriodSeconds", "automountServiceAccountToken", "securityContext"] {
        assert!(!pod(theirs)[field].is_null() && pod(ours)[field] == pod(theirs)[field], "{field}");
    }
    let container_fields = container(theirs).as_object().unwrap();
    assert!(container_fields.len() >= 10, "{container_fields:?}");
    for (field, value) in container_fields {
        assert_eq!(&container(ours)[field], value, "{field}");
    }
    let claim = |set: &Value| set["spec"]["volumeClaimTemplates"][0]["spec"].clone();
    assert_eq!(claim(ours), claim(theirs));
    let annotations = &theirs["spec"]["template"]["metadata"]["annotations"];
    for (name, value) in annotations.as_object().unwrap() {
        assert_eq!(&ours["spec"]["template"]["metadata"]["annotations"][name], value);
    }
    let service = rendered.get("Service", "dedupd-events");
    for field in ["clusterIP", "ports"] {
        assert_eq!(service["spec"][field], plain("Service")["spec"][field], "{field}");
    }
    let budget = rendered.get("PodDisruptionBudget", "dedupd-events");
    assert_eq!(budget["spec"]["maxUnavailable"], plain("PodDisruptionBudget")["spec"]["maxUnavailable"]);
    let toml = plain("ConfigMap")["data"]["dedupd.toml"].as_str().unwrap();
    let arguments = ["run", "--config", "/etc/dedupd/dedupd.toml"].map(str::to_owned);
    let instance = [("DEDUPD_GROUP__INSTANCE".to_owned(), "dedupd-events-0".to_owned())];
    let theirs = configuration(&arguments, &(arguments[2].clone(), toml.to_owned()), &instance);
    let ours = config_of(&rendered, ours);
    assert_eq!(ours.show(), theirs.show());
}

#[test]
fn selectors_and_labels_keep_the_topics_of_a_release_apart() {
    let rendered = Rendered::of("forty-topics");
    let sets = rendered.kinds("StatefulSet");
    assert_eq!(sets.len(), 40);
    let mut selectors = Vec::new();
    let mut raw = Vec::new();
    for set in &sets {
        let name = set["metadata"]["name"].as_str().unwrap();
        let selector = &set["spec"]["selector"]["matchLabels"];
        assert_eq!(selector, &set["spec"]["template"]["metadata"]["labels"]);
        assert_eq!(selector, &rendered.get("Service", name)["spec"]["selector"]);
        assert_eq!(selector, &rendered.get("PodDisruptionBudget", name)["spec"]["selector"]["matchLabels"]);
        assert_eq!(set["spec"]["serviceName"], *name);
        let terms = "preferredDuringSchedulingIgnoredDuringExecution";
        let affinity = &pod(set)["affinity"]["podAntiAffinity"][terms][0]["podAffinityTerm"];
        assert_eq!(&affinity["labelSelector"]["matchLabels"], selector);
        selectors.push(selector.to_string());
        let config = config_of(&rendered, set);
        raw.push((
            config.topics.raw.as_str().to_owned(),
            config.group.id.clone(),
            config.window.max_ids.unwrap(),
        ));
    }
    selectors.dedup();
    raw.dedup();
    assert_eq!((selectors.len(), raw.len()), (40, 40));
    assert_eq!(raw[0], ("events.01".to_owned(), "dedupd.events.01.events.01.clean".to_owned(), 5_000_000));
    assert_eq!(raw[39].2, 50_000_000, "an entry overrides the common values");
}

#[test]
fn labels_of_a_topic_that_is_named_like_a_number_are_texts() {
    let rendered = Rendered::of("one-topic");
    let set = rendered.get("StatefulSet", "dedupd-2024");
    let labels = &set["spec"]["template"]["metadata"]["labels"];
    assert_eq!(labels["app.kubernetes.io/component"], "2024");
    assert_eq!(&set["spec"]["selector"]["matchLabels"], labels);
}

#[test]
fn secrets_are_files_of_the_pods_that_name_them() {
    let rendered = Rendered::of("secured");
    for (name, secrets) in [
        ("dedupd-orders", ["kafka-credentials", "kafka-ca", "dedupd-admin"]),
        ("dedupd-payments", ["kafka-credentials", "kafka-ca", "dedupd-siphash"]),
    ] {
        let set = rendered.get("StatefulSet", name);
        let volumes = pod(set)["volumes"].as_array().unwrap().iter();
        let mounted: Vec<&str> = volumes
            .filter(|volume| volume["secret"]["defaultMode"] == 0o440)
            .map(|volume| {
                let secret = volume["secret"]["secretName"].as_str().unwrap();
                assert_eq!(mount(set, volume["name"].as_str().unwrap()), format!("/run/secrets/{secret}"));
                secret
            })
            .collect();
        assert_eq!(mounted, secrets);
    }
    assert!(rendered.kinds("Secret").is_empty());
    assert_eq!(mount(rendered.get("StatefulSet", "dedupd-orders"), "tmp"), "/tmp");
    let payments = rendered.get("StatefulSet", "dedupd-payments");
    assert_eq!(payments["spec"]["replicas"], 3);
    assert!(payments["spec"]["volumeClaimTemplates"].is_null(), "false overrides true");
    let volumes = pod(payments)["volumes"].as_array().unwrap();
    for name in ["state", "tmp"] {
        let volume = volumes.iter().find(|it| it["name"] == name).unwrap();
        assert_eq!(volume["emptyDir"], json!({ "sizeLimit": "10Gi" }));
    }
    let config = config_of(&rendered, payments);
    assert_eq!(config.window.max_memory, Some(100 << 20), "a value of the user wins");
}

#[test]
fn the_operator_scrapes_all_pods_and_has_the_alerts() {
    let rendered = Rendered::of("secured");
    let monitor = rendered.get("ServiceMonitor", "dedupd");
    assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus");
    let selector = monitor["spec"]["selector"]["matchLabels"].as_object().unwrap();
    for service in rendered.kinds("Service") {
        let labels = &service["metadata"]["labels"];
        assert!(selector.iter().all(|(name, value)| &labels[name] == value));
        // The value of this label becomes the job, which the alerts and the dashboard expect.
        assert_eq!(labels[monitor["spec"]["jobLabel"].as_str().unwrap()], "dedupd");
        let endpoint = &monitor["spec"]["endpoints"][0];
        assert_eq!(endpoint["port"], service["spec"]["ports"][0]["name"]);
        assert_eq!((&endpoint["path"], &endpoint["interval"]), (&json!("/metrics"), &json!("15s")));
    }
    let relabelings = monitor["spec"]["endpoints"][0]["relabelings"].as_array().unwrap();
    let targets: Vec<_> = relabelings.iter().map(|relabeling| &relabeling["targetLabel"]).collect();
    assert_eq!(targets, ["instance"], "raw and group are labels of dedupd_info");
    let pods = &rendered.get("StatefulSet", "dedupd-orders")["spec"]["template"]["metadata"]["annotations"];
    assert!(pods["prometheus.io/scrape"].is_null(), "the pods would be scraped twice");
    let rule = rendered.get("PrometheusRule", "dedupd");
    let alerts = &documents(&text("config/alerts.yml"))[0];
    assert!(alerts["groups"][0]["rules"].as_array().is_some_and(|rules| rules.len() > 10));
    let published =
        text("config/alerts.yml").replace("runbook_url: docs/", "runbook_url: https://wiki.example/dedupd/");
    assert_eq!(rule["spec"], documents(&published)[0]);
    assert_ne!(&rule["spec"], alerts, "the base of the runbooks is that of the values");
    let default = Rendered::of("default");
    for kind in ["ServiceMonitor", "PrometheusRule", "NetworkPolicy"] {
        assert!(default.kinds(kind).is_empty(), "{kind}");
    }
}

#[test]
fn the_network_policy_covers_all_pods() {
    let rendered = Rendered::of("secured");
    let policy = &rendered.get("NetworkPolicy", "dedupd")["spec"];
    let selector = policy["podSelector"]["matchLabels"].as_object().unwrap();
    for set in rendered.kinds("StatefulSet") {
        let labels = &set["spec"]["template"]["metadata"]["labels"];
        assert!(selector.iter().all(|(name, value)| &labels[name] == value));
        assert_eq!(policy["ingress"][0]["ports"][0]["port"], container(set)["ports"][0]["name"]);
    }
    assert_eq!(policy["policyTypes"], json!(["Ingress", "Egress"]));
    let ports: Vec<_> = policy["egress"].as_array().unwrap().iter().map(|rule| &rule["ports"]).collect();
    let ports: Vec<_> =
        ports.iter().flat_map(|ports| ports.as_array().unwrap()).map(|port| &port["port"]).collect();
    assert_eq!(ports, [53, 53, 9093, 9094, 443]);
}
