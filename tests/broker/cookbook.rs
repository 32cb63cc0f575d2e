//! The recipes of `docs/cookbook.md` on a real Apache Kafka: configuration, commands and outcomes are read from the page. Each test also shows that
//! the trap of its recipe exists.
//!
//! Records in files are those of real systems (`tests/support/recorded`), the others have the form that such systems document.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::support::cookbook::{Recipe, count, ended, recipe};
use crate::support::recorded::load;
use crate::support::{Draft, Isolation, Pipe, Record, now_ms, shared_kafka};

const DAY_MS: i64 = 86_400_000;

/// The value as JSON, null if it is none.
fn json(record: &Record) -> Value {
    serde_json::from_slice(record.value.as_deref().unwrap_or_default()).unwrap_or_default()
}

fn header(record: &Record, name: &str) -> Option<String> {
    let (_, value) = record.headers.iter().find(|(key, _)| key == name)?;
    value.clone().map(|value| String::from_utf8(value).unwrap())
}

/// The text of a scalar, of a header of this name or else at this pointer.
fn either(record: &Record, name: &str, pointer: &str) -> Option<String> {
    header(record, name)
        .or_else(|| json(record).pointer(pointer).map(Value::to_string).map(|it| it.replace('"', "")))
}

fn records(topic: &str) -> Vec<Record> {
    shared_kafka().records(topic, Isolation::Committed)
}

fn create(topic: &str, partitions: usize, settings: &[(&str, &str)], drafts: &[Draft]) {
    shared_kafka().create_topic(topic, partitions, settings);
    shared_kafka().send(topic, drafts);
}

/// Writes the topics of a file. Those with a slash are of another cluster.
fn create_recorded(file: &str, partitions: usize) {
    let mut topics: BTreeMap<String, Vec<Draft>> = BTreeMap::new();
    for (topic, draft) in load(file).into_iter().filter(|(topic, _)| !topic.contains('/')) {
        topics.entry(topic).or_default().push(draft);
    }
    for (topic, drafts) in topics {
        create(&topic, partitions, &[], &drafts);
    }
}

/// Runs the commands of a recipe. Then each of its events, as this function names them, must be in clean once, as a record of the sources, and no
/// other record.
fn keeps(
    recipe: &Recipe,
    pipe: &Pipe<'_>,
    sources: &[&str],
    event: impl Fn(&Record) -> Option<String>,
) -> String {
    let text = recipe.play(pipe);
    let raw: Vec<Record> = sources.iter().flat_map(|topic| records(topic)).collect();
    let clean = shared_kafka().ended_records(&pipe.clean);
    let mut found: Vec<Option<String>> = clean.iter().map(&event).collect();
    found.sort();
    let expected: BTreeSet<String> = raw.iter().filter_map(&event).collect();
    assert_eq!(found, expected.into_iter().map(Some).collect::<Vec<_>>(), "{text}");
    for record in &clean {
        let is_same = |other: &&Record| {
            (&other.key, &other.value, other.timestamp_ms)
                == (&record.key, &record.value, record.timestamp_ms)
        };
        assert!(raw.iter().any(|other| is_same(&other) && event(other) == event(record)), "{record:?}");
    }
    text
}

/// Settings that differ from the page.
fn environment(settings: &[(&str, &str)]) -> Vec<(String, String)> {
    settings.iter().map(|(key, value)| (format!("DEDUPD_{key}"), (*value).to_owned())).collect()
}

/// The output of `dedupd plan` for the raw topic with other settings.
fn plan(recipe: &Recipe, pipe: &Pipe<'_>, ids: &[&str], compare: &[&str]) -> String {
    let mut command = recipe.prepared("dedupd plan --bootstrap-servers localhost:9092 --raw", pipe);
    let flags = ids.iter().map(|id| ["--id", *id]).chain(compare.iter().map(|part| ["--compare", *part]));
    let (code, text) = ended(command.arg(&pipe.raw).args(flags.flatten()));
    assert_eq!(code, Some(0), "{text}");
    text
}

