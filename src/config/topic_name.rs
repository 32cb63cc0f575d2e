//! A topic name that Kafka accepts.

use std::fmt;

/// A topic name that Kafka accepts: 1 to 249 of `a-z A-Z 0-9 . _ -`, and neither `.` nor `..`
/// (`org.apache.kafka.common.internals.Topic`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicName(String);

/// Maximum length of a topic name, in characters. A log directory is named `<topic>-<partition>`, and a file name
/// has at most 255 characters.
const LONGEST: usize = 249;

impl TopicName {
    /// Checks a name. The error is the predicate of a sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(sign) = text.chars().find(|c| ",^".contains(*c)) {
            return Err(format!("contains '{sign}': give one topic; dedupd rekey makes one of several"));
        }
        check(text).map(|()| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Kafka's rule for topic names, which it also applies to `group.instance.id`.
pub(super) fn check(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("is empty".to_owned());
    }
    if text == "." || text == ".." {
        return Err("is a name that Kafka reserves".to_owned());
    }
    if text.len() > LONGEST {
        return Err(format!("has {} characters, but Kafka allows at most {LONGEST}", text.len()));
    }
    match text.chars().find(|c| !(c.is_ascii_alphanumeric() || ".-_".contains(*c))) {
        Some(c) => Err(format!("contains {c:?}, but Kafka allows only letters, digits, '.', '_' and '-'")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rule_of_kafka() {
        for good in ["a", "events.raw", "A-1_b.c", "...", &"x".repeat(249)] {
            assert_eq!(TopicName::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", "a b", "a/b", "é", "a\n", "a,b", "^a", &"x".repeat(250)] {
            assert!(TopicName::parse(bad).is_err(), "{bad:?} was accepted");
        }
    }
}
