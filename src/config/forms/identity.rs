//! The forms of the source and hash of ids.

use std::path::PathBuf;
use std::str::FromStr;

use super::ListForm;
use crate::config::page::Page;
use crate::config::problem::ValueFault;
use crate::config::reading::ConfigReading;
use crate::config::section::{Form, Shape};
use crate::config::{HashChoice, InsightSource};
use crate::dedupe::{Fingerprint, IdPart, IdSourceError, SOURCES};

/// Parses each text; a problem of each that is invalid.
fn parse<S: FromStr<Err = IdSourceError>>(
    key: &str,
    texts: &[String],
    remedy: &str,
    reading: &mut ConfigReading<'_>,
) -> Option<Vec<S>> {
    let mut source = |text: &String| {
        let parsed: Result<S, _> = text.parse();
        parsed
            .map_err(|error| reading.reject(key, Some(text), ValueFault::new(error.to_string(), remedy)))
            .ok()
    };
    let sources: Vec<_> = texts.iter().map(&mut source).collect();
    sources.into_iter().collect()
}

/// What to give for sources of an id.
fn some_sources() -> String {
    format!("give {SOURCES}, as in [\"json:/id\"]")
}

/// The parts of an id, at least one.
pub(in crate::config) const ID_PARTS: ListForm<IdPart> = ListForm(Shape::Parts, |key, reading| {
    let texts = reading.texts(key).unwrap_or_default().to_vec();
    if texts.is_empty() {
        let remedy = format!("{}, or --id", some_sources());
        reading.reject(key, None, ValueFault::new("is missing", remedy));
        return None;
    }
    let parts: Vec<IdPart> = parse(key, &texts, &some_sources(), reading)?;
    if let ([part], Some(text)) = (parts.as_slice(), texts.first())
        && part.is_optional()
    {
        let fault = ValueFault::new("is optional, but the id has no other part", "leave (optional) out");
        reading.reject(key, Some(text), fault);
        return None;
    }
    Some(parts)
});

/// The parts that are compared: `off`, or at least one. They may be left out.
pub(in crate::config) struct Compared;

/// The word for no parts.
pub(crate) const OFF: &str = "off";

impl Form<Option<Vec<IdPart>>> for Compared {
    fn read(&self, key: &str, reading: &mut ConfigReading<'_>) -> Option<Option<Vec<IdPart>>> {
        let Some(texts) = reading.texts(key) else { return Some(None) };
        Some(match texts {
            [] => {
                let remedy = format!("write \"{OFF}\" to compare nothing, or leave it out for the default");
                reading.reject(key, None, ValueFault::new("is an empty list", remedy));
                None
            }
            [word] if word == OFF => Some(Vec::new()),
            texts => parse(key, texts, &some_sources(), reading),
        })
    }

    fn print(&self, name: &str, value: &Option<Vec<IdPart>>, page: &mut Page) {
        match value {
            None => {}
            Some(parts) if parts.is_empty() => page.text(name, OFF),
            Some(parts) => page.list(name, parts),
        }
    }

    fn shape(&self) -> Shape {
        Shape::Parts
    }
}

/// Most sources of the values by which duplicates are counted: each has its own memory.
const MOST_INSIGHT: usize = 3;

/// These sources. They may be left out.
pub(in crate::config) const INSIGHT_SOURCES: ListForm<InsightSource> =
    ListForm(Shape::List, |key, reading| {
        let texts = reading.texts(key).unwrap_or_default().to_vec();
        if texts.len() > MOST_INSIGHT {
            let fault = ValueFault::new(format!("has {} sources", texts.len()), "give at most three");
            reading.reject(key, None, fault);
            return None;
        }
        parse(key, &texts, &format!("give partition, {SOURCES}"), reading)
    });

/// The hash, from the two keys `identity.hash` and `identity.key_file`.
pub(in crate::config) struct Hash;

impl Form<HashChoice> for Hash {
    fn read(&self, key: &str, reading: &mut ConfigReading<'_>) -> Option<HashChoice> {
        const KEY_FILE: &str = "identity.key_file";
        let remedy = "give xxh3 or siphash";
        let word = reading.required(key, remedy)?;
        let (key, value, fault) = match (word, reading.text(KEY_FILE).filter(|path| !path.is_empty())) {
            ("xxh3", None) => return Some(HashChoice::Xxh3),
            ("siphash", Some(path)) => return Some(HashChoice::SipHash { key_file: PathBuf::from(path) }),
            ("xxh3", Some(path)) => {
                let remedy = "set identity.hash = \"siphash\", or leave the key file out";
                (KEY_FILE, path, ValueFault::new("has no effect with identity.hash = \"xxh3\"", remedy))
            }
            ("siphash", None) => {
                let remedy = "set identity.key_file to a file that only dedupd may read";
                (
                    key,
                    word,
                    ValueFault::new("requires a secret key, but identity.key_file is not set", remedy),
                )
            }
            _ => (key, word, ValueFault::new("is not one of the choices", remedy)),
        };
        reading.reject(key, Some(value), fault);
        None
    }

    fn print(&self, name: &str, value: &HashChoice, page: &mut Page) {
        match value {
            HashChoice::Xxh3 => page.text(name, "xxh3"),
            HashChoice::SipHash { key_file } => {
                page.text(name, "siphash");
                page.text("key_file", &key_file.to_string_lossy());
            }
        }
    }
}

/// The fingerprint of identity rules. It may be left out or empty.
pub(in crate::config) struct ChangedRules;

impl Form<Option<Fingerprint>> for ChangedRules {
    fn read(&self, key: &str, reading: &mut ConfigReading<'_>) -> Option<Option<Fingerprint>> {
        let Some(text) = reading.text(key).filter(|text| !text.is_empty()) else { return Some(None) };
        let parsed = text.parse().ok();
        if parsed.is_none() {
            let remedy =
                "give the eight hex digits from the error message that rejects the change, or leave it out";
            reading.reject(
                key,
                Some(text),
                ValueFault::new("is not a fingerprint of identity rules", remedy),
            );
        }
        Some(parsed)
    }

    fn print(&self, name: &str, value: &Option<Fingerprint>, page: &mut Page) {
        if let Some(fingerprint) = value {
            page.text(name, &fingerprint.to_string());
        }
    }
}
