//! Records in the frames of all serializers: both implementations find the same, in the bytes of the serializers and in damaged ones.
//! `frames/generate.sh` made the bytes.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use dedupd::config::{Frame, SchemasConfig};
use dedupd::dedupe::{AvroSchema, Hasher, IdentityRule, Schema, SchemaId, Schemas};
use dedupd::schemas::{SchemaOrigin, SchemaText, of_files, parse};
use dedupd_audit::{Fields, Framing, IdRule, SchemaName, SchemaSources};
use serde_json::Value;

use super::Sample;
use super::encoded::text_of;

/// What both find: an id, none, or that the schema is not known.
type Found = Result<Option<String>, ()>;

/// A record of a serializer.
#[derive(Clone)]
struct Framed {
    name: String,
    frame: Frame,
    source: String,
    file: String,
    schema: SchemaId,
    headers: Vec<(String, Vec<u8>)>,
    value: Vec<u8>,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/audit_agrees/frames")
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
}

fn framing(frame: Frame) -> Framing {
    match frame {
        Frame::Confluent => Framing::Confluent,
        Frame::Glue => Framing::Glue,
        Frame::Apicurio => Framing::ApicurioGlobal,
        Frame::ApicurioContent => Framing::ApicurioContent,
        Frame::SingleObject => Framing::SingleObject,
    }
}

fn name_of(id: SchemaId) -> SchemaName {
    match id {
        SchemaId::Number(id) => SchemaName::Id(id),
        SchemaId::Guid(id) => SchemaName::Guid(id),
        SchemaId::Global(id) => SchemaName::Global(id),
        SchemaId::Content(id) => SchemaName::Content(id),
        SchemaId::Fingerprint(id) => SchemaName::Fingerprint(id),
    }
}

/// The records of all serializers.
fn records() -> Vec<Framed> {
    let lines = std::fs::read_to_string(folder().join("records.jsonl")).unwrap();
    let of = |(number, line): (usize, &str)| {
        let line: Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| line[name].as_str().unwrap().to_owned();
        let (frame, schema) = (text("frame"), text("schema"));
        let frame = Frame::ALL.into_iter().find(|it| it.as_str() == frame).unwrap();
        let headers: Vec<(String, Vec<u8>)> = line["headers"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, value)| (name.clone(), bytes(value.as_str().unwrap())))
            .collect();
        let has = |name: &str| headers.iter().any(|(header, _)| header == name);
        let decimal = || schema.parse().unwrap();
        let schema = match frame {
            _ if has("apicurio.value.contentId") => SchemaId::Content(decimal()),
            Frame::Confluent if schema.len() < 36 => SchemaId::Number(schema.parse().unwrap()),
            Frame::Confluent | Frame::Glue => {
                SchemaId::Guid(u128::from_str_radix(&schema.replace('-', ""), 16).unwrap())
            }
            Frame::Apicurio => SchemaId::Global(decimal()),
            Frame::ApicurioContent => SchemaId::Content(decimal()),
            Frame::SingleObject => SchemaId::Fingerprint(u64::from_str_radix(&schema, 16).unwrap()),
        };
        let name = format!("line {}, {}", number + 1, text("by"));
        Framed {
            name,
            frame,
            source: text("source"),
            file: text("file"),
            schema,
            headers,
            value: bytes(&text("value")),
        }
    };
    lines.lines().enumerate().map(of).collect()
}

impl Framed {
    fn text(&self) -> SchemaText {
        let text = std::fs::read_to_string(folder().join(&self.file)).unwrap();
        text_of(if self.file == "order.avsc" { "AVRO" } else { "PROTOBUF" }, text)
    }

    /// What the service finds with these schemas, and the audit with these sources; and why there is none.
    fn found_with(&self, source: &str, schemas: &Schemas, sources: SchemaSources) -> (Found, String) {
        let headers = self.headers.iter().map(|(name, value)| (name.as_bytes(), Some(value.as_slice())));
        let fields = Fields {
            value: Some(&self.value),
            key: Some(b"k"),
            headers: headers.collect(),
            ..Fields::default()
        };
        let rule = IdentityRule::new(vec![source.parse().unwrap()], Hasher::Xxh3);
        let service = rule.id(&Sample(&fields), schemas).map_err(drop).map(|id| id.map(Cow::into_owned));
        let audit = IdRule::parse(&[source]).unwrap().with_schemas(sources).unwrap();
        let audit = audit.id(&fields).map_err(drop).map(|id| id.map(Cow::into_owned));
        assert_eq!(service, audit, "{source} of {}: {:x?} {:x?}", self.name, self.value, self.headers);
        let found = service.map(|id| id.map(|id| String::from_utf8_lossy(&id).into_owned()));
        (found, rule.why_missing(&Sample(&fields), schemas))
    }

