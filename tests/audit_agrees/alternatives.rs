//! Alternatives and spellings of parts of an id: both sides give one id to the same records.

use std::borrow::Cow;

use dedupd::dedupe::{Hasher, IdPart, Identity, IdentityRule, Schemas};
use dedupd_audit::{Fields, IdRule};
use proptest::prelude::*;

use crate::Sample;

/// Values of fields that count as equal with one modifier or another.
const VALUES: [&str; 20] = [
    "null",
    r#""""#,
    r#"" ""#,
    r#""a""#,
    r#""A ""#,
    r#"" a\n""#,
    r#""É""#,
    "2",
    "2.0",
    "20e-1",
    r#""2.00""#,
    r#""02""#,
    "-0",
    "0",
    "1e400",
    "10e399",
    "true",
    r#""67e55044-10b1-426f-9247-bb680e5fe0c8""#,
    r#""67E5504410B1426F9247BB680E5FE0C8""#,
    "{}",
];

/// A record: the values of its fields `a` and `b` if it has them, and of its header.
#[derive(Debug, Clone)]
struct Spelled {
    value: String,
    header: Option<&'static str>,
}

fn record() -> impl Strategy<Value = Spelled> {
    let field = || prop::option::of(prop::sample::select(&VALUES[..]));
    let header = prop::option::of(prop::sample::select(&["a", " A", "2", "2.0", ""][..]));
    (field(), field(), header).prop_map(|(a, b, header)| {
        let member = |(name, value): (&str, Option<&str>)| value.map(|value| format!("\"{name}\":{value}"));
        let members: Vec<String> = [("a", a), ("b", b)].into_iter().filter_map(member).collect();
        Spelled { value: format!("{{{}}}", members.join(",")), header }
    })
}

fn part() -> impl Strategy<Value = String> {
    let sources = ["json:/a", "json:/b", "header:h", "json:/none"];
    let words = ["optional", "trim", "lower", "number", "uuid"];
    let alternatives = prop::sample::subsequence(sources.to_vec(), 1..=3).prop_shuffle();
    (alternatives, prop::sample::subsequence(words.to_vec(), 0..=5)).prop_map(|(sources, words)| {
        let words = if words.is_empty() { String::new() } else { format!(" ({})", words.join(", ")) };
        format!("{}{words}", sources.join(" | "))
    })
}

/// The ids of a record by both sides.
fn ids(parts: &[String], record: &Spelled) -> (Option<Identity>, Option<Vec<u8>>) {
    let headers = record.header.map(|value| (&b"h"[..], Some(value.as_bytes()))).into_iter().collect();
    let fields = Fields { value: Some(record.value.as_bytes()), headers, ..Fields::default() };
    let parsed: Vec<IdPart> = parts.iter().map(|part| part.parse().unwrap()).collect();
    let service = IdentityRule::new(parsed, Hasher::Xxh3);
    let audit = IdRule::parse(parts).unwrap();
    (
        service.identify(&Sample(&fields), &Schemas::default()).unwrap(),
        audit.id(&fields).unwrap().map(Cow::into_owned),
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4_000) })]

    #[test]
    fn both_give_one_id_to_the_same_records(
        parts in prop::collection::vec(part(), 1..=3),
        records in prop::collection::vec(record(), 2..=6),
    ) {
        let ids: Vec<_> = records.iter().map(|record| ids(&parts, record)).collect();
        for (one, (service, audit)) in ids.iter().enumerate() {
            prop_assert_eq!(service.is_some(), audit.is_some(), "{:?} {:?}", parts, records[one]);
            for (other, (of_service, of_audit)) in ids.iter().enumerate() {
                prop_assert_eq!(
                    service == of_service, audit == of_audit,
                    "{:?} {:?} {:?}", parts, records[one], records[other]
                );
            }
        }
    }

    #[test]
    fn both_accept_the_same_generated_parts(
        text in "(\\[\")?(key|value|header:a|json:/a|jsn:/a|x)( \\((trim|A)\\))?( ?\\| ?(key|json:/b|header:|jsn:/|b)?)?( ?\\((trim|lower|lowr|optional, number|A|)\\))? ?(\"\\])?"
    ) {
        let service = text.parse::<IdPart>();
        prop_assert_eq!(service.is_ok(), IdRule::parse(&[&text]).is_ok(), "{}: {:?}", text, service);
        if let Ok(part) = service {
            let printed = part.to_string();
            prop_assert_eq!(printed.parse::<IdPart>(), Ok(part), "{}", printed);
        }
    }
}

#[test]
fn records_of_two_spellings_or_places_have_one_id() {
    let record = |value: &str, header: Option<&'static str>| Spelled { value: value.to_owned(), header };
    for (parts, one, other, are_equal) in [
        (&["header:h | json:/id"][..], record(r#"{"id":"e1"}"#, None), record("{}", Some("e1")), true),
        (
            &["json:/messageId | json:/messageid"],
            record(r#"{"messageId":"m"}"#, None),
            record(r#"{"messageid":"m"}"#, None),
            true,
        ),
        (&["json:/id (number)"], record(r#"{"id":2.0}"#, None), record(r#"{"id":2}"#, None), true),
        (&["json:/id"], record(r#"{"id":2.0}"#, None), record(r#"{"id":2}"#, None), false),
        // Texts that a normal form could be taken for.
        (&["json:/id (number)"], record(r#"{"id":1}"#, None), record(r#"{"id":"0.1^1"}"#, None), false),
        (&["json:/id (number)"], record(r#"{"id":250}"#, None), record(r#"{"id":"25e1"}"#, None), true),
        (
            &["json:/id (number, uuid)"],
            record(r#"{"id":12345678123412341234123456789012}"#, None),
            record(r#"{"id":"12345678-1234-1234-1234-123456789012"}"#, None),
            true,
        ),
        (
            &["json:/type (optional)", "json:/name"],
            record(r#"{"type":null,"name":"onion"}"#, None),
            record(r#"{"name":"onion"}"#, None),
            true,
        ),
        (
            &["json:/type (optional)", "json:/name"],
            record(r#"{"type":"x","name":"onion"}"#, None),
            record(r#"{"name":"onion"}"#, None),
            false,
        ),
    ] {
        let parts: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
        let ((service, audit), (of_service, of_audit)) = (ids(&parts, &one), ids(&parts, &other));
        assert!(service.is_some() && audit.is_some(), "{parts:?} {one:?}");
        assert_eq!([service == of_service, audit == of_audit], [are_equal; 2], "{parts:?} {one:?} {other:?}");
    }
    let all_optional = ["json:/a (optional)", "json:/b (optional)"].map(str::to_owned);
    assert_eq!(ids(&all_optional, &record("{}", None)), (None, None));
}
