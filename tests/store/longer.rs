//! A window that becomes longer uses what is stored, and knows what has expired before.

use dedupd::store::Joining;

use super::*;

/// With runs that are not joined.
fn apart(store: SledStore) -> SledStore {
    store.joining(Joining::new(Duration::from_millis(1), []))
}

#[test]
fn what_has_expired_is_noted_until_the_window_is_cleared() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = apart(opened(dir.path()).store);
    for first in (0..100).step_by(10) {
        store.put(0.into(), &owners(0, first..first + 10, 1), &head(first + 10)).unwrap();
    }
    assert_eq!(store.missing_ms(0.into()), Ok(0));
    store.expire(0.into(), 9, 0).unwrap();
    store.expire(0.into(), 35, 345).unwrap();
    store.expire(0.into(), 35, 340).unwrap();
    assert_eq!((store.missing_ms(0.into()), contents(&store, 0).len()), (Ok(345), 70));
    store.truncate(0.into(), 30).unwrap();
    store.put(0.into(), &owners(0, 30..40, 2), &head(40)).unwrap();
    store.close().unwrap();
    let mut store = reopened(dir.path());
    assert_eq!((store.missing_ms(0.into()), contents(&store, 0).len()), (Ok(345), 10));
    assert_eq!(store.missing_ms(1.into()), Ok(0), "of another window");
    store.clear(&[0.into()]).unwrap();
    store.put(0.into(), &owners(0, 0..10, 3), &head(10)).unwrap();
    assert_eq!(store.missing_ms(0.into()), Ok(0));
}