    /// The same where the schema is known by its id alone; `None` where the registry does not have it.
    fn found(&self, source: &str, known: Option<SchemaText>) -> (Found, String) {
        let mut schemas = Schemas::default().framed(self.frame, "the registry");
        let parsed = known.as_ref().map_or(Schema::Unregistered, |text| parse(self.schema, text).unwrap());
        schemas.insert(self.schema, Arc::new(parsed));
        let (own, known) = (
            name_of(self.schema),
            known.map(|SchemaText { format, text, references }| dedupd_audit::SchemaText {
                format,
                text,
                references,
            }),
        );
        let fetch = move |name| if name == own { Ok(known.clone()) } else { Err("503".to_owned()) };
        let sources = SchemaSources {
            framing: framing(self.frame),
            registry: Some(Arc::new(fetch)),
            ..SchemaSources::default()
        };
        self.found_with(source, &schemas, sources)
    }
}

#[expect(clippy::unnecessary_wraps, reason = "it is compared with what is found")]
fn id(text: &str) -> Found {
    Ok(Some(text.to_owned()))
}

#[test]
fn both_read_the_records_of_every_serializer() {
    let records = records();
    assert!(records.len() >= 20, "{}", records.len());
    for record in &records {
        let read = |source: &str| record.found(source, Some(record.text())).0;
        assert_eq!(read(&record.source), id("A-1"), "{}", record.name);
        if record.source == "protobuf:/id" {
            let names = ["protobuf:name", "protobuf:/1", "protobuf:/2"].map(read);
            let is_zebra = names[0] == id("shop.Zebra");
            assert!(
                names[0]
                    .as_ref()
                    .is_ok_and(|name| name.as_ref().is_some_and(|name| name.starts_with("shop."))),
                "{}",
                record.name
            );
            assert_eq!(names[if is_zebra { 2 } else { 1 }], id("A-1"), "{} by number", record.name);
        }
        let or_key = format!("{} | key", record.source);
        if record.source != "json:/id" {
            let (found, why) = record.found(&or_key, None);
            assert_eq!(
                found,
                Ok(None),
                "no other source replaces a schema that is not registered: {}",
                record.name
            );
            assert!(why.contains("the registry does not have its schema"), "{why}");
            let other = Framed { schema: SchemaId::Number(99), ..record.clone() };
            assert_eq!(other.found(&or_key, None).0, Err(()), "it is waited for: {}", record.name);
        }
    }
}

#[test]
fn both_read_damaged_records_alike() {
    for record in &records() {
        let sources = [record.source.as_str(), "protobuf:/2", "json:/id", "avro:name", "protobuf:name"];
        let changed = |value: Vec<u8>, headers: Vec<(String, Vec<u8>)>| {
            let changed = Framed { headers, value, ..record.clone() };
            sources.map(|source| changed.found(source, Some(record.text())).0)
        };
        for at in 0..record.value.len() {
            let mut flipped = record.value.clone();
            flipped[at] ^= 1 << (at % 8);
            let _both_agree = changed(flipped, record.headers.clone());
            let cut = changed(record.value[..at].to_vec(), record.headers.clone());
            // What follows an id in JSON is not read.
            let is_read = record.source != "json:/id" || at + 1 < record.value.len();
            assert!(!is_read || cut[0] != id("A-1"), "{} cut at {at}", record.name);
        }
        for (number, (name, header)) in record.headers.iter().enumerate() {
            for at in 0..header.len() {
                let mut headers = record.headers.clone();
                headers[number].1.truncate(at);
                let [found, ..] = changed(record.value.clone(), headers);
                let is_name = name.ends_with("Id") || name.ends_with("schema_id");
                assert!(!is_name || found != id("A-1"), "{}: header cut at {at}", record.name);
            }
        }
    }
}

