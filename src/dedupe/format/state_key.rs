//! The key of a record in the state topic.

use crate::dedupe::coordinates::Offset;
use crate::dedupe::identity::{Fingerprint, KindId};

/// The key of a record in the state topic: `v1;clean=…;first=1;copied=…;kind=…;id=…;new=…;raw=…;tx=…`.
///
/// When a transaction hangs after a broker crash, the key shows its writer and the clean end offset of the transaction. When
/// the raw topic is recreated, the broker deletes the group's offsets. Then only the key shows that the state belongs to the
/// old topic.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StateKey {
    /// One past the last clean offset written in the same transaction; `None` when it wrote no clean record.
    pub clean_end: Option<Offset>,
    /// Whether the block is the first one of its transaction in the partition; false in a copy that a repair writes.
    pub is_first: bool,
    /// The number of blocks of the transaction, on the last block of a copy that has all of them.
    pub copied: Option<usize>,
    /// The name of the kind that the block belongs to; `None` for the unnamed kind.
    pub kind: Option<String>,
    /// The rule by which the identities in the record were made, if known.
    pub rule: Option<Fingerprint>,
    /// Kinds whose windows are reset with the transaction: the records before it were made by another rule.
    pub reset_kinds: Vec<KindId>,
    /// Topic id of the raw topic that the record belongs to, if known.
    pub raw: Option<String>,
    /// Transactional id of the writer.
    pub writer: String,
}

impl StateKey {
    /// The key as text, `v1;name=value;…`; the inverse of `parse`.
    #[must_use]
    pub fn render(&self) -> String {
        let clean = self.clean_end.map(|end| format!("clean={end};")).unwrap_or_default();
        let first = if self.is_first { "first=1;" } else { "" };
        let copied = self.copied.map(|blocks| format!("copied={blocks};")).unwrap_or_default();
        let kind = self.kind.as_ref().map(|kind| format!("kind={kind};")).unwrap_or_default();
        let rule = self.rule.map(|rule| format!("id={rule};")).unwrap_or_default();
        let mut reset_kinds = String::new();
        self.reset_kinds
            .iter()
            .for_each(|kind| reset_kinds.extend(["new=", &kind.number().to_string(), ";"]));
        let raw = self.raw.as_ref().map(|id| format!("raw={id};")).unwrap_or_default();
        format!("v1;{clean}{first}{copied}{kind}{rule}{reset_kinds}{raw}tx={}", self.writer)
    }

    /// Parses the text form; `None` when dedupd did not write it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = text.strip_prefix("v1;")?;
        let mut key = Self::default();
        // The writer comes last and may itself contain semicolons.
        loop {
            if let Some(writer) = fields.strip_prefix("tx=") {
                return Some(Self { writer: writer.to_owned(), ..key });
            }
            let (field, rest) = fields.split_once(';')?;
            match field.split_once('=')? {
                ("clean", end) => key.clean_end = Some(end.parse().ok()?),
                ("first", _) => key.is_first = true,
                ("copied", blocks) => key.copied = Some(blocks.parse().ok()?),
                ("kind", name) => key.kind = Some(name.to_owned()),
                ("id", rule) => key.rule = Some(rule.parse().ok()?),
                ("new", kind) => key.reset_kinds.push(KindId::numbered(kind.parse().ok()?)),
                ("raw", id) => key.raw = Some(id.to_owned()),
                _ => {}
            }
            fields = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_key_reads_back_as_written() {
        let key = StateKey { writer: "a;b=c".into(), ..StateKey::default() };
        assert_eq!(StateKey::parse(&key.render()), Some(key));
        assert_eq!(StateKey::parse("v1;clean=;tx=a"), None);
        assert_eq!(StateKey::parse("else"), None);
    }
}
