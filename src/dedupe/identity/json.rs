//! Extracts one value from a JSON document by its pointer, and reads no further than that value.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

mod scan;

pub(super) use scan::index;

/// A JSON pointer (RFC 6901): `/a/b/0`, with `~0` for `~` and `~1` for `/`. Text has at least one token.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pointer {
    tokens: Vec<String>,
}

/// Why text is not a JSON pointer. The message is the predicate of a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PointerError {
    /// It does not begin with a slash.
    #[error("has a JSON pointer that does not start with '/'")]
    Slash,
    /// A `~` that is not `~0` or `~1`.
    #[error("has a '~' in its JSON pointer that is neither '~0' ('~') nor '~1' ('/')")]
    Tilde,
}

impl FromStr for Pointer {
    type Err = PointerError;

    fn from_str(text: &str) -> Result<Self, PointerError> {
        let path = text.strip_prefix('/').ok_or(PointerError::Slash)?;
        let token = |raw: &str| {
            let mut tildes = raw.split('~').skip(1);
            tildes
                .all(|after| after.starts_with(['0', '1']))
                .then(|| raw.replace("~1", "/").replace("~0", "~"))
                .ok_or(PointerError::Tilde)
        };
        Ok(Self { tokens: path.split('/').map(token).collect::<Result<_, _>>()? })
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for token in &self.tokens {
            write!(f, "/{}", token.replace('~', "~0").replace('/', "~1"))?;
        }
        Ok(())
    }
}

impl Pointer {
    /// The pointer to a whole document.
    pub(super) const WHOLE: Self = Self { tokens: Vec::new() };

    /// Its tokens.
    pub(super) fn tokens(&self) -> &[String] {
        &self.tokens
    }

    /// The bytes of the value at this pointer: a string's content, a number's or boolean's JSON text. `None` when the
    /// value is absent, null, an empty string, an object or an array.
    ///
    /// The first occurrence counts: of duplicate keys the first is followed, and only that one. The document is read up to
    /// the end of the value; what follows is searched for a second document, which makes the result `None`. What precedes
    /// must be JSON by the grammar of RFC 8259, or else the result is `None`. Unicode is checked in the value alone: a string
    /// that is not UTF-8 or has a lone surrogate is not a value, elsewhere it is skipped, and as a key it is no name.
    pub fn find<'d>(&self, document: &'d [u8]) -> Option<Cow<'d, [u8]>> {
        let value = self.tokens.iter().try_fold(document, |text, token| scan::enter(text, token))?;
        let found = scan::scalar(value).filter(|bytes| !bytes.is_empty())?;
        (!scan::has_text_behind(document, value)).then_some(found)
    }
}

#[cfg(test)]
mod tests;
