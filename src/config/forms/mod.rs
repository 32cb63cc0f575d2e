//! The forms of values: how each kind of value is parsed, checked and printed.

mod identity;
mod kafka;

use std::ffi::OsStr;
use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::{Bound, RangeBounds, RangeInclusive};
use std::time::Duration;

pub(crate) use identity::OFF;
pub(super) use identity::{ChangedRules, Compared, Hash, ID_PARTS, INSIGHT_SOURCES};
pub(crate) use kafka::parse_servers;
pub(super) use kafka::{PropertyMap, SOURCE_TOPICS, Servers};

use super::choices::Choice;
use super::page::{Page, quoted};
use super::problem::ValueFault;
use super::reading::ConfigReading;
use super::section::{Form, Shape};
use super::topic_name::{self, TopicName};
use crate::units::{duration_text, parse_bytes, parse_duration, size_text};

/// A key that may be left out.
pub(super) struct Maybe<F>(pub(super) F);

impl<V, F: Form<V>> Form<Option<V>> for Maybe<F> {
    /// Also returns `Some` after a problem, so that the rules over other keys of the section are checked.
    fn read(&self, key: &str, reading: &mut ConfigReading<'_>) -> Option<Option<V>> {
        Some(if reading.is_set(key) { self.0.read(key, reading) } else { None })
    }

    fn print(&self, name: &str, value: &Option<V>, page: &mut Page) {
        if let Some(value) = value {
            self.0.print(name, value, page);
        }
    }

    fn shape(&self) -> Shape {
        self.0.shape()
    }
}

