//! Reads the texts of keys, and collects all problems instead of stopping at the first.

use super::layers::Layer;
use super::problem::{Problem, ValueFault};
use super::section::Form;

/// The merged texts, and the problems of the keys that were read.
pub(super) struct ConfigReading<'a> {
    merged: &'a Layer,
    /// The name of this host.
    pub(super) host: &'a str,
    /// The problems so far.
    pub(super) problems: Vec<Problem>,
}

impl<'a> ConfigReading<'a> {
    pub(super) fn new(merged: &'a Layer, host: &'a str) -> Self {
        Self { merged, host, problems: Vec::new() }
    }

    /// The same texts, to read keys again whose problems are already recorded.
    pub(super) fn again(&self) -> Self {
        Self::new(self.merged, self.host)
    }

    /// The value of a key; `None` when it has a problem, which is recorded where its section is read.
    pub(super) fn valid<V>(&self, key: &str, form: &impl Form<V>) -> Option<V> {
        form.read(key, &mut self.again())
    }

    /// Whether a layer or the defaults set the key.
    pub(super) fn is_set(&self, key: &str) -> bool {
        self.merged.entries.contains_key(key)
    }

    /// Whether a layer sets a key of the section. The defaults do not count.
    pub(super) fn is_given(&self, section: &str) -> bool {
        let of_section = |key: &str| key.strip_prefix(section).is_some_and(|rest| rest.starts_with('.'));
        self.merged.entries.iter().any(|(key, entry)| entry.origin.is_some() && of_section(key))
    }

    /// All texts of a key that is a list.
    pub(super) fn texts(&self, key: &str) -> Option<&'a [String]> {
        self.merged.entries.get(key).map(|entry| entry.texts.as_slice())
    }

    /// The text of a key.
    pub(super) fn text(&self, key: &str) -> Option<&'a str> {
        self.texts(key)?.first().map(String::as_str)
    }

    /// The names and texts of a key that is a map, ordered by name.
    pub(super) fn map(&self, key: &str) -> Vec<(&'a str, &'a str)> {
        let entries = self.merged.entries.iter();
        let below = entries.filter_map(|(path, entry)| {
            let name = path.strip_prefix(key)?.strip_prefix('.')?;
            Some((name, entry.texts.first()?.as_str()))
        });
        below.collect()
    }

    /// The keys of the tables of `[[kinds]]`, as in `kinds[0]`.
    pub(super) fn tables(&self) -> Vec<String> {
        (0..self.merged.tables).map(|number| format!("kinds[{number}]")).collect()
    }

    /// Records the problem of a key.
    pub(super) fn reject(&mut self, key: &str, value: Option<&str>, fault: ValueFault) {
        let origin = self.merged.entries.get(key).and_then(|entry| entry.origin.clone());
        self.problems.push(Problem { key: key.to_owned(), value: value.map(str::to_owned), origin, fault });
    }

    /// The text of a required key. `remedy` is what to do when it is missing or blank.
    pub(super) fn required(&mut self, key: &str, remedy: &str) -> Option<&'a str> {
        let text = self.text(key).filter(|text| !text.trim().is_empty());
        if text.is_none() {
            self.reject(key, None, ValueFault::new("is missing", remedy));
        }
        text
    }

    /// The parsed text of a required key. `remedy` is what to do when it is missing or blank.
    pub(super) fn parsed<V>(
        &mut self,
        key: &str,
        remedy: &str,
        parse: impl FnOnce(&str) -> Result<V, ValueFault>,
    ) -> Option<V> {
        let text = self.required(key, remedy)?;
        parse(text).map_err(|fault| self.reject(key, Some(text), fault)).ok()
    }
}
