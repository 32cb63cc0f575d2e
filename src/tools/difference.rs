//! Where two values differ first.

use serde_json::Value;

/// The place of the first difference of two values, as the end of a sentence; `None` if they are equal. No content is in it.
pub(super) fn first_difference(one: Option<&[u8]>, other: Option<&[u8]>) -> Option<String> {
    let (one, other) = match (one, other) {
        (None, None) => return None,
        (None, Some(_)) | (Some(_), None) => return Some("one of the values is null".to_owned()),
        (Some(one), Some(other)) => (one, other),
    };
    if one == other {
        return None;
    }
    let parsed = serde_json::from_slice(one).ok().zip(serde_json::from_slice(other).ok());
    if let Some((one, other)) = parsed {
        let at = in_json(&one, &other, String::new());
        return Some(at.map_or_else(|| "only in their spelling".to_owned(), |at| format!("at json:{at}")));
    }
    let at = one.iter().zip(other).position(|(a, b)| a != b).unwrap_or(one.len().min(other.len()));
    Some(format!("at byte {at} of {} and {}", one.len(), other.len()))
}

/// The JSON pointer to the first difference, at or below `at`.
fn in_json(one: &Value, other: &Value, at: String) -> Option<String> {
    let below = |name: &str| format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"));
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let of_one = one.iter().find_map(|(name, value)| match other.get(name) {
                Some(known) => in_json(value, known, below(name)),
                None => Some(below(name)),
            });
            of_one.or_else(|| other.keys().find(|name| !one.contains_key(*name)).map(|name| below(name)))
        }
        (Value::Array(one), Value::Array(other)) => {
            let pairs = one.iter().zip(other).enumerate();
            let of_both = pairs.filter_map(|(place, (a, b))| in_json(a, b, below(&place.to_string()))).next();
            let is_longer = one.len() != other.len();
            of_both.or_else(|| is_longer.then(|| below(&one.len().min(other.len()).to_string())))
        }
        (one, other) => (one != other).then_some(at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(one: &str, other: &str) -> Option<String> {
        first_difference(Some(one.as_bytes()), Some(other.as_bytes()))
    }

    #[test]
    fn the_first_difference_is_named_without_its_content() {
        for (one, other, expected) in [
            (r#"{"a":1,"b":{"c~/d":[1,2]}}"#, r#"{"b":{"c~/d":[1,3]},"a":1}"#, "at json:/b/c~0~1d/1"),
            (r#"{"a":1}"#, r#"{"a":1,"b":2}"#, "at json:/b"),
            (r#"{"a":1,"b":2}"#, r#"{"a":1}"#, "at json:/b"),
            ("[1]", "[1,2]", "at json:/1"),
            ("1", "2", "at json:"),
            (r#"{"a":1}"#, r#"{ "a": 1 }"#, "only in their spelling"),
            ("abcd", "abxd", "at byte 2 of 4 and 4"),
            ("ab", "abc", "at byte 2 of 2 and 3"),
        ] {
            assert_eq!(difference(one, other).as_deref(), Some(expected), "{one} {other}");
        }
        assert_eq!(difference("a", "a"), None);
        assert_eq!(first_difference(None, None), None);
        assert_eq!(first_difference(None, Some(b"")).as_deref(), Some("one of the values is null"));
    }
}
