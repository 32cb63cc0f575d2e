//! One thing wrong with the configuration, and all of them together.

use std::fmt;

/// One thing wrong with the configuration. Printed as one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The key, as in `window.exact`.
    pub key: String,
    /// What was given; `None` when nothing was, or when printing it could reveal a secret.
    pub value: Option<String>,
    /// Where the value came from; `None` for a default or for nothing.
    pub origin: Option<String>,
    /// What is wrong, continuing a sentence that begins with the key.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        if let Some(value) = &self.value {
            write!(f, " = {value:?}")?;
        }
        if let Some(origin) = &self.origin {
            write!(f, " ({origin})")?;
        }
        write!(f, ": {}; {}", self.what, self.remedy)
    }
}

/// Everything wrong with the configuration, in the order of the keys as documented.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => f.write_str("the configuration has a problem:")?,
            count => write!(f, "the configuration has {count} problems:")?,
        }
        for problem in &self.0 {
            write!(f, "\n  {problem}")?;
        }
        Ok(())
    }
}
