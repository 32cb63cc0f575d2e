//! No message contains Rust debug text: it is not the language of an operator, and changes with the code.

use crate::source::{Source, Token};

/// Texts in quotes, a character, and numbers as TOML: the files, and how the message has them.
const QUOTED: &[(&str, &[&str])] = &[
    ("crates/audit/src/id.rs", &["{text:?}"]),
    ("src/config/forms/kafka.rs", &["{scheme:?}", "{server:?}"]),
    ("src/config/forms/mod.rs", &["{rate:?}"]),
    ("src/config/kinds.rs", &["{earlier:?}", "{name:?}", "{same:?}"]),
    ("src/config/layers.rs", &["{n:?}"]),
    ("src/config/problem.rs", &["{value:?}"]),
    ("src/config/topic_name.rs", &["{c:?}"]),
    ("src/dedupe/identity/fingerprint.rs", &["{0:?}"]),
    ("src/dedupe/identity/why.rs", &["{first:?}", "{name:?}"]),
    ("src/pipeline/journal/restoring.rs", &["{kind:?}"]),
    ("src/pipeline/journal/rules.rs", &["{name:?}"]),
    ("src/store/binding.rs", &["{kind:?}", "{ours:?}", "{text:?}", "{theirs:?}"]),
    ("src/store/open.rs", &["{name:?}"]),
    // The first bytes of a file.
    ("src/dedupe/format/block.rs", &["{0:02x?}"]),
    ("src/dedupe/format/slice/mod.rs", &["{0:02x?}"]),
    // Assertions of developers.
    ("src/dedupe/window/hostile.rs", &["{verdict:?}"]),
    ("src/pipeline/journal/mod.rs", &["{change:?}"]),
    // What the log prints without quotes.
    ("src/app/log.rs", &["{value:?}"]),
    // Implementations of `Debug`.
    ("crates/audit/src/schemas/mod.rs", &["{framing:?}", "{key:?}", "{value:?}"]),
    ("src/dedupe/identity/mod.rs", &["{:?}"]),
];

/// A field of the log with `?`, or a placeholder with `:?`.
fn debug_texts(path: &str, text: &str) -> Vec<String> {
    let is_quoted = |used: &str| QUOTED.iter().any(|(of, texts)| *of == path && texts.contains(&used));
    let tokens = Source::of(text).tokens;
    let fields = tokens.windows(3).filter(|three| {
        let is_argument = ["(", ",", "="].iter().any(|before| three[0].is(before));
        is_argument && three[1].is("?") && three[2].is_word()
    });
    let fields = fields.map(|three| (three[1].line, format!("?{}", three[2].text)));
    let literals = tokens.iter().filter(|token| token.literal);
    let texts = literals.flat_map(placeholders).filter(|(_, used)| !is_quoted(used));
    fields.chain(texts).map(|(line, used)| format!("{path}:{line}: `{used}` is Rust debug text")).collect()
}

/// The placeholders of a literal that print debug text, with its line.
fn placeholders(literal: &Token) -> Vec<(usize, String)> {
    let parts = literal.text.split('{').skip(1).filter_map(|part| part.split_once('}'));
    let debug = parts.filter(|(inside, _)| inside.contains(':') && inside.ends_with('?'));
    debug.map(|(inside, _)| (literal.line, format!("{{{inside}}}"))).collect()
}

#[test]
fn no_message_contains_rust_debug_text() {
    let is_product =
        |path: &str| path.starts_with("src/") || path.starts_with("crates/") && path.contains("/src/");
    let is_test = |path: &str| path.contains("/tests/") || path.ends_with("/tests.rs");
    let sources = super::rust_files().filter(|(path, _)| is_product(path) && !is_test(path));
    super::assert_none(sources.flat_map(|(path, text)| debug_texts(&path, &text)));
}

#[test]
fn debug_text_is_detected_in_fields_and_placeholders() {
    let found = |text: &str| debug_texts("src/a.rs", text).len();
    assert_eq!(found("fn f() { warn!(?took, \"slow\") }"), 1);
    assert_eq!(found("fn f() { warn!(id, took = ?took, \"slow\") }"), 1);
    assert_eq!(found("fn f() { format!(\"{took:?} and {:#?}, {0:?}\", 1) }"), 3);
    assert_eq!(found("fn f<T: ?Sized>() -> R { g(a?, h()?)?; format!(\"{a} {b:>8} ?\") }"), 0);
    assert_eq!(debug_texts("src/config/kinds.rs", "fn f() { format!(\"{same:?} {other:?}\") }").len(), 1);
}
