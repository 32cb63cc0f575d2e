use super::*;

#[test]
fn a_request_that_failed_is_due_again_after_a_growing_delay() {
    let shared = SharedSchemas::default();
    let id = SchemaId::Number(7);
    assert_eq!(shared.due(Duration::ZERO), None);
    assert_eq!(shared.request(id), None);
    assert_eq!(shared.due(Duration::ZERO), Some(id));
    shared.failed(id, "503".to_owned().into());
    assert_eq!(shared.due(Duration::ZERO), None, "not before the delay has passed");
    assert_eq!(shared.request(id).as_deref(), Some("503"));
    assert_eq!(shared.shared.known.locked().requests[&id].delay, FIRST_DELAY * 2);
    let before = shared.version();
    shared.add(id, Schema::Json);
    assert!(shared.version() > before && shared.known().has(id));
    assert_eq!(shared.request(id), None, "a known schema is not requested");
    assert!(shared.shared.known.locked().requests.is_empty());
}

#[test]
fn one_request_without_an_answer_delays_no_other() {
    let shared = SharedSchemas::default();
    let [one, other] = [7, 8].map(SchemaId::Number);
    shared.request(one);
    assert_eq!(shared.due(Duration::ZERO), Some(one));
    shared.request(other);
    assert_eq!(shared.due(Duration::ZERO), Some(other));
    assert_eq!(shared.due(Duration::ZERO), None, "both are being fetched");
    // Of those that are requested again, one is at a time.
    for id in [one, other] {
        shared.failed(id, FetchError { what: "404".to_owned(), is_unregistered: true });
        shared.shared.known.locked().requests.get_mut(&id).unwrap().next = monotonic();
    }
    assert_eq!((shared.due(Duration::ZERO), shared.due(Duration::ZERO)), (Some(one), None));
}

#[test]
fn where_schemas_are_optional_none_is_waited_for_without_limit() {
    let (id, down) = (SchemaId::Number(7), || FetchError::from("503".to_owned()));
    let fail = |shared: &SharedSchemas| {
        shared.request(id);
        shared.failed(id, down());
        shared.known().has(id)
    };
    let optional = |wait| SharedSchemas::new(Schemas::default(), wait).optional(true);
    assert!(!fail(&SharedSchemas::new(Schemas::default(), Duration::ZERO)), "an id needs it");
    assert!(!fail(&optional(Duration::from_mins(5))), "it is waited for");
    let shared = optional(Duration::ZERO);
    assert!(
        fail(&shared) && shared.note().is_some_and(|note| note.contains("7: these records are not compared"))
    );
    shared.add(id, Schema::Json);
    assert_eq!(shared.note(), None, "the registry is back");
}

#[test]
fn only_a_schema_that_the_registry_does_not_have_is_final() {
    let wait = Duration::from_mins(5);
    let shared = SharedSchemas::new(Schemas::default(), wait);
    let [first, second, third] = [7, 8, 9].map(SchemaId::Number);
    let missing = || FetchError { what: "404".to_owned(), is_unregistered: true };
    for id in [first, second, third] {
        shared.request(id);
    }
    shared.failed(first, missing());
    shared.failed(first, "503".to_owned().into());
    assert!(!shared.known().has(first), "it is waited for");
    shared.shared.known.locked().requests.get_mut(&first).unwrap().missing_since =
        monotonic().checked_sub(wait);
    shared.failed(first, "503".to_owned().into());
    assert!(!shared.known().has(first), "another error is not final");
    shared.failed(first, missing());
    assert!(shared.known().has(first) && shared.note().is_some_and(|note| note.contains("1 schema(s)")));
    shared.failed(second, missing());
    shared.failed(third, "503".to_owned().into());
    assert!(shared.known().has(second) && !shared.known().has(third), "the next one is final at once");
    // It is requested again.
    let delay = || {
        let known = shared.shared.known.locked();
        let SchemaRequest { next, delay, .. } = known.requests[&second];
        assert!(next <= monotonic() + delay);
        delay
    };
    assert_eq!(delay(), FIRST_DELAY * 2);
    let delays = [4, 8, 16, 32, 64, 128, 256, 512, 600, 600].map(Duration::from_secs);
    for expected in delays {
        shared.failed(second, missing());
        assert_eq!(delay(), expected);
    }
    shared.add(first, Schema::Json);
    assert!(!shared.note().unwrap().contains(" 7"), "it was registered later");
    for id in 0..UNREGISTERED {
        let id = SchemaId::Number(100 + u32::try_from(id).unwrap());
        shared.request(id);
        shared.failed(id, missing());
    }
    assert_eq!(shared.note(), None, "garbage takes a bounded amount of memory");
    assert!(shared.known().has(first) && !shared.known().has(second));
}
