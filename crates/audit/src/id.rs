//! Extracts the id of a record, independently of the pipeline's code.
//!
//! The documentation is the specification: an id is a scalar in the record; UUIDs are equal in every
//! spelling; an absent, null, empty, structured or unreadable value is no id. In JSON the first occurrence
//! counts; what precedes it follows the grammar, in any encoding; and behind the document is no other text.
//! `serde_json::Value` would lose the text of large and fractional numbers, so each step of a pointer splits
//! the text of one object or array at its members.

use std::borrow::Cow;

use serde::de::IgnoredAny;

use super::part::Part;
use super::record::Fields;
use super::schemas::{Decoders, SchemaSources, untyped};
use super::source::{Format, Source};

/// The header in which `rekey` names the record that it copied, see [`is_record_name`]. The last one counts.
pub(super) const SOURCE_HEADER: &[u8] = b"dedupd.source";

/// What a record has for a part.
enum Found<'a> {
    /// The value as it counts, not empty.
    Value(Cow<'a, [u8]>),
    Absent,
    /// It is not known, because a schema is not registered.
    Unreadable,
}

impl<'a> Found<'a> {
    fn value(self) -> Option<Cow<'a, [u8]>> {
        if let Self::Value(value) = self { Some(value) } else { None }
    }
}

/// Where the id of a record is: one part, or several that make a composite id.
#[derive(Debug, Clone)]
pub struct IdRule {
    parts: Vec<Part>,
    /// Whether the header `dedupd.source` identifies a record without an id.
    by_source: bool,
    decoders: Decoders,
}

impl IdRule {
    /// Parses the texts of the parts: `key`, `value`, `header:NAME`, `json:/pointer`, `avro:/path` or `protobuf:/path`, with alternatives and
    /// words in brackets as in docs/configuration.md. The error names the invalid text.
    pub fn parse<T: AsRef<str>>(texts: &[T]) -> Result<Self, String> {
        let parse = |text: &str| Part::parse(text).map_err(|why| format!("id source {text:?} {why}"));
        let parts = texts.iter().map(|text| parse(text.as_ref())).collect::<Result<_, _>>()?;
        Ok(Self { parts, by_source: false, decoders: Decoders::default() })
    }

    /// Decodes with the schemas from these sources. The error names a file that cannot be used.
    pub fn with_schemas(self, schemas: SchemaSources) -> Result<Self, String> {
        Ok(Self { decoders: Decoders::open(schemas)?, ..self })
    }

    /// A record without an id is identified by the header `dedupd.source` that `rekey` adds, if it has one.
    #[must_use]
    pub fn or_source(self) -> Self {
        Self { by_source: true, ..self }
    }

