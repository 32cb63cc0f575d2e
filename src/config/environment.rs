//! Keys in the environment: `DEDUPD_SECTION__KEY`.

use toml::{Table, Value};

use super::known::sections;
use super::problem::{Problem, ValueFault};

/// The prefix of environment variables that set keys.
const PREFIX: &str = "DEDUPD_";

/// The keys set by the environment, as a nested table. Variables without `__` are ignored, because Kubernetes sets
/// `DEDUPD_PORT` for a service named dedupd; a variable in which only the second `_` is missing is a problem.
/// Empty variables count as not set.
pub(super) fn read(variables: &[(String, String)]) -> (Table, Vec<Problem>) {
    let mut table = Table::new();
    let mut problems = Vec::new();
    for (name, value) in variables {
        let Some(rest) = name.strip_prefix(PREFIX).filter(|_| !value.is_empty()) else { continue };
        match rest.split_once("__") {
            Some((section, key)) => put(&mut table, section, key, value),
            None => problems.extend(single_underscore(name, rest)),
        }
    }
    (table, problems)
}

/// The name of the environment variable for a key. In the part after `kafka.properties`, underscores replace dots.
pub(super) fn variable_name(path: &str) -> String {
    let below = path.strip_prefix("kafka.properties.").map(|name| name.replace('.', "_"));
    let (head, tail) = match &below {
        Some(name) => ("kafka.properties", format!("__{name}")),
        None => (path, String::new()),
    };
    format!("{PREFIX}{}{tail}", head.replace('.', "__")).to_uppercase()
}

fn put(table: &mut Table, section: &str, key: &str, text: &str) {
    let (section, key) = (section.to_lowercase(), key.to_lowercase());
    let below = key.strip_prefix("properties__").filter(|_| section == "kafka");
    match below {
        Some(name) => {
            let property = Table::from_iter([(name.replace('_', "."), text.into())]);
            insert(table, &section, "properties", property.into());
        }
        // `identity.from` and the like are lists: `["key", "header:x"]` as in TOML.
        None if text.trim_start().starts_with('[')
            && ["identity", "insight", "rekey"].contains(&section.as_str()) =>
        {
            let list = text.parse::<Value>().unwrap_or_else(|_| text.into());
            insert(table, &section, &key, list);
        }
        None => insert(table, &section, &key, text.into()),
    }
}

/// Inserts a value into a section. A table is added to the table that is already there.
pub(super) fn insert(table: &mut Table, section: &str, key: &str, value: Value) {
    let Value::Table(keys) = table.entry(section).or_insert_with(|| Table::new().into()) else {
        return;
    };
    match (keys.get_mut(key), value) {
        (Some(Value::Table(known)), Value::Table(more)) => known.extend(more),
        (_, value) => drop(keys.insert(key.to_owned(), value)),
    }
}

/// The problem of `DEDUPD_TOPICS_RAW` instead of `DEDUPD_TOPICS__RAW`, which would otherwise be ignored.
fn single_underscore(name: &str, rest: &str) -> Option<Problem> {
    let rest = rest.to_lowercase();
    let path = sections()
        .into_iter()
        .flat_map(|(section, keys)| keys.into_iter().map(move |key| format!("{section}.{key}")))
        .find(|path| path.replace('.', "_") == rest)?;
    Some(Problem {
        key: path.clone(),
        value: None,
        origin: Some(name.to_owned()),
        fault: ValueFault::new(
            "is not set by this variable: two underscores are required after the section",
            format!("set {}", variable_name(&path)),
        ),
    })
}
