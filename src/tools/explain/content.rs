//! How the content of a record compares with that of the owner of its id.

use crate::dedupe::{Content, Digest, IdPart};
use crate::kafka::{ComparedPart, first_difference};

/// What is compared of a record, as a whole and each part on its own.
pub(super) struct ComparedContent {
    pub digest: Digest,
    pub parts: Vec<ComparedPart>,
    pub value: Option<Vec<u8>>,
}

/// The comparison in words; `rule` is what is compared.
pub(super) fn described(rule: &[IdPart], seen: &ComparedContent, owner: &ComparedContent) -> String {
    let names = || rule.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
    let values = if owner.value == seen.value { "equal values" } else { "values differ" };
    match owner.digest.compare(seen.digest) {
        Content::Equal if owner.value == seen.value => values.to_owned(),
        Content::Equal if collides(rule, owner, seen) => {
            format!(
                "{values}, but have the same digest of 32 bits: dedupd takes them for equal; dedupd audit does not"
            )
        }
        Content::Equal => format!("{values}, but not in what is compared ({})", names()),
        Content::Different => {
            let place = first_difference(rule, &owner.parts, &seen.parts);
            format!("a conflict, first difference: {}", place.unwrap_or_else(names))
        }
        Content::NotCompared if rule.is_empty() => {
            format!("{values}; nothing is compared (identity.compare)")
        }
        Content::NotCompared => {
            let lacks = |part: &ComparedPart| part.digest == Digest::NONE;
            let parts = rule.iter().zip(owner.parts.iter().zip(&seen.parts));
            let missing = parts.filter(|(_, (owner, seen))| lacks(owner) || lacks(seen));
            let missing: Vec<&IdPart> = missing.map(|(part, _)| part).collect();
            let is_required = |part: &&IdPart| !part.is_optional();
            let any_required = missing.iter().any(is_required);
            // Where all parts may be absent, one has to be there.
            let listed = missing.iter().filter(|part| !any_required || is_required(part));
            let missing: Vec<_> = listed.map(ToString::to_string).collect();
            format!("{values}; not compared, because one of them lacks {}", missing.join(" and "))
        }
    }
}

/// Whether what is compared differs although it has one digest, of two records with different values.
fn collides(rule: &[IdPart], owner: &ComparedContent, seen: &ComparedContent) -> bool {
    let mut parts = owner.parts.iter().zip(&seen.parts);
    rule.iter().any(IdPart::is_value) || parts.any(|(owner, seen)| owner.digest != seen.digest)
}
