//! Ids in Avro and Protobuf: both implementations are compared with `apache-avro` and `prost-reflect`, and with each other for
//! bytes that match no schema.

use std::borrow::Cow;
use std::sync::Arc;

use apache_avro::types::Value as AvroValue;
use apache_avro::writer::datum::GenericDatumWriter;
use apache_avro::{Decimal, Schema as AvroLibrary};
use dedupd::dedupe::{Hasher, IdentityRule, Schema, SchemaId, Schemas};
use dedupd::schemas::{SchemaText, parse};
use dedupd_audit::{Fields, IdRule, SchemaName, SchemaSources};
use fastrand::Rng;
use proptest::prelude::*;
use protox::prost_reflect::DynamicMessage;
use protox::prost_reflect::prost::Message as _;

use super::Sample;
use super::messages::{PROTO, PROTO_PATHS, expected, message, root, root_without_maps, written_defaults};

/// The id that both implementations find, which must be the same.
pub fn both(schema: &SchemaText, source: &str, document: &[u8]) -> Option<String> {
    both_fields(schema, source, &Fields { value: Some(document), ..Fields::default() })
}

/// The same. The schema has the id 7 and the GUID 7, and the registry does not have the schema 8.
pub fn both_fields(schema: &SchemaText, source: &str, fields: &Fields<'_>) -> Option<String> {
    let (document, known) = (fields.value.unwrap(), SchemaId::Number(7));
    let parsed = Arc::new(parse(known, schema).unwrap());
    let mut schemas = Schemas::default();
    schemas.insert(known, Arc::clone(&parsed));
    schemas.insert(SchemaId::Guid(7), parsed);
    schemas.insert(SchemaId::Number(8), Arc::new(Schema::Unregistered));
    let rule = IdentityRule::new(vec![source.parse().unwrap()], Hasher::Xxh3);
    let sample = Sample(fields);
    let service = rule.id(&sample, &schemas);
    let registry = {
        let schema = schema.clone();
        let text = dedupd_audit::SchemaText {
            format: schema.format,
            text: schema.text,
            references: schema.references,
        };
        move |name| match name {
            SchemaName::Id(7) | SchemaName::Guid(7) => Ok(Some(text.clone())),
            SchemaName::Id(8) => Ok(None),
            _ => Err("503".to_owned()),
        }
    };
    let sources = SchemaSources { registry: Some(Arc::new(registry)), ..SchemaSources::default() };
    let audit = IdRule::parse(&[source]).unwrap().with_schemas(sources).unwrap();
    let audit = audit.id(fields);
    // A prefix with the id of another schema.
    assert_eq!(service.is_err(), audit.is_err(), "{source}: {document:x?}");
    let (Ok(service), Ok(audit)) = (service, audit) else { return None };
    let (service, audit) = (service.map(Cow::into_owned), audit.map(Cow::into_owned));
    // The audit writes a UUID without hyphens.
    let is_uuid = audit.as_ref().zip(service.as_ref()).is_some_and(|(audit, service)| {
        service.len() == 36
            && audit.len() == 32
            && String::from_utf8_lossy(service).replace('-', "").as_bytes() == audit
    });
    assert!(
        is_uuid || service == audit,
        "{source}: {service:?} and {audit:?} in {document:x?}, {}",
        schema.text
    );
    service.map(|id| String::from_utf8_lossy(&id).into_owned())
}

pub fn prefixed(document: &[u8]) -> Vec<u8> {
    [&[0, 0, 0, 0, 7], document].concat()
}

pub fn text_of(format: &str, text: String) -> SchemaText {
    SchemaText { format: format.to_owned(), text, references: Vec::new() }
}

/// A generated Avro schema with a value, and the text at each path that leads to a scalar.
#[derive(Default)]
struct AvroCase {
    names: usize,
    expected: Vec<(String, Option<String>)>,
}

impl AvroCase {
    fn name(&mut self) -> String {
        self.names += 1;
        format!("N{}", self.names)
    }

