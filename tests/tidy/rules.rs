//! The rules. Each takes a path from the top of the repository and a text, and returns what is wrong.

use std::collections::BTreeSet;

use crate::source::{Source, Token};

/// Who may name whom: a part of `src/` and what of ours it may use; `*` is everything.
/// `a::B` allows that item only. A part that is not listed fails.
const MAY_NAME: &[(&str, &[&str])] = &[
    ("lib", &[]),
    ("main", &["app", "cli"]),
    ("app", &["*"]),
    ("demo", &["*"]),
    ("cli", &["config", "app", "audit", "generate", "demo"]),
    ("plan", &["dedupe"]),
    ("config", &["dedupe"]),
    ("clock", &[]),
    ("control", &["dedupe", "clock"]),
    ("ports", &["dedupe"]),
    ("dedupe", &[]),
    ("store", &["dedupe", "ports", "clock"]),
    ("kafka", &["dedupe", "ports", "config", "clock"]),
    ("pipeline", &["dedupe", "ports", "clock", "metrics", "config", "control"]),
    ("state", &["dedupe", "ports", "store", "pipeline"]),
    ("metrics", &[]),
    ("http", &["metrics", "control", "clock"]),
    ("audit", READS_RECORDS),
    ("generate", READS_RECORDS),
];
const READS_RECORDS: &[&str] = &[
    "clock",
    "config",
    // Why a client has no connection: in one set of words.
    "kafka::connection",
    "kafka::headers_of",
    "dedupe::coordinates",
    "dedupe::Coordinates",
    "dedupe::Offset",
    "dedupe::PartitionId",
];

/// Outside crates that stay in their folder (or file), so that each can be replaced by replacing that.
const STAYS_IN: &[(&str, &[&str])] = &[
    ("sled", &["store"]),
    ("rdkafka", &["kafka", "audit", "generate", "demo"]),
    ("rdkafka_sys", &["kafka", "audit", "generate", "demo"]),
    ("clap", &["cli", "main"]),
    ("prometheus", &["metrics"]),
    ("tokio", &["app", "http", "demo", "kafka/admin"]),
    ("axum", &["http"]),
    ("figment", &["config"]),
];

/// What `dedupe` may use from outside: values in, values out.
const PURE_CRATES: &[&str] = &["crc32c", "serde", "serde_json", "siphasher", "thiserror", "xxhash_rust"];
const IMPURE_STD: &[&str] = &["env", "fs", "io", "net", "process", "thread"];

const LINES_MAX: usize = 400;
const EMPTY_NAMES: &[&str] = &[
    "manager",
    "handler",
    "processor",
    "coordinator",
    "helper",
    "util",
    "utility",
    "common",
    "type",
    "wrapper",
    "data",
    "info",
    "misc",
    "new2",
];
/// Macros that leave a hole, and the attribute that hides one.
const HOLES: &[&[&str]] = &[&["todo", "!"], &["unimplemented", "!"], &["dbg", "!"], &["#", "[", "ignore"]];
/// Directories of the machines this was written on. In pieces, or this file would break its own rule.
const MACHINE_PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/")];

/// `src/kafka/consumer.rs` → `["kafka", "consumer"]`; nothing for files outside `src` and for test modules.
fn module_of(path: &str) -> Option<Vec<&str>> {
    let inside = path.strip_prefix("src/")?.strip_suffix(".rs")?;
    let mut parts: Vec<&str> = inside.split('/').collect();
    if parts.contains(&"tests") {
        return None;
    }
    if parts.len() > 1 && parts.last() == Some(&"mod") {
        parts.pop();
    }
    Some(parts)
}

/// Parts of the product name only the parts they may.
pub fn boundaries(path: &str, text: &str) -> Vec<String> {
    let Some(module) = module_of(path) else { return Vec::new() };
    let Some((_, allowed)) = MAY_NAME.iter().find(|(part, _)| *part == module[0]) else {
        return vec![format!(
            "{path}: `{}` is not in the table of tests/tidy/rules.rs; say there whom it may name",
            module[0]
        )];
    };
    let own = |target: &[String]| target.is_empty() || target[0] == module[0];
    let may = |target: &[String]| {
        let named = target.join("::");
        allowed
            .iter()
            .any(|entry| *entry == "*" || named == *entry || named.starts_with(&format!("{entry}::")))
    };
    let paths = Source::of(text).paths(&["crate", "dedupd", "super"]);
    let targets = paths.into_iter().filter_map(|(line, path)| Some((line, from_the_top(&module, path)?)));
    let wrong = targets.filter(|(_, target)| !own(target) && !may(target));
    wrong
        .map(|(line, target)| format!("{path}:{line}: `{}` may not name `{}`", module[0], target.join("::")))
        .collect()
}

/// A path as seen from the top of the crate; nothing when it stays inside its own part.
fn from_the_top(module: &[&str], path: Vec<String>) -> Option<Vec<String>> {
    let ups = path.iter().take_while(|segment| *segment == "super").count();
    let rest = path.into_iter().skip(ups.max(1)).filter(|segment| segment != "self").collect();
    (ups == 0 || ups >= module.len()).then_some(rest)
}

