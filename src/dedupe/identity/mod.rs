//! Where the id of a record is, and how it becomes the 16 bytes of its identity; kinds of records.
//!
//! UUID text becomes its own 16 bytes; any other id is hashed to 128 bits. Raw bytes are hashed even if they are 16
//! bytes long. Each kind of input is hashed in its own domain, and the parts of a composite id are prefixed with their
//! length.

use std::borrow::Cow;
use std::fmt;
use std::hash::Hasher as _;

use siphasher::sip128::{Hasher128, SipHasher24};
use xxhash_rust::xxh3::xxh3_128_with_seed;

mod fingerprint;
mod id_source;
mod json;
mod kind;
mod uuid;

pub(crate) use fingerprint::Fingerprint;
pub use id_source::IdSource;
pub(crate) use id_source::IdSourceError;
pub(crate) use kind::MOST_PARTITIONS;
pub use kind::{KindId, KindRule, WindowId};
use uuid::{hyphenated, uuid};

/// The hash for ids that are not UUIDs. It is written into every block header, because identities of different
/// hashes must never be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum HashKind {
    /// XXH3-128, without a key: fast, for ids that are not chosen by an attacker.
    #[default]
    Xxh3,
    /// `SipHash` 128 with a secret key: for ids that an attacker may choose to provoke collisions.
    SipHash {
        /// Identifies the key without revealing it. All instances of a group share the key.
        key_id: u64,
    },
}

/// The 16 bytes that represent an id inside dedupd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity(pub [u8; 16]);

/// As 32 hex digits.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// The header in which `rekey` names the record that it copied, as `topic/partition@offset`.
pub const SOURCE_HEADER: &str = "dedupd.source";

/// The parts of a record that can contain an id.
pub trait Fields {
    /// The record's key; `None` when null.
    fn key(&self) -> Option<&[u8]>;
    /// The record's value; `None` when null.
    fn value(&self) -> Option<&[u8]>;
    /// The value of the last header of this name; `None` when absent or null.
    fn header(&self, name: &str) -> Option<&[u8]>;
}

/// The hash and its key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Hasher {
    /// XXH3-128 with fixed seeds. UUIDs are not hashed.
    Xxh3,
    /// SipHash-2-4 with 128 bits. The 16 bytes of a UUID are hashed too, so that nobody without the key can choose
    /// the position of an identity in the index.
    SipHash {
        /// Secret from `identity.key_file`; the same ids with another key are other identities.
        key: [u8; 16],
    },
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hasher({:?})", self.kind())
    }
}

/// The kind of input to the hash. The numbers are part of the persistent format of identities.
#[derive(Clone, Copy)]
enum Domain {
    Text = 1,
    Composite = 2,
    Uuid = 3,
    KeyName = 4,
    Source = 5,
}

/// The seed of XXH3 is this plus the domain: "dedupd" and format version 1 in ASCII.
const XXH3_SEED: u64 = 0x6465_6475_7064_3100;

impl Hasher {
    /// The identity of an id that is given as the text of each of its parts; `None` when there are no parts or one is
    /// empty: such a record has no id.
    #[must_use]
    pub fn identify_texts<T: AsRef<[u8]>>(&self, texts: &[T]) -> Option<Identity> {
        if texts.iter().any(|text| text.as_ref().is_empty()) {
            return None;
        }
        match texts {
            [] => None,
            [text] => Some(self.single(text.as_ref())),
            parts => {
                let mut joined = Vec::new();
                for part in parts {
                    join(&mut joined, part.as_ref());
                }
                Some(self.hash(Domain::Composite, &joined))
            }
        }
    }

    fn single(&self, bytes: &[u8]) -> Identity {
        match uuid(bytes) {
            Some(uuid) => self.uuid(uuid),
            None => self.hash(Domain::Text, bytes),
        }
    }

    /// The hash kind as written into block headers. The key id is the keyed hash of a fixed text.
    #[must_use]
    pub fn kind(&self) -> HashKind {
        match self {
            Self::Xxh3 => HashKind::Xxh3,
            Self::SipHash { key } => {
                HashKind::SipHash { key_id: sip(key, Domain::KeyName, b"dedupd key id").h1 }
            }
        }
    }

    fn hash(&self, domain: Domain, bytes: &[u8]) -> Identity {
        match self {
            Self::Xxh3 => Identity(xxh3_128_with_seed(bytes, XXH3_SEED + domain as u64).to_le_bytes()),
            Self::SipHash { key } => Identity(sip(key, domain, bytes).as_u128().to_le_bytes()),
        }
    }

    fn uuid(&self, bytes: [u8; 16]) -> Identity {
        match self {
            Self::Xxh3 => Identity(bytes),
            Self::SipHash { .. } => self.hash(Domain::Uuid, &bytes),
        }
    }
}

