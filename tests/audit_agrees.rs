//! The audit parses id sources and extracts ids with code of its own. Here both implementations receive the same samples: a
//! fault in one of them is a difference. Facts that both state are compared too.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[path = "audit_agrees/alternatives.rs"]
mod alternatives;
#[path = "audit_agrees/compared.rs"]
mod compared;
#[path = "audit_agrees/documents.rs"]
mod documents;
#[path = "audit_agrees/encoded.rs"]
mod encoded;
#[path = "audit_agrees/extremes.rs"]
mod extremes;
#[path = "audit_agrees/files.rs"]
mod files;
#[path = "audit_agrees/frames.rs"]
mod frames;
#[path = "audit_agrees/messages.rs"]
mod messages;
#[path = "audit_agrees/names.rs"]
mod names;
#[path = "audit_agrees/references.rs"]
mod references;
#[allow(dead_code, reason = "each test binary uses its own part")]
#[path = "support/registry.rs"]
mod registry;

use std::borrow::Cow;
use std::str::FromStr;

use dedupd::cli::{Command, parse_from};
use dedupd::config::{Scope, load_with_texts, parse_duration};
use dedupd::dedupe::{Fields as ServiceFields, Hasher, IdPart, IdSource, Identity, IdentityRule, Schemas};
use dedupd_audit::{DEFAULT_MEMORY, Fields, Header, IdRule, LEAST_MEMORY, Moment};
use proptest::prelude::*;

/// A record for the service's implementation, with the rule for headers that `RawRecord` has.
struct Sample<'a>(&'a Fields<'a>);

impl ServiceFields for Sample<'_> {
    fn key(&self) -> Option<&[u8]> {
        self.0.key
    }
    fn value(&self) -> Option<&[u8]> {
        self.0.value
    }
    fn header(&self, name: &str) -> Option<&[u8]> {
        self.0.headers.iter().rfind(|(header, _)| *header == name.as_bytes()).and_then(|(_, value)| *value)
    }
}

/// The parts of the composite ids of the audit: the length of each in decimal digits, a colon, its bytes.
fn parts(mut composite: &[u8]) -> Vec<Vec<u8>> {
    let mut parts = Vec::new();
    while !composite.is_empty() {
        let colon = composite.iter().position(|byte| *byte == b':').unwrap();
        let length: usize = std::str::from_utf8(composite.split_at(colon).0).unwrap().parse().unwrap();
        let (part, rest) = composite.split_at(colon + 1).1.split_at(length);
        parts.push(part.to_vec());
        composite = rest;
    }
    parts
}

/// The identity of a record in the service, and the same derived from the id that the audit extracts.
fn both(sources: &[&str], fields: &Fields<'_>) -> (Option<Identity>, Option<Identity>) {
    let parsed: Vec<IdPart> = sources.iter().map(|source| source.parse().unwrap()).collect();
    let rule = IdentityRule::new(parsed, Hasher::Xxh3);
    let id = IdRule::parse(sources).unwrap().id(fields).unwrap().map(Cow::into_owned);
    let texts = id.map(|id| if sources.len() == 1 { vec![id] } else { parts(&id) });
    (
        rule.identify(&Sample(fields), &Schemas::default()).unwrap(),
        texts.map(|texts| rule.identify_texts(&texts).unwrap()),
    )
}

fn assert_agree(sources: &[&str], fields: &Fields<'_>) -> bool {
    let (service, audit) = both(sources, fields);
    assert_eq!(
        service,
        audit,
        "{sources:?} of {}",
        String::from_utf8_lossy(fields.value.unwrap_or_default())
    );
    service.is_some()
}

fn value(value: &[u8]) -> Fields<'_> {
    Fields { value: Some(value), ..Fields::default() }
}

