//! Metrics against values that are counted elsewhere: in the topics, in the operating system, at the proxy. The test
//! `every_metric_is_compared_with_a_value` in tests/deploy names those that no test compares.

use std::process::Command;
use std::time::Duration;

use crate::bounds::bytes_of;
use crate::long_window::{find, with_token};
use crate::support::proxy::Direction;
use crate::support::{Draft, Isolation, Kafka, Pipe, Running, config_tool, now_ms, shared_kafka, wait_until};

const LIMIT: Duration = Duration::from_mins(1);

/// Waits until a metric has this value, but for a share of it.
fn wait_near(running: &Running, name: &str, expected: impl Fn() -> f64, tolerance: f64) {
    wait_until(name, LIMIT, || {
        let (value, expected) = (running.metric(name)?, expected());
        ((value - expected).abs() <= expected * tolerance).then_some(()).or_else(|| {
            println!("{name} is {value}, counted {expected}");
            None
        })
    });
}

fn bytes_of_keys_and_values(kafka: &Kafka, topic: &str) -> f64 {
    let length = |part: &Option<Vec<u8>>| part.as_ref().map_or(0, Vec::len);
    let records = kafka.records(topic, Isolation::Committed);
    records.iter().map(|record| length(&record.key) + length(&record.value)).sum::<usize>() as f64
}

/// The number behind a name in a file of the process in `/proc`.
fn system_figure(running: &Running, file: &str, name: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{}/{file}", running.pid())).unwrap();
    let rest = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    rest.split_whitespace().next().unwrap().parse().unwrap()
}

fn cpu_seconds(running: &Running) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", running.pid())).unwrap();
    let fields: Vec<f64> =
        stat.rsplit_once(')').unwrap().1.split_whitespace().filter_map(|it| it.parse().ok()).collect();
    // The state is no number; user and system time are the 14th and 15th of all fields, in ticks of 10 ms.
    (fields[10] + fields[11]) / 100.0
}

#[test]
fn counts_bytes_and_times_are_those_of_the_topics_and_of_the_system() {
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, "figures", 1);
    let drafts: Vec<Draft> =
        (0..500).map(|n| Draft::id(0, &format!("id-{}", n % 400)).key(b"some key")).collect();
    let sidecar = pipe.sidecar("a");
    let running = sidecar.start();
    running.wait_ready(LIMIT);
    let began = now_ms();
    kafka.send(&pipe.raw, &drafts);
    running.wait_outcomes(&[("forwarded", 400), ("duplicate", 100)]);
    pipe.wait_caught_up(1, LIMIT);
    let exactly = |name: &str, expected: f64| wait_near(&running, name, || expected, 1e-9);
    for (label, topic) in
        [("raw", &pipe.raw), ("clean", &pipe.clean), ("state", &format!("{}.dedupd", pipe.clean))]
    {
        let bytes = bytes_of_keys_and_values(kafka, topic);
        exactly(&format!("dedupd_bytes_total{{topic=\"{label}\"}}"), bytes);
    }
    exactly("dedupd_batch_records_sum", 500.0);
    exactly("dedupd_batch_records_count", running.transactions("committed"));
    let at = running.value("dedupd_last_commit_timestamp_seconds") * 1e3;
    assert!((began as f64..=now_ms() as f64).contains(&at), "{at}");
    let version = Command::new(env!("CARGO_BIN_EXE_dedupd")).arg("--version").output().unwrap().stdout;
    let version = String::from_utf8(version).unwrap().trim().replace("dedupd ", "");
    let (raw, clean, group) = (&pipe.raw, &pipe.clean, pipe.group());
    let info = format!(
        "dedupd_info{{clean=\"{clean}\",group=\"{group}\",member=\"a\",raw=\"{raw}\",scope=\"{}\",version=\"{version}\"}}",
        running.status().unwrap()["about"]["scope"].as_str().unwrap()
    );
    exactly(&info, 1.0);
    for client in ["consumer", "producer"] {
        assert!(
            running.value(&format!("dedupd_client_queued_records{{client=\"{client}\"}}")) < 0.5,
            "all are written"
        );
    }
    wait_near(&running, "dedupd_state_disk_bytes", || bytes_of(&sidecar.state_dir) as f64, 0.1);
    wait_near(&running, "process_cpu_seconds_total", || cpu_seconds(&running), 0.2);
    let kilobytes = |name: &str| system_figure(&running, "status", name) * 1024.0;
    wait_near(&running, "process_resident_memory_bytes", || kilobytes("VmRSS:"), 0.2);
    wait_near(&running, "process_virtual_memory_bytes", || kilobytes("VmSize:"), 0.2);
    wait_near(&running, "process_threads", || system_figure(&running, "status", "Threads:"), 0.2);
    wait_near(&running, "process_max_fds", || system_figure(&running, "limits", "Max open files"), 1e-9);
    let files = || std::fs::read_dir(format!("/proc/{}/fd", running.pid())).unwrap().count() as f64;
    wait_near(&running, "process_open_fds", files, 0.2);
    // The process starts a little after the file with its number exists.
    wait_near(&running, "process_start_time_seconds", || began as f64 / 1e3, 1e-7);
}

