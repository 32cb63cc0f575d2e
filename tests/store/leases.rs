//! Several handles of one store: each window has one holder.

use super::*;

#[test]
fn only_the_handle_that_took_a_window_last_may_change_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = opened(dir.path()).store;
    may_change_only_what_it_took_last(store.another(), store.another());
    let model = MemoryStore::new();
    may_change_only_what_it_took_last(model.another(), model.another());
}

fn may_change_only_what_it_took_last(mut first: impl Store, mut second: impl Store) {
    let window = WindowId::from(7);
    let lost = StoreError::LeaseLost(window);
    assert_eq!(first.set_head(window, &Head::default()), Err(lost.clone()), "no handle holds it");
    assert!(!first.acquire_lease(window));
    assert!(first.acquire_lease(window), "held without interruption");
    assert_eq!(first.set_head(window, &Head::default()), Ok(()));
    assert!(!second.acquire_lease(window));
    assert_eq!(first.truncate(window, 0), Err(lost.clone()));
    assert_eq!(first.owner(window, 1, None), Err(lost.clone()));
    assert_eq!(second.owner(window, 1, None), Ok(None));
    assert!(!first.acquire_lease(window), "held, but another handle held it in between");
    assert_eq!(second.clear(&[window]), Err(lost.clone()));
    second.acquire_lease(WindowId::from(8));
    assert_eq!(second.clear(&[WindowId::from(8), window]), Err(lost), "one of them is not held");
}

#[test]
fn a_window_that_is_held_is_taken_only_by_a_handle_that_insists() {
    let dir = tempfile::tempdir().unwrap();
    let store = opened(dir.path()).store;
    is_taken_only_by_one_that_insists(store.another(), store.another());
    let model = MemoryStore::new();
    is_taken_only_by_one_that_insists(model.another(), model.another());
}

fn is_taken_only_by_one_that_insists(mut worker: impl Store, mut standby: impl Store) {
    let window = WindowId::from(7);
    assert!(standby.acquire_free_lease(window) && standby.acquire_free_lease(window));
    assert_eq!(standby.set_head(window, &Head::default()), Ok(()));
    assert!(!worker.acquire_lease(window), "the standby may have changed it");
    assert!(!standby.acquire_free_lease(window));
    standby.release_lease(window);
    assert_eq!(worker.set_head(window, &Head::default()), Ok(()), "only its holder can release it");
    worker.release_lease(window);
    assert_eq!(worker.set_head(window, &Head::default()), Err(StoreError::LeaseLost(window)));
    assert!(standby.acquire_free_lease(window));
}

#[test]
fn handles_share_one_database_and_a_window_may_move_between_them() {
    fn sendable<T: Clone + Send + 'static>(_: &T) {}
    let dir = tempfile::tempdir().unwrap();
    let mut one = opened(dir.path()).store;
    sendable(&one);
    let mut two = one.clone();
    for round in 0..200 {
        let store = if round % 3 == 0 { &mut one } else { &mut two };
        store.put(0.into(), &owners(0, round * 10..round * 10 + 10, 1), &head(0)).unwrap();
    }
    two.close().unwrap();
    assert_eq!(contents(&one, 0).len(), 2_000);
    one.close().unwrap();
    assert_eq!(contents(&reopened(dir.path()), 0).len(), 2_000);
}
