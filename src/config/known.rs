//! The existing keys, and suggestions for mistyped ones.

use std::collections::BTreeMap;

use super::keys::keys;
use super::section::{Key, Shape};

/// Section → names of its keys, in alphabetical order. The keys of `[[kinds]]` are not suggested for other sections.
pub(super) fn sections() -> BTreeMap<&'static str, Vec<&'static str>> {
    let names_of = |shape: &Shape| if let Shape::Section(keys) = shape { names(keys) } else { Vec::new() };
    keys().iter().map(|section| (section.name, names_of(&section.shape))).collect()
}

fn names(keys: &[Key]) -> Vec<&'static str> {
    let mut names: Vec<_> = keys.iter().map(|key| key.name).collect();
    names.sort_unstable();
    names
}

/// Suggests the most similar section.
pub(super) fn remedy_for_section(section: &str) -> String {
    let known: Vec<_> = sections().into_keys().collect();
    match nearest(section, &known) {
        Some((_, near)) => format!("did you mean [{near}]?"),
        None => format!("the sections are {}", known.join(", ")),
    }
}

/// Suggests the most similar key. Among equally similar ones, a key of the same section wins.
pub(super) fn remedy_for_key(section: &str, key: &str) -> String {
    let known = sections();
    let own = known.get(section).map(Vec::as_slice).unwrap_or_default();
    let all = known.iter().map(|(section, keys)| (*section, keys.as_slice()));
    // `min_by_key` returns the first of several minima, and the own section comes first.
    let near = std::iter::once((section, own))
        .chain(all)
        .filter_map(|(section, keys)| nearest(key, keys).map(|(distance, near)| (distance, section, near)))
        .min_by_key(|(distance, _, _)| *distance);
    match near {
        Some((_, section, near)) => format!("did you mean {section}.{near}?"),
        None => format!("the keys of [{section}] are {}", own.join(", ")),
    }
}

/// Lists the keys of a table of a list of tables.
pub(super) fn remedy_for_table(section: &str, keys: &[Key]) -> String {
    format!("the keys of [[{section}]] are {}", names(keys).join(", "))
}

/// The known word most similar to a mistyped one, with its distance. At most a third of its letters may differ.
fn nearest<'a>(typed: &str, known: &[&'a str]) -> Option<(usize, &'a str)> {
    known
        .iter()
        .map(|word| (strsim::damerau_levenshtein(typed, word), *word))
        .filter(|(distance, word)| *distance <= (word.len() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
}
