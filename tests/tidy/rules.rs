//! The rules. Each takes a path from the root of the repository and a text, and returns the violations.

use std::collections::BTreeSet;

use crate::allowed::{LAYERS, MAY_USE, USED_IN};
use crate::source::{Source, Token};

/// The external crates that `dedupe` may use. They do no I/O.
const PURE_CRATES: &str = "crc32c memchr miniz_oxide serde serde_json siphasher thiserror xorf xxhash_rust";
const IMPURE_STD: &[&str] = &["env", "fs", "io", "net", "process", "thread"];

const LINES_MAX: usize = 400;
const VAGUE_NAMES: &str =
    "manager handler processor coordinator helper util utility common type wrapper data info misc new2";
/// Macros for unfinished code, and the attribute that skips a test.
const UNFINISHED: &[&[&str]] =
    &[&["todo", "!"], &["unimplemented", "!"], &["dbg", "!"], &["#", "[", "ignore"]];
/// Directories that exist on one machine only. They are split, because this file is checked too.
const MACHINE_PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/")];

/// `src/kafka/consumer.rs` → `["kafka", "consumer"]`, `None` for files outside of `src` and for test modules.
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

/// The modules that this one may use, and how many of its segments name the part that it belongs to: `tools::plan` for
/// everything in `src/tools/plan`. The longest entry that matches counts. `dedupe` and `tools` consist of such parts.
fn allowed(module: &[&str]) -> Option<(&'static [&'static str], usize)> {
    let part = if ["dedupe", "tools"].contains(&module[0]) { module.len().min(2) } else { 1 };
    let segments = |name: &'static str| name.split("::").collect::<Vec<_>>();
    let matches = |name: &Vec<&str>| {
        name.len() >= part
            && name.len() <= module.len()
            && name.iter().zip(module).all(|(a, b)| *a == "*" || a == b)
    };
    let entries = MAY_USE.iter().filter(|(name, _)| matches(&segments(name)));
    Some((entries.max_by_key(|(name, _)| segments(name).len())?.1, part))
}

/// Modules use only the modules that they may use.
pub fn boundaries(path: &str, text: &str) -> Vec<String> {
    let Some(module) = module_of(path) else { return Vec::new() };
    let Some((allowed, part)) = allowed(&module) else {
        return vec![format!(
            "{path}: `{}` is not in the table of tests/tidy/allowed.rs: add the modules that it may use",
            module.join("::")
        )];
    };
    let own = |target: &[String]| {
        target.is_empty() || target.len() >= part && module[..part].iter().zip(target).all(|(a, b)| a == b)
    };
    let may = |target: &[String]| {
        let named = target.join("::");
        allowed
            .iter()
            .any(|entry| *entry == "*" || named == *entry || named.starts_with(&format!("{entry}::")))
    };
    let paths = Source::of(text).paths(&["crate", "dedupd", "super"]);
    let targets = paths.into_iter().map(|(line, path)| (line, from_root(&module, path)));
    let wrong = targets.filter(|(_, target)| !own(target) && !may(target));
    wrong
        .map(|(line, target)| {
            format!("{path}:{line}: `{}` may not use `{}`", module[..part].join("::"), target.join("::"))
        })
        .collect()
}

/// A folder of `src/pipeline` uses no later one.
pub fn layers(path: &str, text: &str) -> Vec<String> {
    let layer = |path: &[&str]| {
        let folder = path.strip_prefix(&["pipeline"])?.first()?;
        LAYERS.iter().position(|layer| layer == folder)
    };
    let Some((module, own)) = module_of(path).and_then(|module| Some((layer(&module)?, module))) else {
        return Vec::new();
    };
    let paths = Source::of(text).paths(&["crate", "dedupd", "super"]);
    let targets = paths.into_iter().map(|(line, path)| (line, from_root(&own, path)));
    let wrong = targets.filter(|(_, target)| {
        layer(&target.iter().map(String::as_str).collect::<Vec<_>>()).is_some_and(|used| used > module)
    });
    wrong
        .map(|(line, target)| format!("{path}:{line}: `{}` is above `{}`", target.join("::"), own.join("::")))
        .collect()
}

/// A path from the crate root.
fn from_root(module: &[&str], path: Vec<String>) -> Vec<String> {
    let ups = path.iter().take_while(|segment| *segment == "super").count();
    let kept = if ups == 0 { 0 } else { module.len().saturating_sub(ups) };
    let rest = path.into_iter().skip(ups.max(1)).filter(|segment| segment != "self");
    module[..kept].iter().map(ToString::to_string).chain(rest).collect()
}

