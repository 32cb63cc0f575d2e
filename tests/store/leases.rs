//! Several handles of one store: each window has one holder.

use super::*;

#[test]
fn only_the_handle_that_took_a_window_last_may_change_it() {
    let mut first = LeasedStore::new(MemoryStore::new());
    let mut second = first.another();
    let window = WindowId::from(7);
    let lost = StoreError::LeaseLost(window);
    assert_eq!(first.set_head(window, Head::default()), Err(lost.clone()), "no handle holds it");
    assert!(!first.acquire_lease(window));
    assert!(first.acquire_lease(window), "held without interruption");
    assert_eq!(first.set_head(window, Head::default()), Ok(()));
    assert!(!second.acquire_lease(window));
    assert_eq!(first.truncate(window, 0), Err(lost.clone()));
    assert_eq!(first.identity_of(window, 1), Err(lost.clone()));
    assert_eq!(second.identity_of(window, 1), Ok(None));
    assert!(!first.acquire_lease(window), "held, but another handle held it in between");
    assert_eq!(second.clear(window), Err(lost.clone()));
}
