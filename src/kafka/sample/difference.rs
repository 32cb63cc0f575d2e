//! Where the contents of two records with one id differ first. It names fields and offsets, and no values.

use serde_json::Value;

use crate::dedupe::{CompareRule, Coordinates, Digest, Fields, IdPart};

/// A copy with other content than the first record with its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DifferingCopy {
    pub copy: Coordinates,
    pub first: Coordinates,
    /// Where they differ first; `None` when one of them could not be read again.
    pub place: Option<String>,
}

/// A compared part of a record; with its bytes if it is the whole value.
#[derive(Debug)]
pub struct ComparedPart {
    pub digest: Digest,
    pub(super) value: Option<Vec<u8>>,
}

/// Each part of a record on its own; `digest` applies a rule to the record. A part that cannot be read has no digest.
pub fn compared_parts<E>(
    rule: &[IdPart],
    record: &impl Fields,
    digest: impl Fn(&CompareRule) -> Result<Digest, E>,
) -> Vec<ComparedPart> {
    let part = |part: &IdPart| {
        let digest = digest(&CompareRule::new(vec![part.clone()]));
        let value = record.value().filter(|_| part.is_value()).map(<[u8]>::to_vec);
        ComparedPart { digest: digest.unwrap_or(Digest::NONE), value }
    };
    rule.iter().map(part).collect()
}

/// Which of these parts differs first, and where.
pub fn place(rule: &[IdPart], one: &[ComparedPart], other: &[ComparedPart]) -> Option<String> {
    let mut parts = rule.iter().zip(one.iter().zip(other));
    // A part that is absent in one of them has no digest there.
    let (part, (one, other)) = parts.find(|(_, (one, other))| one.digest != other.digest)?;
    Some(if part.is_value() {
        in_values(one.value.as_deref(), other.value.as_deref())
    } else {
        shown(&part.to_string())
    })
}

/// The first field that differs if both values are JSON, otherwise the first byte. The values are not equal.
fn in_values(one: Option<&[u8]>, other: Option<&[u8]>) -> String {
    let (Some(one), Some(other)) = (one, other) else { return "one value is null".to_owned() };
    let parsed = [one, other].map(|bytes| serde_json::from_slice::<Value>(bytes).ok());
    let pointer = match &parsed {
        [Some(one), Some(other)] => pointer(Some(one), Some(other)).filter(|pointer| !pointer.is_empty()),
        _ => None,
    };
    let byte = || one.iter().zip(other).take_while(|(one, other)| one == other).count();
    pointer.map_or_else(|| format!("byte {}", byte()), |pointer| shown(&format!("json:{pointer}")))
}

/// Most characters of the name of a place.
const SHOWN: usize = 120;

/// The name of a place as it can be shown on a terminal: in a document it is any text.
fn shown(name: &str) -> String {
    let end = if name.chars().nth(SHOWN).is_some() { "…" } else { "" };
    name.chars().take(SHOWN).flat_map(char::escape_debug).collect::<String>() + end
}

/// The JSON pointer of the first difference, by the order of names; `None` between equal values.
fn pointer(one: Option<&Value>, other: Option<&Value>) -> Option<String> {
    let below = |step: &str, one, other| pointer(one, other).map(|rest| format!("/{step}{rest}"));
    match (one, other) {
        (Some(Value::Object(one)), Some(Value::Object(other))) => {
            let added = other.keys().filter(|name| !one.contains_key(*name));
            one.keys().chain(added).find_map(|name| {
                below(&name.replace('~', "~0").replace('/', "~1"), one.get(name), other.get(name))
            })
        }
        (Some(Value::Array(one)), Some(Value::Array(other))) => (0..one.len().max(other.len()))
            .find_map(|index| below(&index.to_string(), one.get(index), other.get(index))),
        _ => (one != other).then(String::new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(one: &str, other: &str) -> String {
        in_values(Some(one.as_bytes()), Some(other.as_bytes()))
    }

    #[test]
    fn a_field_is_named_in_json_and_a_byte_elsewhere() {
        for (one, other, place) in [
            (r#"{"id":1,"page":"a"}"#, r#"{"id":1,"page":"b"}"#, "json:/page"),
            (r#"{"id":1}"#, r#"{"id":1,"page":"b"}"#, "json:/page"),
            (r#"{"a":[1,{"b":2}]}"#, r#"{"a":[1,{"b":3}]}"#, "json:/a/1/b"),
            (r#"{"a":[1]}"#, r#"{"a":[1,2]}"#, "json:/a/1"),
            (r#"{"a/b":{"~":1}}"#, r#"{"a/b":{"~":2}}"#, "json:/a~1b/~0"),
            // The same document in another spelling, a scalar, and no JSON.
            (r#"{"a":1}"#, r#"{"a": 1}"#, "byte 5"),
            ("12", "13", "byte 1"),
            ("id=1;a", "id=1;b", "byte 5"),
            ("id=1", "id=1;b", "byte 4"),
            (r#"{"a":1}"#, "x", "byte 0"),
        ] {
            assert_eq!(of(one, other), place, "{one} {other}");
        }
        assert_eq!(in_values(None, Some(b"a")), "one value is null");
    }

    #[test]
    fn the_part_that_differs_is_named_by_its_source() {
        let sources = ["json:/a", "header:b"].map(|source| source.parse().unwrap());
        let parts = |digests: [u32; 2]| {
            digests.map(|value| ComparedPart { digest: Digest::stored(1, value), value: None })
        };
        assert_eq!(place(&sources, &parts([1, 2]), &parts([1, 3])).as_deref(), Some("header:b"));
        assert_eq!(
            place(&sources, &parts([1, 0]), &parts([1, 3])).as_deref(),
            Some("header:b"),
            "one is absent"
        );
        assert_eq!(place(&sources, &parts([1, 2]), &parts([1, 2])), None);
    }
}
