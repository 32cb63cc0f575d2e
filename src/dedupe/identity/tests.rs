use super::*;

/// A record with these parts; the header is named `id`.
#[derive(Default)]
pub(super) struct SampleRecord<'a> {
    pub(super) key: Option<&'a [u8]>,
    pub(super) value: Option<&'a [u8]>,
    pub(super) header: Option<&'a [u8]>,
}

impl Fields for SampleRecord<'_> {
    fn key(&self) -> Option<&[u8]> {
        self.key
    }
    fn value(&self) -> Option<&[u8]> {
        self.value
    }
    fn header(&self, name: &str) -> Option<&[u8]> {
        self.header.filter(|_| name == "id")
    }
}

const SIP: Hasher = Hasher::SipHash { key: *b"0123456789abcdef" };

fn rule(sources: &[&str], hasher: Hasher) -> IdentityRule {
    IdentityRule::new(sources.iter().map(|source| source.parse().unwrap()).collect(), hasher)
}

fn identify<F: Fields>(rule: &IdentityRule, record: &F) -> Option<Identity> {
    rule.identify(record, &Schemas::default()).unwrap()
}

fn of_key(hasher: Hasher, key: &[u8]) -> Identity {
    identify(&rule(&["key"], hasher), &SampleRecord { key: Some(key), ..SampleRecord::default() }).unwrap()
}

#[test]
fn every_spelling_of_a_uuid_gives_its_16_bytes() {
    let bytes =
        [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef];
    for text in [
        "01234567-89ab-cdef-0123-456789abcdef",
        "01234567-89AB-CDEF-0123-456789ABCdef",
        "0123456789abcdef0123456789ABCDEF",
    ] {
        assert_eq!(of_key(Hasher::Xxh3, text.as_bytes()), Identity(bytes), "{text}");
        assert_eq!(of_key(SIP, text.as_bytes()), of_key(SIP, b"0123456789abcdef0123456789abcdef"), "{text}");
    }
    assert_ne!(of_key(SIP, b"0123456789abcdef0123456789abcdef"), Identity(bytes));
    assert_ne!(of_key(Hasher::Xxh3, &bytes), Identity(bytes), "16 raw bytes are not a UUID");
}

#[test]
fn identities_never_change_between_versions() {
    // A change of these bytes makes every existing state topic unusable.
    let pair = SampleRecord { key: Some(b"order-1"), header: Some(b"x"), ..SampleRecord::default() };
    assert_eq!(of_key(Hasher::Xxh3, b"order-1").to_string(), "e7865b94e26c90d285bd374cc3beb2d1");
    assert_eq!(
        identify(&rule(&["key", "header:id"], Hasher::Xxh3), &pair).unwrap().to_string(),
        "c7200f52fe9bc0f048fa09b0d2f9eba6"
    );
    assert_eq!(of_key(SIP, b"order-1").to_string(), "62ef9e3e20ac5517c7f5cda8939281ad");
    assert_eq!(
        of_key(SIP, b"0123456789abcdef0123456789abcdef").to_string(),
        "19972b07f89b8d258bc977a38c552e73"
    );
    assert_eq!(SIP.kind(), HashKind::SipHash { key_id: 0xefb7_2dc0_6229_0f2a });
}

