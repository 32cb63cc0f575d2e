//! Values of properties that stand in files: `sasl.password.file` names the file with `sasl.password`.

use std::path::Path;

use super::problem::{Problem, Problems};
use super::properties::{Properties, refusal};

/// What is added to a property's name when its value is the path of a file.
const FILE: &str = ".file";
/// Properties of the client itself that end so.
const ITS_OWN: [&str; 3] = [
    "sasl.oauthbearer.assertion.file",
    "sasl.oauthbearer.assertion.jwt.template.file",
    "sasl.oauthbearer.assertion.private.key.file",
];

impl Properties {
    /// Replaces each property `NAME.file` by `NAME`, with the content of the file it names as its value;
    /// one line end at the end does not count. The error lists every file that cannot be used.
    pub fn with_files_read(self) -> Result<Self, Problems> {
        let mut problems = Vec::new();
        let mut read = Self::default();
        for (name, value) in &self.0 {
            let Some(property) = name.strip_suffix(FILE).filter(|_| !ITS_OWN.contains(&name.as_str())) else {
                read.0.insert(name.clone(), value.clone());
                continue;
            };
            match self.content(property, Path::new(value)) {
                Ok(content) => drop(read.0.insert(property.to_owned(), content)),
                Err((what, remedy)) => problems.push(Problem {
                    key: format!("kafka.properties.{name}"),
                    value: Some(value.clone()),
                    origin: None,
                    what,
                    remedy: remedy.to_owned(),
                }),
            }
        }
        if problems.is_empty() { Ok(read) } else { Err(Problems(problems)) }
    }

    fn content(&self, property: &str, path: &Path) -> Result<String, (String, &'static str)> {
        if let Some(refusal) = refusal(&property.to_lowercase()) {
            return Err((refusal.what.to_owned(), refusal.remedy));
        }
        if self.0.contains_key(property) {
            return Err((format!("names a file, and {property} is set as well"), "set one of them"));
        }
        let remedy = "name a file with the value alone, that this process may read";
        let text =
            std::fs::read_to_string(path).map_err(|error| (format!("cannot be read: {error}"), remedy))?;
        let line =
            text.strip_suffix('\n').map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line));
        if line.is_empty() {
            return Err(("is empty".to_owned(), remedy));
        }
        Ok(line.to_owned())
    }
}
