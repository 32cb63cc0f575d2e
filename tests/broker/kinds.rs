//! Tests on a real Apache Kafka: kinds of records, each with its own window, through crashes.

use std::process::Command;
use std::time::Duration;

use crate::support::{Draft, Isolation, Pipe, Running, Sidecar, now_ms, shared_kafka, wait_until};

const LIMIT: Duration = Duration::from_mins(1);
const HOUR_MS: i64 = 3_600_000;

/// Payments have an exact window of a day, clicks an exact window of a minute and filters for a day (of so few ids none is made), noise has no
/// window, and all others have an exact window of an hour.
const KINDS: &str = r#"
[window]
exact = "1h"

[[kinds]]
name = "payments"
from = "json:/type"
values = ["payment", "refund"]
exact = "24h"

[[kinds]]
name = "clicks"
from = "header:kind"
values = ["click"]
exact = "1m"
bloom = "24h"

[[kinds]]
name = "noise"
from = "header:kind"
values = ["noise"]
dedupe = false
"#;

fn sidecar(pipe: &Pipe<'_>, kinds: &str) -> Sidecar {
    pipe.sidecar("a").comparing_ids().with_file(kinds)
}

/// Produces records as `kind:id`, all with one timestamp.
fn send(pipe: &Pipe<'_>, records: &[&str], at_ms: i64) {
    let draft = |record: &&str| match record.split_once(':').unwrap() {
        (kind @ ("payment" | "refund"), id) => {
            Draft::new(0, &format!("{{\"id\":\"{id}\",\"type\":\"{kind}\"}}"))
        }
        ("other", id) => Draft::id(0, id),
        (kind, id) => Draft::id(0, id).header("kind", Some(kind.as_bytes())),
    };
    let drafts: Vec<Draft> = records.iter().map(|record| draft(record).at(at_ms)).collect();
    pipe.kafka.send(&pipe.raw, &drafts);
    pipe.wait_caught_up(1, LIMIT);
}

/// The ids in the clean topic, from this index on.
fn clean(pipe: &Pipe<'_>, from: usize) -> Vec<String> {
    let records = pipe.kafka.records(&pipe.clean, Isolation::Committed);
    let id = |text: String| text.split('"').nth(3).unwrap().to_owned();
    records[from..].iter().map(|record| id(record.text())).collect()
}

fn of_kind(running: &Running, kind: &str, outcome: &str) -> String {
    let name = format!("dedupd_kind_records_total{{kind=\"{kind}\",outcome=\"{outcome}\"}}");
    format!("{kind} {outcome} {}", running.value(&name))
}

