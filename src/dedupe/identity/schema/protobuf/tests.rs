use super::super::{Frame, NamedDocument};
use super::*;
use crate::dedupe::identity::tests::SampleRecord;

fn field(name: &str, number: u32, kind: ProtoKind) -> ProtoField {
    ProtoField {
        name: name.to_owned(),
        number,
        kind,
        repeated: Repeated::No,
        oneof: None,
        has_presence: true,
    }
}

/// `Order { string id = 1; Line line = 2; repeated sint32 ids = 3; map<string, Line> by = 4; oneof x { string a = 5; bool b = 6; }
/// State state = 7; }`, `Line { string sku = 1; int32 count = 2; }` inside of it, and `Other { int64 n = 1; }` behind it.
fn schema() -> ProtoSchema {
    let order = ProtoMessage {
        name: "Order".to_owned(),
        fields: vec![
            field("id", 1, ProtoKind::Text),
            field("line", 2, ProtoKind::Message(1)),
            ProtoField { repeated: Repeated::List, ..field("ids", 3, ProtoKind::Sint32) },
            ProtoField { repeated: Repeated::Map, ..field("by", 4, ProtoKind::Message(2)) },
            ProtoField { oneof: Some(0), ..field("a", 5, ProtoKind::Text) },
            ProtoField { oneof: Some(0), ..field("b", 6, ProtoKind::Bool) },
            field("state", 7, ProtoKind::Enum(vec![(0, "NEW".to_owned()), (1, "DONE".to_owned())])),
        ],
        nested: vec![1],
    };
    let line = ProtoMessage {
        name: "Order.Line".to_owned(),
        fields: vec![field("sku", 1, ProtoKind::Text), field("count", 2, ProtoKind::Int32)],
        ..ProtoMessage::default()
    };
    let entry = ProtoMessage {
        fields: vec![field("key", 1, ProtoKind::Text), field("value", 2, ProtoKind::Message(1))],
        ..ProtoMessage::default()
    };
    let other = ProtoMessage { fields: vec![field("n", 1, ProtoKind::Int64)], ..ProtoMessage::default() };
    ProtoSchema { messages: vec![order, line, entry, other], roots: vec![0, 3], sorted: Vec::new() }
}

fn path(path: &str) -> Vec<String> {
    path.split('/').skip(1).map(str::to_owned).collect()
}

fn find(document: &[u8], at: &str) -> Option<String> {
    schema().find(document, &path(at)).map(|found| String::from_utf8_lossy(&found).into_owned())
}

fn by_numbers(document: &[u8], at: &str) -> Option<String> {
    let record = SampleRecord { value: Some(document), ..SampleRecord::default() };
    let named = NamedDocument::without_schema(&record, false, Frame::default()).unwrap();
    find_by_numbers(named, &path(at)).map(|found| String::from_utf8_lossy(&found).into_owned())
}

#[test]
fn the_last_occurrence_counts_and_messages_are_merged() {
    let document = [
        &[0x0a, 1, b'x'][..],
        &[0x12, 3, 0x0a, 1, b's'],
        &[0x0a, 1, b'y'],
        // The count of the line, which keeps its sku.
        &[0x12, 2, 0x10, 5],
    ]
    .concat();
    assert_eq!(find(&document, "/id").as_deref(), Some("y"));
    assert_eq!(find(&document, "/line/sku").as_deref(), Some("s"));
    assert_eq!(find(&document, "/line/count").as_deref(), Some("5"));
    assert_eq!(by_numbers(&document, "/1").as_deref(), Some("y"));
    assert_eq!(by_numbers(&document, "/2/1").as_deref(), Some("s"));
    assert_eq!(by_numbers(&document, "/2/2").as_deref(), Some("5"));
    for end in [1, 2, 4, 7] {
        assert_eq!(find(&document[..end], "/id"), None, "cut off after {end} bytes");
    }
    for at in ["/line", "/id/x", "/other", "/ids", "/by"] {
        assert_eq!(find(&document, at), None, "{at}");
    }
}

