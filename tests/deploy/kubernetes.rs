//! The manifests for Kubernetes: the fields for start, stop, state and probes. `kubectl apply --dry-run=server`
//! checks the other fields.

use dedupd::config::Scope;
use serde::Deserialize;
use serde_json::Value;

use super::configuration;
use super::programs::text;

/// The manifest of a kind.
fn manifest(kind: &str) -> Value {
    let text = text("deploy/kubernetes/dedupd.yaml");
    let mut all = serde_norway::Deserializer::from_str(&text).map(|one| Value::deserialize(one).unwrap());
    all.find(|manifest| manifest["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
}

fn pod() -> Value {
    manifest("StatefulSet")["spec"]["template"]["spec"].clone()
}

fn container() -> Value {
    pod()["containers"][0].clone()
}

/// The mount path of a volume of the container.
fn mount(volume: &str) -> String {
    let container = container();
    let mut mounts = container["volumeMounts"].as_array().unwrap().iter();
    let mount = mounts.find(|mount| mount["name"] == volume).expect("a mount");
    mount["mountPath"].as_str().unwrap().to_owned()
}

#[test]
fn versions_and_kinds_exist_in_kubernetes() {
    for (kind, version) in [
        ("ConfigMap", "v1"),
        ("Service", "v1"),
        ("PodDisruptionBudget", "policy/v1"),
        ("StatefulSet", "apps/v1"),
    ] {
        let manifest = manifest(kind);
        assert_eq!(manifest["apiVersion"], version, "{kind}");
        assert_eq!(manifest["metadata"]["name"], "dedupd", "{kind}");
    }
}

#[test]
fn all_selectors_match_the_pods_of_the_stateful_set() {
    let set = manifest("StatefulSet");
    let labels = &set["spec"]["template"]["metadata"]["labels"];
    assert!(labels.as_object().is_some_and(|labels| !labels.is_empty()));
    assert_eq!(&set["spec"]["selector"]["matchLabels"], labels);
    assert_eq!(&manifest("Service")["spec"]["selector"], labels);
    assert_eq!(&manifest("PodDisruptionBudget")["spec"]["selector"]["matchLabels"], labels);
    assert_eq!(set["spec"]["serviceName"], manifest("Service")["metadata"]["name"]);
    assert_eq!(
        manifest("Service")["spec"]["clusterIP"],
        "None",
        "only a headless service gives pods DNS names"
    );
}

#[test]
fn dedupd_accepts_its_arguments_environment_and_configuration() {
    let container = container();
    let args: Vec<String> =
        container["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect();
    // A stable name, in the form of the first pod's name.
    let instance = &container["env"][0];
    assert_eq!(instance["valueFrom"]["fieldRef"]["fieldPath"], "metadata.name");
    assert_eq!(container["env"].as_array().unwrap().len(), 1);
    let environment = [(instance["name"].as_str().unwrap().to_owned(), "dedupd-0".to_owned())];
    let map = manifest("ConfigMap");
    let (name, toml) = map["data"].as_object().unwrap().iter().next().unwrap();
    let file = (format!("{}/{name}", mount("config")), toml.as_str().unwrap().to_owned());
    let config = configuration(&args, &file, &environment);
    assert_eq!(config.group.instance, "dedupd-0");
    // One active instance and one spare.
    assert_eq!(
        (config.dedupe.scope, &manifest("StatefulSet")["spec"]["replicas"]),
        (Scope::Topic, &2.into())
    );
    assert_eq!(config.state.dir.display().to_string(), mount("state"));
    assert!(config.http.listen.ip().is_unspecified());
    let port = &container["ports"][0];
    assert_eq!(port["containerPort"], config.http.listen.port());
    let set = manifest("StatefulSet");
    let annotations = &set["spec"]["template"]["metadata"]["annotations"];
    assert_eq!(annotations["prometheus.io/port"], config.http.listen.port().to_string());
    assert_eq!(manifest("Service")["spec"]["ports"][0]["targetPort"], port["name"]);
}

#[test]
fn every_mount_has_a_volume_and_the_state_survives_the_pod() {
    let (set, pod) = (manifest("StatefulSet"), pod());
    let claims = set["spec"]["volumeClaimTemplates"].as_array().unwrap();
    assert!(claims.iter().any(|claim| claim["metadata"]["name"] == "state"));
    let volumes = pod["volumes"].as_array().unwrap();
    let config = volumes.iter().find(|volume| volume["name"] == "config").unwrap();
    assert_eq!(config["configMap"]["name"], manifest("ConfigMap")["metadata"]["name"]);
    let names: Vec<_> =
        claims.iter().map(|it| &it["metadata"]["name"]).chain(volumes.iter().map(|it| &it["name"])).collect();
    for mount in container()["volumeMounts"].as_array().unwrap() {
        assert!(names.contains(&&mount["name"]), "{mount}");
    }
}

#[test]
fn the_temporary_directory_has_room_for_a_copy_of_the_state() {
    assert_eq!(mount("tmp"), "/tmp");
    let (set, pod) = (manifest("StatefulSet"), pod());
    let tmp = pod["volumes"].as_array().unwrap().iter().find(|volume| volume["name"] == "tmp").unwrap();
    let claim = &set["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"];
    assert_eq!(&tmp["emptyDir"]["sizeLimit"], claim);
    assert!(tmp["emptyDir"]["medium"].is_null(), "that is memory");
}

#[test]
fn probes_and_grace_period_match_the_program() {
    let container = container();
    for (probe, path) in [("livenessProbe", "/livez"), ("readinessProbe", "/readyz")] {
        assert_eq!(container[probe]["httpGet"]["path"], path);
        assert_eq!(container[probe]["httpGet"]["port"], container["ports"][0]["name"]);
    }
    // A stop takes up to nine seconds. The pod must not be killed earlier.
    assert!(pod()["terminationGracePeriodSeconds"].as_u64().is_some_and(|seconds| seconds > 10));
    let image = container["image"].as_str().unwrap();
    assert_eq!(image, concat!("dedupd:", env!("CARGO_PKG_VERSION")));
    let security = &container["securityContext"];
    assert_eq!(
        (&security["readOnlyRootFilesystem"], &security["allowPrivilegeEscalation"]),
        (&true.into(), &false.into())
    );
    assert_eq!(pod()["securityContext"]["runAsNonRoot"], true);
    let user = pod()["securityContext"]["runAsUser"].to_string();
    assert!(text("Dockerfile").contains(&format!("USER {user}\n")), "the image has another user");
}