    /// The id as canonical bytes, the same for equal ids; `None` when the record has none. The error is why a schema cannot be
    /// fetched.
    pub fn id<'a>(&self, fields: &Fields<'a>) -> Result<Option<Cow<'a, [u8]>>, String> {
        let own = self.own(fields)?;
        Ok(own.or_else(|| if self.by_source { by_source(fields) } else { None }))
    }

    /// A rule with the schemas of this one, and other sources. The error names the invalid text.
    pub(super) fn with_sources<T: AsRef<str>>(&self, texts: &[T]) -> Result<Self, String> {
        Ok(Self { parts: Self::parse(texts)?.parts, by_source: false, ..self.clone() })
    }

    /// The canonical bytes of the id that has these parts, empty for one that is absent. The error is that their number differs from that of
    /// the rule.
    pub(super) fn of_texts(&self, texts: &[String]) -> Result<Vec<u8>, String> {
        let counted: Vec<_> =
            self.parts.iter().zip(texts).map(|(part, text)| part.counted(text.as_bytes().into())).collect();
        match (counted.as_slice(), texts, self.parts.len()) {
            ([one], [_], 1) => Ok(uuid(one).map_or_else(|| one.to_vec(), Cow::into_owned)),
            (several, texts, parts) if texts.len() == parts => {
                let mut composite = Vec::new();
                for part in several {
                    join(&mut composite, Some(&**part).filter(|part| !part.is_empty()));
                }
                Ok(composite)
            }
            (_, other, parts) => Err(format!(
                "the forgotten id {} must have {parts} parts, one for each id source",
                other.join(", ")
            )),
        }
    }

    /// The bytes of the first part.
    pub(super) fn value<'a>(&self, fields: &Fields<'a>) -> Result<Option<Cow<'a, [u8]>>, String> {
        self.parts.first().map_or(Ok(None), |part| Ok(self.part(part, fields)?.value()))
    }

    fn own<'a>(&self, fields: &Fields<'a>) -> Result<Option<Cow<'a, [u8]>>, String> {
        if let [one] = self.parts.as_slice() {
            let id = self.part(one, fields)?.value();
            return Ok(id.map(|id| uuid(&id).unwrap_or(id)));
        }
        Ok(self.joined(fields)?.map(Cow::Owned))
    }

    /// The parts with their lengths; `None` when one that is not optional is missing, or all. The error is why a schema cannot be fetched.
    pub(super) fn joined(&self, fields: &Fields<'_>) -> Result<Option<Vec<u8>>, String> {
        let (mut composite, mut has_any) = (Vec::new(), false);
        for part in &self.parts {
            match self.part(part, fields)? {
                Found::Value(value) => {
                    has_any = true;
                    join(&mut composite, Some(&value));
                }
                Found::Absent if part.is_optional() => join(&mut composite, None),
                Found::Absent | Found::Unreadable => return Ok(None),
            }
        }
        Ok(has_any.then_some(composite))
    }

    /// The bytes of each part.
    pub(super) fn parts(&self, fields: &Fields<'_>) -> Result<Vec<Option<Vec<u8>>>, String> {
        let part = |part| Ok(self.part(part, fields)?.value().map(Cow::into_owned));
        self.parts.iter().map(part).collect()
    }

    fn part<'a>(&self, part: &Part, fields: &Fields<'a>) -> Result<Found<'a>, String> {
        for source in &part.sources {
            let found = self.at(source, fields)?.map(|value| part.counted(value));
            if let Some(value) = found.filter(|value| !value.is_empty()) {
                return Ok(Found::Value(value));
            }
            let Source::Document { is_key, format: Format::Encoded(_), .. } = source else { continue };
            if self.decoders.lacks_schema(*is_key, fields)? {
                return Ok(Found::Unreadable);
            }
        }
        Ok(Found::Absent)
    }

    fn at<'a>(&self, source: &Source, fields: &Fields<'a>) -> Result<Option<Cow<'a, [u8]>>, String> {
        let found = match source {
            Source::Key => fields.key.map(Cow::from),
            Source::Value => fields.value.map(Cow::from),
            Source::Header(name) => header(name, fields),
            Source::Document { is_key, format, path } => {
                let bare = |is_message| self.decoders.without_schema(*is_key, fields, is_message);
                match format {
                    Format::Json => match bare(false) {
                        Some(Cow::Borrowed(document)) => json(document, path),
                        Some(Cow::Owned(document)) => json(&document, path).map(|it| it.into_owned().into()),
                        None => None,
                    },
                    Format::Numbers => bare(true).and_then(|it| untyped(&it, path)).map(Cow::from),
                    Format::Encoded(encoding) => self.decoders.find(*encoding, *is_key, fields, path)?,
                }
            }
        };
        Ok(found.filter(|bytes| !bytes.is_empty()))
    }
}

/// Adds a part of a composite id, with its length, or `-` for one that is absent.
fn join(composite: &mut Vec<u8>, part: Option<&[u8]>) {
    let length = part.map_or_else(|| "-".to_owned(), |part| part.len().to_string());
    composite.extend_from_slice(length.as_bytes());
    composite.push(b':');
    composite.extend_from_slice(part.unwrap_or_default());
}

/// The id of a record that is identified by the header of `rekey`.
pub(super) fn by_source<'a>(fields: &Fields<'a>) -> Option<Cow<'a, [u8]>> {
    let source = header(SOURCE_HEADER, fields).filter(|source| is_record_name(source))?;
    // The prefix makes it differ from every id of text.
    Some([b"\0source:", &*source].concat().into())
}

