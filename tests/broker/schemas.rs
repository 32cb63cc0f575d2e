//! Tests on a real Apache Kafka: ids in Avro records, with schemas from a registry and from a file.

use std::process::Command;
use std::time::Duration;

use dedupd::clock::monotonic;
use serde_json::json;

use crate::support::{
    Draft, Isolation, Pipe, Rekey, Running, Sidecar, StubRegistry, shared_kafka, source_of, wait_until,
};

const LIMIT: Duration = Duration::from_mins(1);
const V1: &str = r#"{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"id","type":"string"},{"name":"n","type":"int"}]}"#;
/// The id has another place, and follows a record of another schema.
const V2: &str = r#"{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"by","type":["null","shop.Customer"]},{"name":"id","type":"string"}]}"#;
const CUSTOMER: &str =
    r#"{"type":"record","name":"Customer","namespace":"shop","fields":[{"name":"name","type":"string"}]}"#;

fn draft(partition: i32, schema: u32, document: &[u8]) -> Draft {
    let value = [&[0], &schema.to_be_bytes()[..], document].concat();
    Draft { partition, value: Some(value), ..Draft::default() }
}

/// A string in Avro.
pub fn string(text: &str) -> Vec<u8> {
    [&[u8::try_from(text.len() * 2).unwrap()], text.as_bytes()].concat()
}

fn v1(partition: i32, schema: u32, id: &str) -> Draft {
    draft(partition, schema, &[string(id), vec![2]].concat())
}

fn v2(partition: i32, schema: u32, id: &str) -> Draft {
    draft(partition, schema, &[vec![2], string("Ada"), string(id)].concat())
}

fn sidecar(pipe: &Pipe<'_>, registry: &StubRegistry) -> Sidecar {
    pipe.sidecar("a")
        .with("DEDUPD_IDENTITY__FROM", "[\"avro:/id\"]")
        .with("DEDUPD_SCHEMAS__REGISTRY", &registry.url())
}

/// Number of committed records in each partition.
fn counts(pipe: &Pipe<'_>) -> [usize; 2] {
    [0, 1].map(|partition| pipe.kafka.records_of(&pipe.clean, partition).len())
}

fn wait_for(pipe: &Pipe<'_>, expected: [usize; 2], running: &Running) {
    wait_until(&format!("{expected:?} clean records, see {}", running.log.display()), LIMIT, || {
        (counts(pipe) == expected).then_some(())
    });
}

#[test]
fn a_partition_waits_for_its_schema_and_others_continue() {
    let pipe = Pipe::new(shared_kafka(), "schemas", 2);
    let registry = StubRegistry::start();
    registry.avro(1, V1);
    let sidecar = sidecar(&pipe, &registry);
    let running = sidecar.start();
    let drafts = [
        v1(0, 1, "a"),
        v1(0, 1, "a"),
        v2(0, 9, "a"),
        v2(0, 9, "b"),
        v1(0, 1, "c"),
        v1(1, 1, "a"),
        v1(1, 1, "x"),
        draft(1, 1, &[200]),
        Draft::new(1, "no prefix"),
    ];
    pipe.kafka.send(&pipe.raw, &drafts);
    // The first record of partition 0, and of partition 1 all but the copy: without an id a record is forwarded.
    wait_until("partition 1 to be complete", LIMIT, || {
        (counts(&pipe).iter().sum::<usize>() == 4).then_some(())
    });
    wait_until("a reason", LIMIT, || {
        let page = running.get("/readyz")?;
        let is_named = page.contains("partition 0 is waiting (needs schema 9: GET") && page.contains("404");
        (page.starts_with("HTTP/1.1 503") && is_named && page.contains("Schema not found")).then_some(())
    });
    assert_eq!(running.metric("dedupd_partitions{state=\"waiting\"}"), Some(1.0));
    // While the partition waits, others continue, and a restart changes nothing.
    pipe.kafka.send(&pipe.raw, &[v1(1, 1, "y"), v1(1, 1, "x")]);
    wait_until("a later record", LIMIT, || (counts(&pipe).iter().sum::<usize>() == 5).then_some(()));
    running.kill9();
    let running = sidecar.start();
    wait_until("the reason after a restart", LIMIT, || {
        running.get("/readyz")?.contains("needs schema 9").then_some(())
    });
    registry.set("subjects/shop.Customer/versions/3", 200, json!({ "schema": CUSTOMER }));
    let references = json!([{ "name": "shop.Customer", "subject": "shop.Customer", "version": 3 }]);
    registry.set("schemas/ids/9", 200, json!({ "schema": V2, "references": references }));
    running.wait_ready(LIMIT);
    pipe.wait_caught_up(2, LIMIT);
    let total = |pipe: &Pipe<'_>| counts(pipe).iter().sum::<usize>();
    assert_eq!(total(&pipe), 7, "a, b, c, x, y, and two records without an id: {:?}", counts(&pipe));
    assert!(running.text().contains("schema known; the partition continues"));
    sidecar.audit().unwrap();
}

