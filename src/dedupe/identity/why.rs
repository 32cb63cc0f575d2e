//! Why a record has no id: what stands where the id is searched for. Names of fields are reported, values are not.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde_json::Deserializer;

use super::Fields;
use super::id_source::{DocumentFormat, IdSource, RecordField};
use super::json::Pointer;
use super::schema::Frame;

/// Most field names in a reason, and most characters of each.
const NAMES: usize = 8;
const NAME_LENGTH: usize = 40;

/// Bytes with which what is no plain document begins.
const PREFIXES: [(&[u8], &str); 8] = [
    (b"\x1f\x8b", "is compressed with gzip by its producer"),
    (b"\x28\xb5\x2f\xfd", "is compressed with zstd by its producer"),
    (b"\x04\x22\x4d\x18", "is compressed with lz4 by its producer"),
    (b"\x82SNAPPY", "is compressed with snappy by its producer"),
    (b"\xc3\x01", "is in the single-object encoding of Avro; set schemas.frame = \"single-object\""),
    (b"\x03\x00", "has the frame of AWS Glue; set schemas.frame = \"glue\""),
    (b"\x03\x05", "has the frame of AWS Glue; set schemas.frame = \"glue\""),
    (b"\xef\xbb\xbf", "begins with a byte order mark"),
];

/// Why the record has nothing at this source, as a clause.
pub(super) fn why<F: Fields>(source: &IdSource, record: &F, frame: Frame) -> String {
    match source {
        IdSource::Key => "it has no key".to_owned(),
        IdSource::Value => "it has no value".to_owned(),
        IdSource::Header(name) => format!("it has no header {name:?} with a value"),
        IdSource::Document { field, format, path } => {
            let (part, document) = match field {
                RecordField::Key => ("key", record.key()),
                RecordField::Value => ("value", record.value()),
            };
            match document {
                None | Some([]) => format!("it has no {part}"),
                Some(document) => format!("its {part} {}", in_document(*format, path, document, frame)),
            }
        }
    }
}

fn in_document(format: DocumentFormat, path: &Pointer, document: &[u8], frame: Frame) -> String {
    let text = frame.split(document).map(|framed| framed.rest);
    if let Some((_, what)) = PREFIXES.iter().find(|(first, _)| text.is_none() && document.starts_with(first))
    {
        return (*what).to_owned();
    }
    match format {
        DocumentFormat::Json => in_json(path, text.unwrap_or(document), text.is_some()),
        // The record's name, as in avro:name.
        DocumentFormat::Avro | DocumentFormat::Protobuf if path.tokens().is_empty() => {
            "is of no record whose name is known: its schema has no records, or its frame names none that exists".to_owned()
        }
        DocumentFormat::Avro | DocumentFormat::Protobuf => {
            format!("cannot be decoded with its schema, or has no value at {path} that can be an id")
        }
    }
}

fn in_json(path: &Pointer, text: &[u8], is_framed: bool) -> String {
    match text.trim_ascii_start().first() {
        Some(b'{') => in_object(path, text),
        Some(b'[') => format!("is a JSON array, and has nothing at {path} that can be an id"),
        _ if is_framed => {
            "is no JSON behind the frame of a schema registry; give avro:/path or protobuf:/path".to_owned()
        }
        _ => "is not JSON: it begins with neither '{' nor '['".to_owned(),
    }
}

