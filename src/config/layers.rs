//! The layers of the configuration. Each is converted to texts under known keys, and the origin of each text is kept.

use std::collections::BTreeMap;
use std::path::Path;

use toml::{Table, Value};

use super::as_typed::AsTyped;
use super::environment;
use super::keys::keys;
use super::known::{remedy_for_key, remedy_for_section, remedy_for_table};
use super::problem::{Problem, ValueFault};
use super::section::{Key, Shape, joined};

/// The texts of one key.
pub(super) struct KeyTexts {
    /// One text, or those of a list.
    pub(super) texts: Vec<String>,
    /// The file, variable or command line that set the key; `None` for a default.
    pub(super) origin: Option<String>,
}

/// One layer, or several that are merged.
#[derive(Default)]
pub(super) struct Layer {
    /// Key, as in `window.exact`, `kafka.properties.client.id` or `kinds[0].name` → its texts.
    pub(super) entries: BTreeMap<String, KeyTexts>,
    /// The number of tables of `[[kinds]]`.
    pub(super) tables: usize,
    /// Unknown keys, and values that cannot be converted to texts.
    pub(super) problems: Vec<Problem>,
}

/// The origin of a key.
type OriginOf<'a> = &'a dyn Fn(&str) -> String;

const REMEDY: &str = "write a string, a number or true/false";
const REMEDY_OF_PARTS: &str = "write each part as a string, as in [\"json:/id (lower)\"], or as a nested array with its sources and \
     its modifiers, as in [[\"json:/id\", \"(lower)\"]]";

impl Layer {
    /// The layer of a TOML file. The error is a message that does not quote the line.
    pub(super) fn from_toml(path: &Path, text: &str) -> Result<Self, String> {
        let table = text.parse().map_err(|error: toml::de::Error| without_source(&error.to_string()))?;
        Ok(Self::of(table, &|_| path.display().to_string()))
    }

    /// The layer of the environment.
    pub(super) fn from_environment(variables: &[(String, String)]) -> Self {
        let (table, problems) = environment::read(variables);
        let mut layer = Self::of(table, &environment::variable_name);
        layer.problems.extend(problems);
        layer
    }

    /// The layer of the command line.
    pub(super) fn from_flags(flags: &AsTyped) -> Self {
        Self::of(flags.table(), &|_| "command line".to_owned())
    }

    /// The layer of the defaults, which have no origin.
    pub(super) fn defaults() -> Self {
        let mut layer = Self::default();
        for section in keys() {
            let Shape::Section(keys) = section.shape else { continue };
            for (name, default) in keys.iter().filter_map(|key| Some((key.name, key.default?))) {
                let entry = KeyTexts { texts: vec![default.to_owned()], origin: None };
                layer.entries.insert(joined(section.name, name), entry);
            }
        }
        layer
    }

    /// Adds a layer that overrides this one.
    pub(super) fn extend(&mut self, later: Self) {
        self.entries.extend(later.entries);
        self.tables = self.tables.max(later.tables);
        self.problems.extend(later.problems);
    }

    fn of(table: Table, origin_of: OriginOf<'_>) -> Self {
        let mut layer = Self::default();
        layer.take_keys("", &keys(), table, origin_of, &|section| {
            ValueFault::new("is not a section of the configuration", remedy_for_section(section))
        });
        layer
    }

    /// Takes the known keys of a table. `unknown` is the fault of a name that is not among them.
    fn take_keys(
        &mut self,
        at: &str,
        keys: &[Key],
        values: Table,
        origin_of: OriginOf<'_>,
        unknown: &dyn Fn(&str) -> ValueFault,
    ) {
        for (name, value) in values {
            let path = joined(at, &name);
            let taken = match keys.iter().find(|key| key.name == name) {
                Some(key) => self.take(&path, &key.shape, value, origin_of),
                None => Err(unknown(&name)),
            };
            if let Err(fault) = taken {
                self.reject(path, fault, origin_of);
            }
        }
    }