#[test]
fn a_record_in_another_frame_has_no_id_and_the_reason_names_the_frame() {
    for record in records().iter().filter(|it| it.headers.is_empty() && it.source != "json:/id") {
        for frame in Frame::ALL.into_iter().filter(|frame| *frame != record.frame) {
            let other = Framed { frame, ..record.clone() };
            let (found, why) = other.found(&record.source, Some(record.text()));
            // A zero byte is in three frames.
            if record.value[0] != 0 || matches!(frame, Frame::Glue | Frame::SingleObject) {
                assert_eq!(found, Ok(None), "{} in {}", record.name, frame.as_str());
                let part = ["schema registry", "AWS Glue", "Apicurio", "Apicurio", "single-object"];
                let part = part[Frame::ALL.iter().position(|it| *it == frame).unwrap()];
                assert!(why.contains("it does not begin with") && why.contains(part), "{why}");
            }
        }
    }
}

#[test]
fn what_is_compressed_is_read_up_to_a_size() {
    let zlib = |size: usize| {
        let document = format!("{{\"id\":\"A-1\",\"x\":\"{}\"}}", "x".repeat(size - 19));
        assert_eq!(document.len(), size);
        miniz_oxide::deflate::compress_to_vec_zlib(document.as_bytes(), 6)
    };
    let record = records().into_iter().find(|it| it.frame == Frame::Glue && it.value[1] == 5).unwrap();
    for (size, expected) in [(16 << 20, id("A-1")), ((16 << 20) + 1, Ok(None)), (1 << 28, Ok(None))] {
        let value = [&record.value[..18], &zlib(size)].concat();
        let (found, _) = Framed { value, ..record.clone() }.found("json:/id", None);
        assert_eq!(found, expected, "{size}");
    }
    let value = [&record.value[..18], b"x"].concat();
    let (found, why) = Framed { value, ..record.clone() }.found("avro:/id", Some(record.text()));
    assert!(found == Ok(None) && why.contains("compressed with zlib, is damaged"), "{why}");
}

/// The schemas of these files, and what has those with ids.
fn opened(frame: Frame, path: &std::path::Path) -> (Schemas, Option<SchemaOrigin>, SchemaSources) {
    let config = SchemasConfig {
        frame,
        value: Some(path.to_owned()),
        key: Some(path.to_owned()),
        ..SchemasConfig::open(None)
    };
    let path = || Some(path.to_owned());
    let sources = SchemaSources {
        framing: framing(frame),
        value: path(),
        key: path(),
        registry: Some(Arc::new(|_| Ok(None))),
    };
    (of_files(&config).unwrap(), SchemaOrigin::open(&config).unwrap(), sources)
}

#[test]
fn both_find_schemas_in_a_directory_by_their_ids() {
    for record in records().iter().filter(|it| it.source != "json:/id") {
        let dir = tempfile::tempdir().unwrap();
        let (mut schemas, origin, sources) = opened(record.frame, dir.path());
        let origin = origin.unwrap();
        let missing = origin.schema(record.schema).unwrap_err();
        assert!(
            missing.is_unregistered && missing.what.contains(&record.schema.to_string()),
            "{}",
            missing.what
        );
        schemas.insert(record.schema, Arc::new(Schema::Unregistered));
        let (found, why) = record.found_with(&record.source, &schemas, sources.clone());
        assert!(
            found == Ok(None) && why.contains("the directory of schemas does not have its schema"),
            "{why}"
        );
        let (_, ending) = record.file.split_once('.').unwrap();
        let file = dir.path().join(format!("{}.{ending}", record.schema.text()));
        std::fs::copy(folder().join(&record.file), &file).unwrap();
        schemas.insert(record.schema, Arc::new(origin.schema(record.schema).unwrap()));
        assert_eq!(
            record.found_with(&record.source, &schemas, sources.clone()).0,
            id("A-1"),
            "{}",
            record.name
        );
        if record.frame != Frame::SingleObject {
            std::fs::copy(&file, dir.path().join(format!("{}.desc", record.schema.text()))).unwrap();
            let error = origin.schema(record.schema).unwrap_err();
            assert!(!error.is_unregistered && error.what.contains("remove one of them"), "{}", error.what);
        }
    }
}

