//! Extracts one value from a JSON document by its pointer, without building the document.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde_json::value::RawValue;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A JSON pointer (RFC 6901): `/a/b/0`, with `~0` for `~` and `~1` for `/`. Empty = the whole document.
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
        if text.is_empty() {
            return Ok(Self { tokens: Vec::new() });
        }
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
    /// The bytes of the value at this pointer: a string's content, a number's or boolean's JSON text. `None` when the
    /// value is absent, null, an empty string, an object or an array, and when the document is not valid JSON from its
    /// first to its last byte. Of duplicate keys the last counts.
    #[must_use]
    pub fn find<'d>(&self, document: &'d [u8]) -> Option<Cow<'d, [u8]>> {
        let text = std::str::from_utf8(document).ok()?;
        let mut json = serde_json::Deserializer::from_str(text);
        let found = Walk { tokens: &self.tokens }.deserialize(&mut json).ok()?;
        json.end().ok()?;
        scalar(found?)
    }
}

/// The bytes of a scalar's JSON text.
fn scalar(text: &str) -> Option<Cow<'_, [u8]>> {
    let bytes = match text.as_bytes() {
        [b'n' | b'{' | b'[', ..] => return None,
        [b'"', plain @ .., b'"'] if !plain.contains(&b'\\') => Cow::Borrowed(plain),
        [b'"', ..] => Cow::Owned(serde_json::from_str::<String>(text).ok()?.into_bytes()),
        other => Cow::Borrowed(other),
    };
    (!bytes.is_empty()).then_some(bytes)
}

/// Follows the rest of a pointer and returns the JSON text at its end.
struct Walk<'p> {
    tokens: &'p [String],
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = Option<&'de str>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        match self.tokens.split_first() {
            None => <&RawValue>::deserialize(json).map(|raw| Some(raw.get())),
            Some((token, rest)) => json.deserialize_any(Level { token, rest }),
        }
    }
}

/// One level of the walk: an object or array in which `token` is searched.
struct Level<'p> {
    token: &'p str,
    rest: &'p [String],
}

impl<'de> Visitor<'de> for Level<'_> {
    type Value = Option<&'de str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(hit) = map.next_key_seed(Named(self.token))? {
            if hit {
                found = map.next_value_seed(Walk { tokens: self.rest })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let index = array_index(self.token);
        let mut found = None;
        for position in 0usize.. {
            if index == Some(position) {
                match seq.next_element_seed(Walk { tokens: self.rest })? {
                    Some(value) => found = value,
                    None => break,
                }
            } else if seq.next_element::<IgnoredAny>()?.is_none() {
                break;
            }
        }
        Ok(found)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }
}

/// An array index according to RFC 6901: digits without a leading zero.
fn array_index(token: &str) -> Option<usize> {
    let digits = token.bytes().all(|byte| byte.is_ascii_digit());
    (digits && (token == "0" || !token.starts_with('0'))).then(|| token.parse().ok()).flatten()
}

/// Compares an object's key with a name, without copying it.
struct Named<'p>(&'p str);

impl<'de> DeserializeSeed<'de> for Named<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<bool, D::Error> {
        json.deserialize_str(self)
    }
}

