//! The documentation lists all metrics of the program. `UPDATE=1 cargo test --test readme` rewrites the table.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use dedupd::metrics::table::regenerated;

#[test]
fn the_documentation_lists_every_metric() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md");
    let page = std::fs::read_to_string(path).unwrap();
    let wanted = regenerated(&page).expect("docs/metrics.md has the marks of the metrics table");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &wanted).unwrap();
        return;
    }
    assert!(
        page == wanted,
        "the table in docs/metrics.md is outdated: run UPDATE=1 cargo test --test readme"
    );
}
