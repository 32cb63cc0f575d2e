//! The greatest and least values of Avro and Protobuf, and those next to them: both implementations read them alike.

use super::encoded::{both, prefixed, text_of};

#[test]
fn the_limits_of_protobuf_are_the_same_in_both() {
    let id = [0x0a, 1, b'x'];
    let float =
        text_of("PROTOBUF", "syntax = \"proto3\"; message A { string id = 1; float f = 3; }".to_owned());
    for (groups, expected) in [(99, Some("x")), (100, Some("x")), (101, None)] {
        let around = |inner: &[u8]| [vec![0x13; groups], inner.to_vec(), vec![0x14; groups]].concat();
        for inner in [&[][..], &[0x08, 1], &id] {
            let document = prefixed(&[&[0], &id[..], &around(inner)].concat());
            assert_eq!(both(&float, "protobuf:/id", &document).as_deref(), expected, "{groups} {inner:?}");
        }
    }
    let number = |bytes: &[u8]| both(&float, "protobuf:/f", &prefixed(&[&[0, 0x1d], bytes].concat()));
    assert_eq!(number(&[0, 0, 0, 0x80]).as_deref(), Some("-0"), "not the default");
    assert_eq!(number(&[0, 0, 0, 0]), None);
    for (last, expected) in [(1, Some("-1")), (2, None), (0x7f, None)] {
        let varint = [&[0xff; 9][..], &[last]].concat();
        let document = [&[0x08][..], &varint].concat();
        assert_eq!(both(&float, "protobuf:/1", &document).as_deref(), expected, "a tenth byte {last}");
    }
}

#[test]
fn long_decimals_have_the_same_text_in_both() {
    let schema = r#"{"type":"record","name":"A","fields":[{"name":"id","type":
        {"type":"bytes","logicalType":"decimal","precision":700,"scale":2}}]}"#;
    let schema = text_of("AVRO", schema.to_owned());
    let found = |bytes: &[u8]| {
        let length = u16::try_from(2 * bytes.len()).unwrap();
        let length = [length.to_le_bytes()[0] | 0x80, u8::try_from(length >> 7).unwrap()];
        both(&schema, "avro:/id", &prefixed(&[&length, bytes].concat()))
    };
    let lowest = [&[0x80][..], &[0; 15]].concat();
    assert_eq!(found(&lowest).as_deref(), Some("-1701411834604692317316873037158841057.28"));
    assert_eq!(found(&[0xff]).as_deref(), Some("-0.01"));
    assert_eq!(found(&[0, 0]).as_deref(), Some("0.00"));
    assert_eq!(found(&[]), None);
    for (bytes, has_id) in [(255, true), (256, true), (257, false)] {
        for fill in [0x7f, 0x80, 0xff] {
            assert_eq!(found(&vec![fill; bytes]).is_some(), has_id, "{bytes} bytes of {fill:x}");
        }
    }
}
