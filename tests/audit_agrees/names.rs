//! The names of source records in the header of `rekey`: both implementations accept the same ones.

use dedupd::dedupe::name_source;

use super::*;

/// Whether a record with this source header has an identity, without another id.
fn is_named_by(name: &[u8]) -> bool {
    let fields = Fields { headers: vec![(b"dedupd.source", Some(name))], ..Fields::default() };
    let rule = IdentityRule::new(Vec::new(), Hasher::Xxh3).by_source(true);
    let service = rule.identify(&Sample(&fields), &Schemas::default()).unwrap().is_some();
    let audit = IdRule::parse::<&str>(&[]).unwrap().or_source().id(&fields).unwrap().is_some();
    assert_eq!(service, audit, "{:?}", String::from_utf8_lossy(name));
    service
}

#[test]
fn only_a_name_as_rekey_writes_it_identifies_a_record() {
    const ID: &str = "4Zl1kTzRQ8-_b0ujGYv1Lw";
    let mut text = String::from("earlier");
    for (id, epoch, name) in [
        (Some(ID), Some(5), "or.der_s-1/3@1741#4Zl1kTzRQ8-_b0ujGYv1Lw.5"),
        (None, Some(0), "or.der_s-1/3@1741#-.0"),
        (Some(ID), None, "or.der_s-1/3@1741#4Zl1kTzRQ8-_b0ujGYv1Lw.-"),
        (None, None, "or.der_s-1/3@1741#-.-"),
    ] {
        name_source(&mut text, "or.der_s-1/3", 1741, id, epoch);
        assert_eq!(text, name);
        assert!(is_named_by(name.as_bytes()), "{name}");
        for at in 0..=name.len() {
            for other in ["/", "@", "#", " ", "\0", "é"] {
                let changed = format!("{}{other}{}", &name[..at], &name[at..]);
                assert!(!is_named_by(changed.as_bytes()), "{changed}");
            }
        }
    }
    let long = format!("{}/0@0#-.0", "t".repeat(250));
    for other in [
        "",
        "a/0@1",
        "a/0@1#",
        "a/0@1#-",
        "/0@1#-.0",
        "a/00@1#-.0",
        "a/0@+1#-.0",
        "a/0@01#-.0",
        "a/0@1#-.",
        "a/0@1#.0",
        "a/0@1#-.-1",
        "a/0@1#-.2147483648",
        "a/2147483648@1#-.0",
        "a/0@9223372036854775808#-.0",
        "a/0@1#4Zl1kTzRQ8-_b0ujGYv1L.0",
        "a/0@1#4Zl1kTzRQ8+/b0ujGYv1Lw.0",
        &long,
    ] {
        assert!(!is_named_by(other.as_bytes()), "{other}");
    }
    assert!(!is_named_by(b"a\xff/0@1#-.0"));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4_000) })]

    #[test]
    fn both_accept_the_same_names_of_source_records(
        text in "[a._-]{0,2}/?(0|1|01|2147483647|2147483648|-1)?@?(0|7|9223372036854775807|9223372036854775808)?#?\
                 (-|[aZ0_-]{22}|[aZ0_/-]{21,23})?[.]?(-|0|12|012|2147483648)?[/@#. ]?",
        at: prop::sample::Index,
        byte: u8,
    ) {
        let mut name = text.into_bytes();
        is_named_by(&name);
        if !name.is_empty() {
            let at = at.index(name.len());
            name[at] = byte;
        }
        is_named_by(&name);
    }
}
