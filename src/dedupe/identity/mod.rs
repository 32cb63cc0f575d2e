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

mod compare;
mod fingerprint;
mod id_source;
mod json;
mod kind;
mod schema;
mod source_name;
mod uuid;
mod why;

pub use compare::{CompareRule, Content, Digest};
pub(crate) use fingerprint::Fingerprint;
pub use id_source::{DocumentFormat, IdSource, RecordField};
pub(crate) use id_source::{IdSourceError, SOURCES};
pub(crate) use kind::MOST_PARTITIONS;
pub use kind::{KindId, KindRule, WindowId};
pub use schema::{
    AvroError, AvroSchema, MissingSchema, ProtoField, ProtoKind, ProtoMessage, ProtoSchema, Repeated, Schema,
    SchemaId, Schemas,
};
use source_name::is_source_name;
pub use source_name::name_source;
use uuid::{hyphenated, uuid};
use why::why;

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

/// The inverse of its text.
impl std::str::FromStr for Identity {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_hex);
        number.map(|number| Self(number.to_be_bytes())).ok_or(())
    }
}

/// The header in which `rekey` names the record that it copied, see [`name_source`].
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

    /// With `is_by_source`, a record without an id is identified by its [`SOURCE_HEADER`], if `rekey` wrote that. Such an
    /// identity never equals that of an id, so the fingerprint does not depend on it.
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

    /// The record's identity; `None` when it has no id. Fails when the id cannot be read without a schema that is not known.
    pub fn identify<F: Fields>(
        &self,
        record: &F,
        schemas: &Schemas,
    ) -> Result<Option<Identity>, MissingSchema> {
        let of_id = match self.sources.as_slice() {
            [source] => source.bytes(record, schemas)?.map(|bytes| self.hasher.single(&bytes)),
            _ => self.joined(record, schemas)?.map(|joined| self.hasher.hash(Domain::Composite, &joined)),
        };
        if of_id.is_some() || !self.is_by_source {
            return Ok(of_id);
        }
        let source = record.header(SOURCE_HEADER).filter(|source| is_source_name(source));
        Ok(source.map(|source| self.hasher.hash(Domain::Source, source)))
    }

    /// The bytes of the record's id, equal for equal ids: of a UUID its text with lower-case digits and hyphens, of several
    /// parts each with its length before it (8 bytes, little-endian), of any other id the bytes as they are in the record.
    /// `None` when the record has no id. Fails when the id cannot be read without a schema that is not known.
    pub fn id<'r, F: Fields>(
        &self,
        record: &'r F,
        schemas: &Schemas,
    ) -> Result<Option<Cow<'r, [u8]>>, MissingSchema> {
        let [source] = self.sources.as_slice() else {
            return Ok(self.joined(record, schemas)?.map(Cow::Owned));
        };
        Ok(source.bytes(record, schemas)?.map(|bytes| match uuid(&bytes).map(hyphenated) {
            Some(text) if *bytes != text => Cow::Owned(text.to_vec()),
            _ => bytes,
        }))
    }

    /// The parts of a composite id; `None` when one is missing, or the rule has none.
    fn joined<F: Fields>(&self, record: &F, schemas: &Schemas) -> Result<Option<Vec<u8>>, MissingSchema> {
        let mut joined = Vec::with_capacity(64);
        for source in &self.sources {
            let Some(part) = source.bytes(record, schemas)? else { return Ok(None) };
            join(&mut joined, &part);
        }
        Ok((!joined.is_empty()).then_some(joined))
    }

    /// Why a record has no id, as a sentence: for the first source without one.
    pub fn why_missing<F: Fields>(&self, record: &F, schemas: &Schemas) -> String {
        let of_schema = self.sources.iter().find_map(|source| source.without_schema(record, schemas));
        let is_absent = |source: &&IdSource| !matches!(source.bytes(record, schemas), Ok(Some(_)));
        let of_record = || self.sources.iter().find(is_absent).map(|source| why(source, record));
        let why = of_schema.or_else(of_record).map(|why| format!(": {why}")).unwrap_or_default();
        format!("the record has no id{why}")
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
mod tests;