#[test]
fn both_accept_the_same_id_sources() {
    let valid = [
        "key",
        "value",
        "header:id",
        "header::",
        "header:é",
        "json:/",
        "json:/a~1b/~0/0",
        "json:///",
        "avro:/id",
        "key:json:/id",
        "key:avro:/a/0",
        "protobuf:/a/0",
        "protobuf:/1/2",
        "key:protobuf:/536870911",
    ];
    let invalid = [
        "",
        " key",
        "key ",
        "Key",
        "key:",
        "value:",
        "header",
        "header:",
        "Header:id",
        "json",
        "json:",
        "json:id",
        "json:~1id",
        "json:/~",
        "json:/a~2",
        "json:/~/",
        "JSON:/id",
        "id",
        ":",
        "topic",
        "avro:",
        "avro:id",
        "protobuf:",
        "protobuf:/0",
        "protobuf:/1/id",
        "protobuf:/536870912",
        "key:key",
        "key:header:a",
        "value:json:/id",
        "key:json:",
        "key:key:json:/id",
    ];
    for (texts, is_valid) in [(&valid[..], true), (&invalid, false)] {
        for text in texts {
            assert_eq!(IdSource::from_str(text).is_ok(), is_valid, "service: {text:?}");
            assert_eq!(IdRule::parse(&[text]).is_ok(), is_valid, "audit: {text:?}");
        }
    }
    assert!(IdRule::parse(&["key", "jsn:/id"]).unwrap_err().contains("\"jsn:/id\""));
}

#[test]
fn both_find_the_same_ids_in_keys_headers_and_values() {
    let uuid: &[u8] = b"01234567-89AB-cdef-0123-456789abcdef";
    let headers: [Header<'_>; 6] = [
        (b"twice", Some(b"first")),
        (b"twice", Some(b"last")),
        (b"nulled", Some(b"first")),
        (b"nulled", None),
        (b"empty", Some(b"")),
        (b"\xff", Some(b"not UTF-8")),
    ];
    let records = [
        Fields::default(),
        Fields { key: Some(b"k"), ..Fields::default() },
        Fields { key: Some(b""), value: Some(b""), ..Fields::default() },
        Fields { key: Some(uuid), value: Some(uuid), headers: headers.to_vec(), timestamp_ms: None },
        Fields {
            key: Some(b"\xff\x00"),
            value: Some(b"{\"id\":1}"),
            headers: headers.to_vec(),
            timestamp_ms: Some(1),
        },
    ];
    let sources: [&[&str]; 10] = [
        &["key"],
        &["value"],
        &["header:twice"],
        &["header:nulled"],
        &["header:empty"],
        &["header:absent"],
        &["key", "value"],
        &["value", "key"],
        &["key", "header:twice", "json:/id"],
        &["key", "header:nulled"],
    ];
    let found = sources.map(|sources| records.iter().filter(|fields| assert_agree(sources, fields)).count());
    assert_eq!(found, [3, 2, 2, 0, 0, 0, 2, 2, 1, 0], "records with an id, by source");
}

