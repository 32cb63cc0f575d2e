//! Ownership and locking of a state directory.

use super::*;

#[test]
fn a_store_of_another_or_a_recreated_topic_is_quarantined() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = opened(dir.path()).store;
    store.put(0.into(), &owners(0, 0..10, 1), &head(10)).unwrap();
    store.close().unwrap();
    let grown = Binding { partitions: 9, raw_id: Some("id-1".into()), ..binding() };
    let same = open(dir.path(), &grown, CACHE_BYTES, DEADLINE).unwrap();
    assert_eq!(same.quarantined, None, "added partitions are allowed");
    assert_eq!(contents(&same.store, 0).len(), 10);
    same.store.close().unwrap();
    let recreated = Binding { raw_id: Some("id-2".into()), ..grown.clone() };
    let fresh = open(dir.path(), &recreated, CACHE_BYTES, DEADLINE).unwrap();
    let quarantine = fresh.quarantined.unwrap();
    assert!(quarantine.reason.contains("id-1") && quarantine.reason.contains("id-2"), "{quarantine:?}");
    assert!(quarantine.path.is_dir());
    assert_eq!(contents(&fresh.store, 0).len(), 0);
    assert_eq!(fresh.store.head(0.into()).unwrap(), None);
}

#[test]
fn a_store_with_another_hash_is_an_error_and_stays_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = opened(dir.path()).store;
    store.put(0.into(), &owners(0, 0..10, 1), &head(10)).unwrap();
    store.close().unwrap();
    let keyed = Binding { hash: HashKind::SipHash { key_id: 7 }, ..binding() };
    let error = open(dir.path(), &keyed, CACHE_BYTES, DEADLINE).unwrap_err();
    assert!(matches!(error, OpenError::Hash { .. }), "{error}");
    assert!(error.to_string().contains("xxh3") && error.to_string().contains("siphash:"), "{error}");
    assert_eq!(contents(&reopened(dir.path()), 0).len(), 10);
}

#[test]
fn a_second_holder_is_rejected_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let lock = Lock::acquire(dir.path()).unwrap();
    let mut store = opened(dir.path()).store;
    let start = monotonic();
    assert!(matches!(Lock::acquire(dir.path()), Err(OpenError::Held { .. })));
    // Without our lock, sled's own lock still prevents the open. A database in use is not quarantined.
    let error = open(dir.path(), &binding(), CACHE_BYTES, DEADLINE).unwrap_err();
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(5));
    store.put(0.into(), &owners(0, 0..10, 1), &head(10)).unwrap();
    store.sync().unwrap();
    drop(lock);
}

#[test]
fn a_state_directory_that_is_a_file_is_reported_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    fs::write(&path, "").unwrap();
    let error = open(&path, &binding(), CACHE_BYTES, DEADLINE).unwrap_err();
    assert!(matches!(error, OpenError::Io { .. }) && error.to_string().contains("state.dir"), "{error}");
}