fn sip(key: &[u8; 16], domain: Domain, bytes: &[u8]) -> siphasher::sip128::Hash128 {
    let mut state = SipHasher24::new_with_key(key);
    state.write(&[domain as u8]);
    state.write(bytes);
    state.finish128()
}

/// How an identity is derived from a record: the sources of the id, and the hash.
#[derive(Debug, Clone)]
pub struct IdentityRule {
    sources: Vec<IdSource>,
    hasher: Hasher,
    /// Whether [`SOURCE_HEADER`] identifies a record without an id.
    is_by_source: bool,
}

impl IdentityRule {
    /// Several sources form a composite id. A record that lacks one of the parts has no id. Without sources no record
    /// has an id.
    #[must_use]
    pub fn new(sources: Vec<IdSource>, hasher: Hasher) -> Self {
        Self { sources, hasher, is_by_source: false }
    }

    /// With `is_by_source`, a record without an id is identified by its [`SOURCE_HEADER`]. Such an identity never equals
    /// that of an id, so the fingerprint does not depend on it.
    #[must_use]
    pub fn by_source(self, is_by_source: bool) -> Self {
        Self { is_by_source, ..self }
    }

    /// The hash kind as written into block headers.
    #[must_use]
    pub fn hash_kind(&self) -> HashKind {
        self.hasher.kind()
    }

    /// Distinguishes identities of this rule from those of another.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        let hash = match self.hash_kind() {
            HashKind::Xxh3 => "xxh3".to_owned(),
            HashKind::SipHash { key_id } => format!("siphash:{key_id:016x}"),
        };
        Fingerprint::of(std::iter::once(hash).chain(self.sources.iter().map(IdSource::to_string)))
    }

    /// Number of parts of an id.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.sources.len()
    }

    /// The record's identity; `None` when it has no id.
    #[must_use]
    pub fn identify<F: Fields>(&self, record: &F) -> Option<Identity> {
        let of_id = match self.sources.as_slice() {
            [source] => source.bytes(record).map(|bytes| self.hasher.single(&bytes)),
            _ => self.joined(record).map(|joined| self.hasher.hash(Domain::Composite, &joined)),
        };
        if of_id.is_some() || !self.is_by_source {
            return of_id;
        }
        let source = record.header(SOURCE_HEADER).filter(|source| !source.is_empty())?;
        Some(self.hasher.hash(Domain::Source, source))
    }

    /// The bytes of the record's id, equal for equal ids: of a UUID its text with lower-case digits and hyphens, of several
    /// parts each with its length before it (8 bytes, little-endian), of any other id the bytes as they are in the record.
    /// `None` when the record has no id.
    #[must_use]
    pub fn id<'r, F: Fields>(&self, record: &'r F) -> Option<Cow<'r, [u8]>> {
        let [source] = self.sources.as_slice() else { return self.joined(record).map(Cow::Owned) };
        let bytes = source.bytes(record)?;
        match uuid(&bytes).map(hyphenated) {
            Some(text) if *bytes != text => Some(Cow::Owned(text.to_vec())),
            _ => Some(bytes),
        }
    }

    /// The parts of a composite id; `None` when one is missing, or the rule has none.
    fn joined<F: Fields>(&self, record: &F) -> Option<Vec<u8>> {
        let mut joined = Vec::with_capacity(64);
        for source in &self.sources {
            join(&mut joined, &source.bytes(record)?);
        }
        (!joined.is_empty()).then_some(joined)
    }

    /// The identity of an id that is given as one text per part: the same that [`IdentityRule::identify`] returns for a
    /// record with this id. `None` when the number of texts is not the number of parts, or one is empty.
    #[must_use]
    pub fn identify_texts<T: AsRef<[u8]>>(&self, texts: &[T]) -> Option<Identity> {
        if texts.len() == self.sources.len() { self.hasher.identify_texts(texts) } else { None }
    }
}

