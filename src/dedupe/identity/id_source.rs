//! Where the id of a record is.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use super::Fields;
use super::json::{Pointer, PointerError};

/// Where a record contains its id, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum IdSource {
    /// The bytes of the record's key. A record without a key has no id.
    Key,
    /// The last header of this name.
    Header(String),
    /// The scalar at a JSON pointer (RFC 6901) into the value, starting with `/`.
    Json(Pointer),
    /// All bytes of the value. A tombstone has no id.
    Value,
}

/// Why text is not an [`IdSource`]. The message is the predicate of a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdSourceError {
    /// None of the four forms.
    #[error("is not a source of an id")]
    Unknown,
    /// `header:` without a name.
    #[error("has no header name")]
    HeaderName,
    /// `json:` with text that is not a JSON pointer.
    #[error(transparent)]
    Pointer(#[from] PointerError),
}

impl FromStr for IdSource {
    type Err = IdSourceError;

    fn from_str(text: &str) -> Result<Self, IdSourceError> {
        match text.split_once(':') {
            None if text == "key" => Ok(Self::Key),
            None if text == "value" => Ok(Self::Value),
            Some(("header", "")) => Err(IdSourceError::HeaderName),
            Some(("header", name)) => Ok(Self::Header(name.to_owned())),
            Some(("json", pointer)) => Ok(Self::Json(pointer.parse()?)),
            _ => Err(IdSourceError::Unknown),
        }
    }
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

impl IdSource {
    /// The bytes found there; `None` when they are absent or empty.
    pub(super) fn bytes<'r, F: Fields>(&self, record: &'r F) -> Option<Cow<'r, [u8]>> {
        let bytes = match self {
            Self::Key => Cow::Borrowed(record.key()?),
            Self::Header(name) => Cow::Borrowed(record.header(name)?),
            Self::Json(pointer) => pointer.find(record.value()?)?,
            Self::Value => Cow::Borrowed(record.value()?),
        };
        (!bytes.is_empty()).then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_print_as_parsed() {
        for text in ["key", "value", "header:event-id", "header:a:b", "json:/a~1b/0/~0"] {
            assert_eq!(text.parse::<IdSource>().unwrap().to_string(), text);
        }
        assert_eq!("header:".parse::<IdSource>(), Err(IdSourceError::HeaderName));
        for text in ["json:", "json:id", "json:/a~2", "json:/~"] {
            assert!(matches!(text.parse::<IdSource>(), Err(IdSourceError::Pointer(_))), "{text}");
        }
        for text in ["", "id", "Key", "header", "key:", "json", "jsn:/id"] {
            assert_eq!(text.parse::<IdSource>(), Err(IdSourceError::Unknown));
        }
    }
}
