//! Methods that a folder of the pipeline adds to what all folders share.

use std::collections::BTreeMap;

use crate::allowed::LAYERS;
use crate::source::{Source, Token, item_end};

/// The types to which several folders add methods, and the names of their values.
const SHARED: [&str; 2] = ["Access", "Context"];
const VALUES: [&str; 3] = ["self", "access", "ctx"];

/// A folder calls no method that a later one adds. A name that an earlier folder has too is not judged.
pub fn later(files: &[(String, String)]) -> Vec<String> {
    let sources: Vec<(usize, &str, Source)> = files
        .iter()
        .filter_map(|(path, text)| Some((layer(path)?, path.as_str(), Source::of(text))))
        .collect();
    let mut first: BTreeMap<&str, usize> = BTreeMap::new();
    for (layer, _, source) in &sources {
        for name in names(&source.tokens) {
            let known = first.entry(name).or_insert(*layer);
            *known = (*known).min(*layer);
        }
    }
    let added: BTreeMap<&str, usize> = sources
        .iter()
        .flat_map(|(layer, _, source)| added(&source.tokens).into_iter().map(|name| (name, *layer)))
        .filter(|(name, layer)| first.get(name) == Some(layer))
        .collect();
    let calls = sources.iter().flat_map(|(layer, path, source)| {
        let later = |token: &&Token| added.get(token.text.as_str()).is_some_and(|defined| defined > layer);
        called(&source.tokens).into_iter().filter(later).map(move |token| (path, token))
    });
    calls
        .map(|(path, token)| format!("{path}:{}: `{}` is of a later folder", token.line, token.text))
        .collect()
}

fn layer(path: &str) -> Option<usize> {
    let folder = path.strip_prefix("src/pipeline/")?.split(['/', '.']).next()?;
    LAYERS.iter().position(|layer| *layer == folder)
}

/// The names of all functions.
fn names(tokens: &[Token]) -> impl Iterator<Item = &str> {
    tokens.windows(2).filter(|two| two[0].is("fn")).map(|two| two[1].text.as_str())
}

/// The names of the methods of shared types.
fn added(tokens: &[Token]) -> Vec<&str> {
    let mut added = Vec::new();
    let mut at = 0;
    while let Some(start) = tokens[at..].iter().position(|token| token.is("impl")).map(|found| at + found) {
        let Some(open) = tokens[start..].iter().position(|token| token.is("{")).map(|found| start + found)
        else {
            break;
        };
        let end = item_end(tokens, start);
        let head = &tokens[start..open];
        if SHARED.iter().any(|of| head.iter().any(|token| token.is(of)))
            && !head.iter().any(|it| it.is("for"))
        {
            added.extend(names(&tokens[open..end]));
        }
        at = open + 1;
    }
    added
}

/// The names that are called on a shared value.
fn called(tokens: &[Token]) -> Vec<&Token> {
    let is_call = |four: &&[Token]| {
        VALUES.iter().any(|value| four[0].is(value))
            && four[1].is(".")
            && four[2].is_word()
            && four[3].is("(")
    };
    tokens.windows(4).filter(is_call).map(|four| &four[2]).collect()
}

#[test]
fn a_call_of_a_method_of_a_later_folder_is_found() {
    let file = |path: &str, text: &str| (format!("src/pipeline/{path}"), text.to_owned());
    let found = |text: &str| {
        let later_one = "impl<W: Ports> Access<'_, W> { fn locate(&self) {} fn seek(&self) { self.locate() } } impl Other { fn go(&self) {} }";
        let earlier = "impl Journal { fn seek(&self) {} }";
        let files =
            [file("recovery/a.rs", later_one), file("journal/b.rs", earlier), file("torn/c.rs", text)];
        later(&files).len()
    };
    assert_eq!(found("fn f(access: &Access) { access.locate() }"), 1);
    assert_eq!(found("impl Access<'_, W> { fn g(&self) { self.locate() } }"), 1);
    assert_eq!(found("fn f(access: &Access) { access.seek(); access.go(); other.locate() }"), 0);
}