#[test]
fn secrets_of_the_registry_are_read_for_each_request() {
    let pipe = Pipe::new(shared_kafka(), "schemas-secret", 2);
    let registry = StubRegistry::start();
    let password = pipe.dir.path().join("password");
    std::fs::write(&password, "first\n").unwrap();
    let sidecar = sidecar(&pipe, &registry)
        .with("DEDUPD_SCHEMAS__USERNAME", "user")
        .with("DEDUPD_SCHEMAS__PASSWORD_FILE", password.to_str().unwrap());
    let running = sidecar.start();
    pipe.kafka.send(&pipe.raw, &[v1(0, 1, "a")]);
    let authorized = |text: &str| registry.authorized.lock().unwrap().iter().any(|it| it == text);
    wait_until("the first password", LIMIT, || authorized("Basic dXNlcjpmaXJzdA==").then_some(()));
    std::fs::write(&password, "second").unwrap();
    wait_until("the second password", LIMIT, || authorized("Basic dXNlcjpzZWNvbmQ=").then_some(()));
    registry.avro(1, V1);
    wait_for(&pipe, [1, 0], &running);
    let config = running.get("/config").unwrap();
    assert!(config.contains("password_file") && !config.contains("second"), "{config}");
}

#[test]
fn a_renewed_bearer_token_is_used_without_a_restart() {
    let pipe = Pipe::new(shared_kafka(), "schemas-token", 2);
    let registry = StubRegistry::start();
    registry.avro(1, V1);
    registry.avro(2, V1);
    registry.require("Bearer canary-1");
    let token = pipe.dir.path().join("token");
    std::fs::write(&token, "canary-1\n").unwrap();
    let sidecar = sidecar(&pipe, &registry).with("DEDUPD_SCHEMAS__TOKEN_FILE", token.to_str().unwrap());
    let running = sidecar.start();
    pipe.kafka.send(&pipe.raw, &[v1(0, 1, "a"), v1(0, 1, "a")]);
    wait_for(&pipe, [1, 0], &running);
    // The token expires. A schema that is known is not fetched again.
    registry.require("Bearer canary-2");
    pipe.kafka.send(&pipe.raw, &[v1(0, 2, "b"), v1(0, 2, "a"), v1(1, 1, "c")]);
    wait_for(&pipe, [1, 1], &running);
    let words = ["needs schema 2: GET", "401 Unauthorized: the token is not accepted", "schemas.token_file"];
    wait_until(&format!("{words:?}, see {}", running.log.display()), LIMIT, || {
        let page = running.get("/readyz")?;
        words.iter().all(|word| page.contains(word)).then_some(())
    });
    std::fs::write(&token, "canary-2\n").unwrap();
    wait_for(&pipe, [2, 1], &running);
    running.wait_ready(LIMIT);
    sidecar.audit().unwrap();
    let shown = [running.text(), running.get("/config").unwrap(), running.get("/").unwrap()];
    assert!(!shown.iter().any(|text| text.contains("canary")), "a token is shown");
}