/// The table under "Map of the code" in ARCHITECTURE.md has one row for each module of `src/` with a rule, and the row names
/// exactly the modules of the rule. Returns the differences.
pub fn map_of_the_code(architecture: &str) -> Vec<String> {
    let section = architecture.split("\n## ").find(|section| section.starts_with("Map of the code"));
    let mut missing: BTreeSet<&str> = MAY_USE.iter().map(|(module, _)| *module).collect();
    let mut wrong = Vec::new();
    for (path, named) in section.unwrap_or_default().lines().filter_map(row_of_the_map) {
        let module = path.trim_end_matches('/').trim_end_matches(".rs").replace('/', "::");
        let rule = MAY_USE.iter().find(|(of, _)| *of == module);
        let Some((module, allowed)) = rule.filter(|(of, _)| missing.remove(of)) else {
            wrong.push(format!("ARCHITECTURE.md: `{path}` has no rule in tests/tidy/rules.rs, or two rows"));
            continue;
        };
        if named != allowed.iter().copied().collect() {
            wrong.push(format!("ARCHITECTURE.md: `{module}` may use {allowed:?}, and its row has {named:?}"));
        }
    }
    wrong.extend(missing.into_iter().map(|module| format!("ARCHITECTURE.md: `{module}` has no row")));
    wrong
}

/// The path in the first cell of a row and the names in its last cell; `None` for other lines, and for a crate, whose
/// dependencies are in its manifest.
fn row_of_the_map(line: &str) -> Option<(&str, BTreeSet<&str>)> {
    let cells: Vec<&str> = line.strip_prefix("| `")?.trim_end_matches(" |").split(" | ").collect();
    let path = cells.first()?.trim_end_matches('`');
    let named = match cells.last()?.trim() {
        "everything" => BTreeSet::from(["*"]),
        cell => cell.split('`').skip(1).step_by(2).collect(),
    };
    (!path.starts_with("crates/")).then_some((path, named))
}

/// External crates are used only in their folders.
pub fn external_crates(path: &str, text: &str) -> Vec<String> {
    let Some(module) = module_of(path) else { return Vec::new() };
    let place = module.join("/");
    let inside = |home: &&str| place == *home || place.starts_with(&format!("{home}/"));
    let source = Source::of(text);
    let mut wrong = Vec::new();
    for (name, homes) in USED_IN.iter().filter(|(_, homes)| !homes.iter().any(inside)) {
        let lines = crate_uses(&source.tokens, name);
        wrong.extend(
            lines.map(|line| {
                format!("{path}:{line}: `{name}` may be used only in src/{{{}}}", homes.join(", "))
            }),
        );
    }
    wrong
}

/// The lines that use `name` as a crate: at the start of a path, or alone after `use`.
fn crate_uses<'a>(tokens: &'a [Token], name: &'a str) -> impl Iterator<Item = usize> + 'a {
    tokens.iter().enumerate().filter_map(move |(at, token)| {
        let before = |back: usize| at.checked_sub(back).map(|place| &tokens[place]);
        let continued = before(1).is_some_and(|last| last.is("::")) && before(2).is_some_and(Token::is_word)
            || before(1).is_some_and(|last| last.is("."));
        let path = tokens.get(at + 1).is_some_and(|next| next.is("::"));
        let used = before(1).is_some_and(|last| last.is("use") || last.is("crate"));
        (token.is(name) && !continued && (path || used)).then_some(token.line)
    })
}

/// The audit uses no other package of the workspace, in its tests neither. `packages` are the names of all.
pub fn independence(path: &str, text: &str, packages: &BTreeSet<String>) -> Vec<String> {
    let own = "dedupd-audit";
    let Some(inside) = path.strip_prefix("crates/audit/") else { return Vec::new() };
    let others = packages.iter().filter(|name| *name != own);
    let lines: Vec<(usize, String)> = if inside == "Cargo.toml" {
        let names = |line: &str, other: &str| {
            line.strip_prefix(other).is_some_and(|rest| rest.starts_with([' ', '.', '=']))
                || line.contains("path")
        };
        let numbered = text.lines().enumerate();
        let wrong = numbered.filter(|(_, line)| others.clone().any(|other| names(line, other)));
        wrong.map(|(at, line)| (at + 1, line.to_owned())).collect()
    } else {
        let tokens = Source::with_tests(text);
        let crates = others.map(|name| name.replace('-', "_"));
        crates
            .flat_map(|name| crate_uses(&tokens, &name).map(|line| (line, name.clone())).collect::<Vec<_>>())
            .collect()
    };
    lines.into_iter().map(|(line, what)| format!("{path}:{line}: the audit may not use `{what}`")).collect()
}