#[test]
fn a_slow_broker_a_quota_and_a_broker_that_is_gone_are_measured() {
    let kafka = Kafka::start();
    let pipe = Pipe::new(&kafka, "slow", 1);
    let proxy = kafka.proxy();
    proxy.delay(Direction::Response, Duration::from_millis(300));
    let mut sidecar = pipe
        .sidecar("a")
        .with_file("[kafka.properties]\n\"client.id\" = \"measured\"\n")
        // However slow, it stays in the group.
        .with("DEDUPD_GROUP__SESSION_TIMEOUT", "2m");
    sidecar.bootstrap = proxy.bootstrap();
    let running = sidecar.start();
    running.wait_ready(LIMIT);
    let load = pipe.load(1, 300);
    let producer = |metric: &str| format!("{metric}{{client=\"producer\"}}");
    let [round_trip, throttle, down] =
        ["dedupd_client_round_trip_seconds", "dedupd_client_throttle_seconds", "dedupd_client_brokers_down"]
            .map(producer);
    let at_least = |name: &str, least: f64| {
        wait_until(name, LIMIT, || running.metric(name).filter(|value| (least..least + 10.0).contains(value)))
    };
    at_least(&round_trip, 0.3);
    assert!(running.value(&throttle) < 0.05, "nothing is throttled yet");
    proxy.heal();
    let quota = [
        "--alter",
        "--add-config",
        "producer_byte_rate=2000",
        "--entity-type",
        "clients",
        "--entity-name",
        "measured",
    ];
    config_tool(&[&["--bootstrap-server", kafka.bootstrap()], &quota[..]].concat());
    at_least(&throttle, 0.1);
    assert!(running.value(&down) < 0.5, "the broker is up");
    load.finish();
    kafka.kill9();
    // A producer that is replaced meanwhile has no connection to lose.
    let of_consumer = down.replace("producer", "consumer");
    wait_until("a lost connection", LIMIT, || {
        [&down, &of_consumer].iter().any(|name| running.value(name) >= 1.0).then_some(())
    });
}

#[test]
fn ids_that_were_overwritten_are_counted() {
    let pipe = Pipe::new(shared_kafka(), "overwritten", 1);
    let sidecar = with_token(&pipe, "a")
        .with("DEDUPD_WINDOW__OVERFLOW", "evict")
        .with("DEDUPD_WINDOW__MAX_IDS", "4096");
    let running = sidecar.start();
    running.wait_ready(LIMIT);
    let drafts: Vec<Draft> = (0..6_000).map(|n| Draft::id(0, &format!("id-{n}"))).collect();
    pipe.kafka.send(&pipe.raw, &drafts);
    running.wait_outcomes(&[("forwarded", 6_000)]);
    // What is stored does not say whether it is still in the window, but the state of an id does.
    let asked = 300;
    let known = |n: usize| find(&running, &format!("id=id-{}", n * 20)).1["found"][0]["part"] == "exact";
    let missing = (0..asked).filter(|n| !known(*n)).count() as f64 / asked as f64;
    let overwritten = running.value("dedupd_evicted_ids_total");
    let rate = running.value("dedupd_window_miss_rate{partition=\"0\"}");
    assert!((overwritten / 6_000.0 - missing).abs() < 0.1, "{overwritten} of 6000, asked: {missing}");
    assert!((rate - missing).abs() < 0.1, "{rate}, asked: {missing}");
    assert!(missing > 0.2, "{missing}");
}
