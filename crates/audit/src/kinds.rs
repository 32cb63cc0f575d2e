//! Kinds of records, and ids that were forgotten: which records are compared by their id, and with which others.

use std::collections::HashSet;

use super::id::IdRule;
use super::record::{Exempt, Fields};

/// The records that have one of these values at a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordKind {
    /// The text of the source, as in [`Options::id`](crate::Options::id).
    pub from: String,
    /// The values, as texts.
    pub values: Vec<String>,
    /// Whether its ids count once. Otherwise each of its records is due in clean.
    pub is_deduplicated: bool,
}

/// What a record is compared by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ComparedBy {
    /// Canonical bytes of its id and kind.
    Id(Vec<u8>),
    /// Its content: it has no id, or is exempt.
    Content(Exempt),
}

/// Determines what the records are compared by.
#[derive(Debug, Clone)]
pub(super) struct Selection {
    id: IdRule,
    kinds: Vec<(IdRule, RecordKind)>,
    forgotten: HashSet<Vec<u8>>,
}

impl Selection {
    /// `forgotten` are the parts of each id that was forgotten, as texts. The error names what is wrong.
    pub fn new(id: IdRule, kinds: &[RecordKind], forgotten: &[Vec<String>]) -> Result<Self, String> {
        let kind = |kind: &RecordKind| Ok((id.with_sources(&[&kind.from])?, kind.clone()));
        let kinds = kinds.iter().map(kind).collect::<Result<_, String>>()?;
        let forgotten = forgotten.iter().map(|texts| id.of_texts(texts)).collect::<Result<_, _>>()?;
        Ok(Self { id, kinds, forgotten })
    }

    /// What a record is compared by. The error is why a schema cannot be fetched.
    pub fn of(&self, fields: &Fields<'_>) -> Result<ComparedBy, String> {
        // A record belongs to the first kind that it matches.
        let mut name = None;
        for (number, (source, kind)) in self.kinds.iter().enumerate() {
            let value = source.value(fields)?;
            if value.is_some_and(|value| kind.values.iter().any(|it| it.as_bytes() == &*value)) {
                if !kind.is_deduplicated {
                    return Ok(ComparedBy::Content(Exempt::Kind));
                }
                name = Some(number);
                break;
            }
        }
        Ok(match (self.id.id(fields)?, name) {
            (None, _) => ComparedBy::Content(Exempt::No),
            (Some(id), _) if self.forgotten.contains(&*id) => ComparedBy::Content(Exempt::Forgotten),
            (Some(id), None) => ComparedBy::Id(id.into_owned()),
            // The prefix makes it differ from every id of another kind.
            (Some(id), Some(number)) => {
                ComparedBy::Id([format!("\0kind {number}:").as_bytes(), &id].concat())
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(selection: &Selection, value: &str) -> ComparedBy {
        selection.of(&Fields { value: Some(value.as_bytes()), ..Fields::default() }).unwrap()
    }

    #[test]
    fn kinds_and_forgotten_ids_determine_what_a_record_is_compared_by() {
        let kind = |value: &str, is_deduplicated| RecordKind {
            from: "json:/type".to_owned(),
            values: vec![value.to_owned()],
            is_deduplicated,
        };
        let id = IdRule::parse(&["json:/id"]).unwrap();
        let forgotten = [vec!["f".to_owned()]];
        let selection = Selection::new(id, &[kind("noise", false), kind("1", true)], &forgotten).unwrap();
        let plain = of(&selection, r#"{"id":"a"}"#);
        assert_eq!(plain, ComparedBy::Id(b"a".to_vec()));
        assert_eq!(of(&selection, r#"{"id":"a","type":"other"}"#), plain);
        let of_kind = of(&selection, r#"{"id":"a","type":1}"#);
        assert!(matches!(&of_kind, ComparedBy::Id(id) if *id != b"a"), "{of_kind:?}");
        assert_eq!(of(&selection, r#"{"id":"a","type":"1"}"#), of_kind);
        assert_eq!(of(&selection, r#"{"id":"a","type":"noise"}"#), ComparedBy::Content(Exempt::Kind));
        assert_eq!(of(&selection, r#"{"type":"noise"}"#), ComparedBy::Content(Exempt::Kind));
        assert_eq!(of(&selection, r#"{"type":1}"#), ComparedBy::Content(Exempt::No));
        for forgotten in [r#"{"id":"f"}"#, r#"{"id":"f","type":1}"#] {
            assert_eq!(of(&selection, forgotten), ComparedBy::Content(Exempt::Forgotten), "{forgotten}");
        }
    }

    #[test]
    fn a_forgotten_id_needs_all_parts_of_the_id() {
        let rule = |texts: &[&str]| IdRule::parse(texts).unwrap();
        let forgotten = |texts: &[&str]| [texts.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>()];
        let two = rule(&["json:/id", "json:/tenant"]);
        let selection = Selection::new(two.clone(), &[], &forgotten(&["a", "t"])).unwrap();
        assert_eq!(of(&selection, r#"{"id":"a","tenant":"t"}"#), ComparedBy::Content(Exempt::Forgotten));
        assert_ne!(of(&selection, r#"{"id":"a","tenant":"u"}"#), ComparedBy::Content(Exempt::Forgotten));
        assert!(Selection::new(two, &[], &forgotten(&["a"])).unwrap_err().contains("2 parts"));
        let uuid = "0c5b7a1e-8a2b-4c1d-9e3f-001122334455";
        let selection =
            Selection::new(rule(&["json:/id"]), &[], &forgotten(&[&uuid.to_uppercase()])).unwrap();
        assert_eq!(of(&selection, &format!(r#"{{"id":"{uuid}"}}"#)), ComparedBy::Content(Exempt::Forgotten));
    }
}
