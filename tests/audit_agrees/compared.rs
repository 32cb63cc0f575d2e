//! What of two records with one id is compared: both implementations come to the same result.

use dedupd::dedupe::{CompareRule as ServiceRule, Content};
use dedupd::tools::audit::command;
use dedupd_audit::{CompareRule, Fingerprints};

use super::*;

/// Whether the contents of two records are equal; `None` if they are not compared.
fn is_equal(sources: &[&str], records: [&Fields<'_>; 2]) -> Option<bool> {
    let service = ServiceRule::new(sources.iter().map(|source| source.parse().unwrap()).collect());
    let [one, other] = records.map(|fields| service.digest(&Sample(fields), &Schemas::default()).unwrap());
    let by_service = match one.compare(other) {
        Content::Equal => Some(true),
        Content::Different => Some(false),
        Content::NotCompared => None,
    };
    let texts: Vec<String> = sources.iter().map(|source| (*source).to_owned()).collect();
    let rule = CompareRule::new(&texts, &IdRule::parse(&["key"]).unwrap()).unwrap();
    let prints = Fingerprints::new(5);
    let [one, other] =
        records.map(|fields| rule.digest(&prints.seen(0, Some(b"id"), fields), fields, &prints).unwrap());
    assert_eq!(one.is_equal(other), by_service, "{sources:?} of {records:?}");
    by_service
}

#[test]
fn both_compare_the_same_parts_and_distinguish_null_from_empty() {
    let uuid = "0c5b7a1e-8a2b-4c1d-9e3f-001122334455";
    let documents = [
        None,
        Some(String::new()),
        Some(r#"{"a":1,"b":2,"at":3}"#.to_owned()),
        Some(r#"{"at":4,"b":2,"a":1}"#.to_owned()),
        Some(r#"{"a":"1","b":3}"#.to_owned()),
        Some(r#"{"a":1.0,"b":null}"#.to_owned()),
        Some(format!(r#"{{"a":"{uuid}"}}"#)),
        Some(format!(r#"{{"a":"{}"}}"#, uuid.to_uppercase())),
    ];
    let headers: [&[Header<'_>]; 3] = [&[], &[(b"h", None)], &[(b"h", Some(b"x"))]];
    let records: Vec<_> = documents
        .iter()
        .flat_map(|value| headers.map(|headers| (value, headers)))
        .map(|(value, headers)| Fields {
            key: Some(b"k"),
            value: value.as_deref().map(str::as_bytes),
            headers: headers.to_vec(),
            timestamp_ms: None,
        })
        .collect();
    let rules: [&[&str]; 10] = [
        &[],
        &["value"],
        &["value", "key"],
        &["json:/a"],
        &["json:/a", "json:/b"],
        &["json:/a", "header:h"],
        &["key", "header:h"],
        &["header:h | json:/b", "json:/a (number)"],
        &["json:/a (uuid)", "header:h (optional)"],
        &["json:/b (optional)"],
    ];
    let counts = rules.map(|sources| {
        let mut counts = [0; 3];
        for one in &records {
            for other in &records {
                let place = is_equal(sources, [one, other]).map_or(2, |equal| usize::from(!equal));
                counts[place] += 1;
            }
        }
        counts
    });
    assert_eq!(counts[0], [0, 0, 576], "nothing is compared");
    assert_eq!(counts[1], [72, 504, 0], "null and empty are values");
    assert!(counts[2..9].iter().all(|counts| counts[0] > 0 && counts[2] > 0), "{counts:?}");
    assert_eq!(counts[9], [45, 36, 495], "one part has to be there: two documents have 2, one has 3");
    assert!(counts[3][1] > 0 && counts[4][1] > 0, "{counts:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4_000) })]

    #[test]
    fn both_compare_generated_documents_alike(
        document in documents::generated(),
        damage in documents::damage(),
        pointers in prop::collection::vec(documents::pointer(), 0..3),
    ) {
        let sources: Vec<&str> = pointers.iter().map(String::as_str).collect();
        let damaged = damage.applied(&document);
        for sources in [&sources[..], &["value"]] {
            prop_assert_ne!(is_equal(sources, [&value(&document), &value(&document)]), Some(false));
            is_equal(sources, [&value(&document), &value(&damaged)]);
        }
    }
}

#[test]
fn equality_cannot_be_required_where_nothing_is_compared() {
    let parsed = |flags: &str| {
        let line = format!("dedupd audit --bootstrap-servers 127.0.0.1:1 --raw r --clean c {flags}");
        let Ok(Command::Audit(args)) = parse_from(line.split(' ')) else { panic!("{line}") };
        let (config, _) = load_with_texts(None, args.overrides(), "identity.from").unwrap();
        (args.require_equal, config.identity.compared().len(), args)
    };
    let (required, compared, args) = parsed("--id value --require-equal");
    assert_eq!((required, compared), (true, 0));
    let ended = command(&args).unwrap_err();
    assert_eq!(ended.exit.code(), 2);
    assert!(ended.message.contains("--require-equal has nothing to compare"), "{}", ended.message);
    let (required, compared, _) = parsed("--id value");
    assert_eq!((required, compared), (false, 0));
    let (required, compared, _) = parsed("--id key --require-equal");
    assert_eq!((required, compared), (true, 1));
}
