//! How large the code and the documents may be. What grows needs a larger number here, with its reason in a comment beside it; what
//! shrinks lowers the number.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::source::Source;

/// Lines of code of a folder: lines with code, without inline tests and files of tests.
const CODE: &[(&str, usize)] = &[
    ("src", 360),
    // Whether records are decided with schemas.
    // A process waits for a live one of its name. Limits and rules that tools compare.
    ("src/app", 2_225),
    // `dedupd try`, `dedupd forget`.
    // The frame and the files of schemas for `plan --raw`.
    ("src/cli", 761),
    // `identity.compare`, `insight.by`, parts of ids.
    // Lists of parts as a shape of their own; a policy for conflicts where only parts of the id are compared.
    // A name of several topics, and a word for a number, have messages of their own.
    ("src/config", 2_539),
    // Contents are compared (0060): a digest in every stored form of an owner. Alternatives, spellings and type names as sources of ids.
    // The frames of Confluent, AWS Glue, Apicurio and Avro before a document, headers instead, and fingerprints of Avro.
    // Signs of alternatives and modifiers in another place are refused.
    // Blanks and names of records have reasons of their own.
    ("src/dedupe", 6_460),
    // The block of duplicates on the status page, with a chart of their ages. The page of `rekey`.
    ("src/http", 1_020),
    // A sample compares copies with the first record of their id, and measures their ages; one record is read for `dedupd explain`, which says why
    // there is none. Whether clean has committed records.
    // Ids that differ only by their spelling. `rekey` creates its target.
    // The command that creates a missing topic; that a tool connects.
    ("src/kafka", 7_600),
    // What that block shows: single duplicates, sources of several workers, needed windows. The usual metrics of a process.
    ("src/metrics", 1_300),
    // The outcome of a conflict, its warning, and ages of duplicates (0060); the last ones, and sketches of their sources. A worker that fails aborts
    // its transaction. Causes that are not known are not claimed; records of others in a journal, and a spare that cannot read it, are reported.
    // The directory is measured by what was written, too.
    ("src/pipeline", 10_895),
    ("src/ports", 575),
    // Directories of schemas, and the own API of Apicurio.
    // Several requests at the same time.
    ("src/schemas", 970),
    // Each owner has a checksum of its own.
    ("src/store", 4_074),
    // `dedupd try`, instead of a script; `dedupd forget`; `dedupd explain`, which refuses the state of another group, and the recommended
    // window of `plan`. `dedupd state filter`. What `rekey` is.
    // A trial that was not killed twice fails.
    // Ids are looked up by the rule of the state only; a quiet topic is sized by what was read.
    // A trial goes on after a restart of its broker; an id that is too large for a request, and ids as the log has them.
    ("src/tools", 4_981),
    // What was dropped is compared with what was forwarded, and shown; what clean holds without a need is not counted as dropped.
    // Its own reading of alternatives and spellings, frames, fingerprints and directories of schemas. What a deleted record explains.
    // Offsets are asked for again while brokers restart.
    ("crates/audit", 6_309),
    // The removal of what a trial has made.
    ("crates/testkit", 920),
    ("crates/tokens", 240),
];

/// Words of the documents of a folder, or of one document.
const PROSE: &[(&str, usize)] = &[
    // `identity.compare`, `dedupd explain`, `insight.by`, the ages of `plan`, and the dropped records in the audit with what
    // is not known of them.
    // Alternatives and words of `identity.from`.
    // `dedupd try`; the table of frames; when to take another tool; exit codes, which the README had; what `--allow-gone` explains,
    // documents that end early, records of others in state; the portable filter; metrics and target of `rekey`.
    // The cookbook: eight recipes, which tests run.
    ("docs", 27_235),
    // A page for each alert, with what operations.md had about it. A spare that cannot read the state topic. Two of `rekey`.
    ("docs/alerts", 1_830),
    ("docs/decisions", 10_920),
    // A row of the map for varints. Outcomes and side topics in the way of a record, what forces a restore.
    ("ARCHITECTURE.md", 1_715),
    // A failed worker aborts its transaction; parts of ids; `dedupd try`, `forget`, `state filter`, pages of alerts; `rekey` in the chart.
    ("CHANGELOG.md", 1_110),
    ("CONTRIBUTING.md", 1_450),
    ("README.md", 1_360),
    ("SECURITY.md", 500),
];

/// By how much a number of the table may exceed what is there.
const SLACK: usize = 50;

/// The entry of the table for a file, and its size, in lines of code or words.
fn measured(path: &str, text: &str) -> Option<(String, usize)> {
    if let Some(document) = path.strip_suffix(".md") {
        let of = match document.rsplit_once('/') {
            Some((folder, _)) if folder.starts_with("docs") => folder,
            _ => path,
        };
        return Some((of.to_owned(), text.split_whitespace().count()));
    }
    let is_tests = |part: &str| matches!(part, "tests" | "tests.rs" | "benches");
    if Path::new(path).extension() != Some("rs".as_ref()) || path.split('/').any(is_tests) {
        return None;
    }
    let lines: BTreeSet<usize> = Source::of(text).tokens.iter().map(|token| token.line).collect();
    let parts: Vec<&str> = path.split('/').collect();
    let of = if parts.len() > 2 { parts[..2].join("/") } else { "src".to_owned() };
    Some((of, lines.len()))
}

/// Where the files differ from the table.
pub fn exceeded(files: &[(String, String)], tables: &[&[(&str, usize)]]) -> Vec<String> {
    let mut sizes: BTreeMap<String, usize> = BTreeMap::new();
    for (of, size) in files.iter().filter_map(|(path, text)| measured(path, text)) {
        *sizes.entry(of).or_default() += size;
    }
    let limits: BTreeMap<&str, usize> = tables.iter().flat_map(|table| table.iter().copied()).collect();
    let unlisted = sizes.keys().filter(|of| !limits.contains_key(of.as_str()));
    let mut wrong: Vec<String> = unlisted.map(|of| format!("{of} has no entry: {}", sizes[of])).collect();
    wrong.extend(limits.iter().filter_map(|(of, most)| {
        let size = sizes.get(*of).copied().unwrap_or(0);
        if size > *most {
            Some(format!(
                "{of}: {size}, more than {most}: make it smaller, or change the table and give the reason"
            ))
        } else {
            (most - size > SLACK)
                .then(|| format!("{of}: {size}, far less than {most}: lower the number of the table"))
        }
    }));
    wrong
}

/// The tables for this repository.
pub const TABLES: [&[(&str, usize)]; 2] = [CODE, PROSE];

#[test]
fn a_file_that_grows_and_a_number_that_is_too_large_are_found() {
    let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let files = [
        file(
            "src/a/b.rs",
            "// one\nlet x = 1;\n\nlet y = 2; // two\n#[cfg(test)]\nmod tests { fn f() {} }\n",
        ),
        file("src/a/tests.rs", "fn f() {}"),
        file("docs/a.md", "three short words"),
    ];
    let wrong = |code, words| exceeded(&files, &[&[("src/a", code)], &[("docs", words)]]).len();
    assert_eq!([wrong(2, 3), wrong(1, 3), wrong(2, 2), wrong(53, 3), wrong(52, 53)], [0, 1, 1, 1, 0]);
    assert_eq!(exceeded(&files, &[&[("src/a", 2)]]), ["docs has no entry: 3"]);
}