#[test]
fn both_identify_the_same_records_by_their_source() {
    let headers: [Header<'_>; 3] = [
        (b"dedupd.source", Some(b"a/0@1#4Zl1kTzRQ8-_b0ujGYv1Lw.5")),
        (b"dedupd.source", Some(b"b/0@2#-.-")),
        (b"x", None),
    ];
    let fields =
        |key, headers: &[Header<'static>]| Fields { key, headers: headers.to_vec(), ..Fields::default() };
    let records = [
        fields(None, &[]),
        fields(None, &headers[..1]),
        fields(None, &headers[1..]),
        fields(None, &headers),
        fields(None, &[(b"dedupd.source", Some(b""))]),
        fields(None, &[(b"dedupd.source", None)]),
        fields(Some(b"b/0@2#-.-"), &headers),
        fields(Some(b"b/0@2#-.-"), &[]),
        // The same position in another topic of the name, and under another leader.
        fields(None, &[(b"dedupd.source", Some(b"a/0@1#4Zl1kTzRQ8-_b0ujGYv1Lx.5"))]),
        fields(None, &[(b"dedupd.source", Some(b"a/0@1#4Zl1kTzRQ8-_b0ujGYv1Lw.6"))]),
        // The position alone.
        fields(None, &[(b"dedupd.source", Some(b"a/0@1"))]),
    ];
    let service = IdentityRule::new(vec![IdSource::Key.into()], Hasher::Xxh3).by_source(true);
    let audit = IdRule::parse(&["key"]).unwrap().or_source();
    // The number of the first record with the same id, for each record with an id.
    let same = |ids: Vec<Option<Vec<u8>>>| -> Vec<Option<usize>> {
        let first = |id: &Vec<u8>| ids.iter().position(|other| other.as_ref() == Some(id));
        ids.iter().map(|id| id.as_ref().and_then(first)).collect()
    };
    let by_service = same(
        records
            .iter()
            .map(|it| service.identify(&Sample(it), &Schemas::default()).unwrap().map(|id| id.0.to_vec()))
            .collect(),
    );
    let by_audit = same(records.iter().map(|it| audit.id(it).unwrap().map(Cow::into_owned)).collect());
    let [first, second, third] = [Some(8), Some(9), None];
    assert_eq!(
        by_service,
        [None, Some(1), Some(2), Some(2), None, None, Some(6), Some(6), first, second, third]
    );
    assert_eq!(by_audit, by_service);
}

#[test]
fn both_find_the_same_ids_in_odd_documents() {
    let mut found = 0;
    for pointer in documents::POINTERS {
        found += documents::ODD.iter().filter(|document| assert_agree(&[pointer], &value(document))).count();
    }
    assert_eq!(found, documents::ODD_WITH_ID, "documents with an id, over all pointers");
    let deep = format!(r#"{{"x":{}{},"id":"a"}}"#, "[".repeat(100_000), "]".repeat(100_000));
    assert!(assert_agree(&["json:/id"], &value(deep.as_bytes())));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4_000) })]

    #[test]
    fn both_accept_the_same_generated_sources(text in "(key:)?(key|value|header|json|avro|protobuf|h)?:?/?[/~01ab:é*-]{0,6}(, ?(key|value|json:/a|header:|b))?") {
        let service = IdSource::from_str(&text);
        prop_assert_eq!(service.is_ok(), IdRule::parse(&[&text]).is_ok(), "{}", text);
        // The audit receives the text as written, and the service prints the same.
        prop_assert!(service.is_err() || service.unwrap().to_string() == text, "{}", text);
    }

    #[test]
    fn both_find_the_same_ids_in_generated_documents(
        document in documents::generated(),
        pointer in documents::pointer(),
    ) {
        let (service, audit) = both(&[&pointer], &value(&document));
        prop_assert_eq!(service, audit, "{} of {}", pointer, String::from_utf8_lossy(&document));
    }

    #[test]
    fn both_find_the_same_ids_in_damaged_documents(
        (odd, generated) in (prop::sample::select(documents::ODD), documents::generated()),
        use_odd: bool,
        damage in documents::damage(),
        pointer in prop_oneof![prop::sample::select(&documents::POINTERS[..]).prop_map(str::to_owned), documents::pointer()],
    ) {
        let damaged = damage.applied(if use_odd { odd } else { &generated });
        let (service, audit) = both(&[&pointer], &value(&damaged));
        prop_assert_eq!(service, audit, "{} of {}", pointer, String::from_utf8_lossy(&damaged));
    }
}

