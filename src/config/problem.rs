//! Problems of the configuration.

use std::fmt;

/// One problem of the configuration. Printed as one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The key, as in `window.exact`.
    pub key: String,
    /// The value; `None` when none is set, or when printing it could reveal a secret.
    pub value: Option<String>,
    /// The origin of the value; `None` for a default and for a missing value.
    pub origin: Option<String>,
    /// What is wrong, and what to do about it.
    pub fault: ValueFault,
}

/// What is wrong with a value, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueFault {
    /// The predicate of a sentence whose subject is the key.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl ValueFault {
    pub(super) fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into() }
    }
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
        write!(f, ": {}; {}", self.fault.what, self.fault.remedy)
    }
}

/// All problems of the configuration, in the documented order of the keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => f.write_str("the configuration has 1 problem:")?,
            count => write!(f, "the configuration has {count} problems:")?,
        }
        for problem in &self.0 {
            write!(f, "\n  {problem}")?;
        }
        Ok(())
    }
}