/// Appends a part with its length, so that different parts never give the same bytes.
fn join(joined: &mut Vec<u8>, part: &[u8]) {
    joined.extend_from_slice(&(part.len() as u64).to_le_bytes());
    joined.extend_from_slice(part);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct SampleRecord<'a> {
        key: Option<&'a [u8]>,
        value: Option<&'a [u8]>,
        header: Option<&'a [u8]>,
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

    fn of_key(hasher: Hasher, key: &[u8]) -> Identity {
        rule(&["key"], hasher).identify(&SampleRecord { key: Some(key), ..SampleRecord::default() }).unwrap()
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
            assert_eq!(
                of_key(SIP, text.as_bytes()),
                of_key(SIP, b"0123456789abcdef0123456789abcdef"),
                "{text}"
            );
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
            rule(&["key", "header:id"], Hasher::Xxh3).identify(&pair).unwrap().to_string(),
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
        assert_eq!(rule(&["json:/id"], Hasher::Xxh3).identify(&json), expected);
        assert_eq!(rule(&["header:id"], Hasher::Xxh3).identify(&header), expected);
        assert_ne!(rule(&["value"], Hasher::Xxh3).identify(&json), expected);
    }

    #[test]
    fn boundaries_and_order_of_composite_parts_count() {
        let identify = |key: &'static [u8], header: &'static [u8]| {
            rule(&["key", "header:id"], Hasher::Xxh3)
                .identify(&SampleRecord { key: Some(key), header: Some(header), ..SampleRecord::default() })
                .unwrap()
        };
        let rule = rule(&["key", "header:id"], Hasher::Xxh3);
        assert_eq!(rule.identify_texts(&["a", "bc"]), Some(identify(b"a", b"bc")), "given as texts");
        assert_eq!(rule.identify_texts(&["a"]), None);
        assert_ne!(identify(b"ab", b"c"), identify(b"a", b"bc"));
        assert_ne!(identify(b"a", b"b"), identify(b"b", b"a"));
        assert_eq!(identify(b"a", b"b"), identify(b"a", b"b"));
    }

    #[test]
    fn a_record_without_all_parts_has_no_id() {
        let only_key = SampleRecord { key: Some(b"k"), value: Some(b""), ..SampleRecord::default() };
        assert_eq!(rule(&["key", "header:id"], Hasher::Xxh3).identify(&only_key), None);
        assert_eq!(rule(&["value"], Hasher::Xxh3).identify(&only_key), None, "empty");
        assert_eq!(rule(&["json:/id"], Hasher::Xxh3).identify(&SampleRecord::default()), None, "null value");
        assert_eq!(rule(&[], Hasher::Xxh3).identify(&only_key), None);
    }

    #[test]
    fn the_bytes_of_an_id_are_equal_for_equal_ids_only() {
        let canonical = b"01234567-89ab-cdef-0123-456789abcdef";
        for text in
            [&canonical[..], b"0123456789ABCDEF0123456789abcdef", b"01234567-89AB-cdef-0123-456789ABCDEF"]
        {
            let record = SampleRecord { key: Some(text), ..SampleRecord::default() };
            assert_eq!(rule(&["key"], Hasher::Xxh3).id(&record).as_deref(), Some(&canonical[..]));
        }
        let record = SampleRecord { key: Some(b"Order-1"), header: Some(b"x"), ..SampleRecord::default() };
        assert_eq!(rule(&["key"], Hasher::Xxh3).id(&record).as_deref(), Some(&b"Order-1"[..]));
        assert_eq!(
            rule(&["header:id", "key"], SIP).id(&record).as_deref(),
            Some(&b"\x01\0\0\0\0\0\0\0x\x07\0\0\0\0\0\0\0Order-1"[..])
        );
        assert_eq!(rule(&["key", "value"], SIP).id(&record), None);
        assert_eq!(rule(&[], SIP).id(&record), None);
    }

    /// A record with a source header only.
    struct Rekeyed;

    impl Fields for Rekeyed {
        fn key(&self) -> Option<&[u8]> {
            None
        }
        fn value(&self) -> Option<&[u8]> {
            Some(b"raw/0@7")
        }
        fn header(&self, name: &str) -> Option<&[u8]> {
            (name == SOURCE_HEADER).then_some(b"raw/0@7")
        }
    }

    #[test]
    fn the_source_identifies_only_records_without_an_id() {
        let by_source = rule(&["key"], Hasher::Xxh3).by_source(true);
        assert_eq!(rule(&["key"], Hasher::Xxh3).identify(&Rekeyed), None);
        let source = by_source.identify(&Rekeyed).unwrap();
        assert_eq!(source.to_string(), "a03cb1743c95fe11789f34fcc3870a88", "never changes between versions");
        let of_value = rule(&["value"], Hasher::Xxh3).by_source(true).identify(&Rekeyed).unwrap();
        assert_eq!(of_value, of_key(Hasher::Xxh3, b"raw/0@7"));
        assert_ne!(of_value, source, "an id with the text of a source is another id");
        assert_eq!(by_source.identify(&SampleRecord::default()), None);
        assert_eq!(by_source.fingerprint(), rule(&["key"], Hasher::Xxh3).fingerprint());
    }

    #[test]
    fn debug_output_and_key_id_do_not_reveal_the_key() {
        assert!(!format!("{:?}", rule(&["key"], SIP)).contains("0123"));
        assert_ne!(SIP.kind(), Hasher::SipHash { key: *b"0123456789abcdeg" }.kind());
    }
}
