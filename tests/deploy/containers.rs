//! `Dockerfile` and `docker-compose.yml`.

use std::path::Path;

use dedupd::cli::{Command, parse_from};
use dedupd::config::{Config, Scope};
use serde_json::Value;

use super::configuration;
use super::programs::{TOP, text};

fn compose() -> Value {
    serde_norway::from_str(&text("docker-compose.yml")).expect("docker-compose.yml is YAML")
}

fn words(list: &Value) -> Vec<String> {
    list.as_array().expect("a list").iter().map(|word| word.as_str().expect("a text").to_owned()).collect()
}

/// The lines of the Dockerfile, each with its continuation.
fn instructions() -> Vec<(String, String)> {
    let text = text("Dockerfile").replace("\\\n", " ");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(' ')).map(|(a, b)| (a.to_owned(), b.to_owned())).collect()
}

/// The arguments of every instruction with this name.
fn every(name: &str) -> Vec<String> {
    instructions().into_iter().filter(|(it, _)| it == name).map(|(_, rest)| rest).collect()
}

/// The environment variables of the image.
fn image_environment() -> Vec<(String, String)> {
    let lines = every("ENV").join(" ");
    lines
        .split_whitespace()
        .map(|pair| pair.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned())).unwrap())
        .collect()
}

#[test]
fn images_are_pinned() {
    let compose = compose();
    let services = compose["services"].as_object().unwrap();
    let images = services.values().filter_map(|service| service["image"].as_str().map(str::to_owned));
    let bases = every("FROM").into_iter().map(|base| base.split(' ').next().unwrap().to_owned());
    let all: Vec<String> = images.chain(bases).collect();
    assert_eq!(all.len(), 5, "{all:?}");
    for image in all {
        let tag = image.rsplit_once(':').map_or("", |(_, tag)| tag);
        assert!(!tag.is_empty() && !tag.contains("latest"), "{image}");
    }
}

#[test]
fn the_image_is_built_from_files_in_the_docker_context() {
    let given: Vec<String> =
        text(".dockerignore").lines().filter_map(|line| line.strip_prefix('!').map(str::to_owned)).collect();
    let copied: Vec<String> = every("COPY")
        .into_iter()
        .filter(|line| !line.starts_with("--from"))
        .flat_map(|line| line.split(' ').rev().skip(1).map(str::to_owned).collect::<Vec<_>>())
        .collect();
    assert!(copied.iter().any(|path| path == "src") && !copied.is_empty());
    for path in &copied {
        assert!(Path::new(TOP).join(path).exists(), "{path} does not exist");
        assert!(given.contains(path), ".dockerignore excludes {path}");
    }
    // Cargo reads the whole manifest: a target without a path must exist.
    let manifest = text("Cargo.toml");
    assert!(!manifest.contains("[[bench]]") || copied.iter().any(|path| path == "benches"));
    for test in manifest.split("[[test]]").skip(1) {
        let section = test.split("\n[").next().unwrap();
        assert!(section.contains("\npath = "), "a test without a path, and tests/ is not copied:{section}");
    }
    let rust = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap();
    assert!(
        every("FROM")[0].starts_with(&format!("rust:{}", rust.trim_matches('"'))),
        "the Rust versions differ"
    );
}

#[test]
fn the_image_keeps_its_state_in_the_volume_and_is_not_root() {
    let environment = image_environment();
    let words: Vec<String> = "run -c /x.toml".split(' ').map(str::to_owned).collect();
    let config = configuration(&words, &("/x.toml".to_owned(), text("config/dedupd.toml")), &environment);
    assert_eq!(config.state.dir.display().to_string(), every("VOLUME")[0]);
    assert!(config.http.listen.ip().is_unspecified());
    assert_eq!(config.http.listen.port().to_string(), every("EXPOSE")[0]);
    let user: u32 = every("USER")[0].parse().unwrap();
    assert!(user > 0 && every("RUN").iter().any(|line| line.contains(&format!("--uid {user} "))));
    assert_eq!(every("ENTRYPOINT"), ["[\"dedupd\"]"]);
}

