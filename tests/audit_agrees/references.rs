//! Schemas of a registry, read by both implementations.

use dedupd::dedupe::SchemaId;
use dedupd::schemas::parse;

use super::encoded::{both, prefixed, text_of};

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
    let compiled = |levels| parse(SchemaId(7), &text_of("PROTOBUF", nested(levels)));
    assert!(compiled(90).is_ok(), "{:?}", compiled(90));
    // Each level costs about 2 kB of the stack of 2 MiB.
    for levels in [101, 100_000] {
        let error = compiled(levels).unwrap_err();
        assert!(error.contains("nested too deeply"), "{error}");
    }
    let document = prefixed(&[2, 2, 0x0a, 1, b'x']);
    assert_eq!(both(&text_of("PROTOBUF", nested(90)), "protobuf:/id", &document).as_deref(), Some("x"));
}