#[test]
fn the_identity_depends_on_the_bytes_and_not_on_their_source() {
    let json = SampleRecord { value: Some(br#"{"id":"order-1"}"#), ..SampleRecord::default() };
    let header = SampleRecord { header: Some(b"order-1"), ..SampleRecord::default() };
    let expected = Some(of_key(Hasher::Xxh3, b"order-1"));
    assert_eq!(identify(&rule(&["json:/id"], Hasher::Xxh3), &json), expected);
    assert_eq!(identify(&rule(&["header:id"], Hasher::Xxh3), &header), expected);
    assert_ne!(identify(&rule(&["value"], Hasher::Xxh3), &json), expected);
}

#[test]
fn boundaries_and_order_of_composite_parts_count() {
    let of_pair = |key: &'static [u8], header: &'static [u8]| {
        let record = SampleRecord { key: Some(key), header: Some(header), ..SampleRecord::default() };
        identify(&rule(&["key", "header:id"], Hasher::Xxh3), &record).unwrap()
    };
    let rule = rule(&["key", "header:id"], Hasher::Xxh3);
    assert_eq!(rule.identify_texts(&["a", "bc"]), Some(of_pair(b"a", b"bc")), "given as texts");
    assert_eq!(rule.identify_texts(&["a"]), None);
    assert_ne!(of_pair(b"ab", b"c"), of_pair(b"a", b"bc"));
    assert_ne!(of_pair(b"a", b"b"), of_pair(b"b", b"a"));
    assert_eq!(of_pair(b"a", b"b"), of_pair(b"a", b"b"));
}

#[test]
fn a_record_without_all_parts_has_no_id() {
    let only_key = SampleRecord { key: Some(b"k"), value: Some(b""), ..SampleRecord::default() };
    assert_eq!(identify(&rule(&["key", "header:id"], Hasher::Xxh3), &only_key), None);
    assert_eq!(identify(&rule(&["value"], Hasher::Xxh3), &only_key), None, "empty");
    assert_eq!(identify(&rule(&["json:/id"], Hasher::Xxh3), &SampleRecord::default()), None, "null value");
    assert_eq!(identify(&rule(&[], Hasher::Xxh3), &only_key), None);
}

#[test]
fn the_bytes_of_an_id_are_equal_for_equal_ids_only() {
    let canonical = b"01234567-89ab-cdef-0123-456789abcdef";
    for text in [&canonical[..], b"0123456789ABCDEF0123456789abcdef", b"01234567-89AB-cdef-0123-456789ABCDEF"]
    {
        let record = SampleRecord { key: Some(text), ..SampleRecord::default() };
        assert_eq!(
            rule(&["key"], Hasher::Xxh3).id(&record, &Schemas::default()).unwrap().as_deref(),
            Some(&canonical[..])
        );
    }
    let record = SampleRecord { key: Some(b"Order-1"), header: Some(b"x"), ..SampleRecord::default() };
    assert_eq!(
        rule(&["key"], Hasher::Xxh3).id(&record, &Schemas::default()).unwrap().as_deref(),
        Some(&b"Order-1"[..])
    );
    assert_eq!(
        rule(&["header:id", "key"], SIP).id(&record, &Schemas::default()).unwrap().as_deref(),
        Some(&b"\x01\0\0\0\0\0\0\0x\x07\0\0\0\0\0\0\0Order-1"[..])
    );
    assert_eq!(rule(&["key", "value"], SIP).id(&record, &Schemas::default()).unwrap(), None);
    assert_eq!(rule(&[], SIP).id(&record, &Schemas::default()).unwrap(), None);
}

const NAME: &[u8] = b"raw/0@7#4Zl1kTzRQ8-_b0ujGYv1Lw.5";

/// A record with a source header only.
struct Rekeyed;

impl Fields for Rekeyed {
    fn key(&self) -> Option<&[u8]> {
        None
    }
    fn value(&self) -> Option<&[u8]> {
        Some(NAME)
    }
    fn header(&self, name: &str) -> Option<&[u8]> {
        (name == SOURCE_HEADER).then_some(NAME)
    }
}

#[test]
fn the_source_identifies_only_records_without_an_id() {
    let by_source = rule(&["key"], Hasher::Xxh3).by_source(true);
    assert_eq!(identify(&rule(&["key"], Hasher::Xxh3), &Rekeyed), None);
    let source = identify(&by_source, &Rekeyed).unwrap();
    assert_eq!(source.to_string(), "c72f12f95a5dab7c3670afa1075f3681", "never changes between versions");
    let of_value = identify(&rule(&["value"], Hasher::Xxh3).by_source(true), &Rekeyed).unwrap();
    assert_eq!(of_value, of_key(Hasher::Xxh3, NAME));
    assert_ne!(of_value, source, "an id with the text of a source is another id");
    assert_eq!(identify(&by_source, &SampleRecord::default()), None);
    assert_eq!(by_source.fingerprint(), rule(&["key"], Hasher::Xxh3).fingerprint());
}

#[test]
fn debug_output_and_key_id_do_not_reveal_the_key() {
    assert!(!format!("{:?}", rule(&["key"], SIP)).contains("0123"));
    assert_ne!(SIP.kind(), Hasher::SipHash { key: *b"0123456789abcdeg" }.kind());
}