#[test]
fn lists_maps_and_enumerations_are_entered() {
    let document = [
        &[0x1a, 2, 1, 2][..],
        &[0x18, 3],
        &[0x22, 8, 0x0a, 1, b'k', 0x12, 3, 0x0a, 1, b'1'],
        &[0x22, 8, 0x0a, 1, b'k', 0x12, 3, 0x0a, 1, b'2'],
        &[0x38, 1],
    ]
    .concat();
    let ids = ["/ids/0", "/ids/1", "/ids/2", "/ids/3"].map(|at| find(&document, at));
    assert_eq!(ids, [Some("-1".to_owned()), Some("1".to_owned()), Some("-2".to_owned()), None]);
    assert_eq!(find(&document, "/by/k/sku").as_deref(), Some("2"), "the last entry counts");
    assert_eq!(find(&document, "/by/x/sku"), None);
    assert_eq!(find(&document, "/state").as_deref(), Some("DONE"));
    assert_eq!(find(&[0x38, 9], "/state").as_deref(), Some("9"));
}

#[test]
fn a_later_member_of_a_oneof_replaces_an_earlier_one() {
    assert_eq!(find(&[0x2a, 1, b'a'], "/a").as_deref(), Some("a"));
    assert_eq!(find(&[0x2a, 1, b'a', 0x30, 1], "/a"), None);
    assert_eq!(find(&[0x2a, 1, b'a', 0x30, 1], "/b").as_deref(), Some("true"));
}

#[test]
fn the_indexes_select_the_message() {
    let indexed = |document: &[u8], at| {
        let found = schema().find_named(Naming::Indexes, document, &path(at)).map(Cow::into_owned);
        found.map(|found| String::from_utf8(found).unwrap())
    };
    assert_eq!(indexed(&[0, 0x0a, 1, b'x'], "/id").as_deref(), Some("x"));
    assert_eq!(indexed(&[2, 0, 0x0a, 1, b'x'], "/id").as_deref(), Some("x"));
    assert_eq!(indexed(&[2, 2, 0x08, 7], "/n").as_deref(), Some("7"));
    assert_eq!(indexed(&[4, 0, 0, 0x0a, 1, b's'], "/sku").as_deref(), Some("s"));
    for document in [&[][..], &[2], &[2, 8, 0x08, 7], &[2, 1, 0x08, 7], &[4, 0, 2, 0x08, 7], &[1, 0x08, 7]] {
        assert_eq!(indexed(document, "/n"), None, "{document:?}");
    }
    assert_eq!(by_numbers(&[0, 0, 0, 0, 9, 2, 2, 0x08, 7], "/1").as_deref(), Some("7"));
    for negative in [&[0, 0, 0, 0, 9, 1, 0x08, 7], &[0, 0, 0, 0, 9, 2, 1, 8]] {
        assert_eq!(by_numbers(negative, "/1"), None, "a negative number of indexes, a negative index");
    }
}

#[test]
fn values_of_another_wire_type_are_unknown_fields() {
    assert_eq!(find(&[0x0a, 1, b'x', 0x08, 5], "/id").as_deref(), Some("x"));
    assert_eq!(find(&[0x0a, 1, 0xff], "/id"), None, "not UTF-8");
    assert_eq!(
        find(&[0x0b, 0x08, 5, 0x0c, 0x0a, 1, b'x'], "/id").as_deref(),
        Some("x"),
        "groups are skipped"
    );
    assert_eq!(find(&[0x0b, 0x14, 0x0a, 1, b'x'], "/id"), None, "a group that ends as another one");
    assert_eq!(find(&[0x00, 0x0a, 1, b'x'], "/id"), None, "field number 0");
    let deep = [vec![0x0b; 1_000_000], vec![0x0a, 1, b'x']].concat();
    assert_eq!(find(&deep, "/id"), None);
}
