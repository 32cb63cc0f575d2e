//! Ids that records have in different places or spellings, on a real Apache Kafka: forms that public reports name.

use std::process::Command;
use std::time::Duration;

use crate::checking::passed;
use crate::long_window::find;
use crate::support::{Draft, Isolation, Pipe, Running, Sidecar, shared_kafka};

const LIMIT: Duration = Duration::from_secs(40);

/// A sidecar with these parts of an id, which does not compare contents.
fn sidecar(pipe: &Pipe<'_>, from: &str) -> Sidecar {
    pipe.sidecar("a").with("DEDUPD_IDENTITY__FROM", from).with("DEDUPD_IDENTITY__COMPARE", "off")
}

fn clean(pipe: &Pipe<'_>) -> Vec<String> {
    let records = pipe.kafka.records(&pipe.clean, Isolation::Committed);
    records.iter().map(|record| record.text().clone()).collect()
}

/// The same ids with `ce_id` in a header and in the value, as `CloudEvents` in binary and in structured mode; `messageId` and `messageid`; numbers,
/// and a part that is null, absent or empty.
#[test]
fn one_id_in_several_places_and_spellings_is_forwarded_once() {
    let binary = |id: &str, data: &str| Draft::new(0, data).header("ce_id", Some(id.as_bytes()));
    let plain = |value: &str| Draft::new(0, value);
    let cases: [(&str, &str, Vec<Draft>, &[usize]); 5] = [
        (
            "cloud-events",
            r#"["header:ce_id | json:/id", "header:ce_source | json:/source (lower)"]"#,
            vec![
                binary("e1", "data").header("ce_source", Some(b"/Shop")),
                plain(r#"{"id":"e1","source":"/shop"}"#),
                binary("e1", "data").header("ce_source", Some(b"/bank")),
                plain(r#"{"id":"e2","source":"/shop"}"#),
                binary("e2", "data").header("ce_source", Some(b"/SHOP")),
            ],
            &[0, 2, 3],
        ),
        (
            "two-names",
            "json:/messageId | json:/messageid",
            vec![plain(r#"{"messageId":"m"}"#), plain(r#"{"messageid":"m"}"#), plain(r#"{"messageid":"n"}"#)],
            &[0, 2],
        ),
        (
            "numbers",
            "json:/id (number)",
            ["2.0", "2", "2.00", "2e0", "\"2\"", "3"]
                .iter()
                .map(|id| plain(&format!(r#"{{"id":{id}}}"#)))
                .collect(),
            &[0, 5],
        ),
        (
            "absent",
            r#"["json:/type (optional)", "json:/name"]"#,
            [
                r#"{"type":null,"name":"o"}"#,
                r#"{"name":"o"}"#,
                r#"{"type":"","name":"o"}"#,
                r#"{"type":"t","name":"o"}"#,
            ]
            .iter()
            .map(|value| plain(value))
            .collect(),
            &[0, 3],
        ),
        (
            "uuids",
            r#"[["json:/u", "(uuid)"], "json:/n"]"#,
            [
                r#"{"u":"67e55044-10b1-426f-9247-bb680e5fe0c8","n":1}"#,
                r#"{"u":"67E5504410B1426F9247BB680E5FE0C8","n":1}"#,
                r#"{"u":"67E5504410B1426F9247BB680E5FE0C8","n":2}"#,
            ]
            .iter()
            .map(|value| plain(value))
            .collect(),
            &[0, 2],
        ),
    ];
    for (name, from, drafts, forwarded) in cases {
        let pipe = Pipe::new(shared_kafka(), &format!("spelled-{name}"), 1);
        pipe.kafka.send(&pipe.raw, &drafts);
        let sidecar = sidecar(&pipe, from);
        pipe.through(1, &sidecar);
        let text = |draft: &Draft| String::from_utf8(draft.value.clone().unwrap()).unwrap();
        let expected: Vec<String> = forwarded.iter().map(|at| text(&drafts[*at])).collect();
        assert_eq!(clean(&pipe), expected, "{name}");
        sidecar.audit().unwrap_or_else(|output| panic!("{name}: {output}"));
    }
}

#[test]
fn check_names_the_word_when_ids_differ_only_by_their_spelling() {
    let pipe = Pipe::new(shared_kafka(), "spelled-check", 1);
    let ids = ["\"a\"", "\"A\"", "2", "2.0", "\"c\"", "\" c\""];
    let drafts: Vec<Draft> = ids.iter().map(|id| Draft::new(0, &format!(r#"{{"id":{id}}}"#))).collect();
    pipe.kafka.send(&pipe.raw, &drafts);
    let text = passed(&sidecar(&pipe, "json:/id"));
    for (by, example) in [
        ("white space around it", "record 0@5, and record 0@4"),
        ("the case of letters", "record 0@1, and record 0@0"),
        ("the spelling of a number", "record 0@3, and record 0@2"),
    ] {
        assert!(text.contains(&format!("only by {by}, for example {example}")), "{text}");
    }
    assert!(text.contains("as in \"json:/id (lower)\""), "{text}");
    let text = passed(&sidecar(&pipe, "json:/id (trim, lower, number)"));
    assert!(!text.contains("differ"), "{text}");
}

/// Runs `dedupd forget` with the environment of an instance. Returns the exit code and the output.
fn forget(instance: &Sidecar, running: &Running, id: [&str; 2]) -> (Option<i32>, String) {
    let mut command = Command::new(&instance.program);
    command.arg("forget").args(id).args(["--listen", &format!("127.0.0.1:{}", running.port)]);
    let output = command.envs(instance.environment.iter().cloned()).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[test]
fn a_part_that_is_absent_is_an_empty_text_for_the_admin_api() {
    let pipe = Pipe::new(shared_kafka(), "spelled-admin", 1);
    let token = pipe.dir.path().join("token");
    std::fs::write(&token, "a-secret-of-this-test").unwrap();
    pipe.kafka.send(&pipe.raw, &[Draft::new(0, r#"{"name":"o"}"#)]);
    let sidecar = sidecar(&pipe, r#"["json:/type (optional)", "json:/name (lower)"]"#)
        .with("DEDUPD_HTTP__TOKEN_FILE", token.to_str().unwrap());
    let running = sidecar.start();
    pipe.wait_caught_up(1, LIMIT);
    let (code, state) = find(&running, "id=&id=O");
    assert_eq!((code, state["found"][0]["offset"].as_u64()), (200, Some(0)), "{state}");
    assert_eq!(find(&running, "id=&id=").0, 400);
    assert_eq!(find(&running, "id=o&id=").0, 400, "the name is not optional");
    let (code, text) = forget(&sidecar, &running, ["o", ""]);
    assert!(code == Some(2) && text.contains("only a part with (optional) may be empty"), "{text}");
    let (code, text) = forget(&sidecar, &running, ["", "o"]);
    assert!(code == Some(0) && text.contains("first had by record 0@0"), "{text}");
    assert_eq!(find(&running, "id=&id=o").0, 404);
    let (code, text) = forget(&sidecar, &running, ["", "o"]);
    assert!(code == Some(1) && text.contains("not stored (partitions looked into: 0)"), "{text}");
    // It is forwarded once more, and then stored again.
    pipe.kafka.send(&pipe.raw, &[Draft::new(0, r#"{"name":"O"}"#), Draft::new(0, r#"{"name":"o"}"#)]);
    pipe.wait_caught_up(1, LIMIT);
    assert_eq!(clean(&pipe), [r#"{"name":"o"}"#, r#"{"name":"O"}"#]);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}
