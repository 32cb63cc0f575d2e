//! Rules that the compiler does not check, checked on the source tree: dependencies between modules, sizes, names, no
//! unfinished code, existing metrics in dashboards. Each rule is also tested with a sample that violates it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[path = "tidy/allowed.rs"]
mod allowed;
#[path = "tidy/budget.rs"]
mod budget;
#[path = "tidy/debug.rs"]
mod debug;
#[path = "tidy/definitions.rs"]
mod definitions;
#[path = "tidy/methods.rs"]
mod methods;
#[path = "tidy/rules.rs"]
mod rules;
#[path = "tidy/signatures.rs"]
mod signatures;
#[path = "tidy/source.rs"]
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const TOP: &str = env!("CARGO_MANIFEST_DIR");

/// All text files of the repository: path from the root, and content.
fn tree() -> Vec<(String, String)> {
    let ignored = fs::read_to_string(Path::new(TOP).join(".gitignore")).unwrap();
    let mut found = Vec::new();
    walk("", &ignored, &mut found);
    assert!(found.iter().any(|(path, _)| path == "src/lib.rs"), "the walk does not find the source");
    found.sort();
    found
}

fn walk(folder: &str, ignored: &str, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(Path::new(TOP).join(folder)).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{folder}{}", entry.file_name().to_string_lossy());
        if path == ".git" || ignored.lines().any(|pattern| ignores(pattern, &path)) {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            walk(&format!("{path}/"), ignored, found);
        } else if let Ok(text) = fs::read_to_string(entry.path()) {
            found.push((path, text)); // files that are not UTF-8 are skipped
        }
    }
}

/// The pattern forms in the `.gitignore`: `/path`, `/start*`, `*.end`, `name`.
fn ignores(pattern: &str, path: &str) -> bool {
    let pattern = pattern.trim_end_matches('/');
    match (pattern.strip_prefix('/'), pattern.strip_prefix('*')) {
        (Some(rooted), _) => rooted.strip_suffix('*').map_or(path == rooted, |start| path.starts_with(start)),
        (_, Some(end)) => path.ends_with(end),
        _ => !pattern.is_empty() && path.rsplit('/').next() == Some(pattern),
    }
}

fn rust_files() -> impl Iterator<Item = (String, String)> {
    tree().into_iter().filter(|(path, _)| Path::new(path).extension() == Some("rs".as_ref()))
}

/// The names under `[dependencies]`, as they appear in code.
fn dependencies() -> BTreeSet<String> {
    let manifest = fs::read_to_string(Path::new(TOP).join("Cargo.toml")).unwrap();
    let section = manifest.split("\n[").find(|section| section.starts_with("dependencies]")).unwrap();
    let names = section.lines().skip(1).filter_map(|line| line.split_once(" = "));
    names.map(|(name, _)| name.replace('-', "_")).collect()
}

