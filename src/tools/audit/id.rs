//! Extracts the id of a record, independently of the pipeline's code.
//!
//! The documentation is the specification: an id is a scalar in the record; UUIDs are equal in every
//! spelling; an absent, null, empty, structured or unreadable value is no id. In JSON the first occurrence
//! counts and what follows it is not looked at; what precedes it follows the grammar, in any encoding.
//! `serde_json::Value` would lose the text of large and fractional numbers, so each step of a pointer splits
//! the text of one object or array at its members.

use std::borrow::Cow;

use serde::de::IgnoredAny;

use super::record::Fields;
use crate::config::IdSource;

/// The id as canonical bytes, the same for equal ids; `None` when the record has none.
pub fn id_of<'a>(sources: &[IdSource], fields: &Fields<'a>) -> Option<Cow<'a, [u8]>> {
    match sources {
        [] => None,
        [one] => part(one, fields).map(|id| uuid(&id).unwrap_or(id)),
        several => {
            let mut composite = Vec::new();
            for source in several {
                let part = part(source, fields)?;
                composite.extend_from_slice(format!("{}:", part.len()).as_bytes());
                composite.extend_from_slice(&part);
            }
            Some(composite.into())
        }
    }
}

fn part<'a>(source: &IdSource, fields: &Fields<'a>) -> Option<Cow<'a, [u8]>> {
    let bytes = match source {
        IdSource::Key => Cow::from(fields.key?),
        IdSource::Value => Cow::from(fields.value?),
        IdSource::Header(name) => {
            let (_, value) = fields.headers.iter().rfind(|(header, _)| *header == name.as_bytes())?;
            Cow::from((*value)?)
        }
        IdSource::Json(pointer) => json(fields.value?, &pointer.to_string())?,
    };
    (!bytes.is_empty()).then_some(bytes)
}

/// Normalizes every spelling of a UUID to 32 lower-case hex digits.
fn uuid<'a>(id: &[u8]) -> Option<Cow<'a, [u8]>> {
    let text = std::str::from_utf8(id).ok()?;
    let digits = match text.len() {
        32 => text.to_ascii_lowercase(),
        36 => {
            let groups: Vec<&str> = text.split('-').collect();
            if groups.iter().map(|group| group.len()).ne([8, 4, 4, 4, 12]) {
                return None;
            }
            groups.concat().to_ascii_lowercase()
        }
        _ => return None,
    };
    digits.bytes().all(|digit| digit.is_ascii_hexdigit()).then(|| digits.into_bytes().into())
}

/// The scalar at an RFC 6901 pointer: a string by its content, a number or boolean as it is written.
fn json<'a>(document: &'a [u8], pointer: &str) -> Option<Cow<'a, [u8]>> {
    let mut here = document;
    for step in pointer.split('/').skip(1) {
        here = member(here, &step.replace("~1", "/").replace("~0", "~"))?;
    }
    let (text, after) = value(here)?;
    match text.first()? {
        b'{' | b'[' | b'n' => None,
        b'"' => string(text).map(|string| string.into_bytes().into()),
        _ => after.first().filter(|end| b",}] \t\r\n".contains(end)).map(|_| text.into()),
    }
}

/// What follows the first member of this name and its colon, or what starts with the element of this index.
fn member<'a>(parent: &'a [u8], name: &str) -> Option<&'a [u8]> {
    if let Some(mut members) = past(b'{', parent) {
        loop {
            let (key, after) = value(members)?;
            let found = past(b':', after).filter(|_| key.starts_with(b"\""))?;
            if string(key).is_some_and(|key| key == name) {
                return Some(found);
            }
            members = past(b',', value(found)?.1)?;
        }
    }
    let mut elements = past(b'[', parent)?;
    let index: usize = name.parse().ok()?;
    // RFC 6901 section 4: no sign, no leading zero.
    if index.to_string() != name {
        return None;
    }
    for _ in 0..index {
        elements = past(b',', value(elements)?.1)?;
    }
    Some(elements)
}

