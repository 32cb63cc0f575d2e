//! Property values from files: `sasl.password.file` is the path of a file that contains `sasl.password`.

use std::path::Path;

use super::problem::{Problem, Problems, ValueFault};
use super::properties::{Properties, rejection};
use super::small_files::read_small_text;

/// The suffix of a property whose value is the path of a file.
pub(super) const FILE: &str = ".file";
/// librdkafka properties that have this suffix.
const OF_LIBRDKAFKA: [&str; 3] = [
    "sasl.oauthbearer.assertion.file",
    "sasl.oauthbearer.assertion.jwt.template.file",
    "sasl.oauthbearer.assertion.private.key.file",
];

impl Properties {
    /// Replaces each property `NAME.file` by `NAME`, with the content of the file as its value; one line break at the
    /// end is removed. The error lists every file that cannot be used, or all problems of TLS and SASL.
    pub fn with_files_read(self) -> Result<Self, Problems> {
        let mut problems = Vec::new();
        let mut read = Self::default();
        for (name, value) in &self.0 {
            let Some(property) = name.strip_suffix(FILE).filter(|_| !OF_LIBRDKAFKA.contains(&name.as_str()))
            else {
                read.0.insert(name.clone(), value.clone());
                continue;
            };
            match self.content(property, Path::new(value)) {
                Ok(content) => drop(read.0.insert(property.to_owned(), content)),
                Err(fault) => problems.push(Problem {
                    key: format!("kafka.properties.{name}"),
                    value: Some(value.clone()),
                    origin: None,
                    fault,
                }),
            }
        }
        if problems.is_empty() {
            problems = read.security_problems(&self);
        }
        if problems.is_empty() { Ok(read) } else { Err(Problems(problems)) }
    }

    fn content(&self, property: &str, path: &Path) -> Result<String, ValueFault> {
        let rejected = |value: &str| rejection(&property.to_lowercase(), value).map_or(Ok(()), Err);
        rejected("")?;
        if self.0.contains_key(property) {
            let what = format!("names a file, but {property} is set as well");
            return Err(ValueFault::new(what, "set only one of them"));
        }
        let fault = |what: String| {
            ValueFault::new(what, "give a file that contains only the value and that this process may read")
        };
        let text = read_small_text(path).map_err(|error| fault(format!("cannot be read: {error}")))?;
        let line =
            text.strip_suffix('\n').map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line));
        rejected(line)?;
        if line.is_empty() { Err(fault("is empty".to_owned())) } else { Ok(line.to_owned()) }
    }
}
