//! `dedupd state filter`.

use std::fs;
use std::path::Path;

use super::dedupd;

/// A portable filter has what is stored exactly, from offset `from` of partition 0.
pub fn assert_filter(dir: &Path, from: u64) {
    let file = dir.with_extension("filter");
    let words = ["filter", "--file", file.to_str().unwrap()];
    let made = dedupd(dir, &words);
    assert!(made.code == 0 && made.out.contains("which are in filters only"), "{made:?}");
    let again = dedupd(dir, &words);
    assert!(again.code == 4 && again.err.contains("already exists"), "{again:?}");
    let mut stored = 0;
    for id in (from..from + 6).chain([100]).map(|number| format!("order-0-{number}")) {
        let is_stored = dedupd(dir, &["inspect", "--id", &id]).code == 0;
        let asked = dedupd(dir, &[&words[..], &["--contains", &id]].concat());
        assert_eq!((asked.code, asked.out.starts_with("yes")), (i32::from(!is_stored), is_stored), "{id}");
        stored += u32::from(is_stored);
    }
    assert!((1..7).contains(&stored), "{stored}");
    fs::remove_file(file).unwrap();
}
