//! Where the id of a record is.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use super::Fields;
use super::json::{Pointer, PointerError};
use super::schema::{Extracted, NamedDocument, Schemas, field_number, find_by_numbers, is_of_numbers};

/// The forms of a source, for messages.
pub(crate) const SOURCES: &str = "key, value, header:NAME, json:/pointer, avro:/path or protobuf:/path, avro:name or protobuf:name (of a key: key:json:/pointer and so on)";

/// Instead of a path: the full name of the document's type.
const NAME: &str = "name";

/// Where a record contains its id, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum IdSource {
    /// The bytes of the record's key. A record without a key has no id.
    Key,
    /// The last header of this name.
    Header(String),
    /// All bytes of the value. A tombstone has no id.
    Value,
    /// A scalar in the key or the value.
    Document {
        /// The part of the record.
        field: RecordField,
        /// How it is encoded.
        format: DocumentFormat,
        /// A JSON pointer (RFC 6901) to the scalar: names, indexes, keys of maps. In Protobuf also field numbers. Without tokens it is the
        /// full name of the document's type.
        path: Pointer,
    },
}

/// A part of a record that can be a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecordField {
    /// The key.
    Key,
    /// The value.
    Value,
}

/// The encoding of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DocumentFormat {
    /// JSON, with or without the prefix of a registry.
    Json,
    /// Avro, binary encoding.
    Avro,
    /// Protobuf.
    Protobuf,
}

impl DocumentFormat {
    fn as_str(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Avro => "avro",
            Self::Protobuf => "protobuf",
        }
    }
}

/// Why text is not an [`IdSource`]. The message is the predicate of a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdSourceError {
    /// None of the forms.
    #[error("is not a source of an id")]
    Unknown,
    /// `header:` without a name.
    #[error("has no header name")]
    HeaderName,
    /// Text after `json:` and the like that is not a JSON pointer.
    #[error(transparent)]
    Pointer(#[from] PointerError),
    /// Field numbers that are none, or among names.
    #[error("starts with a field number, but not every part of its path is one (1 to 536870911)")]
    FieldNumbers,
    /// A step that other languages of paths have. A pointer names one value.
    #[error("has the step '{0}', but its path has to name one value, as json:/items/0/id does")]
    Wildcard(String),
    /// Several sources in one text.
    #[error(
        "has several sources in one text, but each part of an id is an element of its own, or a flag of its own; alternatives \
             for one part have ' | ' between them"
    )]
    Several,
    /// A word in brackets that is no modifier.
    #[error(
        "has the modifier '{0}', but there are: optional, trim, lower, number, uuid, in lower case (a name that ends in brackets is written as a \
             nested array, as in [[\"json:/id (B)\"]])"
    )]
    Modifier(String),
    /// Signs of alternatives and modifiers in another place than theirs.
    #[error(
        "{what}, but modifiers stand once, at the end of the part, in lower case, and alternatives have ' | ' between them, as in \
             json:/id | header:id (lower){}",
        in_array(names, true)
    )]
    Misplaced {
        /// The predicate of a sentence.
        what: String,
        /// The array that reads them as a part of names; empty if there is none.
        names: String,
    },
    /// What a part of an id may have, in a text for another key.
    #[error(
        "has alternatives or words in brackets, which only identity.from and identity.compare may have{}",
        in_array(names, false)
    )]
    Lone {
        /// As in [`Self::Misplaced`].
        names: String,
    },
    /// Text in square brackets that is no list of sources.
    #[error(
        "is no nested array with a text for each source, at least one, and maybe one for the modifiers, as in [[\"json:/id\", \"(lower)\"]]"
    )]
    List,
}

/// How a name with the signs of alternatives and modifiers is written.
fn in_array(names: &str, nests: bool) -> String {
    match (names, nests) {
        ("", _) => String::new(),
        (names, true) => format!(
            " (names that have such signs are written as a nested array, [{names}], or as the text '{names}')"
        ),
        (names, false) => format!(" (a name that has such signs is written as the text '{names}')"),
    }
}

impl FromStr for IdSource {
    type Err = IdSourceError;

    fn from_str(text: &str) -> Result<Self, IdSourceError> {
        if text.split(',').skip(1).any(|part| part.trim().parse::<Self>().is_ok()) {
            return Err(IdSourceError::Several);
        }
        let (field, rest) = match text.strip_prefix("key:") {
            Some(rest) => (RecordField::Key, rest),
            None => (RecordField::Value, text),
        };
        let document = |format, path: &str| {
            if path == NAME && format != DocumentFormat::Json {
                return Ok(Self::Document { field, format, path: Pointer::WHOLE });
            }
            let path: Pointer = path.parse()?;
            if let Some(token) = path.tokens().iter().find(|token| *token == "*" || *token == "-") {
                return Err(IdSourceError::Wildcard(token.clone()));
            }
            let has_numbers = format == DocumentFormat::Protobuf && is_of_numbers(path.tokens());
            if has_numbers && path.tokens().iter().any(|token| field_number(token).is_none()) {
                return Err(IdSourceError::FieldNumbers);
            }
            Ok(Self::Document { field, format, path })
        };
        match (rest.split_once(':'), field) {
            (Some(("json", path)), _) => document(DocumentFormat::Json, path),
            (Some(("avro", path)), _) => document(DocumentFormat::Avro, path),
            (Some(("protobuf", path)), _) => document(DocumentFormat::Protobuf, path),
            (Some(("header", "")), RecordField::Value) => Err(IdSourceError::HeaderName),
            (Some(("header", name)), RecordField::Value) => Ok(Self::Header(name.to_owned())),
            (None, RecordField::Value) if text == "key" => Ok(Self::Key),
            (None, RecordField::Value) if text == "value" => Ok(Self::Value),
            _ => Err(IdSourceError::Unknown),
        }
    }
}

