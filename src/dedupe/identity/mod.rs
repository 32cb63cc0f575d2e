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
mod number;
mod part;
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
pub(crate) use part::LoneSource;
use part::PartValue;
pub use part::{IdPart, Modifier};
pub use schema::{
    AvroError, AvroSchema, Frame, MissingSchema, Naming, ProtoField, ProtoKind, ProtoMessage, ProtoSchema,
    Repeated, Schema, SchemaId, Schemas,
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
    fn single(&self, bytes: &[u8]) -> Identity {
        match uuid(bytes) {
            Some(uuid) => self.uuid(uuid),
            None => self.hash(Domain::Text, bytes),
        }
    }

    /// The hash kind as written into block headers. The key id is the keyed hash of a fixed text.
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

/// How an identity is derived from a record: the parts of the id, and the hash.
#[derive(Debug, Clone)]
pub struct IdentityRule {
    parts: Vec<IdPart>,
    hasher: Hasher,
    /// Whether [`SOURCE_HEADER`] identifies a record without an id.
    is_by_source: bool,
    /// For the fingerprint: what a record is read with comes with the schemas.
    frame: Frame,
}

impl IdentityRule {
    /// Several parts form a composite id. A record that lacks a part which is not optional has no id. Without parts no record
    /// has an id.
    pub fn new(parts: Vec<IdPart>, hasher: Hasher) -> Self {
        Self { parts, hasher, is_by_source: false, frame: Frame::default() }
    }

    /// With `is_by_source`, a record without an id is identified by its [`SOURCE_HEADER`], if `rekey` wrote that. Such an
    /// identity never equals that of an id, so the fingerprint does not depend on it.
    #[must_use]
    pub fn by_source(self, is_by_source: bool) -> Self {
        Self { is_by_source, ..self }
    }

    /// With documents in this frame.
    #[must_use]
    pub fn framed(self, frame: Frame) -> Self {
        Self { frame, ..self }
    }

    /// The hash kind as written into block headers.
    pub fn hash_kind(&self) -> HashKind {
        self.hasher.kind()
    }

    /// Distinguishes identities of this rule from those of another.
    pub fn fingerprint(&self) -> Fingerprint {
        let hash = match self.hash_kind() {
            HashKind::Xxh3 => "xxh3".to_owned(),
            HashKind::SipHash { key_id } => format!("siphash:{key_id:016x}"),
        };
        let mut sources = self.parts.iter().flat_map(IdPart::sources);
        let has_document = sources.any(|source| matches!(source, IdSource::Document { .. }));
        // The default has no text, so that earlier fingerprints remain.
        let frame = Some(self.frame).filter(|frame| has_document && *frame != Frame::default());
        let frame = frame.map(|frame| format!("frame:{}", frame.as_str()));
        Fingerprint::of(std::iter::once(hash).chain(self.parts.iter().map(IdPart::to_string)).chain(frame))
    }

    /// This rule with one more modifier each: those that make ids equal which differ only by their spelling.
    pub fn respelled(&self) -> Vec<(Modifier, Self)> {
        let is_whole = self.parts.len() == 1;
        let modifiers = [Modifier::Trim, Modifier::Lower, Modifier::Number, Modifier::Uuid];
        let spelled = modifiers.into_iter().filter(|modifier| !is_whole || *modifier != Modifier::Uuid);
        let with = |modifier: Modifier| {
            let parts: Vec<IdPart> =
                self.parts.iter().map(|part| part.with(modifier).unwrap_or_else(|| part.clone())).collect();
            (parts != self.parts).then(|| (modifier, Self { parts, ..self.clone() }))
        };
        spelled.filter_map(with).collect()
    }

    /// Number of parts of an id.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// The record's identity; `None` when it has no id. Fails when the id cannot be read without a schema that is not known.
    pub fn identify<F: Fields>(
        &self,
        record: &F,
        schemas: &Schemas,
    ) -> Result<Option<Identity>, MissingSchema> {
        let of_id = match self.parts.as_slice() {
            [part] => match part.read(record, schemas)? {
                PartValue::Bytes(bytes) => Some(self.hasher.single(&bytes)),
                PartValue::Absent | PartValue::Unreadable => None,
            },
            _ => self.joined(record, schemas)?.map(|joined| self.hasher.hash(Domain::Composite, &joined)),
        };
        if of_id.is_some() || !self.is_by_source {
            return Ok(of_id);
        }
        let source = record.header(SOURCE_HEADER).filter(|source| is_source_name(source));
        Ok(source.map(|source| self.hasher.hash(Domain::Source, source)))
    }

    /// The bytes of the record's id, equal for equal ids: of a UUID its text with lower-case digits and hyphens, of several
    /// parts each with its length before it (8 bytes, little-endian), of any other id the bytes as they count. A part that is absent has the
    /// length 2^64 - 1.
    /// `None` when the record has no id. Fails when the id cannot be read without a schema that is not known.
    pub fn id<'r, F: Fields>(
        &self,
        record: &'r F,
        schemas: &Schemas,
    ) -> Result<Option<Cow<'r, [u8]>>, MissingSchema> {
        let [part] = self.parts.as_slice() else {
            return Ok(self.joined(record, schemas)?.map(Cow::Owned));
        };
        let PartValue::Bytes(bytes) = part.read(record, schemas)? else { return Ok(None) };
        Ok(Some(match uuid(&bytes).map(hyphenated) {
            Some(text) if *bytes != text => Cow::Owned(text.to_vec()),
            _ => bytes,
        }))
    }

    /// The parts of a composite id; `None` when one that is not optional is missing, or the record has none.
    fn joined<F: Fields>(&self, record: &F, schemas: &Schemas) -> Result<Option<Vec<u8>>, MissingSchema> {
        let (mut joined, mut has_part) = (Vec::with_capacity(64), false);
        for part in &self.parts {
            match part.read(record, schemas)? {
                PartValue::Bytes(bytes) => {
                    has_part = true;
                    join(&mut joined, &bytes);
                }
                PartValue::Absent if part.is_optional() => joined.extend_from_slice(&ABSENT),
                PartValue::Absent | PartValue::Unreadable => return Ok(None),
            }
        }
        Ok(has_part.then_some(joined))
    }

    /// Why a record has no id, as a sentence: for the first part that it lacks, each source of that; for all, if none has to be there.
    pub fn why_missing<F: Fields>(&self, record: &F, schemas: &Schemas) -> String {
        let is_read = |part: &&IdPart| matches!(part.read(record, schemas), Ok(PartValue::Bytes(_)));
        let lacks = |part: &&IdPart| !part.is_optional() && !is_read(part);
        let parts: Vec<&IdPart> = match self.parts.iter().find(lacks) {
            Some(part) => vec![part],
            None => self.parts.iter().filter(|part| !is_read(part)).collect(),
        };
        let of_source = |source: &IdSource| {
            source.without_schema(record, schemas).unwrap_or_else(|| why(source, record, schemas.frame()))
        };
        let mut whys: Vec<String> = parts.iter().flat_map(|part| part.sources()).map(of_source).collect();
        // Several paths in one document, which is none.
        whys.dedup();
        if whys.is_empty() {
            return "the record has no id".to_owned();
        }
        format!("the record has no id: {}", whys.join(", and "))
    }

    /// The identity of an id that is given as one text per part, empty for a part that is absent: the same that [`IdentityRule::identify`]
    /// returns for a record with this id. `None` when the number of texts is not the number of parts, or one is empty that is not optional.
    pub fn identify_texts<T: AsRef<[u8]>>(&self, texts: &[T]) -> Option<Identity> {
        if texts.len() != self.parts.len() {
            return None;
        }
        let spelled = |(part, text): (&IdPart, &T)| part.spelled(Cow::Borrowed(text.as_ref())).into_owned();
        let texts: Vec<Vec<u8>> = self.parts.iter().zip(texts).map(spelled).collect();
        let lacks = |(part, text): (&IdPart, &Vec<u8>)| text.is_empty() && !part.is_optional();
        if texts.iter().all(Vec::is_empty) || self.parts.iter().zip(&texts).any(lacks) {
            return None;
        }
        if let [text] = texts.as_slice() {
            return Some(self.hasher.single(text));
        }
        let mut joined = Vec::new();
        for text in &texts {
            if text.is_empty() { joined.extend_from_slice(&ABSENT) } else { join(&mut joined, text) }
        }
        Some(self.hasher.hash(Domain::Composite, &joined))
    }
}

/// Stands for a part that is absent: a length that no part has.
const ABSENT: [u8; 8] = u64::MAX.to_le_bytes();

/// Appends a part with its length, so that different parts never give the same bytes.
fn join(joined: &mut Vec<u8>, part: &[u8]) {
    joined.extend_from_slice(&(part.len() as u64).to_le_bytes());
    joined.extend_from_slice(part);
}

#[cfg(test)]
mod tests;