#[test]
fn rekey_waits_for_a_schema_in_one_partition_only() {
    let kafka = shared_kafka();
    let (from, to) = ("schemas.rekey.from", "schemas.rekey.to");
    kafka.create_topic(from, 2, &[]);
    kafka.create_topic(to, 3, &[]);
    let registry = StubRegistry::start();
    registry.avro(1, V1);
    let flags = format!("--from {from} --id avro:/id --schema-registry {}", registry.url());
    let rekey = Rekey::new(kafka, to, &flags);
    let running = rekey.start();
    kafka.send(from, &[v1(0, 1, "a"), v1(0, 2, "b"), v1(0, 1, "c"), v1(1, 1, "a"), v1(1, 1, "b")]);
    let written = || kafka.records(to, Isolation::Committed);
    wait_until("the records before the schema, and those of the other partition", LIMIT, || {
        (written().len() == 3).then_some(())
    });
    wait_until("a reason", LIMIT, || {
        running.get("/readyz")?.contains(&format!("partition {from}/0 needs schema 2: GET")).then_some(())
    });
    registry.avro(2, V1);
    rekey.wait_done(kafka, &[from]);
    let written = written();
    assert_eq!(written.len(), 5, "nothing is lost or repeated");
    let partitions = |sources: &[&str]| {
        let of = |source: &&str| {
            written
                .iter()
                .find(|it| source_of(it).is_some_and(|it| it.starts_with(&format!("{from}/{source}#"))))
                .unwrap()
                .partition
        };
        sources.iter().map(of).collect::<Vec<_>>()
    };
    for copies in [["0@0", "1@0"], ["0@1", "1@1"]] {
        let found = partitions(&copies);
        assert_eq!(found[0], found[1], "copies are in one partition");
    }
}

#[test]
fn a_schema_file_needs_no_registry() {
    let pipe = Pipe::new(shared_kafka(), "schemas-file", 2);
    let schema = pipe.dir.path().join("order.avsc");
    std::fs::write(&schema, V1).unwrap();
    let sidecar = pipe
        .sidecar("a")
        .with("DEDUPD_IDENTITY__FROM", "[\"avro:/id\"]")
        .with("DEDUPD_SCHEMAS__VALUE", schema.to_str().unwrap());
    let running = sidecar.start();
    let bare = |partition, id: &str| Draft {
        partition,
        value: Some([string(id), vec![2]].concat()),
        ..Draft::default()
    };
    pipe.kafka.send(&pipe.raw, &[bare(0, "a"), bare(0, "a"), v1(0, 1, "a"), bare(0, "b"), bare(1, "c")]);
    wait_for(&pipe, [2, 1], &running);
    sidecar.audit().unwrap();
}