#[test]
fn changes_of_debezium() {
    create_recorded("debezium.jsonl", 2);
    let recipe = recipe(1);
    let pipe = recipe.pipe(shared_kafka());
    keeps(&recipe, &pipe, &[&pipe.raw], |record| {
        let document = json(record);
        let key = String::from_utf8(record.key.clone().unwrap()).unwrap();
        Some(format!("{key} {} {}", document.pointer("/source/lsn")?, document["op"]))
    });
    // The trap.
    let text = plan(&recipe, &pipe, &["value"], &[]);
    assert!(text.contains("   0.00 % of the newest 29; duplicates"), "{text}");
    // A tombstone that comes again is behind the row that was inserted again, and two rows have one place in the log.
    let raw = records(&pipe.raw);
    let at = |wanted: &dyn Fn(&Record) -> bool| raw.iter().rposition(wanted).unwrap();
    let key = |record: &Record| record.key.as_deref() == Some(br#"{"id":1}"#);
    let again = raw.iter().position(|it| key(it) && json(it)["after"]["status"] == "again").unwrap();
    assert!(again < at(&|it| key(it) && it.value.is_none()));
    let place =
        |id: i32| raw.iter().map(json).find(|it| it["after"]["id"] == id).unwrap()["source"]["lsn"].clone();
    assert_eq!(place(4), place(5));
}

/// As Standard Webhooks specifies the headers; the gateway adds `sent_at` to the document.
#[test]
fn webhooks_with_retries() {
    let delivery = |id: &str, attempt: u32, amount: u32| {
        let body = format!(
            r#"{{"type":"invoice.paid","timestamp":"2026-11-30T10:00:00Z","data":{{"id":"inv_1","amount":{amount}}},"sent_at":{attempt}}}"#
        );
        Draft::new(0, &body)
            .header("webhook-id", Some(id.as_bytes()))
            .header("webhook-timestamp", Some(attempt.to_string().as_bytes()))
            .header("webhook-signature", Some(format!("v1,signature of attempt {attempt}").as_bytes()))
    };
    let plain = |attempt: u32| {
        Draft::new(
            0,
            &format!(r#"{{"id":"msg_2","type":"user.left","data":{{"amount":0}},"sent_at":{attempt}}}"#),
        )
    };
    let drafts =
        [delivery("msg_1", 1, 500), delivery("msg_1", 2, 500), plain(3), plain(4), delivery("msg_1", 5, 900)];
    create("webhooks", 1, &[], &drafts);
    let recipe = recipe(2);
    let pipe = recipe.pipe(shared_kafka());
    keeps(&recipe, &pipe, &[&pipe.raw], |record| either(record, "webhook-id", "/id"));
    let conflicts = records(&recipe.text("topics", "dead_letter"));
    assert_eq!(conflicts.len(), 1, "{conflicts:?}");
    assert_eq!(conflicts[0].value, drafts[4].value);
    assert_eq!(header(&conflicts[0], "dedupd.reason").as_deref(), Some("conflict"));
    // The trap: by default, the retry is a conflict as well.
    for (compare, differing) in [(&[][..], "3 differ"), (&["json:/type", "json:/data/amount"], "1 differ")] {
        let text = plan(&recipe, &pipe, &["header:webhook-id | json:/id"], compare);
        assert!(text.contains(differing), "{text}");
    }
}

#[test]
fn two_regions_with_a_mirror() {
    create_recorded("mirror.jsonl", 2);
    let recipe = recipe(3);
    let pipe = recipe.pipe(shared_kafka());
    keeps(&recipe, &pipe, &["clicks", "west.clicks"], |record| either(record, "", "/id"));
    // The trap: the mirror of a topic without copies has copies.
    let of = |topic: &str| {
        let mirrored = load("mirror.jsonl").into_iter().filter(|(name, _)| name == topic);
        mirrored.map(|(_, draft)| draft.value).collect::<Vec<_>>()
    };
    let unique = |values: &[Option<Vec<u8>>]| values.iter().collect::<BTreeSet<_>>().len();
    let [source, mirror] = [of("west/clicks"), of("west.clicks")];
    assert_eq!((unique(&source), unique(&mirror)), (source.len(), source.len()));
    assert!(mirror.len() > source.len());
}

#[test]
fn a_replay_of_old_records() {
    let reading = |id: &str, days: i64| Draft::id(0, id).at(now_ms() - days * DAY_MS);
    let live = [reading("a", 6), reading("b", 3), reading("d", 0)];
    // The live topic lacks c. The archive also has some twice.
    let replay = [reading("a", 6), reading("c", 5), reading("c", 5), reading("b", 3)];
    create("readings", 1, &[], &[&live[..], &replay].concat());
    let mut recipe = recipe(4);
    let mut pipe = recipe.pipe(shared_kafka());
    let id = |record: &Record| either(record, "", "/id");
    let text = keeps(&recipe, &pipe, &[&pipe.raw], id);
    assert!(text.contains("all found by a window of       6d"), "{text}");
    // The trap: the default window.
    pipe.clean = "readings.short".to_owned();
    pipe.dir = tempfile::tempdir().unwrap();
    // Each record in a transaction of its own: ids expire at a commit.
    let settings = [("WINDOW__EXACT", "24h"), ("TOPICS__CLEAN", &pipe.clean), ("BATCH__MAX_RECORDS", "1")];
    recipe.environment = environment(&settings);
    recipe.seen = [("forwarded", 6), ("duplicate", 1)].map(|(name, count)| (name.to_owned(), count)).into();
    let text = recipe.play(&pipe);
    assert!(text.contains("late or twice"), "{text}");
}

#[test]
fn gateways_with_wrong_clocks() {
    let event = |device: &str, seq: u32, at_ms: i64| {
        Draft::new(0, &format!(r#"{{"device":"{device}","seq":{seq}}}"#)).at(at_ms)
    };
    let (started, now) = (12 * 60_000, now_ms());
    let drafts = [
        event("a", 1, started),
        event("b", 1, now - 3 * DAY_MS),
        event("a", 1, now),
        event("a", 2, now),
        // The trap: b was started again and counts from 1.
        event("b", 1, now),
    ];
    create("gateways", 1, &[], &drafts);
    let recipe = recipe(5);
    let pipe = recipe.pipe(shared_kafka());
    keeps(&recipe, &pipe, &[&pipe.raw], |record| Some(json(record).to_string()));
    // By record time, both copies are other events.
    let (code, text) = recipe.command("dedupd audit --config dedupd.toml", &pipe);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("lost 2"), "{text}");
}

#[test]
fn cloud_events_in_both_modes() {
    const ID: &str = "header:ce_id | json:/id";
    const SOURCE: &str = "header:ce_source | json:/source";
    create_recorded("cloudevents.jsonl", 1);
    let recipe = recipe(6);
    let pipe = recipe.pipe(shared_kafka());
    // By the specification: a batch.
    let batch =
        r#"[{"specversion":"1.0","id":"A234-3","source":"/shop/de","type":"com.example.order.paid"}]"#;
    let kind = Some(&b"application/cloudevents-batch+json"[..]);
    shared_kafka().send(&pipe.raw, &[Draft::new(0, batch).header("content-type", kind)]);
    keeps(&recipe, &pipe, &[&pipe.raw], |record| {
        Some(format!("{} of {}", either(record, "ce_id", "/id")?, either(record, "ce_source", "/source")?))
    });
    assert_eq!(records(&recipe.text("topics", "dead_letter")).len(), 1);
    // The trap.
    for (ids, duplicates) in [(&[ID][..], "60.00 %"), (&[ID, SOURCE], "40.00 %")] {
        let text = plan(&recipe, &pipe, ids, &["off"]);
        assert!(text.contains(&format!("{duplicates} of the newest 6")), "{text}");
    }
}

#[test]
fn several_topics_into_one() {
    let event = |kind: &str, id: u32| Draft::new(0, &format!(r#"{{"type":"{kind}","id":{id}}}"#));
    create("shop.orders", 1, &[], &[event("order", 7), event("payment", 8), event("order", 7)]);
    create("shop.payments", 1, &[], &[event("payment", 7), event("payment", 8), event("payment", 9)]);
    let recipe = recipe(7);
    let pipe = recipe.pipe(shared_kafka());
    let kind =
        |record: &Record| Some(format!("{} {}", either(record, "", "/type")?, either(record, "", "/id")?));
    keeps(&recipe, &pipe, &["shop.orders", "shop.payments"], kind);
    // The trap.
    let text = plan(&recipe, &pipe, &["json:/id"], &[]);
    assert!(text.contains("differ"), "{text}");
}

#[test]
fn a_compacted_raw_topic() {
    let update = |(at_ms, (key, value, id)): (i64, &(&str, Option<&str>, Option<&str>))| {
        let draft = Draft { value: value.map(Into::into), ..Draft::default() }.key(key.as_bytes());
        id.iter().fold(draft.at(at_ms), |draft, id| draft.header("event-id", Some(id.as_bytes())))
    };
    let ada = Some(r#"{"name":"Ada"}"#);
    let came_back = Some(r#"{"name":"Ada","since":2026}"#);
    let updates = [
        ("c1", ada, Some("e1")),
        ("c1", ada, Some("e1")),
        ("c1", None, Some("e2")),
        ("c1", came_back, Some("e3")),
        ("c1", ada, Some("e1")),
        ("c1", None, Some("e2")),
        // The tombstones have no id.
        ("c2", ada, Some("e4")),
        ("c2", None, None),
        ("c2", came_back, Some("e5")),
        ("c2", None, None),
    ];
    let drafts: Vec<Draft> = (now_ms() - 1000..).zip(&updates).map(update).collect();
    create("customers", 1, &[("cleanup.policy", "compact")], &drafts);
    let mut recipe = recipe(8);
    let pipe = recipe.pipe(shared_kafka());
    keeps(&recipe, &pipe, &[&pipe.raw], |record| {
        header(record, "event-id").or_else(|| Some(format!("without an id, {}", record.timestamp_ms?)))
    });
    let last: BTreeMap<_, _> = records(&pipe.clean).into_iter().map(|it| (it.key, it.value)).collect();
    let text = |value: Option<&str>| value.map(|it| it.as_bytes().to_vec());
    assert_eq!(
        last,
        [("c1", came_back), ("c2", None)].map(|(key, value)| (text(Some(key)), text(value))).into()
    );
    // The trap.
    recipe.environment =
        environment(&[("IDENTITY__FROM", "[\"key\"]"), ("TOPICS__CLEAN", "customers.by.key")]);
    let (_, text) = recipe.command("dedupd check --config dedupd.toml", &pipe);
    assert!(text.contains("each update of a key and its tombstone is a duplicate"), "{text}");
}

#[test]
fn every_recipe_has_a_test() {
    assert_eq!(count(), 8);
}
