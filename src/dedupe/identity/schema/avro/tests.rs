use super::*;

fn path(path: &str) -> Vec<String> {
    path.split('/').skip(1).map(str::to_owned).collect()
}

fn schema(text: &str) -> AvroSchema {
    AvroSchema::parse::<&str>(text, &[]).unwrap()
}

fn find(schema: &AvroSchema, document: &[u8], at: &str) -> Option<String> {
    schema.find(document, &path(at)).map(|found| String::from_utf8_lossy(&found).into_owned())
}

const ORDER: &str = r#"{"type":"record","name":"Order","namespace":"shop","fields":[
    {"name":"note","type":["null","string"]},
    {"name":"tags","type":{"type":"map","values":"int"}},
    {"name":"lines","type":{"type":"array","items":{"type":"record","name":"Line","fields":[
        {"name":"sku","type":"string"},{"name":"price","type":{"type":"bytes","logicalType":"decimal","precision":9,"scale":2}}]}}},
    {"name":"first","type":["null","Line"]},
    {"name":"state","type":{"type":"enum","name":"State","symbols":["NEW","DONE"]}},
    {"name":"id","type":"long"}]}"#;

#[test]
fn the_way_to_each_value_is_read() {
    let order = schema(ORDER);
    let document = [
        &[2, 4, b'h', b'i'][..],
        &[2, 2, b'a', 10, 0],
        // Two blocks, the first with its length.
        &[1, 10, 4, b'A', b'1', 2, 125, 2, 4, b'B', b'2', 4, 4, 210, 0],
        &[2, 4, b'C', b'3', 2, 1],
        &[2, 84],
    ]
    .concat();
    let found = |at| find(&order, &document, at);
    assert_eq!(found("/note").as_deref(), Some("hi"));
    assert_eq!(found("/tags/a").as_deref(), Some("5"));
    assert_eq!(found("/tags/b"), None);
    assert_eq!(found("/lines/0/sku").as_deref(), Some("A1"));
    assert_eq!(found("/lines/0/price").as_deref(), Some("1.25"));
    assert_eq!(found("/lines/1/price").as_deref(), Some("12.34"));
    assert_eq!(found("/lines/2/price"), None);
    assert_eq!(found("/first/sku").as_deref(), Some("C3"));
    assert_eq!(found("/state").as_deref(), Some("DONE"));
    assert_eq!(found("/id").as_deref(), Some("42"));
    for at in ["/first", "/lines", "/tags", "/other", "/id/x", "/lines/x/sku", "/lines/00/sku"] {
        assert_eq!(found(at), None, "{at}");
    }
    assert!(order.matches(&document));
    for end in 0..document.len() {
        assert!(!order.matches(&document[..end]), "{end}");
        assert_eq!(find(&order, &document[..end], "/id"), None, "{end}");
    }
}

#[test]
fn what_follows_the_id_is_not_read() {
    let schema = schema(
        r#"{"type":"record","name":"A","fields":[{"name":"id","type":"string"},{"name":"x","type":"long"}]}"#,
    );
    assert_eq!(find(&schema, &[2, b'a', 0xff, 0xff], "/id").as_deref(), Some("a"));
    assert_eq!(find(&schema, &[0, 2], "/id"), None, "an empty string is no id");
    assert_eq!(find(&schema, &[2, 0xff, 2], "/id"), None, "bytes that are not UTF-8");
}

