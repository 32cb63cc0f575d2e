//! A state directory of release 0.1.0, which every later build must open or put aside, and never misread.
//!
//! `UPDATE=1` writes it, when a release with another format of the directory is made. The old one stays.

use std::path::{Path, PathBuf};

use super::*;

const RELEASE: &str = "0.1.0";

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(RELEASE)
}

/// The owners of two journals, of which the second one has several runs and files. Some were forgotten and undone, and others were removed at both ends.
fn fill(store: &mut SledStore) {
    for (journal, lengths) in [(0, vec![4; 40]), (2, vec![300, 2, 2, 2, 1_000, 1_000])] {
        for (number, length) in (1..).zip(lengths) {
            let next = store.next_number(journal.into()).unwrap();
            let head = Head { last_entry: entry(number), confirmed_entry: entry(number - 1), ..head(next) };
            store.put(journal.into(), &owners(journal, next..next + length, 1), &head).unwrap();
        }
    }
    store.truncate(2.into(), 2_300).unwrap();
    let head = store.head(0.into()).unwrap().unwrap();
    store.forget(0.into(), ToForget { numbers: &[35], ..ToForget::default() }, &head).unwrap();
    store.undo(0.into(), &[Coordinates { partition: 1, offset: 70 }], 0).unwrap();
    store.expire(2.into(), 325, 0).unwrap();
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

type Seen = [(BTreeMap<Sequence, StoredOwner>, Option<Head>); 2];

fn expected(build: impl FnOnce(&mut SledStore)) -> Seen {
    let dir = tempfile::tempdir().unwrap();
    let mut store = opened(dir.path()).store;
    build(&mut store);
    seen(&store)
}

fn seen(store: &SledStore) -> Seen {
    [0, 2].map(|journal| (contents(store, journal), store.head(journal.into()).unwrap()))
}

#[test]
fn the_directory_of_an_earlier_release_has_its_ids_or_is_put_aside() {
    if std::env::var_os("UPDATE").is_some() && !golden().exists() {
        let mut store = opened(&golden()).store;
        fill(&mut store);
        store.sync().unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    copy(&golden(), dir.path());
    let Opened { store, quarantined } = opened(dir.path());
    if quarantined.is_some() {
        assert_eq!(seen(&store), expected(|_| ()), "a directory that is put aside leaves an empty store");
        // 0.1 reads what 0.1.0 wrote.
        assert!(!env!("CARGO_PKG_VERSION").starts_with("0.1."), "the directory of {RELEASE} was put aside");
        return;
    }
    let expected = expected(fill);
    assert!(expected.iter().all(|(ids, head)| ids.len() > 100 && head.is_some()), "{expected:?}");
    assert_eq!(seen(&store), expected);
}