fn assert_none(wrong: impl IntoIterator<Item = String>) {
    let wrong: Vec<String> = wrong.into_iter().collect();
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn modules_use_only_allowed_modules() {
    assert_none(rust_files().flat_map(|(path, text)| rules::boundaries(&path, &text)));
}

#[test]
fn folders_of_the_pipeline_use_no_later_one() {
    let files: Vec<_> = rust_files().collect();
    for layer in allowed::LAYERS {
        let folder = format!("src/pipeline/{layer}/");
        assert!(files.iter().any(|(path, _)| path.starts_with(&folder)), "{folder} does not exist");
    }
    assert_none(methods::later(&files));
    assert_none(files.into_iter().flat_map(|(path, text)| rules::layers(&path, &text)));
}

#[test]
fn the_map_of_the_code_names_the_allowed_modules() {
    let architecture = fs::read_to_string(Path::new(TOP).join("ARCHITECTURE.md")).unwrap();
    assert_none(rules::map_of_the_code(&architecture));
}

#[test]
fn external_crates_are_used_only_in_their_folder() {
    assert_none(rust_files().flat_map(|(path, text)| rules::external_crates(&path, &text)));
}

#[test]
fn the_audit_uses_no_other_package() {
    let tree = tree();
    let manifests = tree.iter().filter(|(path, _)| path.ends_with("Cargo.toml"));
    let name = |text: &str| {
        text.lines().find_map(|line| line.strip_prefix("name = ")).map(|it| it.trim_matches('"').to_owned())
    };
    let packages: BTreeSet<String> = manifests.filter_map(|(_, text)| name(text)).collect();
    assert!(packages.contains("dedupd") && packages.contains("dedupd-audit"), "{packages:?}");
    assert_none(tree.iter().flat_map(|(path, text)| rules::independence(path, text, &packages)));
}

#[test]
fn dedupe_uses_no_io() {
    let dependencies = dependencies();
    assert!(dependencies.contains("tracing_subscriber"), "the manifest was not parsed: {dependencies:?}");
    assert_none(rust_files().flat_map(|(path, text)| rules::purity(&path, &text, &dependencies)));
}

#[test]
fn files_have_at_most_400_lines() {
    assert_none(rust_files().filter_map(|(path, text)| rules::size(&path, &text)));
}

#[test]
fn code_and_documents_keep_within_their_budget() {
    assert_none(budget::exceeded(&tree(), &budget::TABLES));
}

#[test]
fn file_names_are_specific() {
    assert_none(tree().into_iter().filter_map(|(path, _)| rules::file_name(&path)));
}

#[test]
fn names_of_types_are_unique() {
    let sources = rust_files().filter(|(path, _)| path.starts_with("src/"));
    let all: Vec<_> = sources.flat_map(|(path, text)| definitions::defined(&path, &text)).collect();
    assert!(all.len() > 300, "only {} types were found", all.len());
    assert_none(definitions::duplicate_names(&all));
}

#[test]
fn large_types_of_the_pipeline_have_a_reason() {
    let sources: Vec<_> = rust_files().filter(|(path, _)| path.starts_with("src/pipeline/")).collect();
    let mut methods = BTreeMap::new();
    for (name, count) in sources.iter().flat_map(|(_, text)| definitions::methods(text)) {
        *methods.entry(name).or_insert(0) += count;
    }
    assert!(methods.len() > 30, "only {} types with methods were found", methods.len());
    let all: Vec<_> = sources.iter().flat_map(|(path, text)| definitions::defined(path, text)).collect();
    assert_none(definitions::large_types(&all, &methods));
}

#[test]
fn no_code_is_unfinished_and_no_test_is_ignored() {
    assert_none(rust_files().flat_map(|(path, text)| rules::unfinished(&path, &text)));
}

#[test]
fn dashboards_and_pages_use_existing_metrics() {
    let sources = rust_files().filter(|(path, _)| path.starts_with("src/metrics") && !path.contains("tests"));
    let known: BTreeSet<String> = sources.flat_map(|(_, text)| rules::metric_literals(&text)).collect();
    let uses_metrics = |path: &str| {
        path.starts_with("dashboards/")
            || path.starts_with("config/")
            || path.starts_with("docs/")
            || ["README.md", "ARCHITECTURE.md"].contains(&path)
    };
    let pages: Vec<_> = tree().into_iter().filter(|(path, _)| uses_metrics(path)).collect();
    assert!(pages.iter().any(|(_, text)| text.contains("dedupd_ready")), "the walk does not find the pages");
    assert_none(pages.into_iter().flat_map(|(path, text)| rules::unknown_metrics(&path, &text, &known)));
}

#[test]
fn no_file_contains_a_path_of_one_machine() {
    assert_none(tree().iter().flat_map(|(path, text)| rules::machine_paths(path, text)));
}

mod violations {
    use super::rules::*;
    use super::*;

    #[test]
    fn a_folder_of_the_pipeline_that_uses_a_later_one_is_detected() {
        let named = |path: &str, text: &str| layers(path, text).len();
        assert_eq!(named("src/pipeline/torn/side.rs", "use crate::pipeline::recovery::locate;"), 1);
        assert_eq!(
            named("src/pipeline/torn/side.rs", "use super::super::{worker::Worker, commit::Access};"),
            1
        );
        assert_eq!(named("src/pipeline/torn/side.rs", "use crate::pipeline::partition::Partition;"), 0);
        assert_eq!(named("src/pipeline/context.rs", "use crate::pipeline::worker::Worker;"), 0);
    }

    #[test]
    fn boundaries_detect_every_form_of_path() {
        let named = |path: &str, text: &str| boundaries(path, text).len();
        assert_eq!(named("src/dedupe/window.rs", "use crate::store::Blocks;"), 1);
        assert_eq!(
            named("src/dedupe/window.rs", "use crate::{dedupe::format, store::{Blocks, open as o}, kafka};"),
            3
        );
        assert_eq!(named("src/dedupe/window.rs", "fn f() { crate::store::open::<u8>() }"), 1);
        assert_eq!(named("src/dedupe/window.rs", "use super::super::store;"), 1);
        assert_eq!(named("src/dedupe/mod.rs", "use super::store::Blocks; pub use window::Window;"), 1);
        assert_eq!(
            named("src/dedupe/window/marks.rs", "use super::index::Index; use crate::dedupe::format;"),
            0
        );
        assert_eq!(named("src/dedupe/window/marks.rs", "use crate::dedupe::Block;"), 1, "not by its part");
        assert_eq!(named("src/dedupe/identity/mod.rs", "use crate::dedupe::format::Block;"), 1);
        assert_eq!(
            named("src/dedupe/identity/mod.rs", "use super::format; use super::coordinates::Offset;"),
            1
        );
        assert_eq!(named("src/main.rs", "use dedupd::pipeline::Worker; use dedupd::cli;"), 1);
        assert_eq!(named("src/pipeline/mod.rs", "use crate::clock::{Clock, wall_ms};"), 1);
        assert_eq!(named("src/pipeline/mod.rs", "use crate::clock::{self, Clock};"), 1);
        assert_eq!(named("src/tools/plan/command.rs", "use crate::{dedupe::Block, app::Ended, store};"), 0);
        assert_eq!(named("src/tools/plan/text.rs", "use crate::tools::{plan::Plan, state};"), 1);
        assert_eq!(named("src/tools/plan/text.rs", "use super::super::state; use super::costs;"), 1);
        assert_eq!(named("src/tools/novelty/command.rs", "use crate::tools::plan;"), 1, "another tool");
        assert_eq!(named("src/tools/novelty/mod.rs", ""), 1, "a tool that is not in the table");
        assert_eq!(named("src/novelty.rs", ""), 1, "a module that is not in the table");
        assert_eq!(named("src/app.rs", "use crate::{store, kafka};"), 0);
    }

    #[test]
    fn a_table_with_another_dependency_or_other_rows_is_detected() {
        let architecture = fs::read_to_string(Path::new(TOP).join("ARCHITECTURE.md")).unwrap();
        let row = architecture.lines().find(|line| line.starts_with("| `store/` |")).unwrap();
        let with = |other: &str| map_of_the_code(&architecture.replace(&format!("{row}\n"), other)).len();
        assert_eq!(with(&format!("{row}\n")), 0);
        assert_eq!(with("| `store/` | blocks | `dedupe` |\n"), 1, "a dependency is missing");
        assert_eq!(
            with("| `store/` | blocks | `dedupe`, `ports`, `kafka` |\n"),
            1,
            "an additional dependency"
        );
        assert_eq!(with("| `store/` | blocks | everything |\n"), 1);
        assert_eq!(with(""), 1, "a row is missing");
        assert_eq!(with(&format!("{row}\n{row}\n")), 1, "two rows");
        assert_eq!(with(&format!("{row}\n| `novelty/` | | nothing |\n")), 1, "a row without a rule");
        assert_eq!(with(&format!("{row}\n| `crates/novelty/` | | nothing |\n")), 0, "a crate");
        assert!(map_of_the_code("# A").len() > 20, "no table");
    }

    #[test]
    fn boundaries_ignore_tests_comments_and_strings() {
        let text = r##"
            // crate::store
            /* crate::store /* nested */ crate::store */
            const A: &str = "crate::store \" crate::store"; const B: &str = r#"" crate::store"#;
            fn f<'a>(quote: &'a char) -> bool { *quote == '"' || *quote == '\'' }
            pub(crate) mod x;
            #[cfg(test)]
            mod tests { use crate::store; fn g() { if true {} } }
            #[cfg(all(test, feature = "failpoints"))]
            use crate::store;
        "##;
        assert_none(boundaries("src/dedupe/window.rs", text));
        assert_none(boundaries("src/dedupe/tests.rs", "use crate::store;"));
        assert_eq!(boundaries("src/dedupe/window.rs", &format!("{text} use crate::store;")).len(), 1);
        assert_eq!(boundaries("src/dedupe/window.rs", "#[cfg(not(test))] use crate::store;").len(), 1);
    }

    #[test]
    fn external_crates_are_detected_in_paths_uses_and_attributes() {
        let named = |path: &str, text: &str| external_crates(path, text).len();
        assert_eq!(named("src/pipeline/worker/mod.rs", "use sled::Db; use sled; fn f(db: ::sled::Db) {}"), 3);
        assert_eq!(named("src/main.rs", "#[tokio::main] async fn main() {}"), 1);
        assert_eq!(named("src/kafka/consumer.rs", "use tokio::spawn;"), 1);
        assert_eq!(named("src/kafka/admin.rs", "use tokio::spawn;"), 0);
        assert_eq!(named("src/store/blocks.rs", "use sled::Db; fn f() { crate::x::axum::y() }"), 0);
        assert_eq!(named("src/config/mod.rs", "use clap::Parser; use toml::Table;"), 1);
    }

    #[test]
    fn independence_detects_code_and_manifest() {
        let packages = ["dedupd", "dedupd-audit"].map(str::to_owned).into();
        let wrong = |path: &str, text: &str| independence(path, text, &packages).len();
        let code = "use dedupd::clock; extern crate dedupd; fn f() { dedupd::app::run() } use dedupd_audit::Options;";
        assert_eq!(wrong("crates/audit/src/id.rs", code), 3);
        assert_eq!(wrong("crates/audit/src/id.rs", "#[cfg(test)] mod tests { use dedupd::dedupe; }"), 1);
        assert_eq!(wrong("crates/audit/src/id.rs", "// dedupd::dedupe\nconst A: &str = \"dedupd::\";"), 0);
        assert_eq!(wrong("tests/audit.rs", code), 0);
        let manifest = "name = \"dedupd-audit\"\n[dependencies]\nserde = \"1\"\n";
        assert_eq!(wrong("crates/audit/Cargo.toml", manifest), 0);
        assert_eq!(wrong("crates/audit/Cargo.toml", &format!("{manifest}dedupd.workspace = true\n")), 1);
        assert_eq!(wrong("crates/audit/Cargo.toml", &format!("{manifest}own = {{ path = \"../..\" }}\n")), 1);
    }

    #[test]
    fn purity_detects_crates_and_io() {
        let named = |text: &str| purity("src/dedupe/window.rs", text, &dependencies()).len();
        assert_eq!(named("use std::{fs, time::Duration}; use std::net::TcpStream;"), 2);
        assert_eq!(named("fn f() { fastrand::u64(..); tracing::info!(\"x\"); }"), 2);
        assert_eq!(named("use crc32c::crc32c; use std::collections::HashMap;"), 0);
        assert_none(purity("src/store/lock.rs", "use std::fs;", &dependencies()));
    }

    #[test]
    fn size_counts_code_without_tests() {
        let lines = |count: usize| "const A: u8 = 0;\n".repeat(count);
        assert_eq!(size("src/a.rs", &lines(401)).map(|text| text.contains("401")), Some(true));
        assert_eq!(
            size("src/a.rs", &format!("{}#[cfg(test)]\nmod tests {{\n{}}}\n", lines(400), lines(50))),
            None
        );
    }

    #[test]
    fn a_type_with_the_name_of_another_one_is_detected() {
        let text = "struct Open; mod a { pub(crate) enum Open { A } trait Close {} } #[cfg(test)] mod tests { struct Close; }";
        let found = definitions::duplicate_names(&definitions::defined("src/a.rs", text));
        assert_eq!(found, ["Open is defined 2 times: src/a.rs:1, src/a.rs:1"]);
    }

    #[test]
    fn a_large_type_without_a_reason_is_detected() {
        let fields = "f: Vec<u8>,";
        let functions = "fn m() { {} }";
        let found = |comment: &str, count, methods| {
            let text = format!(
                "{comment}\nstruct A<T> {{ {} }}\nimpl<T> A<T> {{ {} }} impl Drop for A<u8> {{ fn drop() {{}} }}",
                fields.repeat(count),
                functions.repeat(methods)
            );
            definitions::large_types(&definitions::defined("src/a.rs", &text), &definitions::methods(&text))
                .len()
        };
        assert_eq!([found("", 8, 15), found("", 9, 15), found("", 8, 16)], [0, 1, 1]);
        assert_eq!(
            [found("/// Large because it is.", 9, 1), found("/// Large because it is.", 8, 1)],
            [0, 1]
        );
    }

    #[test]
    fn file_names_are_checked_by_word() {
        for bad in
            ["src/kafka/rebalance_handler.rs", "src/utils/mod.rs", "tests/common.rs", "src/StoreTypes.rs"]
        {
            let bad = bad.replace("StoreTypes", "store-types");
            assert!(file_name(&bad).is_some(), "{bad}");
        }
        assert_eq!(file_name("src/dedupe/coordinates.rs"), None);
        assert_eq!(file_name("src/kafka/metadata.rs"), None);
    }

    #[test]
    fn unfinished_code_is_detected_in_tests_but_not_in_comments_and_strings() {
        let text = "#[cfg(test)] mod tests { #[test] #[ignore = \"slow\"] fn f() { todo!(); dbg!(1); unimplemented!() } }";
        assert_eq!(unfinished("src/a.rs", text).len(), 4);
        assert_none(unfinished("src/a.rs", "// todo!()\nconst TEXT: &str = \"dbg!(1)\"; fn ignore() {}"));
    }

    #[test]
    fn metrics_are_found_by_their_literals() {
        let known = metric_literals(
            "const A: &str = \"dedupd_records_total\"; const B: &str = \"dedupd_batch_seconds\"; // \"dedupd_x\"",
        );
        let page = "rate(dedupd_records_total[1m]) dedupd_batch_seconds_bucket{le=\"1\"} dedupd_x dedupd_records_totals";
        let wrong = unknown_metrics("dashboards/dedupd.json", page, &known);
        assert_eq!(wrong.len(), 2, "{wrong:?}");
    }

    #[test]
    fn machine_paths_are_reported_with_their_line() {
        let text = format!("a\ncd {}wt-infra\n/workspace /rooted\n", concat!("/wo", "rk/"));
        let wrong = machine_paths("scripts/x", &text);
        assert_eq!(wrong.len(), 1);
        assert!(wrong[0].starts_with("scripts/x:2:"), "{wrong:?}");
    }

    #[test]
    fn gitignore_patterns_are_applied() {
        assert!(
            ignores("/target", "target")
                && ignores("/dedupd-state*", "dedupd-state-2")
                && ignores("*.log", "a/b.log")
        );
        assert!(!ignores("/target", "src/target") && !ignores("", "src") && !ignores("/kafka", "src/kafka"));
    }
}
