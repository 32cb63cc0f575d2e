//! A record as the audit reads it, and the fingerprints that it stores.
//!
//! Only fingerprints are stored, so memory does not depend on the size of records. The hash (`SipHash` 1-3,
//! 128 bits) has a random key per run and shares nothing with the hashes of the pipeline: what collides there
//! does not collide here. Two of 10^10 ids share a fingerprint with a probability of 1.5e-19. They would count
//! as one id; a second run, with another key, would separate them. A change of one field is missed with a
//! probability of 2^-64. Digests, which prove that contents are equal, have 128 bits of `SipHash` 2-4.

use std::fmt;
use std::hash::Hasher;

use siphasher::sip128::{Hash128, Hasher128 as _, SipHasher13, SipHasher24};

use super::Offset;
use super::digest::Digest;
use super::spill::encode_fields;

/// A header: its name, which may be any bytes, and its value; `None` when that is null.
pub type Header<'a> = (&'a [u8], Option<&'a [u8]>);

/// The fields of a record, borrowed.
#[derive(Debug, Clone, Default)]
pub struct Fields<'a> {
    /// The key; `None` when null.
    pub key: Option<&'a [u8]>,
    /// The value; `None` when null.
    pub value: Option<&'a [u8]>,
    /// The headers in order.
    pub headers: Vec<Header<'a>>,
    /// The timestamp, epoch milliseconds; `None` when the record has none.
    pub timestamp_ms: Option<i64>,
}

impl Fields<'_> {
    /// Bytes of key, value and headers.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let len = |bytes: Option<&[u8]>| bytes.map_or(0, <[u8]>::len);
        let headers = self.headers.iter().map(|(name, value)| name.len() + len(*value)).sum::<usize>();
        (len(self.key) + len(self.value) + headers) as u64
    }
}

/// 128-bit hash of an id, or of the content of a record without id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; 16]);

impl Fingerprint {
    /// The fingerprint as a number, to sort by.
    pub(super) fn number(self) -> u128 {
        u128::from_be_bytes(self.0)
    }
}

/// The fields of a record, a 64-bit hash each, so that a change can be attributed to a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Content {
    key: u64,
    value: u64,
    headers: u64,
    timestamp_ms: i64,
}

/// Which fields differ between two contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Differing(u8);

impl Differing {
    const NAMES: [&'static str; 4] = ["key", "value", "headers", "timestamp"];

    /// Whether nothing differs.
    #[must_use]
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether nothing but the headers differs.
    pub(super) fn is_at_most_headers(self) -> bool {
        self.names().all(|name| name == "headers")
    }

    /// The names of the fields that differ.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().enumerate().filter(move |(bit, _)| self.0 & (1 << bit) != 0).map(|(_, n)| n)
    }
}

/// Empty, or a subordinate part of a sentence that begins with a comma.
impl fmt::Display for Differing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() {
            return Ok(());
        }
        write!(f, ", different in {}", self.names().collect::<Vec<_>>().join(", "))
    }
}

impl Content {
    /// Which fields differ in `other`.
    #[must_use]
    pub fn differing(&self, other: &Self) -> Differing {
        let same = [
            self.key == other.key,
            self.value == other.value,
            self.headers == other.headers,
            self.timestamp_ms == other.timestamp_ms,
        ];
        Differing(same.iter().enumerate().fold(0, |bits, (bit, same)| bits | (u8::from(!same) << bit)))
    }

    /// Whether these may be the same record with a change: they have the same value, or the same timestamp.
    #[must_use]
    pub fn resembles(&self, other: &Self) -> bool {
        self.value == other.value || self.timestamp_ms == other.timestamp_ms
    }

    /// Whether nothing but the headers may differ.
    pub(super) fn is_same_but_headers(&self, other: &Self) -> bool {
        Self { headers: other.headers, ..*self } == *other
    }

    /// Stands for all but the headers. The hashes have different keys, which nobody knows.
    pub(super) fn but_headers(&self) -> u64 {
        self.key ^ self.value ^ self.timestamp_ms.cast_unsigned()
    }

    /// Hash of the headers.
    pub(super) fn headers(&self) -> u64 {
        self.headers
    }

    /// The record's timestamp, epoch milliseconds; −1 when it has none.
    #[must_use]
    pub fn timestamp_ms(&self) -> i64 {
        self.timestamp_ms
    }
}

encode_fields!(Fingerprint { 0: [u8; 16] });
encode_fields!(Content { key: u64, value: u64, headers: u64, timestamp_ms: i64 });
encode_fields!(Differing { 0: u8 });

/// Why a record is compared by its content although it may have an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exempt {
    /// It is compared by its id if it has one.
    No,
    /// Its kind is not de-duplicated: it is due.
    Kind,
    /// Its id was forgotten: clean may lack it.
    Forgotten,
}

/// One record, reduced to what the comparison needs.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// Offset in its partition.
    pub offset: Offset,
    /// Fingerprint of its id, or of its content where it has no id.
    pub fingerprint: Fingerprint,
    /// Whether it has an id.
    pub has_id: bool,
    /// Whether it has the force header: it is forwarded whatever its id.
    pub forced: bool,
    /// Whether it is compared by its content although it may have an id.
    pub exempt: Exempt,
    /// Hashes of its fields.
    pub content: Content,
    /// Stands for what is compared with other records of its id: the value, unless that is replaced.
    pub digest: Digest,
}