/// Whether this is `topic/partition@offset#topic id.leader epoch`, as `rekey` writes it: numbers without leading zeros, and `-` in
/// the place of an id or epoch that does not exist.
fn is_record_name(value: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(value) else { return false };
    let number = |text: &str, bits: u32| {
        let is_short = text == "0" || !text.starts_with('0');
        let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit());
        is_short && is_decimal && text.parse::<u64>().is_ok_and(|number| number >> bits == 0)
    };
    let spelled = |text: &str, others: &str| {
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || others.as_bytes().contains(&byte))
    };
    let separators: String = text.chars().filter(|c| "/@#".contains(*c)).collect();
    let parts: Vec<&str> = text.split(['/', '@', '#']).collect();
    let [topic, partition, offset, log] = parts[..] else { return false };
    let Some((id, epoch)) = log.split_once('.') else { return false };
    separators == "/@#"
        && (1..250).contains(&topic.len())
        && spelled(topic, "._-")
        && number(partition, 31)
        && number(offset, 63)
        && (id == "-" || (id.len() == 22 && spelled(id, "_-")))
        && (epoch == "-" || number(epoch, 31))
}

/// The value of the last header with this name.
fn header<'a>(name: &[u8], fields: &Fields<'a>) -> Option<Cow<'a, [u8]>> {
    let (_, value) = fields.headers.iter().rfind(|(header, _)| *header == name)?;
    value.map(Cow::from)
}

/// Normalizes every spelling of a UUID to 32 lower-case hex digits.
pub(super) fn uuid<'a>(id: &[u8]) -> Option<Cow<'a, [u8]>> {
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

/// The scalar at the reference tokens of a pointer: a string by its content, a number or boolean as it is written.
fn json<'a>(document: &'a [u8], tokens: &[String]) -> Option<Cow<'a, [u8]>> {
    let here = tokens.iter().try_fold(document, |here, token| member(here, token))?;
    if has_text_behind(document, here) {
        return None;
    }
    let (text, after) = value(here)?;
    match text.first()? {
        b'{' | b'[' | b'n' => None,
        b'"' => string(text).map(|string| string.into_bytes().into()),
        _ => after.first().filter(|end| b",}] \t\r\n".contains(end)).map(|_| text.into()),
    }
}

/// Whether there is text behind the document, as defined in docs/configuration.md: `found` is where its id starts.
fn has_text_behind(document: &[u8], found: &[u8]) -> bool {
    let is_blank = |byte: &u8| b" \t\r\n\0".contains(byte);
    let marks: Vec<u8> = found.iter().copied().filter(|byte| !is_blank(byte)).collect();
    let has_two = marks.windows(2).any(|two| matches!(two, [b'}' | b']', b'{' | b'[']));
    let Some((root, rest)) = value(document) else { return has_two };
    let last = rest.iter().rfind(|byte| !is_blank(byte));
    let closing = if root.starts_with(b"{") { b'}' } else { b']' };
    last.is_some_and(|last| *last != closing || has_two)
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

    fn id(sources: &[&str], fields: &Fields<'_>) -> Option<Vec<u8>> {
        IdRule::parse(sources).unwrap().id(fields).unwrap().map(Cow::into_owned)
    }

    fn json_id(value: &[u8]) -> Option<Vec<u8>> {
        id(&["json:/id"], &Fields { value: Some(value), ..Fields::default() })
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
        let id = |sources: &[&str]| id(sources, &fields);
        assert_eq!(id(&["key"]).unwrap(), b"k");
        assert_eq!(id(&["value"]).unwrap(), b"v");
        assert_eq!(id(&["header:h"]).unwrap(), b"last");
        assert_eq!(id(&["header:n"]), None);
        assert_eq!(id(&["header:none"]), None);
        assert_eq!(id(&["key", "value"]).unwrap(), b"1:k1:v");
        assert_eq!(id(&["key", "header:n"]), None);
    }

    #[test]
    fn the_source_header_identifies_only_records_without_an_id() {
        let fields = |key| Fields {
            key,
            headers: vec![(b"dedupd.source", Some(b"a/0@1#-.0")), (b"dedupd.source", Some(b"b/0@2#-.0"))],
            ..Fields::default()
        };
        let rule = IdRule::parse(&["key"]).unwrap();
        assert_eq!(rule.id(&fields(None)).unwrap(), None);
        let rule = rule.or_source();
        assert_eq!(
            rule.id(&fields(None)).unwrap().unwrap(),
            &b"\0source:b/0@2#-.0"[..],
            "the last header counts"
        );
        assert_eq!(rule.id(&fields(Some(b"b/0@2#-.0"))).unwrap().unwrap(), &b"b/0@2#-.0"[..]);
        assert_eq!(rule.id(&Fields::default()).unwrap(), None);
    }
}