#[expect(clippy::zero_sized_map_values, reason = "serde reads an object as a map only")]
fn in_object(path: &Pointer, text: &[u8]) -> String {
    let mut objects = Deserializer::from_slice(text).into_iter::<BTreeMap<Cow<'_, str>, IgnoredAny>>();
    let names = match objects.next() {
        Some(Ok(names)) => names,
        Some(Err(error)) => return format!("is not valid JSON: {error}"),
        None => return "is empty".to_owned(),
    };
    let (document, behind) = text.split_at_checked(objects.byte_offset()).unwrap_or((text, b""));
    if let Some(found) = path.find(document) {
        return if !behind.trim_ascii().is_empty() {
            "has other text behind its document, such as a second one".to_owned()
        } else if found.trim_ascii().is_empty() {
            format!("has only blanks at {path}, where the id is trimmed")
        } else {
            format!("has a value at {path}, but a source before it cannot be read")
        };
    }
    if names.contains_key("schema") && names.contains_key("payload") {
        return format!("is an envelope of Kafka Connect with schema and payload; give json:/payload{path}");
    }
    let first = path.tokens().first().map_or("", String::as_str);
    if names.contains_key(first) {
        return format!("has nothing at {path} that can be an id: a text, a number or a boolean");
    }
    // A name is any text, and is shown on terminals.
    let short =
        |name: &Cow<'_, str>| name.chars().take(NAME_LENGTH).flat_map(char::escape_debug).collect::<String>();
    let mut listed: Vec<String> = names.keys().take(NAMES).map(short).collect();
    if names.len() > NAMES {
        listed.push("…".to_owned());
    }
    format!("has no field {first:?}; its fields are: {}", listed.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedupe::identity::tests::SampleRecord;
    use crate::dedupe::{Hasher, IdentityRule, Schemas};

    #[test]
    fn the_reason_names_what_is_found_instead() {
        type Source = (&'static str, Option<&'static [u8]>);
        let json = |value: &'static [u8]| -> Source { ("json:/eventId", Some(value)) };
        let cases: [(Source, &str); 21] = [
            (
                json(b"{\"\\u001b]0;own\\u0007\\n\":1}"),
                "its value has no field \"eventId\"; its fields are: \\u{1b}]0;own\\u{7}\\n",
            ),
            (("key", None), "it has no key"),
            (("header:id", None), "it has no header \"id\" with a value"),
            (("json:/eventId", None), "it has no value"),
            (json(b""), "it has no value"),
            (json(br#"{"id":1,"at":2}"#), "its value has no field \"eventId\"; its fields are: at, id"),
            (json(br#"{"eventId":null}"#), "its value has nothing at /eventId that can be an id: a text"),
            (json(br#"{"schema":{},"payload":{"eventId":7}}"#), "give json:/payload/eventId"),
            (json(b"{\"eventId\":1}\n{\"eventId\":2}"), "its value has other text behind its document"),
            (json(br#"{"eventId":" "} "#), "its value has only blanks at /eventId"),
            (json(br#"{"eventId":"7"}"#), "has a value at /eventId, but a source before it cannot be read"),
            (("avro:name", Some(b"\0\0\0\0\x07x")), "its value is of no record whose name is known"),
            (("avro:/a", Some(b"\0\0\0\0\x07x")), "cannot be decoded with its schema, or has no value at /a"),
            (json(b"\x1f\x8b\x08"), "its value is compressed with gzip"),
            (
                json(b"\xc3\x01abc"),
                "is in the single-object encoding of Avro; set schemas.frame = \"single-object\"",
            ),
            (json(b"\x03\x00abc"), "has the frame of AWS Glue; set schemas.frame = \"glue\""),
            (json(b"\0\0\0\0\x07\x02a"), "is no JSON behind the frame of a schema registry"),
            (json(b"\0\0\0\0\x07{}"), "has no field \"eventId\"; its fields are: "),
            (json(br#"[{"eventId":1}]"#), "is a JSON array, and has nothing at /eventId"),
            (json(b"eventId=1"), "is not JSON"),
            (json(br#"{"x":NaN,"eventId":1}"#), "is not valid JSON: expected value at line 1 column 6"),
        ];
        for ((source, value), expected) in cases {
            let found = why(
                &source.parse().unwrap(),
                &SampleRecord { value, ..SampleRecord::default() },
                Frame::default(),
            );
            assert!(found.contains(expected), "{source}: {found}");
        }
    }

    #[test]
    fn of_parts_that_may_be_absent_each_is_named_if_the_record_has_none() {
        let rule = |parts: &[&str]| {
            IdentityRule::new(parts.iter().map(|part| part.parse().unwrap()).collect(), Hasher::Xxh3)
        };
        let why = |parts: &[&str]| rule(parts).why_missing(&SampleRecord::default(), &Schemas::default());
        let (key, header) = ("it has no key", "it has no header \"id\" with a value");
        assert_eq!(
            why(&["key (optional)", "header:id (optional)"]),
            format!("the record has no id: {key}, and {header}")
        );
        assert_eq!(why(&["key (optional)", "header:id"]), format!("the record has no id: {header}"));
    }

    #[test]
    fn the_names_of_many_fields_are_cut() {
        let members: Vec<String> = (0..20).map(|n| format!("\"{n:02}{}\":1", "x".repeat(100))).collect();
        let document = format!("{{{}}}", members.join(",")).into_bytes();
        let found = in_object(&"/id".parse().unwrap(), &document);
        assert!(found.ends_with(", …") && found.len() < 450, "{found}");
    }
}
