//! Whether two records with one id have the same content.
//!
//! A digest has 32 bits: enough to find accidents, of which it misses one in four thousand million, and not enough against somebody who chooses
//! contents to have the same one. Only the bytes prove equality (`dedupd audit`).

use xxhash_rust::xxh3::xxh3_64;

use super::schema::{MissingSchema, Schemas};
use super::{Fields, Fingerprint, Hasher, IdPart, IdentityRule};

/// What stands for the content of a record, by the rule that made it. Digests of different rules are not compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Digest {
    rule: u32,
    value: u32,
}

/// How the content of a record compares with that of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Their digests are equal.
    Equal,
    /// Their digests differ.
    Different,
    /// One of them has no digest, or they are of different rules.
    NotCompared,
}

impl Digest {
    /// Of a record that is not compared.
    pub const NONE: Self = Self { rule: 0, value: 0 };

    /// A digest in a group that was stored with this rule; 0 stands for none, as the rule and as the digest.
    #[inline]
    pub fn stored(rule: u32, value: u32) -> Self {
        if rule == 0 || value == 0 { Self::NONE } else { Self { rule, value } }
    }

    /// The number of the rule; 0 without a digest.
    #[inline]
    pub fn rule(self) -> u32 {
        self.rule
    }

    /// What is stored in a group with this rule: 0 for one of another rule, which is not compared any more.
    #[inline]
    pub fn in_group(self, rule: u32) -> u32 {
        if self.rule == rule { self.value } else { 0 }
    }

    /// The rule of a group with these digests: the first one.
    pub fn rule_of(digests: impl IntoIterator<Item = Self>) -> u32 {
        digests.into_iter().map(Self::rule).find(|rule| *rule != 0).unwrap_or(0)
    }

    /// Compares the contents.
    pub fn compare(self, other: Self) -> Content {
        match (self.rule, other.rule) {
            (0, _) | (_, 0) => Content::NotCompared,
            (one, other) if one != other => Content::NotCompared,
            _ if self.value == other.value => Content::Equal,
            _ => Content::Different,
        }
    }
}

/// What of a record is its content.
#[derive(Debug, Clone)]
pub struct CompareRule {
    parts: IdentityRule,
    /// Whether it is the whole value.
    is_whole: bool,
    /// Distinguishes its digests from those of other rules; 0: nothing is compared.
    number: u32,
}

impl CompareRule {
    /// The value as a whole, where null differs from empty, or these parts; nothing without parts.
    pub fn new(parts: Vec<IdPart>) -> Self {
        let texts = parts.iter().map(IdPart::to_string);
        let number = Fingerprint::of(std::iter::once("compare".to_owned()).chain(texts)).number();
        let number = if parts.is_empty() { 0 } else { number.max(1) };
        let is_whole = matches!(parts.as_slice(), [part] if part.is_value());
        Self { parts: IdentityRule::new(parts, Hasher::Xxh3), is_whole, number }
    }

    /// The digest of a record; none when it lacks a part that is not optional, or all. Fails when a part cannot be read without a schema
    /// that is not known.
    #[inline]
    pub fn digest<F: Fields>(&self, record: &F, schemas: &Schemas) -> Result<Digest, MissingSchema> {
        if self.number == 0 {
            return Ok(Digest::NONE);
        }
        let hash = if self.is_whole {
            // No value has the hash 0 after this.
            record.value().map_or(1, xxh3_64)
        } else {
            let Some(joined) = self.parts.joined(record, schemas)? else { return Ok(Digest::NONE) };
            xxh3_64(&joined)
        };
        let value = u32::try_from(hash >> 32).unwrap_or(0).max(1);
        Ok(Digest { rule: self.number, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedupe::identity::tests::SampleRecord;

    fn rule(sources: &[&str]) -> CompareRule {
        CompareRule::new(sources.iter().map(|source| source.parse().unwrap()).collect())
    }

    fn digest(rule: &CompareRule, value: Option<&'static str>) -> Digest {
        let record = SampleRecord { value: value.map(str::as_bytes), ..SampleRecord::default() };
        rule.digest(&record, &Schemas::default()).unwrap()
    }

    #[test]
    fn values_are_compared_as_a_whole_and_null_differs_from_empty() {
        let rule = rule(&["value"]);
        let contents = [None, Some(""), Some("a"), Some("b")].map(|value| digest(&rule, value));
        for (one, a) in contents.iter().enumerate() {
            for (other, b) in contents.iter().enumerate() {
                let expected = if one == other { Content::Equal } else { Content::Different };
                assert_eq!(a.compare(*b), expected, "{one} {other}");
            }
        }
    }

    #[test]
    fn only_the_parts_of_the_rule_count_and_a_record_without_one_is_not_compared() {
        let parts = rule(&["json:/a", "json:/b"]);
        let [one, same, other, lacks] = [
            r#"{"a":1,"b":2,"sent_at":3}"#,
            r#"{"sent_at":4,"b":2,"a":1}"#,
            r#"{"a":1,"b":3}"#,
            r#"{"a":1}"#,
        ]
        .map(|value| digest(&parts, Some(value)));
        assert_eq!(one.compare(same), Content::Equal);
        assert_eq!(one.compare(other), Content::Different);
        assert_eq!([one.compare(lacks), lacks.compare(lacks)], [Content::NotCompared; 2]);
    }

    #[test]
    fn parts_are_read_as_those_of_ids() {
        let rule = rule(&["json:/a | json:/A (lower)", "json:/b (optional)"]);
        let [lower, other_name, other, with_b, none] =
            [r#"{"a":"x"}"#, r#"{"A":"X","b":null}"#, r#"{"a":"y"}"#, r#"{"a":"x","b":1}"#, r#"{"b":1}"#]
                .map(|value| digest(&rule, Some(value)));
        assert_eq!(lower.compare(other_name), Content::Equal);
        assert_eq!([lower.compare(other), lower.compare(with_b)], [Content::Different; 2]);
        assert_eq!(lower.compare(none), Content::NotCompared);
    }

    #[test]
    fn digests_of_different_rules_or_of_none_are_not_compared() {
        let value = Some(r#"{"a":1}"#);
        let (whole, part, off) = (rule(&["value"]), rule(&["json:/a"]), rule(&[]));
        assert_eq!([whole.number != 0, off.number != 0], [true, false]);
        let [whole, part, off] = [whole, part, off].map(|rule| digest(&rule, value));
        assert_eq!([whole.compare(part), whole.compare(off), off.compare(off)], [Content::NotCompared; 3]);
        assert_eq!(Digest::rule_of([off, part, whole]), part.rule());
        assert_eq!(Digest::stored(whole.rule(), whole.in_group(whole.rule())), whole);
        assert_eq!(Digest::stored(part.rule(), whole.in_group(part.rule())), Digest::NONE);
        assert_eq!(off, Digest::NONE);
    }
}
