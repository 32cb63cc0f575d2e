//! Ids in documents whose schema is in a file: both implementations find the same.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use dedupd::dedupe::{Hasher, IdentityRule, Schemas};
use dedupd_audit::{Fields, IdRule, SchemaSources};

use super::Sample;
use super::encoded::prefixed;

/// The id that both find in a record with this key and value.
fn both(
    (schemas, audit): (&Schemas, &SchemaSources),
    source: &str,
    (key, value): (Option<&[u8]>, Option<&[u8]>),
) -> Option<String> {
    let fields = Fields { key, value, ..Fields::default() };
    let rule = IdentityRule::new(vec![source.parse().unwrap()], Hasher::Xxh3);
    let service = rule.id(&Sample(&fields), schemas).unwrap().map(Cow::into_owned);
    let rule = IdRule::parse(&[source]).unwrap().with_schemas(audit.clone()).unwrap();
    assert_eq!(service, rule.id(&fields).unwrap().map(Cow::into_owned), "{source}: {value:x?}");
    service.map(|id| String::from_utf8(id).unwrap())
}

/// The schemas of a value in a file.
fn of_value(dir: &Path, text: &str) -> (Schemas, SchemaSources) {
    let path: PathBuf = dir.join("value.avsc");
    std::fs::write(&path, text).unwrap();
    let mut config = dedupd::config::SchemasConfig::open(None);
    config.value = Some(path.clone());
    let audit = SchemaSources { value: Some(path), ..SchemaSources::default() };
    (dedupd::schemas::of_files(&config).unwrap(), audit)
}

#[test]
fn a_document_that_matches_with_and_without_a_prefix_has_no_id() {
    let dir = tempfile::tempdir().unwrap();
    let (schemas, audit) = of_value(
        dir.path(),
        r#"{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},{"name":"shop","type":"int"},
            {"name":"flags","type":"int"},{"name":"price","type":"long"},{"name":"note","type":"string"}]}"#,
    );
    let find = |document: &[u8]| both((&schemas, &audit), "avro:/id", (None, Some(document)));
    // Schema 44: the four zero bytes are also the first fields, and 44 the length of a note of 22 bytes.
    let of_schema = |body: &[u8]| [&[0, 0, 0, 0, 44][..], body].concat();
    let body = |id: u8, note: usize| {
        let length = u8::try_from(2 * note).unwrap();
        [vec![2 * id, 2, 4, 6, length], vec![b'x'; note]].concat()
    };
    for id in [1, 2] {
        assert_eq!(body(id, 17).len(), 22);
        assert_eq!(find(&of_schema(&body(id, 17))), None);
        for note in [16, 18] {
            assert_eq!(find(&of_schema(&body(id, note))), Some(id.to_string()));
        }
        assert_eq!(find(&body(id, 17)), Some(id.to_string()), "without a prefix");
    }
    assert_eq!(find(&of_schema(&[b'x'; 22])).as_deref(), Some("0"), "without a prefix, an order with zeros");
}

#[test]
fn a_decimal_with_a_huge_scale_is_read_as_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let found = |digits: u32, document: &[u8]| {
        let (schemas, audit) = of_value(
            dir.path(),
            &format!(
                r#"{{"type":"record","name":"A","fields":[{{"name":"id","type":
                    {{"type":"bytes","logicalType":"decimal","precision":{digits},"scale":{digits}}}}}]}}"#
            ),
        );
        both((&schemas, &audit), "avro:/id", (None, Some(document)))
    };
    assert_eq!(found(1_000, &[2, b'a']), Some(format!("0.{}97", "0".repeat(998))));
    assert_eq!(found(1_001, &[2, b'a']).as_deref(), Some("a"), "an invalid logical type is ignored");
    assert_eq!(found(400_000_000, &[2, b'a']).as_deref(), Some("a"));
}

#[test]
fn both_read_files() {
    let dir = tempfile::tempdir().unwrap();
    let avro = dir.path().join("a.avsc");
    std::fs::write(
        &avro,
        r#"{"type":"record","name":"A","fields":[{"name":"id","type":"long"},{"name":"x","type":"string"}]}"#,
    )
    .unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    let proto = dir.path().join("b.proto");
    std::fs::write(&proto, "syntax = \"proto3\"; import \"sub/c.proto\"; message B { C c = 2; }").unwrap();
    std::fs::write(dir.path().join("sub/c.proto"), "syntax = \"proto3\"; message C { uint32 id = 1; }")
        .unwrap();
    let mut config = dedupd::config::SchemasConfig::open(None);
    (config.key, config.value) = (Some(proto.clone()), Some(avro.clone()));
    let schemas = dedupd::schemas::of_files(&config).unwrap();
    let audit = SchemaSources { key: Some(proto), value: Some(avro), ..SchemaSources::default() };
    let found =
        |source: &str, key: &[u8], value: &[u8]| both((&schemas, &audit), source, (Some(key), Some(value)));
    let b = [0x12, 2, 0x08, 9];
    assert_eq!(found("key:protobuf:/c/id", &b, &[]).as_deref(), Some("9"));
    assert_eq!(found("key:protobuf:/c/id", &prefixed(&[&[0], &b[..]].concat()), &[]).as_deref(), Some("9"));
    let a = [14, 2, b'x'];
    assert_eq!(found("avro:/id", &[], &a).as_deref(), Some("7"));
    assert_eq!(found("avro:/id", &[], &prefixed(&a)).as_deref(), Some("7"), "the prefix is optional");
    assert_eq!(found("avro:/id", &[], &[14, 2, b'x', 0]), None, "another schema: bytes are left");
    assert_eq!(found("avro:/id", &[], &[14]), None);
}
