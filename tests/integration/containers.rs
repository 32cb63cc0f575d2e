//! `Dockerfile` and `docker-compose.yml` in real containers. tests/deploy/containers.rs has what needs no engine.

mod demo;
mod engine;
mod pictures;

use std::time::{Duration, Instant};

use dedupd::clock::monotonic;
use serde_json::Value;

use crate::support::wait_until;
use demo::{Demo, PROJECT, file, page, prometheus, status, wait_for_role, wait_until_drained};

const DEDUPD: u16 = 9464;
const SPARE: u16 = 9465;
/// Without Grafana, for which there is no stand-in.
const SERVICES: [&str; 4] = ["kafka", "producer", "dedupd", "prometheus"];
/// `stop_grace_period` in the file.
const GRACE: Duration = Duration::from_secs(15);

/// Prints a figure and returns it.
fn measured(what: &str, since: Instant) -> Duration {
    let time = since.elapsed();
    eprintln!("{what}: {:.1} s", time.as_secs_f64());
    time
}

#[test]
fn the_demo_runs_in_containers_and_loses_nothing() {
    let demo = Demo::prepare();
    let start = monotonic();
    demo.build();
    measured("build of the image", start);
    the_image_is_small(&demo);
    the_first_duplicate_is_dropped_soon(&demo);
    every_service_is_healthy(&demo);
    prometheus_has_series_and_alerts();
    pictures::more_topics(&demo);
    pictures::status_page(DEDUPD);
    a_kill_is_followed_by_a_restart(&demo);
    the_spare_takes_over(&demo);
    the_image_runs_without_rights(&demo);
    pictures::dashboard(&demo);
    the_audit_finds_nothing(&demo);
    a_stop_ends_within_the_grace_period(&demo);
    demo.down();
    assert_eq!(demo.leftovers(), "", "docker compose down -v left these");
}

fn the_image_is_small(demo: &Demo) {
    let size = demo.engine.docker(&["image", "inspect", "--format", "{{.Size}}", &Demo::image("dedupd")]);
    let binary = ["run", "--rm", "--network", "none", "--entrypoint", "stat", &Demo::image("dedupd")];
    let binary = demo.engine.docker(&[&binary[..], &["--format", "%s", "/usr/local/bin/dedupd"]].concat());
    let [size, binary] = [size, binary].map(|bytes| bytes.parse::<u64>().unwrap() / 1_000_000);
    eprintln!("image: {size} MB, of which the binary has {binary} MB");
    // 29 MB, a fifth of it for the tokens of AWS IAM; with line tables it would have more than 90 MB.
    assert!(binary < 40, "the binary has {binary} MB: it has line tables, or is much larger than it was");
}

fn the_first_duplicate_is_dropped_soon(demo: &Demo) {
    let start = monotonic();
    demo.compose(&[&["up", "--detach", "--no-build"], &SERVICES[..]].concat());
    let dropped = || status(DEDUPD)["records"]["duplicate"].as_u64().filter(|duplicates| *duplicates > 0);
    wait_until("a duplicate on the status page", Duration::from_mins(3), dropped);
    let time = measured("first duplicate dropped, after the build", start);
    assert!(time < Duration::from_secs(90));
    eprintln!("restarts of dedupd until then: {}", demo.inspect("dedupd", "{{.RestartCount}}"));
}

fn every_service_is_healthy(demo: &Demo) {
    demo.up(&SERVICES);
    for service in ["kafka", "dedupd", "prometheus"] {
        assert_eq!(demo.inspect(service, "{{.State.Health.Status}}"), "healthy", "{service}");
    }
    assert_eq!(demo.compose(&["exec", "dedupd", "dedupd", "health"]), "ready");
    let page = page(DEDUPD, "/").unwrap();
    assert!(page.contains("events.raw"), "{page}");
}