#[test]
fn logical_types_have_the_text_of_their_value() {
    let text = |of: &str, document: &[u8]| {
        let of = format!(r#"{{"type":"record","name":"A","fields":[{{"name":"id","type":{of}}}]}}"#);
        find(&schema(&of), document, "/id")
    };
    let uuid = r#"{"type":"fixed","name":"U","size":16,"logicalType":"uuid"}"#;
    assert_eq!(text(uuid, &[0xab; 16]).as_deref(), Some("abababab-abab-abab-abab-abababababab"));
    let decimal = r#"{"type":"fixed","name":"D","size":2,"logicalType":"decimal","precision":4,"scale":1}"#;
    assert_eq!(text(decimal, &[0xff, 0xfe]).as_deref(), Some("-0.2"));
    let ignored = r#"{"type":"bytes","logicalType":"decimal","precision":2,"scale":3}"#;
    assert_eq!(text(ignored, &[4, b'4', b'2']).as_deref(), Some("42"), "an invalid logical type is ignored");
    let text_uuid = r#"{"type":"string","logicalType":"uuid"}"#;
    assert_eq!(text(text_uuid, &[2, b'x']).as_deref(), Some("x"));
    assert_eq!(text(r#"{"type":"long","logicalType":"timestamp-millis"}"#, &[2]).as_deref(), Some("1"));
    assert_eq!(text("\"double\"", &1.5f64.to_le_bytes()).as_deref(), Some("1.5"));
    assert_eq!(text("\"boolean\"", &[1]).as_deref(), Some("true"));
    assert_eq!(text("\"boolean\"", &[2]), None);
    assert_eq!(text("\"int\"", &[0x80, 0x80, 0x80, 0x80, 0x20]), None, "more than 32 bits");
}

#[test]
fn names_of_references_are_known() {
    let line =
        r#"{"type":"record","name":"Line","namespace":"shop","fields":[{"name":"id","type":"string"}]}"#;
    let order = r#"{"type":"record","name":"shop.Order","fields":[{"name":"line","type":"Line"}]}"#;
    let schema = AvroSchema::parse(order, &[line]).unwrap();
    assert_eq!(find(&schema, &[2, b'x'], "/line/id").as_deref(), Some("x"));
    assert_eq!(AvroSchema::parse::<&str>(order, &[]).unwrap_err(), AvroError::Unknown("Line".to_owned()));
}

#[test]
fn hostile_schemas_and_documents_end() {
    let endless = r#"{"type":"record","name":"A","fields":[{"name":"b","type":{"type":"record","name":"B","fields":[{"name":"a","type":"A"}]}}]}"#;
    assert_eq!(AvroSchema::parse::<&str>(endless, &[]).unwrap_err(), AvroError::Endless);
    let own = r#"{"type":"record","name":"A","fields":[{"name":"a","type":"A"}]}"#;
    assert_eq!(AvroSchema::parse::<&str>(own, &[]).unwrap_err(), AvroError::Endless);
    let list = r#"{"type":"record","name":"L","fields":[{"name":"next","type":["null","L"]},{"name":"id","type":"int"}]}"#;
    let deep = [vec![2; 1_000_000], vec![0], vec![4; 1_000_001]].concat();
    assert_eq!(
        find(&schema(list), &deep, "/id").as_deref(),
        Some("2"),
        "a long list is skipped without recursion"
    );
    let nulls = r#"{"type":"record","name":"A","fields":[{"name":"n","type":{"type":"array","items":"null"}},{"name":"id","type":"int"}]}"#;
    let many = [&[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01][..], &[0, 4]].concat();
    assert_eq!(
        find(&schema(nulls), &many, "/id").as_deref(),
        Some("2"),
        "values without bytes are not counted"
    );
    // Sixty records, each of which contains the previous one twice: 2^60 values without a byte.
    let mut nested = vec![r#"{"type":"record","name":"R0","fields":[]}"#.to_owned()];
    for level in 1..=60 {
        let inner = level - 1;
        nested.push(format!(
            r#"{{"type":"record","name":"R{level}","fields":[{{"name":"a","type":"R{inner}"}},{{"name":"b","type":"R{inner}"}}]}}"#
        ));
    }
    let top =
        r#"{"type":"record","name":"T","fields":[{"name":"r","type":"R60"},{"name":"id","type":"int"}]}"#;
    let schema = AvroSchema::parse(top, &nested).unwrap();
    assert_eq!(find(&schema, &[4], "/id").as_deref(), Some("2"));
}

#[test]
fn invalid_schemas_are_rejected_with_a_reason() {
    for (text, reason) in [
        ("{", "is not JSON"),
        ("7", "has no type 7"),
        ("\"strin\"", "has no type strin"),
        (r#"{"type":"array"}"#, "has a type array without items"),
        (r#"{"type":"fixed","name":"F"}"#, "has a type fixed without size"),
        (r#"{"type":"record","fields":[]}"#, "has a type record without name"),
        (r#"[{"type":"fixed","name":"F","size":1},{"type":"fixed","name":"F","size":2}]"#, "defines F twice"),
    ] {
        let error = AvroSchema::parse::<&str>(text, &[]).unwrap_err().to_string();
        assert!(error.starts_with(reason), "{text}: {error}");
    }
}
