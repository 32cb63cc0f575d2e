//! Ids of a sample that differ only by their spelling.

use std::collections::HashMap;

use crate::dedupe::{Coordinates, Identity, IdentityRule, Modifier};

/// Most records that are compared: each id is in a table for each modifier.
const MOST_RECORDS: u64 = 100_000;

/// Ids that a modifier would make equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Respelled {
    pub modifier: Modifier,
    /// Records with an id that differs from that of an earlier one only so.
    pub records: u64,
    /// One of them, and the earlier one.
    pub example: [Coordinates; 2],
}

impl Respelled {
    /// The warning about them.
    #[must_use]
    pub fn warning(&self) -> String {
        let by = match self.modifier {
            Modifier::Trim => "white space around it",
            Modifier::Lower => "the case of letters",
            Modifier::Number => "the spelling of a number",
            Modifier::Uuid => "the spelling of a UUID",
            Modifier::Optional => "a part that is absent",
        };
        let (word, [one, other]) = (self.modifier.as_str(), self.example);
        let (records, have, differs) =
            if self.records == 1 { ("record", "has", "differs") } else { ("records", "have", "differ") };
        format!(
            "{} {records} of the sample {have} an id that {differs} from another one only by {by}, for example record {one}, and record {other}: \
             they are not copies. If they are one event, write ({word}) behind the part of identity.from, as in \"json:/id ({word})\"",
            self.records
        )
    }
}

/// The ids of a rule with one modifier more, and for each the first record that has it.
#[derive(Debug)]
struct Spelled {
    modifier: Modifier,
    rule: IdentityRule,
    first: HashMap<Identity, (Identity, Coordinates)>,
    found: Option<Respelled>,
}

/// Looks for ids that differ only by their spelling.
#[derive(Debug)]
pub(super) struct SpelledIds {
    left: u64,
    by: Vec<Spelled>,
}

impl SpelledIds {
    pub(super) fn new(rule: &IdentityRule) -> Self {
        let spelled = |(modifier, rule)| Spelled { modifier, rule, first: HashMap::new(), found: None };
        Self { left: MOST_RECORDS, by: rule.respelled().into_iter().map(spelled).collect() }
    }

    /// Counts a record with this identity. `by` applies another rule to it.
    pub(super) fn count(
        &mut self,
        at: Coordinates,
        identity: Identity,
        by: &dyn Fn(&IdentityRule) -> Option<Identity>,
    ) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        for Spelled { modifier, rule, first, found } in &mut self.by {
            let Some(spelled) = by(rule) else { continue };
            let (known, first_at) = *first.entry(spelled).or_insert((identity, at));
            if known != identity {
                let new = || Respelled { modifier: *modifier, records: 0, example: [at, first_at] };
                found.get_or_insert_with(new).records += 1;
            }
        }
    }

    pub(super) fn finish(self) -> Vec<Respelled> {
        self.by.into_iter().filter_map(|spelled| spelled.found).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedupe::Hasher;

    fn found(part: &str, keys: &[&'static str]) -> Vec<(Modifier, u64)> {
        let rule = IdentityRule::new(vec![part.parse().unwrap()], Hasher::Xxh3);
        let mut ids = SpelledIds::new(&rule);
        for (offset, key) in keys.iter().enumerate() {
            let identify = |rule: &IdentityRule| rule.identify_texts(&[key]);
            let at = Coordinates { partition: 0, offset: offset as u64 };
            ids.count(at, identify(&rule).unwrap(), &identify);
        }
        ids.finish().into_iter().map(|it| (it.modifier, it.records)).collect()
    }

    #[test]
    fn ids_that_a_modifier_would_make_equal_are_counted_by_it() {
        assert_eq!(found("key", &["a", "A", "a", "b", "A"]), [(Modifier::Lower, 2)]);
        assert_eq!(found("key", &["2", "2.0", " 2", "2"]), [(Modifier::Trim, 1), (Modifier::Number, 1)]);
        assert_eq!(found("key (lower)", &["a", "A"]), []);
        assert_eq!(found("key", &["a", "b", "a"]), []);
        let example = [2, 1].map(|offset| Coordinates { partition: 0, offset });
        let warning = Respelled { modifier: Modifier::Lower, records: 1, example }.warning();
        assert!(warning.starts_with("1 record of the sample has an id that differs"), "{warning}");
        assert!(
            warning.contains("by the case of letters") && warning.contains("json:/id (lower)"),
            "{warning}"
        );
    }
}