#[test]
fn the_health_check_of_the_image_is_a_command_of_dedupd() {
    let check = every("HEALTHCHECK").remove(0);
    let (_, command) = check.split_once("CMD ").unwrap();
    let words: Vec<String> = serde_json::from_str(command).unwrap();
    let Ok(Command::Health(args)) = parse_from(words.iter().map(String::as_str)) else { panic!("{words:?}") };
    // Without flags it uses the address in the environment of the image.
    assert!(!args.live && args.instance.config.is_none());
    assert!(image_environment().iter().any(|(name, _)| name == "DEDUPD_HTTP__LISTEN"));
    // It would fail in a container that runs another command.
    let compose = compose();
    for (name, service) in compose["services"].as_object().unwrap() {
        let Some(words) = service["command"].as_array() else { continue };
        let is_instance = words[0] == "run";
        assert_eq!(service["healthcheck"]["test"].is_array(), !is_instance, "{name}");
    }
}

/// The environment variables of a service of the compose file that runs dedupd.
fn environment_of(service: &Value) -> Vec<(String, String)> {
    let own = service["environment"].as_object().into_iter().flatten();
    let own = own.map(|(key, value)| (key.clone(), value.as_str().expect("a quoted text").to_owned()));
    image_environment().into_iter().chain(own).collect()
}

/// The host file that is mounted at a path of a service.
fn mounted(service: &Value, inside: &str) -> Option<String> {
    let volumes = service["volumes"].as_array()?.iter().filter_map(Value::as_str);
    volumes
        .filter_map(|volume| volume.split_once(':'))
        .find(|(_, place)| place.trim_end_matches(":ro") == inside)
        .map(|(outside, _)| outside.to_owned())
}

/// The effective configuration of a service that runs dedupd.
fn effective(service: &Value) -> Config {
    let words = words(&service["command"]);
    let path = words.last().unwrap().clone();
    let file = mounted(service, &path).expect("the configuration is mounted");
    configuration(&words, &(path, text(&file)), &environment_of(service))
}

#[test]
fn the_spare_differs_from_the_other_instance_in_name_state_and_port() {
    let compose = compose();
    let [mut active, mut spare] = ["dedupd", "spare"].map(|name| compose["services"][name].clone());
    let [config, other] = [&active, &spare].map(effective);
    assert_eq!([config.dedupe.scope, other.dedupe.scope], [Scope::Topic; 2]);
    assert_ne!(config.group.instance, other.group.instance);
    assert_eq!(
        (config.group.id, config.topics.raw, config.topics.clean),
        (other.group.id, other.topics.raw, other.topics.clean)
    );
    let state = mounted(&spare, &other.state.dir.display().to_string()).unwrap();
    assert_ne!(mounted(&active, &config.state.dir.display().to_string()).as_deref(), Some(state.as_str()));
    assert!(compose["volumes"].as_object().unwrap().contains_key(&state));
    let ports = spare["ports"][0].as_str().unwrap();
    assert!(ports.ends_with(&format!(":{}", other.http.listen.port())) && active["ports"][0] != ports);
    assert_eq!(words(&spare["profiles"]), ["spare"]);
    let scraped: Value = serde_norway::from_str(&text("config/prometheus.yml")).unwrap();
    let found = &scraped["scrape_configs"][0]["dns_sd_configs"][0];
    assert_eq!((&found["names"][0], &found["port"]), (&"spare".into(), &other.http.listen.port().into()));
    // All else is the same.
    for service in [&mut active, &mut spare] {
        let service = service.as_object_mut().unwrap();
        for own in ["profiles", "ports", "volumes"] {
            service.remove(own);
        }
        service["environment"].as_object_mut().unwrap().remove("DEDUPD_GROUP__INSTANCE");
    }
    assert_eq!(active, spare);
}