impl fmt::Display for IdSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key => f.write_str("key"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Value => f.write_str("value"),
            Self::Document { field, format, path } => {
                let field = if *field == RecordField::Key { "key:" } else { "" };
                let name = if path.tokens().is_empty() { NAME } else { "" };
                write!(f, "{field}{}:{path}{name}", format.as_str())
            }
        }
    }
}

impl IdSource {
    /// The part of the record whose schema has to be known; `None` when the source needs no schema.
    pub fn needs_schema(&self) -> Option<RecordField> {
        let Self::Document { field, format, path } = self else { return None };
        let needs = match format {
            DocumentFormat::Json => false,
            DocumentFormat::Avro => true,
            DocumentFormat::Protobuf => !is_of_numbers(path.tokens()),
        };
        needs.then_some(*field)
    }

    /// The bytes found there; `None` when they are absent or empty. Fails when a schema that is not known is needed.
    pub(super) fn bytes<'r, F: Fields>(&self, record: &'r F, schemas: &Schemas) -> Extracted<'r> {
        let bytes = match self {
            Self::Key => record.key().map(Cow::Borrowed),
            Self::Header(name) => record.header(name).map(Cow::Borrowed),
            Self::Value => record.value().map(Cow::Borrowed),
            Self::Document { field, format, path } => {
                let is_key = *field == RecordField::Key;
                let named = match self.needs_schema() {
                    Some(_) => schemas.named(record, is_key),
                    None => NamedDocument::without_schema(record, is_key, schemas.frame()),
                };
                let Some(named) = named else { return Ok(None) };
                match format {
                    DocumentFormat::Json => match named.optionally_framed() {
                        Some(framed) => framed.find(|document| path.find(document)),
                        None => path.find(named.bytes),
                    },
                    DocumentFormat::Avro => schemas.avro(named, path.tokens())?,
                    DocumentFormat::Protobuf if is_of_numbers(path.tokens()) => {
                        find_by_numbers(named, path.tokens())
                    }
                    DocumentFormat::Protobuf => schemas.protobuf(named, path.tokens())?,
                }
            }
        };
        Ok(bytes.filter(|bytes| !bytes.is_empty()))
    }

    /// Whether the registry does not have the schema that is needed to read the record here.
    pub(super) fn is_unregistered<F: Fields>(&self, record: &F, schemas: &Schemas) -> bool {
        let named = self.needs_schema().and_then(|field| schemas.named(record, field == RecordField::Key));
        named.is_some_and(|named| schemas.is_unregistered(named))
    }

    /// Why a record has no id here, if that is for its schema.
    pub(super) fn without_schema<F: Fields>(&self, record: &F, schemas: &Schemas) -> Option<String> {
        let is_key = self.needs_schema()? == RecordField::Key;
        schemas.without_schema(schemas.named(record, is_key)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_print_as_parsed() {
        for text in [
            "key",
            "value",
            "header:event-id",
            "header:a:b",
            "json:/a~1b/0/~0",
            "key:json:/id",
            "avro:/order/id",
            "key:avro:/id",
            "protobuf:/order/lines/0/id",
            "protobuf:/3/1",
            "key:protobuf:/1",
            "avro:name",
            "key:protobuf:name",
        ] {
            assert_eq!(text.parse::<IdSource>().unwrap().to_string(), text);
        }
        for text in ["json:/a*/-b", "header:a,b", "header:*", "json:/a,b"] {
            assert_eq!(text.parse::<IdSource>().unwrap().to_string(), text);
        }
        assert_eq!("header:".parse::<IdSource>(), Err(IdSourceError::HeaderName));
        for text in ["json:/items/*/id", "json:/-", "key:avro:/a/*", "protobuf:/1/-"] {
            assert!(
                matches!(
                    text.parse::<IdSource>(),
                    Err(IdSourceError::Wildcard(_) | IdSourceError::FieldNumbers)
                ),
                "{text}"
            );
        }
        for text in ["json:/id,json:/tenant", "key, value", "header:a,header:b", "json:/a,key:json:/b"] {
            assert_eq!(text.parse::<IdSource>(), Err(IdSourceError::Several), "{text}");
        }
        for text in [
            "json:",
            "json:id",
            "json:name",
            "avro:names",
            "json:/a~2",
            "json:/~",
            "avro:id",
            "protobuf:",
            "key:avro:",
        ] {
            assert!(matches!(text.parse::<IdSource>(), Err(IdSourceError::Pointer(_))), "{text}");
        }
        for text in ["protobuf:/0", "protobuf:/1/id", "protobuf:/1x", "protobuf:/536870912", "protobuf:/01"] {
            assert_eq!(text.parse::<IdSource>(), Err(IdSourceError::FieldNumbers), "{text}");
        }
        for text in [
            "",
            "id",
            "Key",
            "header",
            "key:",
            "json",
            "jsn:/id",
            "key:key",
            "key:header:a",
            "value:json:/id",
        ] {
            assert_eq!(text.parse::<IdSource>(), Err(IdSourceError::Unknown), "{text}");
        }
    }

    #[test]
    fn schemas_are_needed_for_names() {
        let needs = |text: &str| text.parse::<IdSource>().unwrap().needs_schema();
        assert_eq!(needs("avro:/id"), Some(RecordField::Value));
        assert_eq!(needs("protobuf:name"), Some(RecordField::Value));
        assert_eq!(needs("key:protobuf:/id"), Some(RecordField::Key));
        for text in ["key", "value", "header:id", "json:/id", "protobuf:/1/2", "key:json:/id"] {
            assert_eq!(needs(text), None, "{text}");
        }
    }
}
