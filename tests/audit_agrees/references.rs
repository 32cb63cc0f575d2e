//! Schemas of a registry that refer to others, read by both implementations.

use dedupd::config::{Frame, SchemasConfig};
use dedupd::dedupe::SchemaId;
use dedupd::schemas::{FetchError, Registry, SchemaText, parse};
use serde_json::json;

use super::encoded::{both, prefixed, text_of};
use super::registry::StubRegistry;

/// A reference to the version of a subject with the same name.
fn reference(name: &str, version: u32) -> serde_json::Value {
    json!({ "name": name, "subject": name, "version": version })
}

/// Registers a version of a subject.
fn register(registry: &StubRegistry, name: &str, version: u32, page: serde_json::Value) {
    registry.set(&format!("subjects/{name}/versions/{version}"), 200, page);
}

fn fetched(registry: &StubRegistry) -> Result<SchemaText, FetchError> {
    Registry::open(&SchemasConfig::open(Some(registry.url()))).unwrap().unwrap().schema(SchemaId::Number(7))
}

#[test]
fn of_several_versions_under_one_name_the_first_is_used() {
    let record = |name: &str, field: &str, of: &str| {
        format!(r#"{{"type":"record","name":"{name}","fields":[{{"name":"{field}","type":"{of}"}}]}}"#)
    };
    let registry = StubRegistry::start();
    register(&registry, "Address", 1, json!({ "schema": record("Address", "street", "int") }));
    register(&registry, "Address", 2, json!({ "schema": record("Address", "street", "string") }));
    let customer =
        json!({ "schema": record("Customer", "at", "Address"), "references": [reference("Address", 1)] });
    register(&registry, "Customer", 1, customer);
    let order = r#"{"type":"record","name":"Order","fields":[{"name":"to","type":"Address"},{"name":"by","type":"Customer"}]}"#;
    let references = [reference("Address", 2), reference("Customer", 1)];
    registry.set("schemas/ids/7", 200, json!({ "schema": order, "references": references }));
    let avro = fetched(&registry).unwrap();
    assert_eq!(
        avro.references.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        ["Address", "Customer"]
    );
    let document = prefixed(&[2, b'a', 2, b'b']);
    assert_eq!(both(&avro, "avro:/by/at/street", &document).as_deref(), Some("b"));

    let file = |text: &str| format!("syntax = \"proto3\"; {text}");
    register(&registry, "a.proto", 1, json!({ "schema": file("message A { int32 n = 1; }") }));
    register(&registry, "a.proto", 2, json!({ "schema": file("message A { string n = 2; }") }));
    let b = file("import \"a.proto\"; message B { A a = 1; }");
    register(&registry, "b.proto", 1, json!({ "schema": b, "references": [reference("a.proto", 1)] }));
    let root = file("import \"a.proto\"; import \"b.proto\"; message C { A a = 1; B b = 2; }");
    let references = [reference("a.proto", 2), reference("b.proto", 1)];
    let page = json!({ "schemaType": "PROTOBUF", "schema": root, "references": references });
    registry.set("schemas/ids/7", 200, page);
    let protobuf = fetched(&registry).unwrap();
    let document = prefixed(&[0, 0x12, 5, 0x0a, 3, 0x12, 1, b'x']);
    assert_eq!(both(&protobuf, "protobuf:/b/a/n", &document).as_deref(), Some("x"));
}

#[test]
fn a_reference_to_a_deleted_version_is_fetched() {
    let registry = StubRegistry::start();
    let line = r#"{"type":"record","name":"Line","fields":[{"name":"id","type":"string"}]}"#;
    register(&registry, "Line", 1, json!({ "schema": line }));
    registry.delete("subjects/Line/versions/1");
    let order = r#"{"type":"record","name":"Order","fields":[{"name":"line","type":"Line"}]}"#;
    registry.set("schemas/ids/7", 200, json!({ "schema": order, "references": [reference("Line", 1)] }));
    let schema = fetched(&registry).unwrap();
    assert_eq!(both(&schema, "avro:/line/id", &prefixed(&[2, b'x'])).as_deref(), Some("x"));
}

#[test]
fn files_that_a_registry_has_built_in_are_known() {
    let registry = StubRegistry::start();
    let order =
        "syntax = \"proto3\"; import \"google/type/date.proto\"; message Order { google.type.Date at = 1; }";
    registry.set("schemas/ids/7", 200, json!({ "schemaType": "PROTOBUF", "schema": order }));
    let schema = fetched(&registry).unwrap();
    let document = prefixed(&[0, 0x0a, 3, 0x08, 0xea, 0x0f]);
    assert_eq!(both(&schema, "protobuf:/at/year", &document).as_deref(), Some("2026"));
}

#[test]
fn a_schema_with_many_levels_is_rejected_before_it_is_compiled() {
    let nested = |levels: usize| {
        let value = format!("{}{}", "a { ".repeat(levels), "} ".repeat(levels));
        format!(
            "syntax = \"proto3\"; import \"google/protobuf/descriptor.proto\";
            message A {{ A a = 1; }} extend google.protobuf.FileOptions {{ A x = 50000; }}
            option (x) = {{ {value} }};
            message Order {{ string id = 1; }}"
        )
    };
    let compiled = |levels| parse(SchemaId::Number(7), &text_of("PROTOBUF", nested(levels)));
    assert!(compiled(90).is_ok(), "{:?}", compiled(90));
    // Each level costs about 2 kB of the stack of 2 MiB.
    for levels in [101, 100_000] {
        let error = compiled(levels).unwrap_err();
        assert!(error.contains("nested too deeply"), "{error}");
    }
    let document = prefixed(&[2, 2, 0x0a, 1, b'x']);
    assert_eq!(both(&text_of("PROTOBUF", nested(90)), "protobuf:/id", &document).as_deref(), Some("x"));
}

#[test]
fn the_own_api_of_apicurio_has_schemas_by_both_ids() {
    let customer = json!({"type":"record","name":"Customer","fields":[{"name":"name","type":"string"}]});
    let order = json!({"type":"record","name":"Order","fields":[{"name":"by","type":"Customer"},{"name":"id","type":"string"}]});
    for (version, content) in [("v2", ""), ("v3", "/content")] {
        let registry = StubRegistry::start();
        let page =
            |path: &str, body: serde_json::Value| registry.set(&format!("{version}/{path}"), 200, body);
        let reference = json!({"groupId": null, "artifactId": "a b", "version": "1", "name": "Customer"});
        for ids in ["ids/globalIds/3", "ids/contentIds/4"] {
            page(ids, order.clone());
            page(&format!("{ids}/references"), json!([reference]));
        }
        let of_customer = "groups/default/artifacts/a%20b/versions/1";
        page(&format!("{of_customer}{content}"), customer.clone());
        page(&format!("{of_customer}/references"), json!([]));
        let missing = |name| json!({ "error_code": 404, "name": name });
        registry.set(&format!("{version}/ids/globalIds/5"), 404, missing("ArtifactNotFoundException"));
        registry.set(&format!("{version}/ids/globalIds/6"), 404, missing("NotFoundException"));
        let url = Some(format!("{}/{version}", registry.url()));
        let config = SchemasConfig { frame: Frame::Apicurio, ..SchemasConfig::open(url) };
        let client = Registry::open(&config).unwrap().unwrap();
        for id in [SchemaId::Global(3), SchemaId::Content(4)] {
            let schema = client.schema(id).unwrap();
            let document = prefixed(&[2, b'a', 2, b'b']);
            assert_eq!(both(&schema, "avro:/id", &document).as_deref(), Some("b"), "{version}: {schema:?}");
        }
        let why = |id| client.schema(id).unwrap_err();
        assert!(why(SchemaId::Global(5)).is_unregistered);
        assert!(!why(SchemaId::Global(6)).is_unregistered, "a wrong URL");
        for id in [SchemaId::Number(3), SchemaId::Guid(3), SchemaId::Global(1 << 63)] {
            assert!(why(id).is_unregistered, "{id}");
        }
        let of_confluent = Registry::open(&SchemasConfig::open(Some(registry.url()))).unwrap().unwrap();
        let why = of_confluent.schema(SchemaId::Global(3)).unwrap_err();
        assert!(
            why.is_unregistered && why.what.contains("has no schemas named as global id 3"),
            "{}",
            why.what
        );
    }
}
