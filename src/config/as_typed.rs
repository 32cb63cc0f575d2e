//! Keys as typed on the command line.

use figment::value::{Dict, Value};

use super::environment::insert;
use super::properties::{Properties, Property};

/// Keys with their texts as typed: those that the command line sets.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AsTyped {
    dict: Dict,
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
            [text] => insert(&mut self.dict, section, name, Value::from(text.as_str())),
            _ => insert(&mut self.dict, section, name, Value::from(texts)),
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
    pub(super) fn dict(&self) -> Dict {
        let mut dict = self.dict.clone();
        let properties: Dict =
            self.properties.iter().map(|(name, text)| (name.to_owned(), text.into())).collect();
        insert(&mut dict, "kafka", "properties", properties.into());
        dict
    }
}
