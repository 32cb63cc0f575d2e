//! What the README says of metrics is what the program has. `UPDATE=1 cargo test --test readme` rewrites it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use dedupd::metrics::table::regenerated;

#[test]
fn the_readme_lists_every_metric_as_it_is() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
    let readme = std::fs::read_to_string(path).unwrap();
    let wanted = regenerated(&readme).expect("the README has the marks of the metrics table");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &wanted).unwrap();
        return;
    }
    assert!(readme == wanted, "the README's metrics table is old: run UPDATE=1 cargo test --test readme");
}
