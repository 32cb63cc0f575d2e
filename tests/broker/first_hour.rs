//! What a new user meets, on a real Apache Kafka: mistakes are said everywhere, and the figures are what their names say.

use std::process::Command;
use std::time::Duration;

use crate::support::{Draft, Pipe, now_ms, shared_kafka, wait_until};

const LIMIT: Duration = Duration::from_mins(1);

#[test]
fn an_id_source_that_finds_nothing_is_said_everywhere() {
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, "wrong-id", 1);
    let drafts: Vec<Draft> = (0..300).map(|n| Draft::id(0, &format!("id-{}", n % 200))).collect();
    kafka.send(&pipe.raw, &drafts);
    let sidecar = pipe.sidecar("a").with("DEDUPD_IDENTITY__FROM", "[\"json:/eventId\"]");
    let running = sidecar.start();
    let why = "its value has no field \"eventId\"; its fields are: id";
    let note = "300 of the last 300 records have no id and are forwarded without de-duplication";
    for (path, words) in [("/readyz", [note, why]), ("/", ["Ready, with a warning", "class=\"noted\""])] {
        let is_said = || running.get(path).filter(|page| words.iter().all(|word| page.contains(word)));
        wait_until(path, LIMIT, || is_said().map(drop));
    }
    assert!(running.text().contains(note) && running.text().contains(why), "{}", running.text());
    running.wait_outcomes(&[("missing_id", 300)]);
    for command in ["check", "audit"] {
        let output = Command::new(env!("CARGO_BIN_EXE_dedupd"))
            .args([
                command,
                "--bootstrap-servers",
                kafka.bootstrap(),
                "--raw",
                &pipe.raw,
                "--clean",
                &pipe.clean,
            ])
            .args(["--id", "json:/eventId"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let (code, said) = match command {
            "check" => {
                (3, "none of the newest 300 records of raw has an id; for example, the record has no id")
            }
            _ => (1, "none of the 300 raw records has an id"),
        };
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(said) && !text.contains("all checks passed"), "{text}");
    }
    // The control: with the right source nothing is said.
    drop(running);
    let other = Pipe::new(kafka, "right-id", 1);
    kafka.send(&other.raw, &drafts);
    let running = other.sidecar("a").start();
    running.wait_ready(LIMIT);
    running.wait_outcomes(&[("forwarded", 200), ("duplicate", 100)]);
    let quiet = running.get("/").unwrap();
    assert!(quiet.contains("class=\"ready\"") && !quiet.contains("have no id"), "{quiet}");
    other.sidecar("a").audit().unwrap();
}

#[test]
fn latency_is_that_of_forwarded_records_and_age_has_a_metric_of_its_own() {
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, "latency", 1);
    let running = pipe.sidecar("a").start();
    running.wait_ready(LIMIT);
    let minute_ago = now_ms() - 60_000;
    let old = |n: u32| Draft::id(0, &format!("old-{n}")).at(minute_ago);
    // 50 originals, then 50 copies of them: a copy is never written to clean.
    kafka.send(&pipe.raw, &(0..50).chain(0..50).map(old).collect::<Vec<_>>());
    running.wait_outcomes(&[("forwarded", 50), ("duplicate", 50)]);
    let value = |name: &str| running.metric(name).unwrap();
    for name in ["latency", "record_age"] {
        assert_eq!(value(&format!("dedupd_{name}_seconds_count")).to_string(), "50", "{name}");
    }
    let young = value("dedupd_record_age_seconds_bucket{le=\"15\"}");
    assert!(young < 0.5, "all are a minute old, but {young}");
    assert!(value("dedupd_latency_seconds_sum") < 50.0 * 20.0, "the age of a record is not its latency");
}
