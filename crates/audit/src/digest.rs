//! What of two records with one id is compared.

use super::id::IdRule;
use super::record::{Fields, Fingerprints, Seen};
use super::spill::encode_fields;

/// The source that is compared as a whole, where null differs from empty.
pub(super) const VALUE: &str = "value";

/// Stands for what is compared of a record: 128 bits of a hash whose key is random in each run, so nobody can prepare contents with
/// the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digest(pub(super) [u8; 16]);

encode_fields!(Digest { 0: [u8; 16] });

impl Digest {
    /// Of a record that is not compared.
    pub const NONE: Self = Self([0; 16]);

    /// Whether the contents are equal; `None` if one of them is not compared.
    #[must_use]
    pub fn is_equal(self, other: Self) -> Option<bool> {
        (self != Self::NONE && other != Self::NONE).then_some(self == other)
    }
}

/// What is compared of a record, by source.
pub(super) type Parts = Vec<(String, Option<Vec<u8>>)>;

/// What of a record is compared.
#[derive(Debug, Clone)]
pub struct CompareRule {
    texts: Vec<String>,
    parts: IdRule,
}

impl CompareRule {
    /// Compares these parts, in the form of [`Options::id`](crate::Options::id), or nothing without one; with the schemas of `id`.
    /// The error names the invalid text.
    pub fn new(texts: &[String], id: &IdRule) -> Result<Self, String> {
        Ok(Self { texts: texts.to_vec(), parts: id.with_sources(texts)? })
    }

    /// The digest of a record, which `seen` has the value's of. None if it has no id, or lacks a part that is not optional, or all. The error is
    /// why a schema cannot be fetched.
    pub fn digest(&self, seen: &Seen, fields: &Fields<'_>, prints: &Fingerprints) -> Result<Digest, String> {
        if !seen.has_id || self.texts.is_empty() {
            return Ok(Digest::NONE);
        }
        if self.is_whole() {
            return Ok(seen.digest);
        }
        Ok(self.parts.joined(fields)?.map_or(Digest::NONE, |joined| prints.digest(&joined)))
    }

    /// What is compared of a record, by the texts of the sources. The error is why a schema cannot be fetched.
    pub(super) fn parts(&self, fields: &Fields<'_>) -> Result<Parts, String> {
        let parts = if self.is_whole() {
            vec![fields.value.map(<[u8]>::to_vec)]
        } else {
            self.parts.parts(fields)?
        };
        Ok(self.texts.iter().cloned().zip(parts).collect())
    }

    fn is_whole(&self) -> bool {
        self.texts == [VALUE]
    }
}
