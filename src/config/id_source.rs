//! The source of an id in a record.

use std::fmt;

/// The place in a record that contains its id, or one part of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum IdSource {
    /// The record's key.
    Key,
    /// The last header of this name.
    Header(String),
    /// A JSON pointer (RFC 6901) into the value, starting with `/`.
    Json(String),
    /// The whole value.
    Value,
}

impl IdSource {
    /// Parses `key`, `header:NAME`, `json:/pointer` or `value`. The error is the predicate of a sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "key" => Ok(Self::Key),
            None if text == "value" => Ok(Self::Value),
            Some(("header", "")) => Err("has no header name".to_owned()),
            Some(("header", name)) => Ok(Self::Header(name.to_owned())),
            Some(("json", pointer)) => check_pointer(pointer).map(|()| Self::Json(pointer.to_owned())),
            _ => Err("is not a source of an id".to_owned()),
        }
    }
}

/// RFC 6901 section 3: the pointer starts with `/`, and contains `~` only as `~0` or `~1`.
fn check_pointer(pointer: &str) -> Result<(), String> {
    if !pointer.starts_with('/') {
        return Err("has a JSON pointer that does not start with '/'".to_owned());
    }
    let escapes = pointer.split('~').skip(1);
    if escapes.into_iter().any(|rest| !rest.starts_with(['0', '1'])) {
        return Err("has a '~' in its JSON pointer that is neither '~0' ('~') nor '~1' ('/')".to_owned());
    }
    Ok(())
}

impl fmt::Display for IdSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key => f.write_str("key"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Json(pointer) => write!(f, "json:{pointer}"),
            Self::Value => f.write_str("value"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_and_parse_are_inverse() {
        for text in ["key", "value", "header:event-id", "header:a:b", "json:/id", "json:/a~1b/0/~0"] {
            assert_eq!(IdSource::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn invalid_sources_are_rejected() {
        for text in ["", "id", "Key", "header", "header:", "json", "json:", "json:id", "json:/a~2", "json:/~"]
        {
            assert!(IdSource::parse(text).is_err(), "{text:?} was accepted");
        }
    }
}
