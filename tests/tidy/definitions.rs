//! A rule for types: their names are unique.

use std::collections::BTreeMap;

use super::source::{Source, Token};

/// A type and where it is defined.
pub struct Defined {
    pub name: String,
    place: String,
}

/// The macros that define a type: `label! { Name`.
const MACROS: [&str; 3] = ["choice", "label", "section"];

/// The structs, enums, traits and unions that a file defines outside of its tests.
pub fn defined(path: &str, text: &str) -> Vec<Defined> {
    let tokens = Source::of(text).tokens;
    let is_one = |token: &Token, words: &[&str]| words.iter().any(|word| token.is(word));
    let defines = |at: usize| {
        let is_macro =
            at > 2 && tokens[at].is("{") && tokens[at - 1].is("!") && is_one(&tokens[at - 2], &MACROS);
        is_macro || is_one(&tokens[at], &["struct", "enum", "trait", "union"])
    };
    let found = tokens.windows(2).enumerate().filter(|(at, pair)| defines(*at) && pair[1].is_word());
    found
        .map(|(_, pair)| Defined { name: pair[1].text.clone(), place: format!("{path}:{}", pair[0].line) })
        .collect()
}

/// A type of `src` has a name of its own, so that the name needs no path.
pub fn duplicate_names(all: &[Defined]) -> Vec<String> {
    let mut places: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for it in all {
        places.entry(&it.name).or_default().push(&it.place);
    }
    let wrong = places.into_iter().filter(|(_, places)| places.len() > 1);
    wrong
        .map(|(name, places)| format!("{name} is defined {} times: {}", places.len(), places.join(", ")))
        .collect()
}