/// Outside crates are named only where they belong.
pub fn outside_crates(path: &str, text: &str) -> Vec<String> {
    let Some(module) = module_of(path) else { return Vec::new() };
    let place = module.join("/");
    let inside = |home: &&str| place == *home || place.starts_with(&format!("{home}/"));
    let source = Source::of(text);
    let mut wrong = Vec::new();
    for (name, homes) in STAYS_IN.iter().filter(|(_, homes)| !homes.iter().any(inside)) {
        let lines = named_crates(&source.tokens, name);
        wrong.extend(
            lines.map(|line| format!("{path}:{line}: `{name}` belongs into src/{{{}}}", homes.join(", "))),
        );
    }
    wrong
}

/// The lines where `name` is named as a crate: at the start of a path, or alone after `use`.
fn named_crates<'a>(tokens: &'a [Token], name: &'a str) -> impl Iterator<Item = usize> + 'a {
    tokens.iter().enumerate().filter_map(move |(at, token)| {
        let before = |back: usize| at.checked_sub(back).map(|place| &tokens[place]);
        let continued = before(1).is_some_and(|last| last.is("::")) && before(2).is_some_and(Token::is_word)
            || before(1).is_some_and(|last| last.is("."));
        let path = tokens.get(at + 1).is_some_and(|next| next.is("::"));
        let used = before(1).is_some_and(|last| last.is("use") || last.is("crate"));
        (token.is(name) && !continued && (path || used)).then_some(token.line)
    })
}

/// `src/dedupe` has no input, no output, no threads, and no crates but for hashing and parsing.
/// `dependencies` are the names in Cargo.toml.
pub fn purity(path: &str, text: &str, dependencies: &BTreeSet<String>) -> Vec<String> {
    if module_of(path).is_none_or(|module| module[0] != "dedupe") {
        return Vec::new();
    }
    let source = Source::of(text);
    let crates = dependencies.iter().filter(|name| !PURE_CRATES.contains(&name.as_str()));
    let foreign =
        crates.flat_map(|name| named_crates(&source.tokens, name).map(move |line| (line, name.clone())));
    let paths = source.paths(&["std"]).into_iter();
    let impure =
        paths.filter(|(_, path)| path.get(1).is_some_and(|part| IMPURE_STD.contains(&part.as_str())));
    let all = foreign.chain(impure.map(|(line, path)| (line, path.join("::"))));
    all.map(|(line, name)| format!("{path}:{line}: src/dedupe is pure and may not name `{name}`")).collect()
}

/// Files stay small enough to be read at a sitting; inline tests do not count.
pub fn size(path: &str, text: &str) -> Option<String> {
    let lines = Source::of(text).lines;
    (lines > LINES_MAX)
        .then(|| format!("{path}: {lines} lines without its tests, more than {LINES_MAX}: split it by noun"))
}

/// Files are named for what they hold, not with words that fit anything.
pub fn file_name(path: &str) -> Option<String> {
    let words = path.split(['/', '_', '-', '.']).map(|word| word.strip_suffix('s').unwrap_or(word));
    let empty = words.into_iter().find(|word| EMPTY_NAMES.contains(word))?;
    Some(format!("{path}: `{empty}` says nothing; name it for what it holds"))
}

/// Nothing is left undone or skipped, test code included.
pub fn holes(path: &str, text: &str) -> Vec<String> {
    let tokens = Source::with_tests(text);
    let found = HOLES.iter().flat_map(|hole| {
        let hits = tokens
            .windows(hole.len())
            .filter(|part| part.iter().zip(*hole).all(|(token, text)| token.is(text)));
        hits.map(|part| format!("{path}:{}: `{}` has no place here", part[0].line, hole.concat()))
    });
    found.collect()
}

/// The names of metrics that stand as string literals in a source text.
pub fn metric_literals(text: &str) -> BTreeSet<String> {
    let literals = Source::of(text).tokens.into_iter().filter(|token| token.literal);
    literals.map(|token| token.text).filter(|text| text.starts_with("dedupd_")).collect()
}

/// Each metric that a dashboard, an alert or a page of documentation asks for exists.
pub fn unknown_metrics(path: &str, text: &str, known: &BTreeSet<String>) -> Vec<String> {
    let words = text.split(|sign: char| !sign.is_ascii_alphanumeric() && sign != '_');
    let asked: BTreeSet<&str> = words.filter(|word| word.starts_with("dedupd_")).collect();
    let series_of = |word: &str| {
        let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| word.strip_suffix(suffix));
        known.contains(word) || histogram.is_some_and(|name| known.contains(name))
    };
    let unknown = asked.into_iter().filter(|word| !series_of(word));
    unknown.map(|word| format!("{path}: there is no metric `{word}` in src/metrics")).collect()
}

/// No file names a place that exists only on one machine.
pub fn machine_paths(path: &str, text: &str) -> Vec<String> {
    let lines = text.lines().enumerate();
    let wrong = lines.filter(|(_, line)| MACHINE_PATHS.iter().any(|place| line.contains(place)));
    wrong
        .map(|(at, line)| format!("{path}:{}: names a directory of one machine: {}", at + 1, line.trim()))
        .collect()
}
