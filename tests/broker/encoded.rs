//! A test on a real Apache Kafka: an id of three encoded fields, one of them in the key, and a kind that an encoded field
//! selects. Keys are in Protobuf and values in Avro, both with schemas from a registry, in two versions each.

use std::time::Duration;

use serde_json::json;

use crate::schemas::string;
use crate::support::{Draft, Pipe, StubRegistry, now_ms, shared_kafka, wait_until};

const LIMIT: Duration = Duration::from_mins(1);
const HOUR_MS: i64 = 3_600_000;

/// Clicks have a window of a minute, all others one of a day.
const CONFIG: &str = r#"
[identity]
from = ["key:protobuf:/account", "avro:/tenant", "avro:/order/id"]

[window]
exact = "24h"

[[kinds]]
name = "clicks"
from = "avro:/type"
values = ["click"]
exact = "1m"
"#;

const KEY_1: &str = "syntax = \"proto3\"; message Key { string account = 1; }";
/// The message is the second one of the file, and the field has another number.
const KEY_2: &str = "syntax = \"proto3\"; message Other { string account = 2; } \
                     message Key { int32 version = 1; string account = 3; }";
const VALUE_1: &str = r#"{"type":"record","name":"Event","fields":[
    {"name":"tenant","type":["null","string"]},
    {"name":"order","type":{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}},
    {"name":"type","type":{"type":"enum","name":"Type","symbols":["payment","click"]}}]}"#;
/// The fields have another order, and so have the symbols.
const VALUE_2: &str = r#"{"type":"record","name":"Event","fields":[
    {"name":"type","type":{"type":"enum","name":"Type","symbols":["click","payment"]}},
    {"name":"note","type":"string"},
    {"name":"order","type":{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}},
    {"name":"tenant","type":["null","string"]}]}"#;

fn framed(schema: u32, document: &[u8]) -> Vec<u8> {
    [&[0], &schema.to_be_bytes()[..], document].concat()
}

/// A field of Protobuf with this tag.
fn field(tag: u8, text: &str) -> Vec<u8> {
    [&[tag, u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
}

/// A record from `version:account:tenant:order:type`; the tenant `-` is null.
fn draft(partition: i32, text: &str, at_ms: i64) -> Draft {
    let [version, account, tenant, order, kind] = text.split(':').collect::<Vec<_>>()[..] else {
        panic!("not a record: {text}")
    };
    let tenant = if tenant == "-" { vec![0] } else { [vec![2], string(tenant)].concat() };
    let order = vec![order.parse::<u8>().unwrap() * 2];
    let is_click = kind == "click";
    let (key, value) = match version {
        "1" => (
            framed(1, &[vec![0], field(0x0a, account)].concat()),
            framed(2, &[tenant, order, vec![if is_click { 2 } else { 0 }]].concat()),
        ),
        "2" => (
            framed(3, &[vec![2, 2, 0x08, 7], field(0x1a, account)].concat()),
            framed(4, &[vec![if is_click { 0 } else { 2 }], string("n"), order, tenant].concat()),
        ),
        other => panic!("no version {other}"),
    };
    Draft { partition, key: Some(key), value: Some(value), ..Draft::default() }.at(at_ms)
}

/// Checks that a clean partition has exactly these records in this order.
fn assert_clean(pipe: &Pipe<'_>, partition: i32, expected: &[&str], log: &str) {
    let content: Vec<_> =
        pipe.kafka.records_of(&pipe.clean, partition).into_iter().map(|it| (it.key, it.value)).collect();
    let drafts = expected.iter().map(|text| draft(partition, text, 0));
    let expected: Vec<_> = drafts.map(|draft| (draft.key, draft.value)).collect();
    assert_eq!(content, expected, "partition {partition}: {log}");
}

#[test]
fn a_composite_of_encoded_fields_and_a_kind_by_an_encoded_field_decide_about_copies() {
    let pipe = Pipe::new(shared_kafka(), "encoded", 2);
    let registry = StubRegistry::start();
    let protobuf = |id: u32, text: &str| {
        registry.set(&format!("schemas/ids/{id}"), 200, json!({ "schemaType": "PROTOBUF", "schema": text }));
    };
    protobuf(1, KEY_1);
    registry.avro(2, VALUE_1);
    registry.avro(4, VALUE_2);
    let mut sidecar = pipe.sidecar("a").with_file(CONFIG).with("DEDUPD_SCHEMAS__REGISTRY", &registry.url());
    sidecar.environment.retain(|(key, _)| key != "DEDUPD_IDENTITY__FROM");
    let running = sidecar.start();
    let start = now_ms() - 4 * HOUR_MS;
    let send = |partition: i32, records: &[&str], at_ms: i64| {
        let drafts: Vec<Draft> = records.iter().map(|text| draft(partition, text, at_ms)).collect();
        pipe.kafka.send(&pipe.raw, &drafts);
    };
    // Ids that differ from the first one in one part, and two that differ only in where their parts end.
    let different =
        ["1:k:a:1:pay", "1:l:a:1:pay", "1:k:b:1:pay", "1:k:a:2:pay", "1:kb:a:3:pay", "1:k:ba:3:pay"];
    send(0, &different, start);
    // A record with a null part has no id and is forwarded.
    let others = ["1:k:-:1:pay", "1:k:-:1:pay", "1:c:a:1:click"];
    send(0, &[&different[..], &others, &others[2..]].concat(), start);
    wait_until("the records of partition 0", LIMIT, || {
        (pipe.kafka.records_of(&pipe.clean, 0).len() == 9).then_some(())
    });
    // The other partition has copies in the second version of both schemas. That of the keys is not registered yet.
    send(1, &["2:k:a:1:pay", "2:c:a:1:click", "2:m:a:1:pay"], start);
    wait_until("the missing schema of the key", LIMIT, || {
        running.get("/readyz")?.contains("partition 1 is waiting (needs schema 3: GET").then_some(())
    });
    protobuf(3, KEY_2);
    pipe.wait_caught_up(2, LIMIT);
    assert_clean(&pipe, 0, &[&different[..], &others].concat(), &running.text());
    assert_clean(&pipe, 1, &["2:m:a:1:pay"], &running.text());
    // After two hours clicks are new again, and all others are not, also after a restart.
    let later = start + 2 * HOUR_MS;
    send(0, &["1:c:a:1:click", "1:k:a:1:pay", "1:c:a:1:click"], later);
    pipe.wait_caught_up(2, LIMIT);
    let clicks = |outcome| {
        running.metric(&format!("dedupd_kind_records_total{{kind=\"clicks\",outcome=\"{outcome}\"}}"))
    };
    wait_until("the counts of clicks", LIMIT, || {
        // One of them is encoded with another schema, and so has another value.
        let counted = ["forwarded", "duplicate", "conflict"].map(clicks);
        (counted == [Some(2.0), Some(2.0), Some(1.0)]).then_some(())
    });
    running.kill9();
    let running = sidecar.start();
    send(0, &["2:k:a:1:pay", "2:c:a:1:click", "1:k:a:9:pay"], later);
    pipe.wait_caught_up(2, LIMIT);
    let all = [&different[..], &others, &["1:c:a:1:click", "1:k:a:9:pay"]].concat();
    assert_clean(&pipe, 0, &all, &running.text());
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    sidecar.audit().unwrap();
}
