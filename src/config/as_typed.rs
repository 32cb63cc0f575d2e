//! Keys as typed on the command line.

use toml::{Table, Value};

use super::environment::insert;
use super::properties::{Properties, Property};

/// Keys with their texts as typed: those that the command line sets.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AsTyped {
    table: Table,
    properties: Properties,
}

impl AsTyped {
    /// Sets a key, as in `topics.raw`, unless there is no text. Loading reports a key that does not exist.
    #[must_use]
    pub fn with(mut self, key: &str, texts: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let texts: Vec<String> = texts.into_iter().map(Into::into).collect();
        let (section, name) = key.split_once('.').unwrap_or((key, ""));
        match texts.as_slice() {
            [] => {}
            [text] => insert(&mut self.table, section, name, Value::from(text.as_str())),
            _ => insert(&mut self.table, section, name, Value::from(texts)),
        }
        self
    }

    /// Replaces all librdkafka properties of this layer; each is a `--set` of the command line.
    #[must_use]
    pub fn with_properties(mut self, properties: &[Property]) -> Self {
        self.properties = properties.iter().cloned().collect();
        self
    }

    /// The keys as a nested table.
    pub(super) fn table(&self) -> Table {
        let mut table = self.table.clone();
        let properties: Table =
            self.properties.iter().map(|(name, text)| (name.to_owned(), Value::from(text))).collect();
        insert(&mut table, "kafka", "properties", properties.into());
        table
    }
}
