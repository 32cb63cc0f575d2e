//! Rules for types: unique names, and the size of the types of the pipeline.

use std::collections::BTreeMap;

use super::source::{Source, Token};

/// Most methods and most fields of a type of the pipeline.
const METHODS_MAX: usize = 15;
const FIELDS_MAX: usize = 8;

/// The comment above a larger type gives the reason after these words.
const REASON: &str = "Large because";

/// A type and where it is defined.
pub struct Defined {
    pub name: String,
    place: String,
    fields: usize,
    has_reason: bool,
}

/// The macros that define a type: `label! { Name`.
const MACROS: [&str; 4] = ["choice", "label", "metrics", "section"];

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
        .map(|(at, pair)| Defined {
            name: pair[1].text.clone(),
            place: format!("{path}:{}", pair[0].line),
            fields: if pair[0].is("struct") { fields(&tokens[at + 2..]) } else { 0 },
            has_reason: comment_above(text, pair[0].line).contains(REASON),
        })
        .collect()
}

/// The fields of a struct; the tokens begin behind its name. A tuple struct has none.
fn fields(tokens: &[Token]) -> usize {
    let (mut depth, mut count) = (0_usize, 0);
    for token in tokens {
        match token.text.as_str() {
            "{" | "(" | "[" if !token.literal => depth += 1,
            "}" | ")" | "]" if !token.literal => {
                depth -= 1;
                if depth == 0 {
                    break;
                }
            }
            ";" if depth == 0 => break,
            ":" if depth == 1 => count += 1,
            _ => {}
        }
    }
    count
}

/// The comments and attributes directly above a line.
fn comment_above(text: &str, line: usize) -> String {
    let lines: Vec<&str> = text.lines().take(line - 1).collect();
    let above = lines.iter().rev().take_while(|line| line.trim_start().starts_with(['/', '#', ')']));
    above.copied().collect::<Vec<_>>().join("\n")
}

/// The methods that `impl TYPE` blocks of a file define, by type. Methods of traits do not count.
pub fn methods(text: &str) -> BTreeMap<String, usize> {
    let tokens = Source::of(text).tokens;
    let mut found = BTreeMap::new();
    for at in (0..tokens.len()).filter(|at| tokens[*at].is("impl")) {
        let Some(open) = (at..tokens.len()).find(|at| tokens[*at].is("{")) else { continue };
        let head = &tokens[at + 1..open];
        let is_item = at == 0 || tokens[at - 1].is("}") || tokens[at - 1].is(";") || tokens[at - 1].is("]");
        if !is_item || head.iter().any(|token| token.is("for")) {
            continue;
        }
        if let Some(name) = type_name(head) {
            *found.entry(name).or_default() += functions(&tokens[open..]);
        }
    }
    found
}

/// The name of the type in `<…> Name<…> where …`.
fn type_name(head: &[Token]) -> Option<String> {
    let mut depth = 0_usize;
    for token in head {
        match token.text.as_str() {
            "<" => depth += 1,
            ">" => depth = depth.saturating_sub(1),
            _ if depth == 0 && token.is_word() => return Some(token.text.clone()),
            _ => {}
        }
    }
    None
}

/// The functions directly in a block; the tokens begin with its `{`.
fn functions(tokens: &[Token]) -> usize {
    let (mut depth, mut count) = (0_usize, 0);
    for token in tokens.iter().filter(|token| !token.literal) {
        match token.text.as_str() {
            "{" => depth += 1,
            "}" if depth == 1 => break,
            "}" => depth -= 1,
            "fn" if depth == 1 => count += 1,
            _ => {}
        }
    }
    count
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

/// A large type of the pipeline has a reason in its documentation.
pub fn large_types(all: &[Defined], methods: &BTreeMap<String, usize>) -> Vec<String> {
    let wrong = all.iter().filter_map(|it| {
        let methods = methods.get(&it.name).copied().unwrap_or(0);
        let is_large = methods > METHODS_MAX || it.fields > FIELDS_MAX;
        let (place, name, fields) = (&it.place, &it.name, it.fields);
        match (is_large, it.has_reason) {
            (true, false) => Some(format!(
                "{place}: {name} has {methods} methods and {fields} fields, more than {METHODS_MAX} and {FIELDS_MAX}: \
                 split it, or write \"{REASON} …\" in its documentation"
            )),
            (false, true) => Some(format!("{place}: {name} is not large any more: delete its \"{REASON}\"")),
            _ => None,
        }
    });
    wrong.collect()
}