#[test]
fn dedupd_accepts_the_arguments_and_files_of_docker_compose() {
    let compose = compose();
    let service = &compose["services"]["dedupd"];
    let config = effective(service);
    assert_eq!(config.kafka.bootstrap_servers, "kafka:9092");
    assert!(config.topics.create && config.http.listen.ip().is_unspecified());
    assert_eq!(mounted(service, &config.state.dir.display().to_string()).as_deref(), Some("dedupd-state"));
    assert!(compose["volumes"].as_object().unwrap().contains_key("dedupd-state"));
    let port = config.http.listen.port();
    assert_eq!(service["ports"][0].as_str(), Some(format!("127.0.0.1:{port}:{port}").as_str()));
    let scraped: Value = serde_norway::from_str(&text("config/prometheus.yml")).unwrap();
    let target = &scraped["scrape_configs"][0]["static_configs"][0]["targets"][0];
    assert_eq!(target.as_str(), Some(format!("dedupd:{port}").as_str()));
    // The producer writes to the topic that dedupd reads.
    let producer = words(&compose["services"]["producer"]["command"]);
    let line = std::iter::once("dedupd").chain(producer.iter().map(String::as_str));
    let Ok(Command::Generate(args)) = parse_from(line) else { panic!("{producer:?}") };
    assert_eq!(args.topic, config.topics.raw.as_str());
    assert_eq!(args.bootstrap_servers, config.kafka.bootstrap_servers);
    assert_eq!(
        (args.records, args.partitions),
        (None, Some(6)),
        "the producer must not end, and must create the topic"
    );
}

#[test]
fn mounted_files_exist_and_services_wait_only_for_services_with_a_healthcheck() {
    let compose = compose();
    let services = compose["services"].as_object().unwrap();
    let mut files = 0;
    for (name, service) in services {
        for volume in service["volumes"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            // Only /tmp has a volume without a name.
            let Some((outside, _)) = volume.split_once(':') else {
                assert_eq!(volume, "/tmp", "{name}");
                continue;
            };
            if let Some(path) = outside.strip_prefix("./") {
                files += 1;
                assert!(Path::new(TOP).join(path).exists(), "{name} mounts {path}");
                assert!(volume.ends_with(":ro"), "{name} may write to {path}");
            }
        }
        for other in service["depends_on"].as_object().into_iter().flatten().map(|(other, _)| other) {
            assert!(services[other]["healthcheck"].is_object(), "{name} waits for the health of {other}");
        }
    }
    assert_eq!(files, 7);
}

#[test]
fn an_instance_has_a_temporary_directory_on_a_disk() {
    let compose = compose();
    let services = compose["services"].as_object().unwrap();
    let instances: Vec<_> =
        services.iter().filter(|(_, service)| service["command"][0].as_str() == Some("run")).collect();
    assert_eq!(instances.len(), 2);
    for (name, service) in instances {
        let volumes = service["volumes"].as_array().unwrap();
        assert!(
            service["read_only"] != true || volumes.contains(&"/tmp".into()),
            "the audit in a container of {name} has no place for its temporary files"
        );
        assert!(service["tmpfs"].is_null(), "a tmpfs of {name} is memory");
    }
}

#[test]
fn grafana_finds_the_dashboard_and_the_data_source() {
    let compose = compose();
    let grafana = &compose["services"]["grafana"];
    let providers: Value = serde_norway::from_str(&text("config/grafana/dashboards.yml")).unwrap();
    let folder = providers["providers"][0]["options"]["path"].as_str().unwrap();
    assert_eq!(mounted(grafana, folder).as_deref(), Some("./dashboards"));
    let home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"].as_str();
    assert_eq!(home, Some(format!("{folder}/dedupd.json").as_str()));
    let sources: Value = serde_norway::from_str(&text("config/grafana/datasources.yml")).unwrap();
    let source = &sources["datasources"][0];
    assert_eq!((source["type"].as_str(), source["isDefault"].as_bool()), (Some("prometheus"), Some(true)));
    assert_eq!(source["url"].as_str(), Some("http://prometheus:9090"));
    for place in ["datasources/dedupd.yml", "dashboards/dedupd.yml"] {
        assert!(mounted(grafana, &format!("/etc/grafana/provisioning/{place}")).is_some(), "{place}");
    }
    for (inside, outside) in
        [("prometheus.yml", "./config/prometheus.yml"), ("alerts.yml", "./config/alerts.yml")]
    {
        let inside = format!("/etc/prometheus/{inside}");
        assert_eq!(mounted(&compose["services"]["prometheus"], &inside).as_deref(), Some(outside));
    }
}
