//! A parameter of a function is not a tuple: a pair of values without a name of its own is two parameters.

use super::source::{Source, Token};

/// The functions with a parameter whose type is a tuple, or a reference to one. Closures may take pairs.
fn tuple_parameters(path: &str, text: &str) -> Vec<String> {
    let tokens = Source::with_tests(text);
    let functions = tokens.windows(2).enumerate().filter(|(_, pair)| pair[0].is("fn") && pair[1].is_word());
    let found = functions.flat_map(|(at, pair)| {
        let tuples = parameters(&tokens[at + 2..]).into_iter().filter(|it| is_tuple(it)).count();
        std::iter::repeat_n(format!("{path}:{}: `{}` takes a tuple", pair[1].line, pair[1].text), tuples)
    });
    found.collect()
}

/// The parameters of a function; the tokens begin behind its name.
fn parameters(tokens: &[Token]) -> Vec<&[Token]> {
    let generics = if tokens[0].is("<") { group(tokens) + 1 } else { 0 };
    split(&tokens[generics + 1..generics + group(&tokens[generics..])], ",")
}

/// Whether the type of a parameter, which follows its pattern, is a tuple.
fn is_tuple(parameter: &[Token]) -> bool {
    let Some(of_type) = split(parameter, ":").into_iter().nth(1) else { return false };
    let open = of_type.iter().position(|token| token.is("("));
    let bare = open.filter(|open| of_type[..*open].iter().all(is_of_reference)).map(|open| &of_type[open..]);
    bare.is_some_and(|bare| split(&bare[1..group(bare)], ",").len() > 1)
}

/// Whether a token before a type is of a reference to it: `&`, a lifetime or `mut`.
fn is_of_reference(token: &Token) -> bool {
    token.is("&") || token.is_word() && !["dyn", "fn", "impl"].iter().any(|word| token.is(word))
}

/// The parts between separators that are in no brackets.
fn split<'a>(tokens: &'a [Token], separator: &str) -> Vec<&'a [Token]> {
    let (mut parts, mut start, mut at) = (Vec::new(), 0, 0);
    while at < tokens.len() {
        if tokens[at].is(separator) {
            parts.push(&tokens[start..at]);
            start = at + 1;
        }
        at += group(&tokens[at..]) + 1;
    }
    parts.push(&tokens[start..]);
    parts
}

/// The index of the bracket that closes the one at the start, or 0 without one. `->` closes nothing.
fn group(tokens: &[Token]) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().filter(|(_, token)| !token.literal) {
        match token.text.as_str() {
            "(" | "[" | "{" | "<" => depth += 1,
            ">" if at > 0 && tokens[at - 1].is("-") => {}
            ")" | "]" | "}" | ">" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    tokens.len() - 1
}

#[test]
fn no_parameter_of_a_function_is_a_tuple() {
    let is_product =
        |path: &str| path.starts_with("src/") || path.starts_with("crates/") && path.contains("/src/");
    let sources = super::rust_files().filter(|(path, _)| is_product(path));
    super::assert_none(sources.flat_map(|(path, text)| tuple_parameters(&path, &text)));
}

#[test]
fn a_parameter_that_is_a_tuple_is_detected() {
    let found = |text: &str| tuple_parameters("src/a.rs", text).len();
    assert_eq!(found("fn f((a, b): (u8, u8), c: u8, d: &'a mut (u8, Vec<u8>), e: &(u8, u8)) {}"), 3);
    assert_eq!(
        found("impl A { fn f<F: Fn(u8) -> (u8, u8)>(&self, Pair { a, b: (c, d) }: Pair, e: (F, u8)) }"),
        1
    );
    assert_eq!(found("trait A { fn f(&self, (a, b): (impl Fn(u8, u8) -> u8, u8)) -> u8; }"), 1);
    assert_eq!(found("#[cfg(test)] mod tests { fn f(a: (u8, u8)) {} }"), 1);
    assert_eq!(
        found(
            "fn f(a: &[(u8, u8)], b: impl Fn((u8, u8)) -> (u8, u8), c: (), d: &(dyn Fn(u8, u8) + Send), e: fn(u8, u8)) -> (u8, u8) \
             { g(|(a, b): (u8, u8)| a + b); let c: (u8, u8) = d; } struct A { a: fn((u8, u8)), b: (u8, u8) }"
        ),
        0
    );
}