/// The output and the exit code of a command with the configuration of a sidecar.
pub fn output(sidecar: &Sidecar, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dedupd"));
    command.args(arguments).args(["--bootstrap-servers", &sidecar.bootstrap, "--raw", &sidecar.raw]);
    let output = command.envs(sidecar.environment.iter().cloned()).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[test]
fn a_schema_that_the_registry_does_not_have_holds_its_partition_for_a_limited_time() {
    let pipe = Pipe::new(shared_kafka(), "schemas-404", 1);
    let registry = StubRegistry::start();
    registry.avro(1, V1);
    let dead = format!("{}.dead", pipe.raw);
    let sidecar = sidecar(&pipe, &registry)
        .with("DEDUPD_SCHEMAS__WAIT", "2s")
        .with("DEDUPD_IDENTITY__ON_MISSING", "dead_letter")
        .with("DEDUPD_TOPICS__DEAD_LETTER", &dead);
    // Avro without a prefix: a null, two numbers, and a string. Its first bytes are no id of a schema.
    let bare = |byte: u8| Draft { value: Some(vec![0, 1, 6, 4, byte, 0x31]), ..Draft::default() };
    pipe.kafka.send(&pipe.raw, &[v1(0, 1, "a"), bare(0x75), v1(0, 1, "b"), v1(0, 1, "a")]);
    let running = sidecar.start();
    pipe.wait_caught_up(1, LIMIT);
    // The next ones are not waited for. The last one has an id that no registry accepts.
    let began = monotonic();
    let beyond = draft(0, 1 << 31, &[1]);
    let more: Vec<Draft> = (0..=200).map(bare).chain([beyond, v1(0, 1, "c")]).collect();
    pipe.kafka.send(&pipe.raw, &more);
    pipe.wait_caught_up(1, LIMIT);
    assert!(began.elapsed() < Duration::from_secs(2 * 200), "each was waited for: {:?}", began.elapsed());
    wait_for_note(&running);
    assert_eq!(pipe.kafka.records_of(&pipe.clean, 0).len(), 3, "a, b, c");
    let dead = pipe.kafka.ended_records(&dead);
    assert_eq!(dead.len(), 203);
    let detail = dead[0].headers.iter().find(|(name, _)| name == "dedupd.detail").unwrap().1.clone().unwrap();
    let detail = String::from_utf8(detail).unwrap();
    assert!(detail.ends_with("the registry does not have its schema 17171573"), "{detail}");
    let text = running.text();
    assert!(text.contains("schema not fetched; partitions whose records need it wait"), "{text}");
    assert!(!text.contains("WARN a record needs a schema"), "{text}");
    sidecar.audit().unwrap();
    let state_dir = pipe.dir.path().join("checked");
    let check = ["check", "--clean", &pipe.clean, "--state-dir", state_dir.to_str().unwrap()];
    let plan = ["plan", "--id", "avro:/id", "--schema-registry", &registry.url()];
    for arguments in [&check[..], &plan] {
        let (code, text) = output(&sidecar, arguments);
        assert!(code == Some(0) && text.contains("the registry does not have 202 schema(s)"), "{text}");
    }
}

fn wait_for_note(running: &Running) {
    wait_until("the note on /readyz", LIMIT, || {
        let page = running.get("/readyz")?;
        (page.starts_with("HTTP/1.1 200") && page.contains("note: worker 0: the registry does not have"))
            .then_some(())
    });
}

#[test]
fn a_header_names_the_schema_of_a_value_without_a_prefix() {
    let pipe = Pipe::new(shared_kafka(), "schemas-guid", 1);
    let registry = StubRegistry::start();
    let guid: Vec<u8> = (1..=16).collect();
    // Its first byte is 0, as of a prefix.
    let schema = r#"{"type":"record","name":"R","fields":[{"name":"by","type":["null","string"]},{"name":"n","type":"int"},{"name":"id","type":"string"}]}"#;
    let path = "schemas/guids/01020304-0506-0708-090a-0b0c0d0e0f10";
    let named = |id: &str, header: &[u8]| {
        let value = [vec![0, 6], string(id)].concat();
        Draft { value: Some(value), ..Draft::default() }.header("__value_schema_id", Some(header))
    };
    let good = [&[1], guid.as_slice()].concat();
    let sidecar = sidecar(&pipe, &registry).with("DEDUPD_SCHEMAS__WAIT", "1s");
    let running = sidecar.start();
    // A registry without GUIDs, or a replica of it that is behind: after a while the record has no id.
    pipe.kafka.send(&pipe.raw, &[named("u0", &good)]);
    pipe.wait_caught_up(1, LIMIT);
    wait_for_note(&running);
    registry.set(path, 200, json!({ "schema": schema }));
    wait_until("the schema", LIMIT, || {
        (!running.get("/readyz")?.contains("the registry does not have")).then_some(())
    });
    let drafts = [
        named("u1", &good),
        named("u2", &good),
        named("u1", &good),
        // Another form, which is no id: forwarded.
        named("u1", &[2, 3]),
        named("u1", &[2, 3]),
    ];
    pipe.kafka.send(&pipe.raw, &drafts);
    pipe.wait_caught_up(1, LIMIT);
    assert_eq!(pipe.kafka.records_of(&pipe.clean, 0).len(), 5);
    sidecar.audit().unwrap();
}

#[test]
fn values_with_any_first_byte_are_forwarded() {
    let pipe = Pipe::new(shared_kafka(), "schemas-bytes", 1);
    let registry = StubRegistry::start();
    let value = |first: u8, length: usize| Draft { value: Some(vec![first; length]), ..Draft::default() };
    let drafts: Vec<Draft> =
        (0..=255).flat_map(|first| [1, 4, 5, 6, 40].map(|length| value(first, length))).collect();
    pipe.kafka.send(&pipe.raw, &drafts);
    let sidecar = sidecar(&pipe, &registry).with("DEDUPD_SCHEMAS__WAIT", "1s");
    pipe.through(1, &sidecar);
    assert_eq!(pipe.kafka.records_of(&pipe.clean, 0).len(), drafts.len());
    // Without an id nothing about duplicates is proven, but the records are compared.
    let audited = sidecar.audit().unwrap_err();
    assert!(audited.contains("none of the 1280 raw records has an id"), "{audited}");
    assert!(audited.contains("lost 0, duplicated 0, out of order 0, altered 0, phantom 0"), "{audited}");
}

/// The key is the id: a registry that is down does not stop what needs it only for a comparison, unless that decides where a record goes.
#[test]
fn a_comparison_waits_for_its_schema_only_for_a_while_unless_it_decides_about_records() {
    let pipe = Pipe::new(shared_kafka(), "schemas-compared", 1);
    let registry = StubRegistry::start();
    let down = || json!({ "error_code": 50_001, "message": "down" });
    registry.set("schemas/ids/1", 500, down());
    let record =
        |id: &str, content: u8| draft(0, 1, &[string(id), vec![content]].concat()).key(id.as_bytes());
    let comparing = pipe
        .sidecar("a")
        .with("DEDUPD_IDENTITY__FROM", "[\"key\"]")
        .with("DEDUPD_IDENTITY__COMPARE", "[\"avro:/n\"]")
        .with("DEDUPD_SCHEMAS__REGISTRY", &registry.url())
        .with("DEDUPD_SCHEMAS__WAIT", "1s");
    let running = comparing.start();
    pipe.kafka.send(&pipe.raw, &[record("a", 2), record("a", 4)]);
    running.wait_outcomes(&[("forwarded", 1), ("duplicate", 1)]);
    assert_eq!(running.metric("dedupd_duplicates_not_compared_total"), Some(1.0));
    let note = "the registry did not return 1 schema(s) that records name, 1: these records are not compared";
    wait_until("the note", LIMIT, || running.get("/readyz")?.contains(note).then_some(()));
    running.wait_ready(LIMIT);
    registry.avro(1, V1);
    wait_until("the end of the note", LIMIT, || (!running.get("/readyz")?.contains(note)).then_some(()));
    pipe.kafka.send(&pipe.raw, &[record("b", 2), record("b", 2), record("b", 4)]);
    running.wait_outcomes(&[("forwarded", 2), ("duplicate", 2), ("conflict", 1)]);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    registry.set("schemas/ids/1", 500, down());
    let deciding = comparing
        .with("DEDUPD_TOPICS__DEAD_LETTER", &format!("{}.dead", pipe.raw))
        .with("DEDUPD_IDENTITY__ON_CONFLICT", "dead_letter");
    let running = deciding.start();
    pipe.kafka.send(&pipe.raw, &[record("b", 6)]);
    let waits = || running.get("/readyz")?.contains("needs schema 1: GET").then_some(monotonic());
    let since = wait_until("the reason", LIMIT, waits);
    while since.elapsed() < Duration::from_secs(4) {
        assert!(waits().is_some(), "{}", running.page("/readyz"));
        std::thread::sleep(Duration::from_millis(200));
    }
    registry.avro(1, V1);
    running.wait_outcomes(&[("conflict", 1)]);
}
