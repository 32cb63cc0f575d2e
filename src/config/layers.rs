//! The layers of the configuration. Each is converted to text under known keys, and the origin of each key is kept.

use std::collections::BTreeMap;
use std::path::Path;

use figment::Profile;
use figment::Provider;
use figment::providers::{Format, Toml};
use figment::value::{Dict, Num, Value};

use super::as_typed::AsTyped;
use super::environment;
use super::known::{kind_keys, known_keys, remedy_for_key, remedy_for_section, serialised};
use super::problem::Problem;

/// The only key that is a list of tables.
const KINDS: &str = "kinds";

/// One layer: text under known keys.
#[derive(Default)]
pub(super) struct Layer {
    /// Section → key → text, list of text (`identity.from`) or table of text (`kafka.properties`).
    pub(super) dict: Dict,
    /// Key → origin of its value.
    pub(super) origins: BTreeMap<String, String>,
    /// Unknown keys, and values that cannot be converted to text.
    pub(super) problems: Vec<Problem>,
}

impl Layer {
    /// The layer of a TOML file. The error is a message that does not quote the line.
    pub(super) fn from_toml(path: &Path, text: &str) -> Result<Self, String> {
        let mut profiles = Toml::string(text).data().map_err(|error| without_source(&error.to_string()))?;
        let dict = profiles.remove(&Profile::Default).unwrap_or_default();
        let origin = path.display().to_string();
        Ok(Self::sorted(dict, &|_| origin.clone()))
    }

    /// The layer of the environment.
    pub(super) fn from_environment(variables: &[(String, String)]) -> Self {
        let (dict, problems) = environment::read(variables);
        let mut layer = Self::sorted(dict, &environment::variable_name);
        layer.problems.extend(problems);
        layer
    }

    /// The layer of the command line.
    pub(super) fn from_flags(flags: &AsTyped) -> Self {
        Self::sorted(dict_of(flags), &|_| "command line".to_owned())
    }

    /// The layer of the defaults, which have no origin.
    pub(super) fn defaults() -> Self {
        let layer = Self::sorted(dict_of(&AsTyped::defaults()), &|_| String::new());
        Self { origins: BTreeMap::new(), ..layer }
    }

    fn sorted(dict: Dict, origin_of: &dyn Fn(&str) -> String) -> Self {
        let known = known_keys();
        let mut layer = Self::default();
        for (section, value) in dict {
            if section == KINDS {
                layer.take_kinds(value, origin_of);
                continue;
            }
            match (known.get(&section), value) {
                (Some(keys), Value::Dict(_, values)) => layer.take_section(&section, keys, values, origin_of),
                (Some(_), _) => {
                    let remedy = format!("write [{section}], and its keys below it");
                    layer.problem(&section, "is a section, not a key", remedy, origin_of);
                }
                (None, _) => {
                    let remedy = remedy_for_section(&section, &known);
                    layer.problem(&section, "is not a section of the configuration", remedy, origin_of);
                }
            }
        }
        layer
    }

    fn take_section(
        &mut self,
        section: &str,
        keys: &[String],
        values: Dict,
        origin_of: &dyn Fn(&str) -> String,
    ) {
        let mut taken = Dict::new();
        for (key, value) in values {
            let path = format!("{section}.{key}");
            if !keys.contains(&key) {
                let remedy = remedy_for_key(&path, keys);
                self.problem(&path, "is not a key of the configuration", remedy, origin_of);
                continue;
            }
            let text = match path.as_str() {
                "kafka.properties" => self.take_properties(value, origin_of),
                "identity.from" => list_of_text(value).ok_or("is neither a string nor a list of strings"),
                _ => {
                    scalar(&value).map(Value::from).ok_or("is a table or a list, but must be a single value")
                }
            };
            match text {
                Ok(text) => {
                    self.origins.insert(path.clone(), origin_of(&path));
                    taken.insert(key, text);
                }
                Err(what) => {
                    self.problem(&path, what, "write a string, a number or true/false".to_owned(), origin_of);
                }
            }
        }
        self.dict.insert(section.to_owned(), taken.into());
    }