impl Visitor<'_> for Named<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object key")
    }

    fn visit_str<E: serde::de::Error>(self, key: &str) -> Result<bool, E> {
        Ok(key == self.0)
    }

    fn visit_bytes<E: serde::de::Error>(self, _: &[u8]) -> Result<bool, E> {
        Err(E::custom("object keys are text"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find<'d>(pointer: &str, document: &'d str) -> Option<Cow<'d, [u8]>> {
        pointer.parse::<Pointer>().unwrap().find(document.as_bytes())
    }

    fn text(pointer: &str, document: &str) -> Option<String> {
        find(pointer, document).map(|bytes| String::from_utf8(bytes.into_owned()).unwrap())
    }

    #[test]
    fn scalars_give_their_content_or_json_text() {
        let document = r#" {"s":"abc","n":-1.50e3,"t":true,"f":false,"deep":{"list":[7,{"id":"x"}]}} "#;
        assert_eq!(text("/s", document).as_deref(), Some("abc"));
        assert_eq!(text("/n", document).as_deref(), Some("-1.50e3"));
        assert_eq!(text("/t", document).as_deref(), Some("true"));
        assert_eq!(text("/f", document).as_deref(), Some("false"));
        assert_eq!(text("/deep/list/0", document).as_deref(), Some("7"));
        assert_eq!(text("/deep/list/1/id", document).as_deref(), Some("x"));
        assert_eq!(text("", "\"whole\"").as_deref(), Some("whole"));
    }

    #[test]
    fn escapes_do_not_change_the_id() {
        assert_eq!(text("/id", r#"{"id":"caf\u00e9/\n"}"#), text("/id", "{\"id\":\"caf\u{e9}\\/\\n\"}"));
        assert_eq!(text("/id", r#"{"\u0069d":"named by an escape"}"#).as_deref(), Some("named by an escape"));
    }

    #[test]
    fn a_plain_string_is_not_copied() {
        assert!(matches!(find("/id", r#"{"id":"abc"}"#), Some(Cow::Borrowed(b"abc"))));
    }

    #[test]
    fn only_scalars_are_ids() {
        let document = r#"{"null":null,"empty":"","object":{"a":1},"array":[1],"number":5,"text":"t"}"#;
        for pointer in [
            "/absent",
            "/null",
            "/empty",
            "/object",
            "/array",
            "/object/b",
            "/array/1",
            "/array/00",
            "/array/-",
            "/array/a",
            "/number/a",
            "/text/0",
            "",
        ] {
            assert_eq!(text(pointer, document), None, "{pointer}");
        }
    }

    #[test]
    fn the_last_of_duplicate_keys_counts() {
        assert_eq!(text("/id", r#"{"id":"a","id":"b"}"#).as_deref(), Some("b"));
        assert_eq!(text("/id", r#"{"id":"a","id":null}"#), None);
        assert_eq!(text("/a/id", r#"{"a":{"id":1},"a":{}}"#), None);
    }

    #[test]
    fn a_document_that_is_not_json_to_its_end_has_no_id() {
        let lone = r#"{"id":"\ud800"}"#;
        for broken in
            ["", "{", r#"{"id":1"#, r#"{"id":1}}"#, r#"{"id":1} x"#, r#"{"id":1,}"#, "{\"id\":\"\n\"}", lone]
        {
            assert_eq!(text("/id", broken), None, "{broken}");
        }
        let pointer: Pointer = "/id".parse().unwrap();
        assert_eq!(pointer.find(b"{\"id\":1,\"other\":\"\xff\"}"), None, "not UTF-8 elsewhere");
    }

    #[test]
    fn deep_documents_neither_crash_nor_hide_the_id() {
        let deep = "[".repeat(200_000);
        assert_eq!(text("/id", &deep), None);
        assert_eq!(text("/0/0/0", &deep), None);
        let closed = format!(r#"{{"deep":{}{},"id":1}}"#, "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(text("/id", &closed).as_deref(), Some("1"));
    }

    #[test]
    fn pointers_print_as_parsed() {
        for pointer in ["", "/", "/a", "/a~1b/c~0d/0", "/~01"] {
            assert_eq!(pointer.parse::<Pointer>().unwrap().to_string(), pointer);
        }
        assert_eq!(text("/a~1b/c~0d", r#"{"a/b":{"c~d":1}}"#).as_deref(), Some("1"));
        assert_eq!(text("/~01", r#"{"~1":1}"#).as_deref(), Some("1"));
        assert_eq!("id".parse::<Pointer>(), Err(PointerError::Slash));
        assert_eq!("/a~2".parse::<Pointer>(), Err(PointerError::Tilde));
    }
}
