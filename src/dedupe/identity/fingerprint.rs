//! Fingerprint of an identity rule, as eight hex digits.
//!
//! Identities of different rules must not be compared: equal bytes from another field are another event. The fingerprint
//! covers everything that determines the bytes and the window: the sources of the id's parts in their order, the hash
//! with the id of its key, the frame of documents unless it is the default, and for a named kind the source and the values that select it. It does not cover the name of
//! a kind (windows of kinds are separate anyway), the order of its values, or settings that only decide how a record is
//! treated (`force_header`, `on_missing`, window lengths).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// Identifies a rule. 32 bits are enough: a rule is only compared with its predecessor, not with all possible rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fingerprint(u32);

/// Text that is not a fingerprint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a fingerprint; expected eight hex digits")]
pub struct NoFingerprint(String);

impl Fingerprint {
    /// Fingerprint of parts. Each part is prefixed with its length, so the boundaries between parts count.
    pub(super) fn of<T: AsRef<[u8]>>(parts: impl IntoIterator<Item = T>) -> Self {
        let mut joined = Vec::new();
        for part in parts {
            let part = part.as_ref();
            joined.extend_from_slice(&(part.len() as u64).to_le_bytes());
            joined.extend_from_slice(part);
        }
        Self(u32::try_from(xxh3_64(&joined) >> 32).unwrap_or(0))
    }

    /// Fingerprint of all rules together: that of the records without a named kind, and those of the named kinds that
    /// have windows, sorted by name. An operator names it to accept a change of rules.
    pub fn of_all(unnamed: Self, named: &[(&str, Self)]) -> Self {
        let mut named = named.to_vec();
        named.sort_unstable();
        let kinds = named.iter().flat_map(|(name, rule)| [(*name).to_owned(), rule.to_string()]);
        Self::of(std::iter::once(unnamed.to_string()).chain(kinds))
    }
}

impl Fingerprint {
    /// The fingerprint with this number.
    pub fn numbered(number: u32) -> Self {
        Self(number)
    }

    /// As a number.
    pub fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl FromStr for Fingerprint {
    type Err = NoFingerprint;

    fn from_str(text: &str) -> Result<Self, NoFingerprint> {
        let wrong = || NoFingerprint(text.to_owned());
        let digits = text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u32::from_str_radix(text, 16).ok().filter(|_| digits).map(Self).ok_or_else(wrong)
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = NoFingerprint;

    fn try_from(text: String) -> Result<Self, NoFingerprint> {
        text.parse()
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> Self {
        fingerprint.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedupe::identity::{Frame, Hasher, IdentityRule, KindRule};

    const SIP: Hasher = Hasher::SipHash { key: *b"0123456789abcdef" };

    fn rule(sources: &[&str], hasher: Hasher) -> Fingerprint {
        IdentityRule::new(sources.iter().map(|source| source.parse().unwrap()).collect(), hasher)
            .fingerprint()
    }

    fn framed(source: &str, frame: Frame) -> Fingerprint {
        IdentityRule::new(vec![source.parse().unwrap()], Hasher::Xxh3).framed(frame).fingerprint()
    }

    fn kind(source: &str, values: &[&str], of: Fingerprint) -> Fingerprint {
        KindRule::new(source.parse().unwrap(), values.iter().map(|value| (*value).to_owned())).fingerprint(of)
    }

    #[test]
    fn every_part_of_a_rule_changes_the_fingerprint() {
        let base = rule(&["json:/order_id"], Hasher::Xxh3);
        let other_key = Hasher::SipHash { key: *b"0123456789abcdeg" };
        let all = [
            base,
            rule(&["json:/event_id"], Hasher::Xxh3),
            rule(&["header:order_id"], Hasher::Xxh3),
            rule(&["json:/order_id", "key"], Hasher::Xxh3),
            rule(&["key", "json:/order_id"], Hasher::Xxh3),
            rule(&["json:/order_id"], SIP),
            rule(&["json:/order_id"], other_key),
            kind("json:/type", &["payment"], base),
            kind("header:type", &["payment"], base),
            kind("json:/type", &["payment", "refund"], base),
            kind("json:/type", &["payment"], rule(&["json:/event_id"], Hasher::Xxh3)),
            framed("json:/order_id", Frame::Glue),
            framed("json:/order_id", Frame::Apicurio),
        ];
        assert_eq!(framed("json:/order_id", Frame::Confluent), base);
        assert_eq!(framed("key", Frame::Glue), rule(&["key"], Hasher::Xxh3), "no document");
        for (number, one) in all.iter().enumerate() {
            assert!(all.iter().skip(number + 1).all(|other| other != one), "{number}: {one}");
        }
        assert_eq!(kind("json:/type", &["b", "a", "b"], base), kind("json:/type", &["a", "b"], base));
    }

    #[test]
    fn it_parses_back_and_never_changes_between_versions() {
        let base = rule(&["json:/id"], Hasher::Xxh3);
        assert_eq!(base.to_string().parse(), Ok(base));
        for text in ["", "123", "0123456g", "+1234567", "123456789"] {
            assert_eq!(text.parse::<Fingerprint>(), Err(NoFingerprint(text.to_owned())));
        }
        let (a, b) = (kind("key", &["a"], base), kind("key", &["b"], base));
        assert_eq!(
            Fingerprint::of_all(base, &[("a", a), ("b", b)]),
            Fingerprint::of_all(base, &[("b", b), ("a", a)])
        );
        assert_ne!(
            Fingerprint::of_all(base, &[("a", a), ("b", b)]),
            Fingerprint::of_all(base, &[("a", b), ("b", a)])
        );
        assert_ne!(Fingerprint::of_all(base, &[]), Fingerprint::of_all(a, &[]));
        // A change of these values stops every running group until an operator accepts it.
        assert_eq!([base, a].map(|it| it.to_string()), ["732db88f", "654f3d11"]);
    }
}
