//! Kinds of records with separate windows.

use std::time::Duration;

use super::window::{self, Window};
use crate::config::as_typed::{TypedKind, TypedWindow};
use crate::config::choices::OnProbable;
use crate::config::reading::Reading;
use crate::dedupe::{IdSource, KindId};

/// Maximum number of kinds: each has a window in every partition, and a share of the limits.
const MOST_KINDS: usize = 8;

/// A kind of records with a separate window.
#[derive(Debug, Clone, PartialEq)]
pub struct Kind {
    /// Its name: 1 to 32 letters, digits, `.`, `_` and `-`. Stored ids belong to the name.
    pub name: String,
    /// The header or JSON pointer that contains the kind.
    pub from: IdSource,
    /// The values of records of this kind, at least one.
    pub values: Vec<String>,
    /// How long their ids are stored; `None` when they are forwarded without de-duplication.
    pub window: Option<Window>,
}

impl Kind {
    pub(super) fn needs_dead_letter(&self) -> bool {
        self.window.as_ref().is_some_and(|window| window.on_probable == OnProbable::DeadLetter)
    }
}

pub(super) fn validate(
    typed: &[TypedKind],
    (common, typed_common): (Option<&Window>, &TypedWindow),
    reading: &mut Reading<'_>,
) -> Option<Vec<Kind>> {
    if typed.len() > MOST_KINDS {
        reading.reject(
            "kinds",
            None,
            "has too many entries",
            &format!("use at most {MOST_KINDS}; one kind can have several values"),
        );
        return None;
    }
    let kinds: Vec<_> = typed
        .iter()
        .enumerate()
        .map(|(number, typed)| kind(&format!("kinds[{number}]"), typed, (common, typed_common), reading))
        .collect();
    for (number, later) in typed.iter().enumerate() {
        let same = |earlier: &&TypedKind| match (&earlier.name, &later.name) {
            (Some(earlier), Some(later)) => KindId::named(earlier) == KindId::named(later),
            _ => false,
        };
        if let Some(earlier) = typed.iter().take(number).find(same) {
            let what = if earlier.name == later.name {
                "is the name of two kinds".to_owned()
            } else {
                let earlier = earlier.name.as_deref().unwrap_or_default();
                format!("has the same 15-bit kind id as {earlier:?}, and blocks store only this id")
            };
            reading.reject(
                &format!("kinds[{number}].name"),
                later.name.as_deref(),
                &what,
                "give another name",
            );
            return None;
        }
    }
    kinds.into_iter().collect()
}

fn kind(
    path: &str,
    typed: &TypedKind,
    (common, typed_common): (Option<&Window>, &TypedWindow),
    reading: &mut Reading<'_>,
) -> Option<Kind> {
    let name = name(&format!("{path}.name"), typed.name.as_deref(), reading);
    let from = from(&format!("{path}.from"), typed.from.as_deref(), reading);
    let values =
        typed.values.clone().filter(|values| !values.is_empty() && values.iter().all(|it| !it.is_empty()));
    if values.is_none() {
        let remedy = "list the values of records of this kind, as in values = [\"payment\"]";
        reading.reject(&format!("{path}.values"), None, "is missing, or has an empty value", remedy);
    }
    let dedupe = match &typed.dedupe {
        Some(flag) => reading.flag(&format!("{path}.dedupe"), Some(flag)),
        None => Some(true),
    };
    let window = own_window(path, typed, (common, typed_common), reading);
    Some(Kind { name: name?, from: from?, values: values?, window: dedupe?.then_some(window?) })
}

fn name(key: &str, value: Option<&str>, reading: &mut Reading<'_>) -> Option<String> {
    let remedy = "give a name of 1 to 32 letters, digits, '.', '_' and '-'";
    let text = reading.required(key, value, remedy)?;
    let legal = |c: char| c.is_ascii_alphanumeric() || ['.', '_', '-'].contains(&c);
    if text.len() > 32 || !text.chars().all(legal) {
        reading.reject(key, Some(text), "is not a valid name of a kind", remedy);
        return None;
    }
    Some(text.to_owned())
}

fn from(key: &str, value: Option<&str>, reading: &mut Reading<'_>) -> Option<IdSource> {
    let remedy = "give the header or JSON pointer that contains the kind: header:NAME or json:/pointer";
    let text = reading.required(key, value, remedy)?;
    let parsed = match text.parse() {
        Ok(IdSource::Key | IdSource::Value) => Err("is not supported for kinds".to_owned()),
        Ok(source) => Ok(source),
        Err(error) => Err(error.to_string()),
    };
    parsed.map_err(|what| reading.reject(key, Some(text), &what, remedy)).ok()
}

/// `[window]`, overridden by the keys of the kind. A kind that sets `exact` has filters only when it sets `bloom` too.
fn own_window(
    path: &str,
    typed: &TypedKind,
    (common, typed_common): (Option<&Window>, &TypedWindow),
    reading: &mut Reading<'_>,
) -> Option<Window> {
    let common = common?;
    let key = |name: &str| format!("{path}.{name}");
    let second = Duration::from_secs(1);
    let exact = match &typed.exact {
        Some(text) => reading.duration(&key("exact"), Some(text), second),
        None => Some(common.exact),
    };
    let bloom = match (&typed.bloom, &typed.exact) {
        (Some(text), _) => reading.duration(&key("bloom"), Some(text), second),
        (None, Some(_)) => exact,
        (None, None) => Some(common.bloom),
    };
    if let (Some(exact), Some(bloom)) = (exact, bloom) {
        window::check_bloom_length((&key("bloom"), bloom), (&key("exact"), exact), reading);
    }
    let common_rate = typed_common.false_positive_rate.as_deref();
    let rate = typed.false_positive_rate.as_deref().or(common_rate);
    let rate = window::rate(&key("false_positive_rate"), rate, reading);
    let on_probable = match &typed.on_probable {
        Some(word) => reading.choice(&key("on_probable"), Some(word)),
        None => Some(common.on_probable),
    };
    Some(Window {
        exact: exact?,
        bloom: bloom?,
        false_positive_rate: rate?,
        on_probable: on_probable?,
        ..common.clone()
    })
}
