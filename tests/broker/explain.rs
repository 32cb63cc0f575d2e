//! `dedupd explain` on a real Apache Kafka: which instance it accepts, what it compares, and its messages when there is nothing to explain.

use std::process::Command;
use std::time::Duration;

use crate::long_window::with_token;
use crate::support::{Draft, Pipe, Running, Sidecar, shared_kafka, wait_until};

const LIMIT: Duration = Duration::from_mins(2);

/// Starts an instance that is ready.
fn started(instance: &Sidecar) -> Running {
    let running = instance.start();
    running.wait_ready(LIMIT);
    running
}

fn stop(running: &Running) {
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

/// Runs `dedupd explain` with the configuration of an instance, beside the process that listens on a port. Returns the exit code and the output.
pub fn explain(instance: &Sidecar, at: &str, port: u16) -> (Option<i32>, String) {
    let mut command = Command::new(&instance.program);
    command
        .args(["explain", at, "--bootstrap-servers", &instance.bootstrap])
        .args(["--raw", &instance.raw, "--clean", &instance.clean, "--listen", &format!("127.0.0.1:{port}")])
        .arg("--state-dir")
        .arg(&instance.state_dir)
        .envs(instance.environment.iter().cloned());
    if let Some(path) = &instance.config {
        command.arg("--config").arg(path);
    }
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

/// The same beside the running instance and from the state of the stopped one.
#[test]
fn explain_names_the_owner_the_difference_and_the_verdict() {
    let pipe = Pipe::new(shared_kafka(), "explained", 2);
    let record = |partition, id: &str, page: &str| {
        Draft::new(partition, &format!(r#"{{"id":"{id}","page":"{page}"}}"#))
    };
    let instance = with_token(&pipe, "a");
    let running = started(&instance);
    pipe.kafka.send(&pipe.raw, &[record(0, "x", "home")]);
    running.wait_outcomes(&[("forwarded", 1)]);
    pipe.kafka.send(&pipe.raw, &[record(1, "x", "cart"), record(1, "x", "home"), Draft::new(1, "none")]);
    running.wait_outcomes(&[("conflict", 1), ("duplicate", 1), ("missing_id", 1)]);
    for source in ["instance a at http://", "the local state in "] {
        let of = |at: &str, parts: &[&str], code| {
            let (ended, text) = explain(&instance, at, running.port);
            assert_eq!(ended, Some(code), "{text}");
            for part in parts {
                assert!(text.contains(part), "{part:?} is not in:\n{text}");
            }
        };
        of(
            "1@0",
            &["owner     0@0", "a conflict, first difference: json:/page", "a duplicate of 0@0", source],
            0,
        );
        of("1@1", &["owner     0@0", "equal values", "a duplicate of 0@0", "json:/id"], 0);
        of("0@0", &["this record", "the owner of its id", source], 0);
        of("1@2", &["identity  none", "identity.on_missing decides"], 1);
        of("1@9", &["has no record 1@9 yet", "end before offset"], 1);
        if running.ended().is_none() {
            stop(&running);
        }
    }
}

/// Each kind has windows of its own, a forced record is forwarded whatever its id, and names of fields are shown as text.
#[test]
fn explain_knows_kinds_forced_records_and_what_is_compared() {
    const KINDS: &str = "[[kinds]]\nname = \"pay\"\nfrom = \"header:kind\"\nvalues = [\"pay\"]\n\n[[kinds]]\nname = \"noise\"\nfrom = \"header:kind\"\nvalues = [\"noise\"]\ndedupe = false\n";
    let pipe = Pipe::new(shared_kafka(), "explained-kinds", 1);
    let record = |kind: &str, part: &str| {
        Draft::id(0, "x").header("kind", Some(kind.as_bytes())).header("part", Some(part.as_bytes()))
    };
    let mut instance = with_token(&pipe, "a").with_file(KINDS).with("DEDUPD_IDENTITY__FORCE_HEADER", "force");
    instance = instance.with("DEDUPD_IDENTITY__COMPARE", r#"["header:part"]"#);
    let running = started(&instance);
    let forced = record("other", "a").header("force", None);
    let escapes = Draft::new(0, "{\"\\u001b]0;own\\u0007\":1}");
    let all = [
        record("other", "a"),
        record("pay", "a"),
        record("noise", "a"),
        record("other", "b"),
        forced,
        escapes,
    ];
    pipe.kafka.send(&pipe.raw, &all);
    running.wait_outcomes(&[
        ("forwarded", 2),
        ("conflict", 1),
        ("forced", 1),
        ("bypassed", 1),
        ("missing_id", 1),
    ]);
    for (at, expected) in [
        ("0@0", "the owner of its id"),
        ("0@1", "the owner of its id"),
        ("0@2", "its kind has no window"),
        ("0@3", "a conflict, first difference: header:part"),
        ("0@4", "it has the header identity.force_header"),
        ("0@5", "its fields are: \\u{1b}]0;own\\u{7}"),
    ] {
        let (_, text) = explain(&instance, at, running.port);
        assert!(text.contains(expected) && !text.contains('\u{1b}'), "{at}: {expected:?} is not in:\n{text}");
    }
    stop(&running);
}

/// Asserts the exit code, and that each of these texts is in the output.
fn assert_explained(instance: &Sidecar, at: &str, port: u16, code: i32, parts: &[&str]) {
    let (ended, text) = explain(instance, at, port);
    assert_eq!(ended, Some(code), "{at}: {text}");
    for part in parts {
        assert!(text.contains(part), "{at}: {part:?} is not in:\n{text}");
    }
}

#[test]
fn an_instance_of_another_topic_group_or_rule_is_not_believed() {
    let [pipe, other] = ["explained-here", "explained-there"].map(|name| Pipe::new(shared_kafka(), name, 1));
    let [ours, theirs] = [&pipe, &other].map(|pipe| with_token(pipe, "a"));
    let [running, beside] = [&ours, &theirs].map(started);
    pipe.kafka.send(&pipe.raw, &[Draft::id(0, "x"), Draft::id(0, "x")]);
    running.wait_outcomes(&[("forwarded", 1), ("duplicate", 1)]);
    // Our instance holds the state.
    let named = format!(
        "another one answers at http://127.0.0.1:{}: instance a of group {}",
        beside.port,
        other.group()
    );
    assert_explained(&ours, "0@1", beside.port, 4, &[&named, &other.raw, &pipe.group(), "--listen"]);
    let other_rule = ours.clone().with("DEDUPD_IDENTITY__FROM", r#"["json:/id","json:/id"]"#);
    assert_explained(&other_rule, "0@1", running.port, 4, &["another one answers", "and identity rule"]);
    stop(&running);
    let from_state = ["a duplicate of 0@0", "the local state in", "another one answers"];
    assert_explained(&ours, "0@1", beside.port, 0, &from_state);
    stop(&beside);
    assert_explained(&ours, "0@1", beside.port, 0, &["a duplicate of 0@0", "no instance answers at"]);
    let mut elsewhere = ours.clone();
    elsewhere.state_dir = theirs.state_dir.clone();
    let foreign = format!("is of topic {} and group {}", other.raw, other.group());
    assert_explained(&elsewhere, "0@1", beside.port, 4, &[&foreign, &pipe.group(), "give the state.dir"]);
}

#[test]
fn a_token_that_is_wrong_or_missing_and_a_spare_are_named_with_what_to_do() {
    let pipe = Pipe::new(shared_kafka(), "explained-token", 1);
    let instance = with_token(&pipe, "a");
    let running = started(&instance);
    pipe.kafka.send(&pipe.raw, &[Draft::id(0, "x")]);
    running.wait_outcomes(&[("forwarded", 1)]);
    assert_explained(
        &pipe.sidecar("a"),
        "0@0",
        running.port,
        2,
        &["instance a at http://", "set http.token_file"],
    );
    let wrong = pipe.dir.path().join("wrong");
    std::fs::write(&wrong, "another-secret-of-this-test\n").unwrap();
    let with_wrong = pipe.sidecar("a").with("DEDUPD_HTTP__TOKEN_FILE", wrong.to_str().unwrap());
    assert_explained(&with_wrong, "0@0", running.port, 2, &["rejects the token in", wrong.to_str().unwrap()]);
    let spare = with_token(&pipe, "b").start();
    wait_until("a spare", LIMIT, || spare.get("/readyz")?.contains("is a spare").then_some(()));
    let parts =
        ["instance b at http://", "is a spare and has no partition", "the active instance, which is a"];
    assert_explained(&instance, "0@0", spare.port, 1, &parts);
    stop(&spare);
    stop(&running);
    let without_token = started(&pipe.sidecar("c"));
    assert_explained(
        &with_token(&pipe, "c"),
        "0@0",
        without_token.port,
        2,
        &["has no token: set its http.token_file"],
    );
    stop(&without_token);
}

#[test]
fn a_place_without_a_record_is_named_with_the_reason() {
    let pipe = Pipe::new(shared_kafka(), "explained-nothing", 1);
    let instance = with_token(&pipe, "a");
    let of = |at: &str, code, part: &str| assert_explained(&instance, at, 1, code, &[part]);
    pipe.kafka.send(&pipe.raw, &["a", "b", "c"].map(|id| Draft::id(0, id)));
    pipe.kafka.delete_records(&pipe.raw, 0, 2);
    of("7@0", 2, "has no partition 7: its partitions are 0 to 0");
    of("0@3", 1, "has no record 0@3 yet: the committed records of partition 0 end before offset 3");
    of("0@1", 1, "is deleted: partition 0 starts at offset 2");
    let elsewhere = Sidecar { raw: "explained-nowhere".to_owned(), ..instance.clone() };
    assert_explained(&elsewhere, "0@0", 1, 3, &["topic explained-nowhere does not exist at", "topics.raw"]);
}

#[test]
fn what_is_compared_is_what_is_said_to_differ() {
    let pipe = Pipe::new(shared_kafka(), "explained-parts", 1);
    let instance = with_token(&pipe, "a").with("DEDUPD_IDENTITY__COMPARE", r#"["json:/a","json:/b"]"#);
    let record = |at: u32, rest: &str| Draft::new(0, &format!(r#"{{"sent_at":{at},"id":"x",{rest}}}"#));
    let parts = [r#""a":1,"b":2"#, r#""a":1,"b":3"#, r#""b":2,"a":1"#, r#""a":1"#];
    let all: Vec<_> = (0..).zip(parts).map(|(at, rest)| record(at, rest)).collect();
    pipe.kafka.send(&pipe.raw, &all);
    let running = started(&instance);
    running.wait_outcomes(&[("forwarded", 1), ("conflict", 1), ("duplicate", 2)]);
    let of = |at: &str, part: &str| assert_explained(&instance, at, running.port, 0, &[part]);
    of("0@1", "a conflict, first difference: json:/b");
    of("0@2", "values differ, but not in what is compared (json:/a and json:/b)");
    of("0@3", "values differ; not compared, because one of them lacks json:/b");
    stop(&running);
}