#[test]
fn the_command_line_states_the_limits_and_exit_codes_of_the_audit() {
    let parse = |line: &str| parse_from(line.split(' '));
    let Ok(Command::Audit(args)) = parse("dedupd audit") else { panic!("audit") };
    assert_eq!(args.memory, DEFAULT_MEMORY);
    let least = format!("dedupd audit --memory {LEAST_MEMORY}");
    assert!(matches!(parse(&least), Ok(Command::Audit(args)) if args.memory == LEAST_MEMORY));
    assert!(parse(&format!("dedupd audit --memory {}", LEAST_MEMORY - 1)).is_err());

    let help = parse("dedupd audit --help").unwrap_err();
    assert!(help.contains(&format!("at least {}MiB", LEAST_MEMORY >> 20)), "{help}");
    let (_, codes) = help.split_once("Exit codes:").unwrap();
    let numbers: Vec<u8> =
        codes.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 6, 8]);
}

#[test]
fn a_duration_before_now_is_a_duration_of_the_configuration() {
    for text in ["90m", "1h 30m", "7days", "250ms", "1us", "24", "24x", "", "-1s", "1.5h"] {
        let ago = parse_duration(text).map(Moment::Ago);
        assert_eq!(Moment::parse(text).ok(), ago.ok(), "{text}");
    }
}

#[test]
fn a_flag_sets_the_scope_of_an_audit() {
    for (flag, scope) in
        [("", Scope::Topic), (" --scope topic", Scope::Topic), (" --scope partition", Scope::Partition)]
    {
        let line = format!("dedupd audit --bootstrap-servers a:1 --raw r --clean c --id key{flag}");
        let Ok(Command::Audit(args)) = parse_from(line.split(' ')) else { panic!("audit") };
        let (config, _) = load_with_texts(None, args.overrides(), "identity.from").unwrap();
        assert_eq!(config.dedupe.scope, scope, "{line}");
    }
}

#[test]
fn several_raw_topics_are_compared_with_one_clean_topic() {
    let sources = |flags: &str| {
        let line = format!("dedupd audit --bootstrap-servers a:1 --clean c --id key{flags}");
        let Ok(Command::Audit(args)) = parse_from(line.split(' ')) else { panic!("audit") };
        args.source_topics("c").map(|topics| topics.map(<[String]>::to_vec))
    };
    for (flags, expected) in [
        ("", None),
        (" --raw r", None),
        (" --raw r --scope topic", None),
        (" --raw r --scope topics", Some(vec!["r"])),
        (" --raw r --raw s", Some(vec!["r", "s"])),
        (" --raw r,s --raw t --scope topics", Some(vec!["r", "s", "t"])),
    ] {
        let expected = expected.map(|topics| topics.into_iter().map(str::to_owned).collect());
        assert_eq!(sources(flags), Ok(expected), "{flags}");
    }
    for (flags, error) in [
        (" --scope topics", "name each of them with --raw"),
        (" --raw r --raw s --scope topic", "leave --scope out"),
        (" --raw r,s --scope partition", "leave --scope out"),
        (" --raw r,s,r", "given twice"),
        (" --raw r,c", "use two topics"),
    ] {
        assert!(sources(flags).unwrap_err().contains(error), "{flags}");
    }
    let line = "dedupd audit --bootstrap-servers a:1 --raw r,s --clean c --id key --scope topics";
    let Ok(Command::Audit(args)) = parse_from(line.split(' ')) else { panic!("audit") };
    let (config, _) = load_with_texts(None, args.overrides(), "identity.from").unwrap();
    assert_eq!((config.topics.raw.as_str(), config.dedupe.scope), ("r", Scope::Topic));
}

#[test]
fn the_audit_receives_the_id_sources_as_written() {
    let line = "dedupd audit --bootstrap-servers a:1 --raw r --clean c --id json:/a~1b/~0 --id header:a:b";
    let Ok(Command::Audit(args)) = parse_from(line.split(' ')) else { panic!("audit") };
    let (config, texts) = load_with_texts(None, args.overrides(), "identity.from").unwrap();
    assert_eq!(texts, ["json:/a~1b/~0", "header:a:b"]);
    assert_eq!(config.identity.from, texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IdPart>>());
}
