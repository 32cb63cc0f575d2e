//! Parses texts into values, and collects all problems instead of stopping at the first.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::choices::Choice;
use super::problem::Problem;
use super::topic_name::TopicName;
use super::units::{duration_text, parse_bytes, parse_duration, size_text};

/// Parses texts into values. On a problem every method records it and returns `None`, so that a rule over two values
/// is checked only when both are valid.
pub(super) struct Reading<'a> {
    origins: &'a BTreeMap<String, String>,
    problems: Vec<Problem>,
}

impl<'a> Reading<'a> {
    pub(super) fn new(origins: &'a BTreeMap<String, String>, problems: Vec<Problem>) -> Self {
        Self { origins, problems }
    }

    pub(super) fn into_problems(self) -> Vec<Problem> {
        self.problems
    }

    /// Records the problem of a key.
    pub(super) fn reject(&mut self, key: &str, value: Option<&str>, what: &str, remedy: &str) {
        self.problems.push(Problem {
            key: key.to_owned(),
            value: value.map(str::to_owned),
            origin: self.origins.get(key).cloned(),
            what: what.to_owned(),
            remedy: remedy.to_owned(),
        });
    }

    /// A required text.
    pub(super) fn required<'v>(
        &mut self,
        key: &str,
        value: Option<&'v str>,
        remedy: &str,
    ) -> Option<&'v str> {
        let value = value.filter(|text| !text.trim().is_empty());
        if value.is_none() {
            self.reject(key, None, "is missing", remedy);
        }
        value
    }

    /// A duration of at least `least`.
    pub(super) fn duration(&mut self, key: &str, value: Option<&str>, least: Duration) -> Option<Duration> {
        let text = self.required(key, value, "give a duration, as in \"24h\"")?;
        match parse_duration(text) {
            Err(what) => {
                let remedy = "write a number with a unit, as in \"24h\", \"10s\" or \"100ms\"";
                self.reject(key, Some(text), &what, remedy);
                None
            }
            Ok(duration) if duration < least => {
                let remedy = format!("give at least \"{}\"", duration_text(least));
                self.reject(key, Some(text), "is too short", &remedy);
                None
            }
            Ok(duration) => Some(duration),
        }
    }

    /// A size in bytes of at least `least`.
    pub(super) fn bytes(&mut self, key: &str, value: Option<&str>, least: u64) -> Option<u64> {
        let text = self.required(key, value, "give a size, as in \"32MiB\"")?;
        match parse_bytes(text) {
            Err(what) => {
                self.reject(key, Some(text), &what, "write a number with a unit, as in \"32MiB\"");
                None
            }
            Ok(bytes) if bytes < least => {
                let remedy = format!("give at least \"{}\"", size_text(least));
                self.reject(key, Some(text), "is too small", &remedy);
                None
            }
            Ok(bytes) => Some(bytes),
        }
    }

    /// A whole number inside a range; `_` may group its digits.
    pub(super) fn whole(
        &mut self,
        key: &str,
        value: Option<&str>,
        range: RangeInclusive<u64>,
    ) -> Option<u64> {
        let (least, most) = (*range.start(), *range.end());
        let remedy = format!("give a whole number from {least} to {most}");
        let text = self.required(key, value, &remedy)?;
        let number = text.trim().replace('_', "").parse::<u64>().ok().filter(|number| range.contains(number));
        if number.is_none() {
            self.reject(key, Some(text), "is out of range", &remedy);
        }
        number
    }

    /// One of the allowed words.
    pub(super) fn choice<C: Choice>(&mut self, key: &str, value: Option<&str>) -> Option<C> {
        let words: Vec<_> = C::WORDS.iter().map(|(word, _)| *word).collect();
        let remedy = format!("give one of {}", words.join(", "));
        let text = self.required(key, value, &remedy)?;
        let found = C::WORDS.iter().find(|(word, _)| *word == text.trim()).map(|(_, choice)| *choice);
        if found.is_none() {
            self.reject(key, Some(text), "is not one of the choices", &remedy);
        }
        found
    }

    /// `true` or `false`.
    pub(super) fn flag(&mut self, key: &str, value: Option<&str>) -> Option<bool> {
        let text = self.required(key, value, "give true or false")?;
        let flag = text.trim().parse().ok();
        if flag.is_none() {
            self.reject(key, Some(text), "is neither true nor false", "give true or false");
        }
        flag
    }

    /// The name of a topic.
    pub(super) fn topic(&mut self, key: &str, text: &str) -> Option<TopicName> {
        TopicName::parse(text)
            .map_err(|what| {
                let remedy = "give a name of 1 to 249 letters, digits, '.', '_' and '-'";
                self.reject(key, Some(text), &what, remedy);
            })
            .ok()
    }
}
