//! Keys as typed on the command line.

use std::collections::BTreeMap;

use figment::value::{Dict, Value};

use super::environment::insert;
use super::properties::{Properties, Property};

/// Keys with their texts as typed: those that the command line sets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AsTyped {
    texts: BTreeMap<&'static str, Vec<String>>,
    properties: Properties,
}

impl AsTyped {
    /// Sets a key, as in `topics.raw`, unless there is no text. Loading reports a key that does not exist.
    #[must_use]
    pub fn with(mut self, key: &'static str, texts: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let texts: Vec<String> = texts.into_iter().map(Into::into).collect();
        if !texts.is_empty() {
            self.texts.insert(key, texts);
        }
        self
    }

    /// Sets librdkafka properties.
    #[must_use]
    pub fn with_properties(mut self, properties: &[Property]) -> Self {
        self.properties = properties.iter().cloned().collect();
        self
    }

    /// The keys as a nested table.
    pub(super) fn dict(&self) -> Dict {
        let mut dict = Dict::new();
        for (path, texts) in &self.texts {
            let (section, key) = path.split_once('.').unwrap_or((path, ""));
            let value = match texts.as_slice() {
                [text] => Value::from(text.as_str()),
                texts => Value::from(texts.to_vec()),
            };
            insert(&mut dict, section, key, value);
        }
        let properties: Dict =
            self.properties.iter().map(|(name, text)| (name.to_owned(), text.into())).collect();
        if !properties.is_empty() {
            insert(&mut dict, "kafka", "properties", properties.into());
        }
        dict
    }
}
