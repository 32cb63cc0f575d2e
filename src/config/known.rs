//! The existing keys, and suggestions for mistyped ones.

use std::collections::BTreeMap;

use figment::value::{Dict, Value};

use super::as_typed::{AsTyped, TypedKind};

/// A configuration as typed, as a nested table. Keys that are not set are empty values.
pub(super) fn serialised(typed: &AsTyped) -> Dict {
    Value::serialize(typed).ok().and_then(Value::into_dict).unwrap_or_default()
}

/// The keys of one table of `[[kinds]]`.
pub(super) fn kind_keys() -> Vec<String> {
    let kind = Value::serialize(TypedKind::default()).ok().and_then(Value::into_dict);
    kind.unwrap_or_default().into_keys().collect()
}

/// Section → keys, derived from [`AsTyped`].
pub(super) fn known_keys() -> BTreeMap<String, Vec<String>> {
    let keys = |value: Value| value.into_dict().map(|keys| keys.into_keys().collect()).unwrap_or_default();
    serialised(&AsTyped::default()).into_iter().map(|(section, value)| (section, keys(value))).collect()
}

pub(super) fn remedy_for_section(section: &str, known: &BTreeMap<String, Vec<String>>) -> String {
    match nearest(section, known.keys()) {
        Some(near) => format!("did you mean [{near}]?"),
        None => {
            format!("the sections are {}", known.keys().map(String::as_str).collect::<Vec<_>>().join(", "))
        }
    }
}

/// Suggests the most similar key. Among equally similar ones, a key of the same section wins.
pub(super) fn remedy_for_key(path: &str, keys: &[String]) -> String {
    let (section, key) = path.split_once('.').unwrap_or((path, ""));
    let known = known_keys();
    let own = nearest(key, keys.iter()).map(|near| (distance(key, near), section, near));
    let all = known.iter().filter_map(|(home, keys)| {
        nearest(key, keys.iter()).map(|near| (distance(key, near), home.as_str(), near))
    });
    // `min_by_key` returns the first of several minima, and the own section comes first.
    match own.into_iter().chain(all).min_by_key(|(distance, _, _)| *distance) {
        Some((_, home, near)) => format!("did you mean {home}.{near}?"),
        None => format!("the keys of [{section}] are {}", keys.join(", ")),
    }
}

fn distance(typed: &str, word: &str) -> usize {
    strsim::damerau_levenshtein(typed, word)
}

/// The known word most similar to a mistyped one. At most a third of its letters may differ.
fn nearest<'a>(typed: &str, known: impl Iterator<Item = &'a String>) -> Option<&'a String> {
    known
        .map(|word| (distance(typed, word), word))
        .filter(|(distance, word)| *distance <= (word.len() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}