/// A required text or path, with what to do when it is missing.
pub(super) struct Text(pub(super) &'static str);

impl<V: From<String> + AsRef<OsStr>> Form<V> for Text {
    fn read(&self, key: &str, reading: &mut ConfigReading<'_>) -> Option<V> {
        reading.required(key, self.0).map(|text| text.to_owned().into())
    }

    fn print(&self, name: &str, value: &V, page: &mut Page) {
        page.text(name, &value.as_ref().to_string_lossy());
    }
}

/// A text or path that may be left out or empty.
pub(super) struct MaybeText;

impl<V: From<String> + AsRef<OsStr>> Form<Option<V>> for MaybeText {
    fn read(&self, key: &str, reading: &mut ConfigReading<'_>) -> Option<Option<V>> {
        Some(reading.text(key).filter(|text| !text.is_empty()).map(|text| text.to_owned().into()))
    }

    fn print(&self, name: &str, value: &Option<V>, page: &mut Page) {
        Maybe(Text("")).print(name, value, page);
    }
}

/// A required value that one function parses and another one writes as TOML.
pub(super) struct Parsed<V> {
    /// What to do when the text is missing or invalid.
    pub(super) remedy: &'static str,
    /// The error is the predicate of a sentence.
    pub(super) parse: fn(&str) -> Result<V, String>,
    pub(super) toml: fn(&V) -> String,
}

impl<V> Form<V> for Parsed<V> {
    fn read(&self, key: &str, reading: &mut ConfigReading<'_>) -> Option<V> {
        reading.parsed(key, self.remedy, |text| {
            (self.parse)(text).map_err(|what| ValueFault::new(what, self.remedy))
        })
    }

    fn print(&self, name: &str, value: &V, page: &mut Page) {
        page.plain(name, (self.toml)(value));
    }
}

/// A list of this shape that one function reads. An empty one is not printed.
pub(super) struct ListForm<V>(
    pub(super) Shape,
    pub(super) fn(&str, &mut ConfigReading<'_>) -> Option<Vec<V>>,
);

impl<V: ToString> Form<Vec<V>> for ListForm<V> {
    fn read(&self, key: &str, reading: &mut ConfigReading<'_>) -> Option<Vec<V>> {
        (self.1)(key, reading)
    }

    fn print(&self, name: &str, value: &Vec<V>, page: &mut Page) {
        if !value.is_empty() {
            page.list(name, value);
        }
    }

    fn shape(&self) -> Shape {
        self.0.clone()
    }
}

/// `true` or `false`.
pub(super) const FLAG: Parsed<bool> = Parsed {
    remedy: "give true or false",
    parse: |text| text.trim().parse().map_err(|_| "is neither true nor false".to_owned()),
    toml: bool::to_string,
};

/// A probability from 1e-10 to 0.5.
pub(super) const RATE: Parsed<f64> = Parsed {
    remedy: "give a number from 1e-10 to 0.5, as in 1e-9",
    parse: |text| {
        let rate = text.trim().parse().ok().filter(|rate| (1e-10..=0.5).contains(rate));
        rate.ok_or_else(|| "is out of range".to_owned())
    },
    toml: |rate| format!("{rate:?}"),
};

/// An IP address and a port.
pub(super) const ADDRESS: Parsed<SocketAddr> = Parsed {
    remedy: "give an IP address and a port, as in 127.0.0.1:9464, or 0.0.0.0:9464 for all interfaces",
    parse: |text| text.trim().parse().map_err(|_| "is not an IP address with a port".to_owned()),
    toml: |address| quoted(&address.to_string()),
};

/// The address of an HTTP server. Credentials have keys of their own, so that no secret is printed.
pub(super) const REGISTRY_URL: Parsed<String> = Parsed {
    remedy: "give the URL of the registry, as in http://localhost:8081",
    parse: |text| {
        let address = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
        match address {
            Some(address) if address.contains('@') => {
                Err("contains credentials, which belong in schemas.username and schemas.password_file"
                    .to_owned())
            }
            Some(address) if !address.is_empty() && !address.contains(char::is_whitespace) => {
                Ok(text.to_owned())
            }
            _ => Err("is not the URL of an HTTP server".to_owned()),
        }
    },
    toml: |url| quoted(url),
};

/// A duration inside a range.
pub(super) struct Span<R>(pub(super) R);

impl<R: RangeBounds<Duration>> Form<Duration> for Span<R> {
    fn read(&self, key: &str, reading: &mut ConfigReading<'_>) -> Option<Duration> {
        reading.parsed(key, "give a duration, as in \"24h\"", |text| {
            let remedy = "write a number with a unit, as in \"24h\", \"10s\" or \"100ms\"";
            let duration = parse_duration(text).map_err(|what| ValueFault::new(what, remedy))?;
            let fault = |what, how, bound| {
                Err(ValueFault::new(what, format!("give at {how} \"{}\"", duration_text(bound))))
            };
            match (self.0.start_bound(), self.0.end_bound()) {
                (Bound::Included(least), _) if duration < *least => fault("is too short", "least", *least),
                (_, Bound::Included(most)) if duration > *most => fault("is too long", "most", *most),
                _ => Ok(duration),
            }
        })
    }

    fn print(&self, name: &str, value: &Duration, page: &mut Page) {
        page.text(name, &duration_text(*value));
    }
}

/// A size of at least this many bytes.
pub(super) struct Size(pub(super) u64);

impl Form<u64> for Size {
    fn read(&self, key: &str, reading: &mut ConfigReading<'_>) -> Option<u64> {
        reading.parsed(key, "give a size, as in \"32MiB\"", |text| match parse_bytes(text) {
            Err(what) => Err(ValueFault::new(what, "write a number with a unit, as in \"32MiB\"")),
            Ok(bytes) if bytes < self.0 => {
                Err(ValueFault::new("is too small", format!("give at least \"{}\"", size_text(self.0))))
            }
            Ok(bytes) => Ok(bytes),
        })
    }

    fn print(&self, name: &str, value: &u64, page: &mut Page) {
        page.text(name, &size_text(*value));
    }
}

/// A whole number inside a range; `_` may group its digits.
pub(super) struct Whole(pub(super) RangeInclusive<u64>);

impl<V: TryFrom<u64> + Display> Form<V> for Whole {
    fn read(&self, key: &str, reading: &mut ConfigReading<'_>) -> Option<V> {
        let remedy = format!("give a whole number from {} to {}", self.0.start(), self.0.end());
        reading.parsed(key, &remedy, |text| {
            let digits = text.trim().replace('_', "");
            let is_number = digits.parse::<i128>().is_ok();
            let number = digits.parse().ok().filter(|number| self.0.contains(number));
            let what = if is_number { "is out of range" } else { "is not a whole number" };
            number.and_then(|number| number.try_into().ok()).ok_or_else(|| ValueFault::new(what, &remedy))
        })
    }

    fn print(&self, name: &str, value: &V, page: &mut Page) {
        page.plain(name, value);
    }
}

/// One of the allowed words.
pub(super) struct Word;

impl<C: Choice> Form<C> for Word {
    fn read(&self, key: &str, reading: &mut ConfigReading<'_>) -> Option<C> {
        let words: Vec<_> = C::ALL.iter().map(|choice| choice.word()).collect();
        let remedy = format!("give one of {}", words.join(", "));
        reading.parsed(key, &remedy, |text| {
            let found = C::ALL.iter().find(|choice| choice.word() == text.trim());
            found.copied().ok_or_else(|| ValueFault::new("is not one of the choices", &remedy))
        })
    }

    fn print(&self, name: &str, value: &C, page: &mut Page) {
        page.text(name, value.word());
    }
}

/// The name of a topic, with what to do when a required one is missing.
pub(super) struct Topic(pub(super) Option<&'static str>);

impl Form<TopicName> for Topic {
    fn read(&self, key: &str, reading: &mut ConfigReading<'_>) -> Option<TopicName> {
        let text = match self.0 {
            Some(remedy) => reading.required(key, remedy),
            None => reading.text(key),
        };
        topic(key, text?, reading)
    }

    fn print(&self, name: &str, value: &TopicName, page: &mut Page) {
        page.text(name, value.as_str());
    }
}

/// Parses the name of a topic, which may be the default of a key that is not set.
pub(super) fn topic(key: &str, text: &str, reading: &mut ConfigReading<'_>) -> Option<TopicName> {
    let remedy = "give a name of 1 to 249 letters, digits, '.', '_' and '-'";
    TopicName::parse(text).map_err(|what| reading.reject(key, Some(text), ValueFault::new(what, remedy))).ok()
}

/// The name of an instance; the default is the host name. Kafka applies the rule of topic names to `group.instance.id`;
/// the limit leaves room for the worker number.
pub(super) struct Instance;

impl Form<String> for Instance {
    fn read(&self, key: &str, reading: &mut ConfigReading<'_>) -> Option<String> {
        let name = reading.text(key).unwrap_or(reading.host);
        let what = match topic_name::check(name) {
            Ok(()) if name.len() <= 240 => return Some(name.to_owned()),
            Ok(()) => format!("has {} characters, but at most 240 are allowed", name.len()),
            Err(what) => what,
        };
        let what = if reading.is_set(key) { what } else { format!("(the host name) {what}") };
        let remedy = "give a name that stays the same across restarts: letters, digits, '.', '_' and '-'";
        reading.reject(key, Some(name), ValueFault::new(what, remedy));
        None
    }

    fn print(&self, name: &str, value: &String, page: &mut Page) {
        page.text(name, value);
    }
}
