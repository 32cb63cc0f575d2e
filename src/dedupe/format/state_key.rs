//! The key of a record in the state topic.

use crate::dedupe::identity::Fingerprint;

/// The key of a record in the state topic: `v2;kind=…;id=…;raw=…;scope=topic;tx=…`.
///
/// When a transaction hangs after a broker crash, the key shows its writer. When the raw topic is recreated, the broker deletes the
/// group's offsets. Then only the key shows that the state belongs to the old topic.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StateKey {
    /// The name of the kind that a block belongs to; `None` for the unnamed kind.
    pub kind: Option<String>,
    /// The rule by which the identities in the record were made, if known.
    pub rule: Option<Fingerprint>,
    /// Topic id of the raw topic that the record belongs to, if known.
    pub raw: Option<String>,
    /// Whether the record is in the journal of all partitions (`scope=topic`), or in that of a single one.
    pub is_topic_wide: bool,
    /// Transactional id of the writer.
    pub writer: String,
}

impl StateKey {
    /// The key as text, `v2;name=value;…`; the inverse of `parse`.
    pub fn render(&self) -> String {
        let kind = self.kind.as_ref().map(|kind| format!("kind={kind};")).unwrap_or_default();
        let rule = self.rule.map(|rule| format!("id={rule};")).unwrap_or_default();
        let raw = self.raw.as_ref().map(|id| format!("raw={id};")).unwrap_or_default();
        let scope = if self.is_topic_wide { "scope=topic;" } else { "" };
        format!("v2;{kind}{rule}{raw}{scope}tx={}", self.writer)
    }

    /// Parses the text form; `None` when this version of dedupd did not write it.
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = text.strip_prefix("v2;")?;
        let mut key = Self::default();
        // The writer comes last and may itself contain semicolons.
        loop {
            if let Some(writer) = fields.strip_prefix("tx=") {
                return Some(Self { writer: writer.to_owned(), ..key });
            }
            let (field, rest) = fields.split_once(';')?;
            match field.split_once('=')? {
                ("kind", name) => key.kind = Some(name.to_owned()),
                ("id", rule) => key.rule = Some(rule.parse().ok()?),
                ("raw", id) => key.raw = Some(id.to_owned()),
                ("scope", scope) => key.is_topic_wide = scope == "topic",
                _ => {}
            }
            fields = rest;
        }
    }
}
