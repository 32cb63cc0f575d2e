//! Parses the text of an id source: `key`, `value`, `header:NAME`, `json:/pointer`, `avro:/path` or `protobuf:/path`, `avro:name` or
//! `protobuf:name`.

use super::schemas::{Encoding, is_number};

/// Where a record contains its id, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    Key,
    Value,
    /// Name of the header.
    Header(Vec<u8>),
    /// A scalar in the key or value.
    Document {
        /// Whether it is in the key.
        is_key: bool,
        format: Format,
        /// Names of members or indexes of elements, from the top of the document: the reference tokens of RFC 6901. None: the name of its type.
        path: Vec<String>,
    },
}

/// How a document is encoded, and its path written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    /// With names from a schema.
    Encoded(Encoding),
    /// Protobuf with field numbers.
    Numbers,
}

impl Source {
    /// Parses a source. The error is the predicate of a sentence about the text.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let behind_comma = text.split(',').skip(1).map(str::trim);
        if behind_comma.into_iter().any(|part| Self::parse(part).is_ok()) {
            return Err("is several sources in one text");
        }
        if let Some(name) = text.strip_prefix("header:") {
            return if name.is_empty() { Err("has no header name") } else { Ok(Self::Header(name.into())) };
        }
        match text {
            "key" => Ok(Self::Key),
            "value" => Ok(Self::Value),
            other => document(other),
        }
    }
}

/// A scalar in the value, or behind `key:` in the key.
fn document(text: &str) -> Result<Source, &'static str> {
    let (is_key, text) = text.strip_prefix("key:").map_or((false, text), |rest| (true, rest));
    let Some((format, path)) = text.split_once(':') else { return Err(UNKNOWN) };
    let (format, path) = match format {
        "json" => (Format::Json, tokens(path)?),
        "avro" if path == "name" => (Format::Encoded(Encoding::Avro), Vec::new()),
        "protobuf" if path == "name" => (Format::Encoded(Encoding::Protobuf), Vec::new()),
        "avro" => (Format::Encoded(Encoding::Avro), tokens(path)?),
        "protobuf" => (Format::Encoded(Encoding::Protobuf), tokens(path)?),
        _ => return Err(UNKNOWN),
    };
    if path.iter().any(|token| token == "*" || token == "-") {
        return Err("has a step '*' or '-' in its path, which has to name one value");
    }
    let starts_with_digit =
        path.first().is_some_and(|it| it.bytes().next().is_some_and(|it| it.is_ascii_digit()));
    if format != Format::Encoded(Encoding::Protobuf) || !starts_with_digit {
        return Ok(Source::Document { is_key, format, path });
    }
    if !path.iter().all(|token| is_number(token)) {
        return Err("starts with a field number, but not every part of its path is one");
    }
    Ok(Source::Document { is_key, format: Format::Numbers, path })
}

const UNKNOWN: &str = "is none of key, value, header:NAME, json:/pointer, avro:/path, protobuf:/path, avro:name and protobuf:name";

/// The reference tokens of a pointer (RFC 6901, sections 3 and 4). The empty pointer, which is the whole document, is no source.
fn tokens(pointer: &str) -> Result<Vec<String>, &'static str> {
    let mut parts = pointer.split('/');
    if parts.next() != Some("") || pointer.is_empty() {
        return Err("has a JSON pointer that does not start with '/'");
    }
    parts
        .map(|part| token(part).ok_or("has a '~' in its JSON pointer that is neither '~0' nor '~1'"))
        .collect()
}

fn token(written: &str) -> Option<String> {
    let mut token = String::new();
    let mut characters = written.chars();
    while let Some(character) = characters.next() {
        token.push(match character {
            '~' => match characters.next()? {
                '0' => '~',
                '1' => '/',
                _ => return None,
            },
            other => other,
        });
    }
    Some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_parsed_and_nothing_else() {
        let document = |is_key, format, tokens: &[&str]| {
            Ok(Source::Document {
                is_key,
                format,
                path: tokens.iter().map(|token| (*token).to_owned()).collect(),
            })
        };
        let json = |tokens: &[&str]| document(false, Format::Json, tokens);
        for (text, source) in [
            ("key", Ok(Source::Key)),
            ("value", Ok(Source::Value)),
            ("header:a:b", Ok(Source::Header(b"a:b".to_vec()))),
            ("json:/id", json(&["id"])),
            ("json:/", json(&[""])),
            ("key:json:/id", document(true, Format::Json, &["id"])),
            ("key:avro:name", document(true, Format::Encoded(Encoding::Avro), &[])),
            ("protobuf:name", document(false, Format::Encoded(Encoding::Protobuf), &[])),
            ("avro:/a/id", document(false, Format::Encoded(Encoding::Avro), &["a", "id"])),
            ("protobuf:/a/0", document(false, Format::Encoded(Encoding::Protobuf), &["a", "0"])),
            ("key:protobuf:/3/1", document(true, Format::Numbers, &["3", "1"])),
            ("json:/a~1b/0/~01//", json(&["a/b", "0", "~1", "", ""])),
            ("json:/a*/-b", json(&["a*", "-b"])),
            ("header:a,b", Ok(Source::Header(b"a,b".to_vec()))),
        ] {
            assert_eq!(Source::parse(text), source, "{text}");
        }
        for text in [
            "",
            "Key",
            "key ",
            "header",
            "header:",
            "json",
            "json:",
            "json:id",
            "json:name",
            "json:/~",
            "json:/~2",
            "x",
            "key:",
            "key:key",
            "avro:",
            "protobuf:/0",
            "protobuf:/1/id",
            "json:/items/*/id",
            "key:avro:/-",
            "json:/a,json:/b",
            "header:a, value",
        ] {
            assert!(Source::parse(text).is_err(), "{text}");
        }
    }
}
