//! Where in a record its id stands.

use std::fmt;

/// Where in a record its id, or one part of it, stands.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum IdSource {
    /// The record's key.
    Key,
    /// The last header of this name.
    Header(String),
    /// A JSON pointer (RFC 6901) into the value, beginning with `/`.
    Json(String),
    /// The whole value.
    Value,
}

impl IdSource {
    /// Reads `key`, `header:NAME`, `json:/pointer` or `value`; the error says what is wrong,
    /// continuing a sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "key" => Ok(Self::Key),
            None if text == "value" => Ok(Self::Value),
            Some(("header", "")) => Err("names no header".to_owned()),
            Some(("header", name)) => Ok(Self::Header(name.to_owned())),
            Some(("json", pointer)) => check_pointer(pointer).map(|()| Self::Json(pointer.to_owned())),
            _ => Err("is no place where an id can stand".to_owned()),
        }
    }
}

/// RFC 6901 section 3: begins with `/`, and `~` only as `~0` or `~1`.
fn check_pointer(pointer: &str) -> Result<(), String> {
    if !pointer.starts_with('/') {
        return Err("has a JSON pointer that does not begin with '/'".to_owned());
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
    fn what_is_printed_reads_back() {
        for text in ["key", "value", "header:event-id", "header:a:b", "json:/id", "json:/a~1b/0/~0"] {
            assert_eq!(IdSource::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_has_no_meaning_is_refused() {
        for text in ["", "id", "Key", "header", "header:", "json", "json:", "json:id", "json:/a~2", "json:/~"]
        {
            assert!(IdSource::parse(text).is_err(), "{text:?} was accepted");
        }
    }
}
