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