fn prometheus_has_series_and_alerts() {
    let query = "query?query=dedupd_records_total%7Boutcome%3D%22duplicate%22%7D%20%3E%200";
    wait_until("the series of dropped duplicates in Prometheus", Duration::from_mins(1), || {
        prometheus(query).filter(|data| data["result"].as_array().is_some_and(|series| !series.is_empty()))
    });
    let declared: Value = serde_norway::from_str(&file("config/alerts.yml")).unwrap();
    let groups = declared["groups"].as_array().unwrap().iter();
    let declared: usize = groups.map(|group| group["rules"].as_array().unwrap().len()).sum();
    assert!(declared > 0);
    wait_until("the evaluation of every alert", Duration::from_mins(1), || {
        let data = prometheus("rules?type=alert")?;
        let groups = data["groups"].as_array()?.iter();
        let rules: Vec<_> = groups.flat_map(|group| group["rules"].as_array().cloned().unwrap()).collect();
        assert_eq!(rules.len(), declared);
        rules.iter().all(|rule| rule["health"] == "ok").then_some(())
    });
}

fn a_kill_is_followed_by_a_restart(demo: &Demo) {
    let start = monotonic();
    demo.compose(&["kill", "dedupd"]);
    demo.up(&["dedupd"]);
    measured("dedupd killed, started and healthy", start);
    wait_for_role(DEDUPD, "active");
}

fn the_spare_takes_over(demo: &Demo) {
    demo.up(&["spare"]);
    wait_for_role(SPARE, "spare");
    let active = status(SPARE)["active_instance"].to_string();
    assert!(active.starts_with("\"compose at "), "{active}");
    let start = monotonic();
    demo.compose(&["kill", "dedupd"]);
    wait_for_role(SPARE, "active");
    measured("spare active after a kill of dedupd", start);
    demo.up(&["dedupd"]);
    wait_for_role(DEDUPD, "spare");
}

/// Also with a user id that `--user` sets, and with a clean topic of its own.
fn the_image_runs_without_rights(demo: &Demo) {
    let (name, network) = (format!("{PROJECT}-hardened"), format!("{PROJECT}_default"));
    let label = format!("com.docker.compose.project={PROJECT}");
    let run = ["run", "--detach", "--name", &name, "--network", &network, "--label", &label];
    let rights =
        ["--read-only", "--cap-drop", "ALL", "--user", "10001", "--env", "DEDUPD_TOPICS__CREATE=true"];
    let image = Demo::image("dedupd");
    let command = ["run", "--bootstrap-servers", "kafka:9092", "--raw", "events.raw"];
    let topics = ["--clean", "events.other", "--id", "json:/id", "--instance", "hardened"];
    demo.engine.docker(&[&run[..], &rights, &[&image], &command, &topics].concat());
    wait_until("the health of a container without rights", Duration::from_mins(2), || {
        let health = demo.engine.docker(&["inspect", "--format", "{{.State.Health.Status}}", &name]);
        (health == "healthy").then_some(())
    });
    let start = monotonic();
    demo.engine.docker(&["stop", &name]);
    let time = measured("docker stop", start);
    assert!(time < Duration::from_secs(10), "docker kills a container after 10 s");
    let code = demo.engine.docker(&["inspect", "--format", "{{.State.ExitCode}}", &name]);
    assert_eq!(code, "0", "{}", demo.engine.docker(&["logs", &name]));
    demo.engine.docker(&["rm", "--volumes", &name]);
}

/// The command of docs/start.md, with options that only change what is printed.
fn the_audit_finds_nothing(demo: &Demo) {
    demo.compose(&["stop", "producer"]);
    wait_until_drained(SPARE);
    let start = file("docs/start.md");
    let commands: Vec<&str> =
        start.lines().filter_map(|line| line.strip_prefix("docker compose run ")).collect();
    let [audit] = commands[..] else { panic!("{commands:?}") };
    let words: Vec<&str> = ["run", "--no-TTY"].into_iter().chain(audit.split(' ')).collect();
    // Less memory than by default: more rows go to temporary files.
    let report = demo.compose(&[&words[..], &["--json", "--memory", "32MiB"]].concat());
    eprintln!("{report}");
    let report: Value = serde_json::from_str(&report).unwrap();
    assert!(report["raw_records"].as_u64().unwrap() > 10_000, "{report}");
}

fn a_stop_ends_within_the_grace_period(demo: &Demo) {
    for service in ["spare", "dedupd"] {
        let start = monotonic();
        demo.compose(&["stop", service]);
        let time = measured(&format!("docker compose stop {service}"), start);
        assert!(time < GRACE);
        assert_eq!(demo.inspect(service, "{{.State.ExitCode}}"), "0", "{service} was killed");
    }
}