/// Splits the text after its first value.
fn value(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = trim(text);
    let mut values = serde_json::Deserializer::from_slice(text).into_iter::<IgnoredAny>();
    values.next()?.ok()?;
    text.split_at_checked(values.byte_offset())
}

/// The content of a string; `None` when that is not Unicode.
fn string(text: &[u8]) -> Option<String> {
    serde_json::from_slice(text).ok()
}

fn past(byte: u8, text: &[u8]) -> Option<&[u8]> {
    trim(text).strip_prefix(&[byte])
}

fn trim(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|byte| !b" \t\r\n".contains(byte)).unwrap_or(text.len());
    text.split_at(start).1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::Index;

    use crate::dedupe::Identity;
    use crate::dedupe::identity::{self, Hasher, IdentityRule};

    fn sources(texts: &[&str]) -> Vec<IdSource> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn json_id(value: &[u8]) -> Option<Vec<u8>> {
        id_of(&sources(&["json:/id"]), &Fields { value: Some(value), ..Fields::default() })
            .map(Cow::into_owned)
    }

    #[test]
    fn a_uuid_is_the_same_id_in_every_spelling() {
        let spellings: [&[u8]; 3] = [
            br#"{"id":"01234567-89ab-cdef-fedc-ba9876543210"}"#,
            br#"{"id":"01234567-89AB-CDEF-fedc-ba9876543210"}"#,
            br#"{"id":"0123456789ABCDEFfedcba9876543210"}"#,
        ];
        for value in spellings {
            assert_eq!(json_id(value).as_deref(), Some(&b"0123456789abcdeffedcba9876543210"[..]));
        }
        assert_eq!(
            json_id(br#"{"id":"0123456-789ab-cdef-fedc-BA9876543210"}"#).as_deref(),
            Some(&b"0123456-789ab-cdef-fedc-BA9876543210"[..])
        );
    }

    #[test]
    fn ids_are_read_from_keys_headers_values_and_composites() {
        let fields = Fields {
            key: Some(b"k"),
            value: Some(b"v"),
            headers: vec![(b"h", Some(b"first")), (b"h", Some(b"last")), (b"n", None)],
            ..Fields::default()
        };
        let id = |texts: &[&str]| id_of(&sources(texts), &fields).map(Cow::into_owned);
        assert_eq!(id(&["key"]).unwrap(), b"k");
        assert_eq!(id(&["value"]).unwrap(), b"v");
        assert_eq!(id(&["header:h"]).unwrap(), b"last");
        assert_eq!(id(&["header:n"]), None);
        assert_eq!(id(&["header:none"]), None);
        assert_eq!(id(&["key", "value"]).unwrap(), b"1:k1:v");
        assert_eq!(id(&["key", "header:n"]), None);
    }

    /// A record for the pipeline's implementation.
    struct Value<'a>(&'a [u8]);

    impl identity::Fields for Value<'_> {
        fn key(&self) -> Option<&[u8]> {
            None
        }
        fn value(&self) -> Option<&[u8]> {
            Some(self.0)
        }
        fn header(&self, _: &str) -> Option<&[u8]> {
            None
        }
    }

    const CORPUS: &[&[u8]] = &[
        br#"{"id":"a"}"#,
        br#"{"id":"\u0061"}"#,
        br#" {"x":[1,{"id":2}],"id" : "b" } "#,
        br#"{"id":1}"#,
        br#"{"id":"1"}"#,
        br#"{"id":1.0}"#,
        br#"{"id":1e3}"#,
        br#"{"id":123456789012345678901234567890}"#,
        br#"{"id":123456789012345678901234567891}"#,
        br#"{"id":-0}"#,
        br#"{"id":true}"#,
        br#"{"id":"true"}"#,
        br#"{"id":"a","id":"b"}"#,
        br#"{"id":"a","id":null}"#,
        br#"{"\u0069d":"a"}"#,
        br#"{"id":null}"#,
        br#"{"id":""}"#,
        br#"{"id":{}}"#,
        br#"{"id":[]}"#,
        br#"{"id":["a",["b"],{"id":"c"}]}"#,
        br#"{"id":{"id":"a","0":"b","01":"c","":"d"}}"#,
        br#"{"id":{"id":"a"},"id":7}"#,
        br#"{"id":"a"} x"#,
        br#"{"id":"a","#,
        br#"{"id":"a"}{}"#,
        br#"{"id":"a","x":tru}"#,
        br#"{"id":"a","x":01}"#,
        b"{\"id\":\"a\",\"x\":\"\x01\"}",
        b"{\"id\":\"a\",\"x\":\"\xff\"}",
        b"{\"id\":\"\xff\"}",
        br#"{"id":"\ud800"}"#,
        br#"{"id":"a","x":"\ud800"}"#,
        br#"{"id":"a","\ud800":1}"#,
        b"",
        b"7",
        b"[]",
        b"\xef\xbb\xbf{\"id\":\"a\"}",
        br#"{"id":"0123456789ABCDEFfedcba9876543210"}"#,
        br#"{"id":"01234567-89ab-cdef-fedc-ba9876543210"}"#,
    ];
    const POINTERS: [&str; 7] =
        ["json:/id", "json:/id/id", "json:/id/0", "json:/id/01", "json:/id/", "json:/id/1/0", "json:/x/1/id"];

    /// Both ids of a document: of the audit and of the pipeline.
    fn both(pointer: &str, value: &[u8]) -> (Option<Vec<u8>>, Option<Identity>) {
        let audit = id_of(&sources(&[pointer]), &Fields { value: Some(value), ..Fields::default() });
        let rule = IdentityRule::new(vec![pointer.parse().unwrap()], Hasher::Xxh3);
        (audit.map(Cow::into_owned), rule.identify(&Value(value)))
    }

    /// Two implementations of one specification: where they differ, one of them is wrong.
    #[test]
    fn audit_and_pipeline_extract_equal_ids() {
        for pointer in POINTERS {
            let ids: Vec<_> = CORPUS.iter().map(|value| both(pointer, value)).collect();
            for ((audit, pipeline), value) in ids.iter().zip(CORPUS) {
                let text = String::from_utf8_lossy(value);
                assert_eq!(audit.is_some(), pipeline.is_some(), "{pointer} of {text}");
                for ((other_audit, other_pipeline), other) in ids.iter().zip(CORPUS) {
                    let agree = (audit == other_audit) == (pipeline == other_pipeline);
                    assert!(agree, "{pointer} of {text} and {}", String::from_utf8_lossy(other));
                }
            }
        }
        let deep = format!(r#"{{"x":{}{},"id":"a"}}"#, "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(both("json:/id", deep.as_bytes()), both("json:/id", br#"{"id":"a"}"#));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

        #[test]
        fn audit_and_pipeline_agree_on_damaged_documents(
            document in prop::sample::select(CORPUS),
            pointer in prop::sample::select(&POINTERS[..]),
            at: Index,
            byte in prop_oneof![any::<u8>(), prop::sample::select(br#"{}[]",:\0-"#.to_vec())],
            inserts: bool,
        ) {
            let mut damaged = document.to_vec();
            let at = at.index(damaged.len() + 1);
            if inserts || at == damaged.len() {
                damaged.insert(at, byte);
            } else {
                damaged[at] = byte;
            }
            let ((audit, pipeline), (audit_before, pipeline_before)) = (both(pointer, &damaged), both(pointer, document));
            prop_assert_eq!(audit.is_some(), pipeline.is_some());
            prop_assert_eq!(audit == audit_before, pipeline == pipeline_before);
        }
    }
}