/// Computes fingerprints; those of different keys cannot be compared.
#[derive(Debug, Clone)]
pub struct Fingerprints {
    sip: SipHasher13,
    digests: SipHasher24,
}

impl Fingerprints {
    /// Computes fingerprints with this hash key.
    #[must_use]
    pub fn new(key: u128) -> Self {
        let sip = SipHasher13::new_with_key(&key.to_le_bytes());
        // Two functions never use the same key.
        Self { sip, digests: SipHasher24::new_with_key(&sip.hash(b"digests").as_bytes()) }
    }

    /// Reduces a record. `id`: canonical bytes, equal for equal ids only.
    #[must_use]
    pub fn seen(&self, offset: Offset, id: Option<&[u8]>, fields: &Fields<'_>) -> Seen {
        let value = self.digest_of(fields.value);
        let content = self.content(fields, value);
        let fingerprint = match id {
            Some(id) => self.fingerprint(b'i', &[id]),
            None => self.fingerprint(
                b'c',
                &[
                    &content.key.to_le_bytes(),
                    &content.value.to_le_bytes(),
                    &content.headers.to_le_bytes(),
                    &content.timestamp_ms.to_le_bytes(),
                ],
            ),
        };
        let (forced, exempt, digest) = (false, Exempt::No, Digest(value.as_bytes()));
        Seen { offset, fingerprint, has_id: id.is_some(), forced, exempt, content, digest }
    }

    /// The digest of these bytes.
    pub(super) fn digest(&self, bytes: &[u8]) -> Digest {
        Digest(self.digest_of(Some(bytes)).as_bytes())
    }

    fn digest_of(&self, bytes: Option<&[u8]>) -> Hash128 {
        let mut sip = self.digests;
        write_nullable(&mut sip, bytes);
        sip.finish128()
    }

    fn fingerprint(&self, domain: u8, parts: &[&[u8]]) -> Fingerprint {
        let mut sip = self.sip;
        sip.write_u8(domain);
        for part in parts {
            sip.write(part);
        }
        Fingerprint(sip.finish128().as_bytes())
    }

    fn content(&self, fields: &Fields<'_>, value: Hash128) -> Content {
        let mut headers = self.sip;
        for (name, value) in &fields.headers {
            headers.write_usize(name.len());
            headers.write(name);
            write_nullable(&mut headers, *value);
        }
        Content {
            key: self.nullable(fields.key),
            value: value.h1,
            headers: headers.finish128().h1,
            timestamp_ms: fields.timestamp_ms.unwrap_or(-1),
        }
    }

    fn nullable(&self, bytes: Option<&[u8]>) -> u64 {
        let mut sip = self.sip;
        write_nullable(&mut sip, bytes);
        sip.finish128().h1
    }
}

/// Null and empty have different hashes.
fn write_nullable(sip: &mut impl Hasher, bytes: Option<&[u8]>) {
    sip.write_u8(u8::from(bytes.is_some()));
    if let Some(bytes) = bytes {
        sip.write_usize(bytes.len());
        sip.write(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differing(a: &Fields<'_>, b: &Fields<'_>) -> Vec<&'static str> {
        let contents = [a, b].map(|fields| Fingerprints::new(7).seen(0, None, fields).content);
        contents[0].differing(&contents[1]).names().collect()
    }

    #[test]
    fn every_field_has_its_own_hash_and_null_differs_from_empty() {
        let some = |bytes: &'static [u8]| Some(bytes);
        let base = Fields {
            key: some(b"k"),
            value: some(b"v"),
            headers: vec![(b"a", some(b"1")), (b"b", None)],
            timestamp_ms: Some(5),
        };
        assert!(differing(&base, &base.clone()).is_empty());
        for (changed, field) in [
            (Fields { key: None, ..base.clone() }, "key"),
            (Fields { key: some(b""), ..base.clone() }, "key"),
            (Fields { value: None, ..base.clone() }, "value"),
            (Fields { value: some(b"w"), ..base.clone() }, "value"),
            (Fields { headers: vec![], ..base.clone() }, "headers"),
            (Fields { headers: vec![(b"b", None), (b"a", some(b"1"))], ..base.clone() }, "headers"),
            (Fields { headers: vec![(b"a", some(b"1")), (b"b", some(b""))], ..base.clone() }, "headers"),
            (Fields { headers: vec![(b"a1", some(b"")), (b"b", None)], ..base.clone() }, "headers"),
            (Fields { timestamp_ms: Some(6), ..base.clone() }, "timestamp"),
        ] {
            assert_eq!(differing(&base, &changed), [field], "{changed:?}");
        }
        let null = Fields { key: None, ..Fields::default() };
        let empty = Fields { key: some(b""), ..Fields::default() };
        assert_eq!(differing(&null, &empty), ["key"]);
    }

    #[test]
    fn an_id_and_a_content_never_share_a_fingerprint() {
        let fingerprints = Fingerprints::new(1);
        let fields = Fields { key: Some(b"x"), ..Fields::default() };
        let with = fingerprints.seen(0, Some(b"x"), &fields);
        let without = fingerprints.seen(0, None, &fields);
        assert!(with.has_id && !without.has_id);
        assert_ne!(with.fingerprint, without.fingerprint);
        assert_eq!(with.fingerprint, fingerprints.seen(9, Some(b"x"), &Fields::default()).fingerprint);
    }
}
