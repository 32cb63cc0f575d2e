//! Source and hash of ids.

use std::path::PathBuf;

use crate::config::as_typed::TypedIdentity;
use crate::config::choices::OnMissing;
use crate::config::reading::Reading;
use crate::dedupe::{Fingerprint, IdSource};

/// Source and hash of ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The sources, at least one; several parts form one id.
    pub from: Vec<IdSource>,
    /// The policy for a record without an id.
    pub on_missing: OnMissing,
    /// A record with this header is forwarded regardless of its id.
    pub force_header: Option<String>,
    /// The hash that maps an id to 16 bytes.
    pub hash: HashChoice,
    /// The fingerprint of the changed identity rules for which windows may start empty, once.
    pub accept_change: Option<Fingerprint>,
}

/// The hash that maps an id other than a UUID to 16 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HashChoice {
    /// XXH3-128, unkeyed.
    Xxh3,
    /// SipHash 128 with a secret key.
    SipHash {
        /// The file with the key. Not opened during validation.
        key_file: PathBuf,
    },
}

impl HashChoice {
    /// The word as written in the configuration.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Xxh3 => "xxh3",
            Self::SipHash { .. } => "siphash",
        }
    }
}

pub(super) fn validate(typed: &TypedIdentity, reading: &mut Reading<'_>) -> Option<Identity> {
    let from = sources(typed.from.as_deref().unwrap_or_default(), reading);
    let on_missing = reading.choice("identity.on_missing", typed.on_missing.as_deref());
    let hash = hash(typed, reading);
    let force_header = typed.force_header.clone().filter(|name| !name.is_empty());
    let accept_change = accept_change(typed.accept_change.as_deref(), reading);
    Some(Identity { from: from?, on_missing: on_missing?, force_header, hash: hash?, accept_change })
}

fn accept_change(text: Option<&str>, reading: &mut Reading<'_>) -> Option<Fingerprint> {
    let text = text.filter(|text| !text.is_empty())?;
    let parsed = text.parse().ok();
    if parsed.is_none() {
        let remedy =
            "give the eight hex digits from the error message that rejects the change, or leave it out";
        reading.reject(
            "identity.accept_change",
            Some(text),
            "is not a fingerprint of identity rules",
            remedy,
        );
    }
    parsed
}

pub(super) fn sources(texts: &[String], reading: &mut Reading<'_>) -> Option<Vec<IdSource>> {
    let remedy = "give key, header:NAME, json:/pointer or value, as in [\"json:/id\"]";
    if texts.is_empty() {
        reading.reject("identity.from", None, "is missing", &format!("{remedy}, or --id"));
        return None;
    }
    let parsed: Vec<_> = texts
        .iter()
        .map(|text| {
            let parsed: Result<IdSource, _> = text.parse();
            parsed.map_err(|error| reading.reject("identity.from", Some(text), &error.to_string(), remedy))
        })
        .collect();
    parsed.into_iter().collect::<Result<_, ()>>().ok()
}

pub(super) fn hash(typed: &TypedIdentity, reading: &mut Reading<'_>) -> Option<HashChoice> {
    let remedy = "give xxh3 or siphash";
    let word = reading.required("identity.hash", typed.hash.as_deref(), remedy)?;
    match (word, typed.key_file.as_deref().filter(|path| !path.is_empty())) {
        ("xxh3", None) => Some(HashChoice::Xxh3),
        ("xxh3", Some(path)) => {
            let remedy = "set identity.hash = \"siphash\", or leave the key file out";
            reading.reject(
                "identity.key_file",
                Some(path),
                "has no effect with identity.hash = \"xxh3\"",
                remedy,
            );
            None
        }
        ("siphash", Some(path)) => Some(HashChoice::SipHash { key_file: PathBuf::from(path) }),
        ("siphash", None) => {
            let remedy = "set identity.key_file to a file that only dedupd may read";
            reading.reject(
                "identity.hash",
                Some(word),
                "requires a secret key, but identity.key_file is not set",
                remedy,
            );
            None
        }
        _ => {
            reading.reject("identity.hash", Some(word), "is not one of the choices", remedy);
            None
        }
    }
}