    /// A type and a value. `path` is `None` where no path leads.
    fn make(&mut self, rng: &mut Rng, depth: u32, path: Option<&str>) -> (String, AvroValue) {
        match rng.u32(0..if depth == 0 { 12 } else { 17 }) {
            12 => self.array(rng, depth, path),
            13 => self.map(rng, depth, path),
            14 => self.union(rng, depth, path),
            15.. => self.record(rng, depth, path),
            kind => {
                let (schema, value, text) = self.scalar(rng, kind);
                self.expected.extend(path.map(|path| (path.to_owned(), text)));
                (schema, value)
            }
        }
    }

    fn scalar(&mut self, rng: &mut Rng, kind: u32) -> (String, AvroValue, Option<String>) {
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        match kind {
            0 => ("\"null\"".into(), AvroValue::Null, None),
            1 => {
                let value = rng.bool();
                ("\"boolean\"".into(), AvroValue::Boolean(value), some(value.to_string()))
            }
            2 => {
                let value = rng.i32(..) >> rng.u32(0..32);
                ("\"int\"".into(), AvroValue::Int(value), some(value.to_string()))
            }
            3 | 4 => {
                let value = rng.i64(..) >> rng.u32(0..64);
                ("\"long\"".into(), AvroValue::Long(value), some(value.to_string()))
            }
            5 => {
                let value = rng.f32() * 100.0;
                ("\"float\"".into(), AvroValue::Float(value), some(value.to_string()))
            }
            6 => {
                let value = rng.f64() * 1e9;
                ("\"double\"".into(), AvroValue::Double(value), some(value.to_string()))
            }
            7 => {
                let value: String = (0..rng.usize(0..6)).map(|_| rng.alphanumeric()).collect();
                ("\"bytes\"".into(), AvroValue::Bytes(value.clone().into_bytes()), some(value))
            }
            8 => {
                let (name, size) = (self.name(), rng.usize(1..5));
                let value: String = (0..size).map(|_| rng.alphanumeric()).collect();
                let schema = format!(r#"{{"type":"fixed","name":"{name}","size":{size}}}"#);
                (schema, AvroValue::Fixed(size, value.clone().into_bytes()), some(value))
            }
            9 => {
                let (name, at) = (self.name(), rng.u32(0..3));
                let symbol = ["A", "B", "C"][at as usize];
                let schema = format!(r#"{{"type":"enum","name":"{name}","symbols":["A","B","C"]}}"#);
                (schema, AvroValue::Enum(at, symbol.to_owned()), some(symbol.to_owned()))
            }
            10 => {
                let (unscaled, scale) = (rng.i32(..) >> rng.u32(0..32), rng.usize(0..4));
                let schema =
                    format!(r#"{{"type":"bytes","logicalType":"decimal","precision":12,"scale":{scale}}}"#);
                let value = AvroValue::Decimal(Decimal::from(unscaled.to_be_bytes().to_vec()));
                let digits = format!("{:0width$}", unscaled.unsigned_abs(), width = scale + 1);
                let (whole, part) = digits.split_at(digits.len() - scale);
                let sign = if unscaled < 0 { "-" } else { "" };
                let point = if scale > 0 { "." } else { "" };
                (schema, value, some(format!("{sign}{whole}{point}{part}")))
            }
            _ => {
                let value: String = (0..rng.usize(0..9)).map(|_| rng.char('!'..'\u{2fff}')).collect();
                ("\"string\"".into(), AvroValue::String(value.clone()), some(value))
            }
        }
    }

    /// The items have one type, so only the first item has values on the way to an id; others are made of its kind.
    fn array(&mut self, rng: &mut Rng, depth: u32, path: Option<&str>) -> (String, AvroValue) {
        let inner = path.map(|path| format!("{path}/0"));
        let (schema, value) = self.make(rng, depth - 1, inner.as_deref());
        let count = rng.usize(1..4);
        (format!(r#"{{"type":"array","items":{schema}}}"#), AvroValue::Array(vec![value; count]))
    }

    fn map(&mut self, rng: &mut Rng, depth: u32, path: Option<&str>) -> (String, AvroValue) {
        let inner = path.map(|path| format!("{path}/k"));
        let (schema, value) = self.make(rng, depth - 1, inner.as_deref());
        let keys = ["k", "l", "m"].iter().take(rng.usize(1..4));
        let map = keys.map(|key| ((*key).to_owned(), value.clone())).collect();
        (format!(r#"{{"type":"map","values":{schema}}}"#), AvroValue::Map(map))
    }

    fn union(&mut self, rng: &mut Rng, depth: u32, path: Option<&str>) -> (String, AvroValue) {
        if rng.bool() {
            self.expected.extend(path.map(|path| (path.to_owned(), None)));
            let (schema, _) = self.record(rng, depth - 1, None);
            return (format!("[\"null\",{schema}]"), AvroValue::Union(0, Box::new(AvroValue::Null)));
        }
        let (schema, value) = self.record(rng, depth - 1, path);
        (format!("[\"null\",{schema}]"), AvroValue::Union(1, Box::new(value)))
    }

    fn record(&mut self, rng: &mut Rng, depth: u32, path: Option<&str>) -> (String, AvroValue) {
        let name = self.name();
        let (mut schemas, mut values) = (Vec::new(), Vec::new());
        for number in 0..rng.usize(0..5) {
            let field = format!("f{number}");
            let inner = path.map(|path| format!("{path}/{field}"));
            let (schema, value) = self.make(rng, depth.saturating_sub(1), inner.as_deref());
            schemas.push(format!(r#"{{"name":"{field}","type":{schema}}}"#));
            values.push((field, value));
        }
        let schema = format!(r#"{{"type":"record","name":"{name}","fields":[{}]}}"#, schemas.join(","));
        (schema, AvroValue::Record(values))
    }
}

fn split(path: &str) -> Vec<&str> {
    path.split('/').skip(1).collect()
}

/// The entry of a map without its value has the default of the value, which is not in the document.
fn is_default(path: &str, found: Option<&str>, expected: Option<&str>) -> bool {
    path.starts_with("/t/") && found.is_none() && expected == Some("0")
}

fn damaged(rng: &mut Rng, mut document: Vec<u8>) -> Vec<u8> {
    for _ in 0..rng.usize(0..4) {
        let at = rng.usize(0..=document.len());
        match rng.u32(0..4) {
            0 => document.truncate(at),
            1 => document.insert(at, rng.u8(..)),
            _ if at < document.len() => document[at] = rng.u8(..),
            _ => document.push(rng.u8(..)),
        }
    }
    document
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn generated_avro_records_have_the_ids_that_were_written(seed: u64) {
        let mut rng = Rng::with_seed(seed);
        let mut case = AvroCase::default();
        let (schema, value) = case.record(&mut rng, 4, Some(""));
        let library = AvroLibrary::parse_str(&schema).unwrap();
        let writer = GenericDatumWriter::builder(&library).build().unwrap();
        let document = prefixed(&writer.write_value_to_vec(value).unwrap());
        let schema = text_of("AVRO", schema);
        for (path, expected) in case.expected {
            prop_assert_eq!(both(&schema, &format!("avro:{path}"), &document), expected, "{} {}", path, schema.text);
            for _ in 0..3 {
                both(&schema, &format!("avro:{path}"), &damaged(&mut rng, document.clone()));
            }
        }
    }

    #[test]
    fn generated_protobuf_records_have_the_ids_that_were_written(seed: u64) {
        protobuf_record_of(seed);
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(document in prop::collection::vec(any::<u8>(), 0..60)) {
        let avro = text_of("AVRO", r#"{"type":"record","name":"L","fields":[{"name":"m","type":{"type":"map","values":{"type":"array","items":["null","L"]}}},{"name":"next","type":["null","L"]},{"name":"id","type":"string"}]}"#.to_owned());
        for path in ["/id", "/next/id", "/m/a/0/id"] {
            both(&avro, &format!("avro:{path}"), &prefixed(&document));
        }
        let protobuf = text_of("PROTOBUF", PROTO.to_owned());
        for path in ["/n", "/q/n", "/u/5/n", "/r/1", "/w/n", "/17/14", "/1"] {
            both(&protobuf, &format!("protobuf:{path}"), &prefixed(&document));
            both(&protobuf, &format!("protobuf:{path}"), &document);
        }
    }
}

fn protobuf_record_of(seed: u64) {
    let (mut rng, of, without_maps) = (Rng::with_seed(seed), root(), root_without_maps());
    let schema = text_of("PROTOBUF", PROTO.to_owned());
    let bare = [message(&mut rng, &of, 2).encode_to_vec(), written_defaults(&mut rng)].concat();
    let path = PROTO_PATHS[rng.usize(0..PROTO_PATHS.len())];
    let source = format!("protobuf:{path}");
    let compare = |message: &[u8]| {
        let found = both(&schema, &source, &prefixed(&[&[0], message].concat()));
        let Ok(decoded) = DynamicMessage::decode(of.clone(), message) else { return false };
        let is_sound = DynamicMessage::decode(without_maps.clone(), message).is_ok();
        let expected = expected(&decoded, &split(path));
        assert!(
            !is_sound || found == expected || is_default(path, found.as_deref(), expected.as_deref()),
            "{path}: {found:?} {expected:?} in {message:x?}"
        );
        is_sound
    };
    assert!(compare(&bare));
    let numbers = ["/3", "/14", "/17/14", "/9", "/10", "/17/17/4"][rng.usize(0..6)];
    both(&schema, &format!("protobuf:{numbers}"), &bare);
    for _ in 0..5 {
        let damaged = damaged(&mut rng, bare.clone());
        both(&schema, &format!("protobuf:{numbers}"), &damaged);
        compare(&damaged);
    }
}

/// The damage made a map a field of eight bytes, which `prost-reflect` reads as a map.
#[test]
fn a_map_with_another_wire_type_is_no_map() {
    protobuf_record_of(18_123_759_634_513_380_799);
}

#[test]
fn equal_texts_are_equal_ids_in_every_format() {
    let avro =
        text_of("AVRO", r#"{"type":"record","name":"A","fields":[{"name":"id","type":"int"}]}"#.to_owned());
    let json = text_of("JSON", "{}".to_owned());
    let protobuf = text_of("PROTOBUF", "syntax = \"proto3\"; message A { string id = 1; }".to_owned());
    let found = [
        both(&avro, "avro:/id", &prefixed(&[10])),
        both(&json, "json:/id", &prefixed(br#"{"id":5}"#)),
        both(&json, "json:/id", br#"{"id":"5"}"#),
        both(&protobuf, "protobuf:/id", &prefixed(&[0, 0x0a, 1, b'5'])),
        both(&protobuf, "protobuf:/1", &[0x08, 5]),
    ];
    assert_eq!(found, [(); 5].map(|()| Some("5".to_owned())));
    // A schema of another format than the source.
    assert_eq!(both(&json, "avro:/id", &prefixed(&[10])), None);
    assert_eq!(both(&avro, "protobuf:/id", &prefixed(&[10])), None);
    assert_eq!(both(&avro, "avro:/id", &[10]), None, "no prefix");
    assert_eq!(both(&avro, "avro:/id", &[0, 0, 0, 0, 8, 10]), None, "not registered");
    assert!(matches!(parse(SchemaId::Number(7), &json), Ok(Schema::Json)));
}

#[test]
fn a_header_names_the_schema_in_both() {
    let avro =
        text_of("AVRO", r#"{"type":"record","name":"A","fields":[{"name":"id","type":"int"}]}"#.to_owned());
    let protobuf = "syntax = \"proto3\"; message X {} message A { string id = 1; }";
    let protobuf = text_of("PROTOBUF", protobuf.to_owned());
    let guid = [&[1], &7_u128.to_be_bytes()[..]].concat();
    let indexed = [&guid[..], &[2, 2]].concat();
    let of = |schema, source, header: &[u8], document: &[u8]| {
        let headers = vec![(&b"__value_schema_id"[..], Some(header))];
        both_fields(schema, source, &Fields { value: Some(document), headers, ..Fields::default() })
    };
    let five = Some("5".to_owned());
    assert_eq!(of(&avro, "avro:/id", &guid, &[10]), five);
    assert_eq!(of(&protobuf, "protobuf:/id", &indexed, &[0x0a, 1, b'5']), five);
    assert_eq!(of(&protobuf, "protobuf:/id", &guid, &[0x0a, 1, b'5']), None, "no indexes");
    assert_eq!(of(&avro, "protobuf:/id", &guid, &[10]), None);
    for header in [&[][..], &[1], &[0, 0, 0, 7], &[2, 0, 0, 0, 7], &guid[..16]] {
        assert_eq!(of(&avro, "avro:/id", header, &prefixed(&[10])), None, "{header:x?}");
    }
    let other = [&[1], &9_u128.to_be_bytes()[..]].concat();
    assert_eq!(
        of(&avro, "avro:/id", &other, &prefixed(&[10])),
        None,
        "a schema that cannot be fetched, in both"
    );
}

#[test]
fn the_name_of_a_type_is_a_source_in_both() {
    let avro = r#"["null", {"type":"record","name":"Order","namespace":"shop","fields":[{"name":"id","type":"string"}]},
        {"type":"record","name":"bank.Payment","fields":[{"name":"id","type":"string"}]}]"#;
    let avro = text_of("AVRO", avro.to_owned());
    let name = |document: &[u8]| both(&avro, "avro:name", &prefixed(document));
    assert_eq!(name(&[2, 2, b'7']).as_deref(), Some("shop.Order"));
    assert_eq!(name(&[4, 2, b'7']).as_deref(), Some("bank.Payment"));
    assert_eq!([name(&[0]), name(&[6]), name(&[])], [None, None, None]);
    let protobuf =
        "syntax = \"proto3\"; package shop; message X {} message A { string id = 1; message B {} }";
    let protobuf = text_of("PROTOBUF", protobuf.to_owned());
    let name = |document: &[u8]| both(&protobuf, "protobuf:name", &prefixed(document));
    assert_eq!(name(&[0]).as_deref(), Some("shop.X"));
    assert_eq!(name(&[2, 2, 0x0a, 1, b'5']).as_deref(), Some("shop.A"));
    assert_eq!(name(&[4, 2, 0]).as_deref(), Some("shop.A.B"));
    assert_eq!([name(&[2, 4]), both(&avro, "protobuf:name", &prefixed(&[0]))], [None, None]);
}

#[test]
fn a_source_whose_schema_is_not_registered_does_not_give_way_to_the_next_one() {
    let avro = r#"{"type":"record","name":"A","fields":[{"name":"id","type":"string"},{"name":"n","type":"string"}]}"#;
    let avro = text_of("AVRO", avro.to_owned());
    let of = |document: &[u8], part: &str| {
        let fields = Fields { key: Some(b"k"), value: Some(document), ..Fields::default() };
        both_fields(&avro, part, &fields)
    };
    assert_eq!(of(&prefixed(&[2, b'7', 0]), "avro:/id | key").as_deref(), Some("7"));
    assert_eq!(of(&prefixed(&[0, 2, b'7']), "avro:/id | key").as_deref(), Some("k"), "an empty field");
    assert_eq!(of(b"{}", "avro:/id | key").as_deref(), Some("k"), "no prefix");
    assert_eq!(of(&[0, 0, 0, 0, 8, 2, b'7', 0], "avro:/id | key"), None, "the schema is not registered");
    assert_eq!(of(&[0, 0, 0, 0, 9, 2, b'7', 0], "avro:/id | key"), None, "it cannot be fetched");
}

#[test]
fn a_written_default_of_a_field_without_presence_is_no_id() {
    let with_presence = "syntax = \"proto3\"; message A { optional int64 id = 1; optional string text = 2; }";
    let without = with_presence.replace("optional ", "");
    let document = prefixed(&[0, 0x08, 0, 0x12, 0]);
    let found =
        |text: &str, path: &str, document: &[u8]| both(&text_of("PROTOBUF", text.to_owned()), path, document);
    assert_eq!(found(with_presence, "protobuf:/id", &document).as_deref(), Some("0"));
    assert_eq!(found(&without, "protobuf:/id", &document), None);
    assert_eq!(
        found(&without, "protobuf:/id", &prefixed(&[0, 0x08, 5, 0x08, 0])),
        None,
        "the last one counts"
    );
    assert_eq!(found(&without, "protobuf:/id", &prefixed(&[0, 0x08, 0, 0x08, 5])).as_deref(), Some("5"));
    assert_eq!(found(&without, "protobuf:/1", &document).as_deref(), Some("0"), "without a schema");
}