    /// Takes all tables of `[[kinds]]` together: a later layer replaces them, it does not add to them.
    fn take_kinds(&mut self, value: Value, origin_of: &dyn Fn(&str) -> String) {
        let Value::Array(_, tables) = value else {
            let remedy = "write [[kinds]] and its keys below it, in the configuration file";
            return self.problem(KINDS, "must be a list of tables", remedy.to_owned(), origin_of);
        };
        let known = kind_keys();
        let mut kinds = Vec::new();
        for (number, table) in tables.into_iter().enumerate() {
            let Value::Dict(_, values) = table else { continue };
            let mut taken = Dict::new();
            for (key, value) in values.into_iter().filter(|(_, value)| !matches!(value, Value::Empty(..))) {
                let path = format!("{KINDS}[{number}].{key}");
                let text =
                    if key == "values" { list_of_text(value) } else { scalar(&value).map(Value::from) };
                match text.filter(|_| known.contains(&key)) {
                    Some(text) => {
                        self.origins.insert(path.clone(), origin_of(&path));
                        taken.insert(key, text);
                    }
                    None if known.contains(&key) => {
                        let what = "is a table or a list, but must be a single value";
                        self.problem(
                            &path,
                            what,
                            "write a string, a number or true/false".to_owned(),
                            origin_of,
                        );
                    }
                    None => {
                        let remedy = format!("the keys of [[kinds]] are {}", known.join(", "));
                        self.problem(&path, "is not a key of the configuration", remedy, origin_of);
                    }
                }
            }
            kinds.push(Value::from(taken));
        }
        if !kinds.is_empty() {
            self.dict.insert(KINDS.to_owned(), kinds.into());
        }
    }

    /// Takes the properties as one flat table: `a.b = 1` without quotes is a nested table in TOML.
    fn take_properties(
        &mut self,
        value: Value,
        origin_of: &dyn Fn(&str) -> String,
    ) -> Result<Value, &'static str> {
        let Value::Dict(_, properties) = value else { return Err("is not a table") };
        let mut flat = BTreeMap::new();
        flatten("", properties, &mut flat);
        let mut taken = Dict::new();
        for (name, value) in flat {
            let path = format!("kafka.properties.{name}");
            if let Some(text) = scalar(&value) {
                self.origins.insert(path.clone(), origin_of(&path));
                taken.insert(name, text.into());
            } else {
                let remedy = "write a string, a number or true/false".to_owned();
                self.problem(&path, "is a list, but must be a single value", remedy, origin_of);
            }
        }
        Ok(taken.into())
    }

    /// Adds a problem without the value: it may be a secret under a mistyped key.
    fn problem(&mut self, key: &str, what: &str, remedy: String, origin_of: &dyn Fn(&str) -> String) {
        let origin = Some(origin_of(key));
        self.problems.push(Problem {
            key: key.to_owned(),
            value: None,
            origin,
            what: what.to_owned(),
            remedy,
        });
    }
}

fn flatten(prefix: &str, dict: Dict, flat: &mut BTreeMap<String, Value>) {
    for (key, value) in dict {
        let name = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
        match value {
            Value::Dict(_, below) => flatten(&name, below, flat),
            value => drop(flat.insert(name, value)),
        }
    }
}

fn list_of_text(value: Value) -> Option<Value> {
    let texts = match value {
        Value::Array(_, items) => items.iter().map(scalar).collect::<Option<Vec<_>>>()?,
        other => vec![scalar(&other)?],
    };
    Some(texts.into())
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(_, text) => Some(text.clone()),
        Value::Char(_, c) => Some(c.to_string()),
        Value::Bool(_, flag) => Some(flag.to_string()),
        Value::Num(_, num) => Some(number_text(*num)),
        Value::Empty(..) | Value::Dict(..) | Value::Array(..) => None,
    }
}

fn number_text(num: Num) -> String {
    num.to_i128()
        .map(|n| n.to_string())
        .or_else(|| num.to_u128().map(|n| n.to_string()))
        .or_else(|| num.to_f64().map(|n| format!("{n:?}")))
        .unwrap_or_default()
}

/// A value of [`AsTyped`] as a nested table, without the keys that are not set.
fn dict_of(typed: &AsTyped) -> Dict {
    let mut dict = serialised(typed);
    for value in dict.values_mut() {
        if let Value::Dict(_, keys) = value {
            keys.retain(|_, value| !matches!(value, Value::Empty(..)));
        }
    }
    dict
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