/// A hint about memory, without effect on results.
const MEMORY_HINT: (&str, &str) = ("src/dedupe/window/huge_pages.rs", "libc");

/// `src/dedupe` does no I/O, starts no threads, and uses only crates for hashing and parsing.
/// `dependencies` are the names in Cargo.toml.
pub fn purity(path: &str, text: &str, dependencies: &BTreeSet<String>) -> Vec<String> {
    if module_of(path).is_none_or(|module| module[0] != "dedupe") {
        return Vec::new();
    }
    let source = Source::of(text);
    let is_hint = |name: &&String| (path, name.as_str()) == MEMORY_HINT;
    let crates =
        dependencies.iter().filter(|name| !PURE_CRATES.split(' ').any(|it| it == *name) && !is_hint(name));
    let foreign =
        crates.flat_map(|name| crate_uses(&source.tokens, name).map(move |line| (line, name.clone())));
    let paths = source.paths(&["std"]).into_iter();
    let impure =
        paths.filter(|(_, path)| path.get(1).is_some_and(|part| IMPURE_STD.contains(&part.as_str())));
    let all = foreign.chain(impure.map(|(line, path)| (line, path.join("::"))));
    all.map(|(line, name)| format!("{path}:{line}: src/dedupe does no I/O and may not use `{name}`"))
        .collect()
}

/// Files have a maximum size. Inline tests do not count.
pub fn size(path: &str, text: &str) -> Option<String> {
    let lines = Source::of(text).lines;
    (lines > LINES_MAX).then(|| {
        format!("{path}: {lines} lines without its tests, more than {LINES_MAX}: split it by concept")
    })
}

/// File names contain no vague words.
pub fn file_name(path: &str) -> Option<String> {
    let words = path.split(['/', '_', '-', '.']).map(|word| word.strip_suffix('s').unwrap_or(word));
    let vague = words.into_iter().find(|word| VAGUE_NAMES.split(' ').any(|vague| vague == *word))?;
    Some(format!("{path}: `{vague}` is vague: name the file for its content"))
}

/// No code is unfinished and no test is ignored. This includes test code.
pub fn unfinished(path: &str, text: &str) -> Vec<String> {
    let tokens = Source::with_tests(text);
    let found = UNFINISHED.iter().flat_map(|pattern| {
        let hits = tokens
            .windows(pattern.len())
            .filter(|part| part.iter().zip(*pattern).all(|(token, text)| token.is(text)));
        hits.map(|part| format!("{path}:{}: `{}` is not allowed", part[0].line, pattern.concat()))
    });
    found.collect()
}

/// The metric names in string literals of a source text.
pub fn metric_literals(text: &str) -> BTreeSet<String> {
    let literals = Source::of(text).tokens.into_iter().filter(|token| token.literal);
    literals.map(|token| token.text).filter(|text| text.starts_with("dedupd_")).collect()
}

/// Every metric in a dashboard, an alert or a page of documentation exists.
pub fn unknown_metrics(path: &str, text: &str, known: &BTreeSet<String>) -> Vec<String> {
    let words = text.split(|sign: char| !sign.is_ascii_alphanumeric() && sign != '_');
    let used: BTreeSet<&str> = words.filter(|word| word.starts_with("dedupd_")).collect();
    let series_of = |word: &str| {
        let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| word.strip_suffix(suffix));
        known.contains(word) || histogram.is_some_and(|name| known.contains(name))
    };
    let unknown = used.into_iter().filter(|word| !series_of(word));
    unknown.map(|word| format!("{path}: no metric `{word}` in src/metrics")).collect()
}

/// No file contains a path that exists only on one machine.
pub fn machine_paths(path: &str, text: &str) -> Vec<String> {
    let lines = text.lines().enumerate();
    let wrong = lines.filter(|(_, line)| MACHINE_PATHS.iter().any(|place| line.contains(place)));
    wrong
        .map(|(at, line)| format!("{path}:{}: contains a directory of one machine: {}", at + 1, line.trim()))
        .collect()
}