#[test]
fn each_kind_has_its_configured_window() {
    let pipe = Pipe::new(shared_kafka(), "kinds", 1);
    let sidecar = sidecar(&pipe, KINDS);
    let start = now_ms() - 48 * HOUR_MS;
    let running = sidecar.start();
    let first = ["payment:p", "click:c", "noise:n", "noise:n", "other:o", "payment:x", "click:x", "refund:p"];
    send(&pipe, &first, start);
    assert_eq!(
        clean(&pipe, 0),
        ["p", "c", "n", "n", "o", "x", "x"],
        "ids of different kinds are not separate"
    );
    let again = ["payment:p", "click:c", "noise:n", "other:o", "click:x"];
    send(&pipe, &again, start + 2 * HOUR_MS);
    assert_eq!(clean(&pipe, 7), ["n", "o"]);
    let counted = |running: &Running| {
        [("payments", "duplicate"), ("clicks", "duplicate"), ("noise", "bypassed"), ("clicks", "forwarded")]
            .map(|(kind, outcome)| of_kind(running, kind, outcome))
    };
    let expected = ["payments duplicate 2", "clicks duplicate 2", "noise bypassed 3", "clicks forwarded 2"];
    wait_until("the counts", LIMIT, || (counted(&running) == expected).then_some(()));

    // From the local store, then from the state topic.
    running.kill9();
    let running = sidecar.start();
    send(&pipe, &again, start + 4 * HOUR_MS);
    assert_eq!(clean(&pipe, 9), ["n", "o"]);
    running.kill9();
    std::fs::remove_dir_all(&sidecar.state_dir).unwrap();
    let running = sidecar.start();
    send(&pipe, &again, start + 6 * HOUR_MS);
    assert_eq!(clean(&pipe, 11), ["n", "o"]);
    let expected = ["payments duplicate 1", "clicks duplicate 2", "noise bypassed 1", "clicks forwarded 0"];
    wait_until("the counts after the restore", LIMIT, || (counted(&running) == expected).then_some(()));

    let ids = |kind: &str| running.metric(&format!("dedupd_kind_window_ids{{kind=\"{kind}\"}}"));
    wait_until("the gauges", LIMIT, || (ids("payments") == Some(2.0)).then_some(()));
    assert_eq!(running.metric("dedupd_kind_window_seconds{kind=\"payments\"}"), Some(86_400.0));
    let page = running.get("/").unwrap();
    assert!(page.contains("<tr><td>payments<td>"), "{page}");
    assert_eq!(ids("noise"), None, "a kind without a window has a window metric");

    assert_eq!(running.stop(), Some(0), "{}", running.text());
    let inspected = inspect(&sidecar, &["--json"]);
    let inspected: serde_json::Value = serde_json::from_str(&inspected).unwrap();
    let kinds: Vec<_> =
        inspected["windows"].as_array().unwrap().iter().map(|it| (&it["kind"], &it["ids"])).collect();
    assert!(kinds.iter().any(|(kind, ids)| **kind == "payments" && **ids == 2), "{kinds:?}");
    let found = inspect(&sidecar, &["--json", "--id", "x"]);
    assert!(found.contains("payments") && found.contains("clicks"), "{found}");

    // Export to a file and import from it.
    let file = pipe.dir.path().join("state.file");
    let file = file.to_str().unwrap();
    state(&sidecar, &["export", "--to", file]);
    std::fs::remove_dir_all(&sidecar.state_dir).unwrap();
    state(&sidecar, &["import", "--from", file]);
    let running = sidecar.start();
    send(&pipe, &again, start + 8 * HOUR_MS);
    assert_eq!(clean(&pipe, 13), ["n", "o"]);
    let local = running.metric("dedupd_restored_ids_total{source=\"local\"}");
    assert!(local.is_some_and(|ids| ids > 0.0), "{local:?}");
    assert_eq!(running.stop(), Some(0));
}

fn inspect(sidecar: &Sidecar, arguments: &[&str]) -> String {
    state(sidecar, &[&["inspect"], arguments].concat())
}

fn state(sidecar: &Sidecar, arguments: &[&str]) -> String {
    let (command, arguments) = arguments.split_first().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_dedupd"))
        .args(["state", command, "--config"])
        .arg(sidecar.config.as_ref().unwrap())
        .arg("--state-dir")
        .arg(&sidecar.state_dir)
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_state_of_a_renamed_kind_is_reported_and_returns_with_its_name() {
    let pipe = Pipe::new(shared_kafka(), "renamed", 1);
    let start = now_ms() - 48 * HOUR_MS;
    let before = sidecar(&pipe, KINDS);
    let running = before.start();
    send(&pipe, &["payment:p", "other:o"], start);
    assert_eq!(running.stop(), Some(0));

    let renamed = sidecar(&pipe, &KINDS.replace("\"payments\"", "\"money\""));
    let running = renamed.start();
    send(&pipe, &["payment:p", "payment:p", "other:o"], start);
    assert_eq!(clean(&pipe, 2), ["p"], "the renamed kind is not empty, or other kinds have changed");
    let text = running.text();
    assert!(text.contains("holds 1 ids of the kind \"payments\""), "{text}");
    assert_eq!(running.stop(), Some(0));

    let running = sidecar(&pipe, KINDS).start();
    send(&pipe, &["payment:p", "other:o"], start);
    assert_eq!(clean(&pipe, 3), Vec::<String>::new(), "the state topic has lost ids");
    assert_eq!(running.stop(), Some(0));
}