#[test]
fn one_file_has_the_schema_of_all_values_in_their_frame() {
    for record in records().iter().filter(|it| it.source != "json:/id") {
        let (mut schemas, origin, sources) = opened(record.frame, &folder().join(&record.file));
        assert_eq!(origin.is_some(), record.frame == Frame::SingleObject);
        if let Some(origin) = origin {
            assert!(origin.schema(SchemaId::Fingerprint(1)).unwrap_err().is_unregistered);
            schemas.insert(record.schema, Arc::new(origin.schema(record.schema).unwrap()));
        }
        // Files for the default frame are read without headers, as before.
        let expected = if record.frame == Frame::Confluent && record.source == "protobuf:/id" {
            None
        } else {
            Some("A-1")
        };
        let found = record.found_with(&record.source, &schemas, sources.clone()).0;
        assert!(found == Ok(expected.map(str::to_owned)) || expected.is_none(), "{}: {found:?}", record.name);
        if record.frame != Frame::Confluent && record.headers.is_empty() {
            let bare = Framed { value: b"\x02\x02\0\x01\x02\x06A-1".to_vec(), ..record.clone() };
            let (found, why) = bare.found_with(&record.source, &schemas, sources);
            assert!(
                found == Ok(None) && why.contains("it does not begin with"),
                "{}: {found:?} {why}",
                record.name
            );
        }
    }
}

/// As `share/test/data/schema-tests.txt` of Avro has them.
#[test]
fn fingerprints_are_those_of_the_specification() {
    let cases: [(&str, i64); 12] = [
        (r#""null""#, 7_195_948_357_588_979_594),
        (r#"{"type":"null"}"#, 7_195_948_357_588_979_594),
        (r#""boolean""#, -6_970_731_678_124_411_036),
        (r#""int""#, 8_247_732_601_305_521_295),
        (r#""long""#, -3_434_872_931_120_570_953),
        (r#""float""#, 5_583_340_709_985_441_680),
        (r#""double""#, -8_181_574_048_448_539_266),
        (r#""bytes""#, 5_746_618_253_357_095_269),
        (r#""string""#, -8_142_146_995_180_207_161),
        (r#"[ "int"  ]"#, -5_232_228_896_498_058_493),
        (r#"{"fields":[], "type":"record", "name":"foo"}"#, -4_824_392_279_771_201_922),
        (r#"{"type":"fixed", "name":"foo", "size": 15}"#, 1_756_455_273_707_447_556),
    ];
    for (text, expected) in cases {
        assert_eq!(AvroSchema::fingerprint(text), Some(expected.cast_unsigned()), "{text}");
    }
    for text in ["", "1", "{}", r#"{"type":"fixed","name":"a"}"#, r#"{"type":"record","name":"a"}"#] {
        assert_eq!(AvroSchema::fingerprint(text), None, "{text}");
    }
}

/// Not those of `apache-avro` 0.22, which writes some types in another form.
#[test]
fn both_compute_the_fingerprints_of_avro_for_java() {
    let cases = [
        (r#"{"name":"id","type":"string"}"#, 0x063c_dd7f_b4ac_5e88_u64),
        (r#"{"type":{"type":"string","logicalType":"uuid"},"doc":"d","name":"id"}"#, 0x063c_dd7f_b4ac_5e88),
        (
            r#"{"name":"id","type":{"type":"fixed","name":"F","size":2,"aliases":["G"]}},{"name":"o","type":["null","F","a.b.R"],"default":null}"#,
            0x7d2d_b907_741f_3b20,
        ),
        (
            r#"{"name":"m","type":{"type":"map","values":{"type":"array","items":{"type":"enum","name":"z.E","symbols":["A","B"]}}}},{"name":"e","type":"z.E","order":"ignore"}"#,
            0x6e4b_e995_37a4_9e14,
        ),
        (
            r#"{"name":"r","type":{"type":"record","name":"In","fields":[{"name":"up","type":["null","In","R"]}]}},{"name":"s","type":"a.b.In"}"#,
            0xb52d_4eb2_6e63_b522,
        ),
    ];
    let record = records().into_iter().find(|it| it.frame == Frame::SingleObject).unwrap();
    for (fields, expected) in cases {
        let text =
            format!(r#"{{"type":"record","name":"R","namespace":"a.b","doc":"x","fields":[{fields}]}}"#);
        assert_eq!(AvroSchema::fingerprint(&text), Some(expected), "{text}");
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("any name.avsc"), &text).unwrap();
        let (mut schemas, origin, sources) = opened(Frame::SingleObject, dir.path());
        let schema = SchemaId::Fingerprint(expected);
        schemas.insert(schema, Arc::new(origin.unwrap().schema(schema).unwrap()));
        let value = [&[0xc3, 1], &expected.to_le_bytes()[..]].concat();
        let named = Framed { schema, value, ..record.clone() };
        assert_eq!(named.found_with("avro:name", &schemas, sources).0, id("a.b.R"), "{text}");
    }
}