    fn take(
        &mut self,
        path: &str,
        shape: &Shape,
        value: Value,
        origin_of: OriginOf<'_>,
    ) -> Result<(), ValueFault> {
        let not_a_key = |remedy: String| ValueFault::new("is not a key of the configuration", remedy);
        match (shape, value) {
            (Shape::Section(keys), Value::Table(values)) => {
                let unknown = |name: &str| not_a_key(remedy_for_key(path, name));
                self.take_keys(path, keys, values, origin_of, &unknown);
            }
            (Shape::Section(_), _) => {
                let remedy = format!("write [{path}], and its keys below it");
                return Err(ValueFault::new("is a section, not a key", remedy));
            }
            (Shape::Tables(keys), Value::Array(tables)) => {
                let unknown = |_: &str| not_a_key(remedy_for_table(path, keys));
                self.tables = tables.len();
                for (number, table) in tables.into_iter().enumerate() {
                    let Value::Table(values) = table else { continue };
                    self.take_keys(&format!("{path}[{number}]"), keys, values, origin_of, &unknown);
                }
            }
            (Shape::Tables(_), _) => {
                let remedy = format!("write [[{path}]] and its keys below it, in the configuration file");
                return Err(ValueFault::new("must be a list of tables", remedy));
            }
            (Shape::Map, Value::Table(values)) => self.take_map(path, values, origin_of),
            (Shape::Map, _) => return Err(ValueFault::new("is not a table", REMEDY)),
            (Shape::List | Shape::Parts, value) => {
                let nests = *shape == Shape::Parts;
                let (what, remedy) = if nests {
                    (
                        "is neither a string nor a list of strings and nested arrays of strings",
                        REMEDY_OF_PARTS,
                    )
                } else {
                    ("is neither a string nor a list of strings", REMEDY)
                };
                let texts = list_of_text(&value, nests).ok_or_else(|| ValueFault::new(what, remedy))?;
                self.insert(path, texts, origin_of);
            }
            (Shape::One, value) => {
                let text = scalar(&value).ok_or_else(|| {
                    ValueFault::new("is a table or a list, but must be a single value", REMEDY)
                })?;
                self.insert(path, vec![text], origin_of);
            }
        }
        Ok(())
    }

    /// Takes a table with any names as one flat table: `a.b = 1` without quotes is a nested table in TOML.
    fn take_map(&mut self, at: &str, values: Table, origin_of: OriginOf<'_>) {
        for (name, value) in values {
            let path = joined(at, &name);
            match (scalar(&value), value) {
                (Some(text), _) => self.insert(&path, vec![text], origin_of),
                (None, Value::Table(below)) => self.take_map(&path, below, origin_of),
                (None, _) => {
                    let fault = ValueFault::new("is a list, but must be a single value", REMEDY);
                    self.reject(path, fault, origin_of);
                }
            }
        }
    }

    /// Records a problem without the value: it may be a secret under a mistyped key.
    fn reject(&mut self, key: String, fault: ValueFault, origin_of: OriginOf<'_>) {
        self.problems.push(Problem { origin: Some(origin_of(&key)), key, value: None, fault });
    }

    fn insert(&mut self, path: &str, texts: Vec<String>, origin_of: OriginOf<'_>) {
        self.entries.insert(path.to_owned(), KeyTexts { texts, origin: Some(origin_of(path)) });
    }
}

fn list_of_text(value: &Value, nests: bool) -> Option<Vec<String>> {
    match value {
        Value::Array(items) if nests => items.iter().map(element).collect(),
        Value::Array(items) => items.iter().map(scalar).collect(),
        other => Some(vec![scalar(other)?]),
    }
}

/// A part of an id. A list of texts becomes their JSON array: its sources, and its words.
fn element(value: &Value) -> Option<String> {
    let Value::Array(items) = value else { return scalar(value) };
    let texts: Vec<String> = items.iter().map(scalar).collect::<Option<_>>()?;
    serde_json::to_string(&texts).ok()
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Boolean(flag) => Some(flag.to_string()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Datetime(time) => Some(time.to_string()),
        Value::Table(_) | Value::Array(_) => None,
    }
}

/// A TOML error without the quoted source, which may contain a secret.
fn without_source(message: &str) -> String {
    let quoted = |line: &str| {
        line.trim_start().trim_start_matches(|c: char| c.is_ascii_digit()).trim_start().starts_with('|')
    };
    let lines: Vec<_> =
        message.lines().filter(|line| !quoted(line)).map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join(": ")
}
