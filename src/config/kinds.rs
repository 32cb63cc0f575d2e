//! Kinds of records with separate windows.

use std::time::Duration;

use super::choices::OnProbable;
use super::forms::{FLAG, ListForm, Maybe, Parsed, RATE, Span, Word};
use super::keys::{SECOND, WindowConfig};
use super::page::{Page, quoted};
use super::problem::ValueFault;
use super::reading::ConfigReading;
use super::rules;
use super::section::{ConfigSection, Form, Key, Shape, joined, section};
use crate::dedupe::{IdPart, IdSource, KindId, LoneSource};

/// Maximum number of kinds: each has a window in every partition, and a share of the limits.
const MOST_KINDS: usize = 8;

/// A kind of records with a separate window.
#[derive(Debug, Clone, PartialEq)]
pub struct KindConfig {
    /// Its name: 1 to 32 letters, digits, `.`, `_` and `-`. Stored ids belong to the name.
    pub name: String,
    /// The header or field that contains the kind.
    pub from: IdSource,
    /// The values of records of this kind, at least one.
    pub values: Vec<String>,
    /// How long their ids are stored; `None` when they are forwarded without de-duplication.
    pub window: Option<WindowConfig>,
}

section! {
    /// The keys of one table of `[[kinds]]`. Those of the window are `None` only in a kind that is not de-duplicated.
    KindKeys |at, reading| {
        name: String => KIND_NAME,
        from: IdSource => KIND_SOURCE,
        values: Vec<String> => KIND_VALUES,
        /// Whether records of this kind are de-duplicated.
        dedupe: bool = or(Some(true)) => FLAG,
        /// As in `[window]`.
        exact: Option<Duration> = or(Some(common(reading).map(|it| it.exact))) => Maybe(Span(SECOND..)),
        /// As in `[window]`. A kind that sets `exact` has filters only when it sets `bloom` too.
        bloom: Option<Duration> = or(if reading.is_set(&joined(at, "exact")) {
            exact
        } else {
            Some(common(reading).map(|it| it.bloom))
        }) => Maybe(Span(SECOND..)); rules::bloom_length(at, exact.flatten(), bloom.flatten(), reading),
        /// As in `[window]`.
        false_positive_rate: Option<f64> = or(Some(common(reading).map(|it| it.false_positive_rate))) => Maybe(RATE),
        /// As in `[window]`.
        on_probable: Option<OnProbable> = or(Some(common(reading).map(|it| it.on_probable))) => Maybe(Word),
    }
}

/// `[window]`, read again: its problems are already recorded.
fn common(reading: &ConfigReading<'_>) -> Option<WindowConfig> {
    WindowConfig::read("window", &mut reading.again())
}

impl KindKeys {
    fn into_kind(self, common: &WindowConfig) -> Option<KindConfig> {
        let window = WindowConfig {
            exact: self.exact?,
            bloom: self.bloom?,
            false_positive_rate: self.false_positive_rate?,
            on_probable: self.on_probable?,
            ..common.clone()
        };
        let Self { name, from, values, .. } = self;
        Some(KindConfig { name, from, values, window: self.dedupe.then_some(window) })
    }

    fn of(kind: &KindConfig) -> Self {
        let window = kind.window.as_ref();
        Self {
            name: kind.name.clone(),
            from: kind.from.clone(),
            values: kind.values.clone(),
            dedupe: window.is_some(),
            exact: window.map(|it| it.exact),
            bloom: window.map(|it| it.bloom),
            false_positive_rate: window.map(|it| it.false_positive_rate),
            on_probable: window.map(|it| it.on_probable),
        }
    }
}

/// The form of `[[kinds]]`.
pub(super) struct KindsForm;

impl Form<Vec<KindConfig>> for KindsForm {
    fn read(&self, key: &str, reading: &mut ConfigReading<'_>) -> Option<Vec<KindConfig>> {
        let tables = reading.tables();
        if tables.len() > MOST_KINDS {
            let remedy = format!("use at most {MOST_KINDS}; one kind can have several values");
            reading.reject(key, None, ValueFault::new("has too many entries", remedy));
        }
        let kinds: Vec<_> = tables.iter().map(|at| KindKeys::read(at, reading)).collect();
        check_names(&tables, reading);
        check_values(&tables, reading);
        let common = common(reading)?;
        kinds.into_iter().map(|kind| kind?.into_kind(&common)).collect()
    }

    fn print(&self, name: &str, value: &Vec<KindConfig>, page: &mut Page) {
        for kind in value {
            page.table(name);
            KindKeys::of(kind).print(page);
        }
    }

    fn shape(&self) -> Shape {
        Shape::Tables(KindKeys::keys())
    }
}

/// Rejects each name that has the id of an earlier one.
fn check_names(tables: &[String], reading: &mut ConfigReading<'_>) {
    let mut earlier: Vec<&str> = Vec::new();
    for key in tables.iter().map(|at| joined(at, "name")) {
        let Some(name) = reading.text(&key) else { continue };
        if let Some(same) = earlier.iter().find(|it| KindId::named(it) == KindId::named(name)) {
            let what = if *same == name {
                "is the name of two kinds".to_owned()
            } else {
                format!("has the same 15-bit kind id as {same:?}, and blocks store only this id")
            };
            reading.reject(&key, Some(name), ValueFault::new(what, "give another name"));
        }
        earlier.push(name);
    }
}

/// Rejects each value that an earlier kind with the same source has: no record would be of the later kind. With different sources the order
/// of the kinds decides.
fn check_values(tables: &[String], reading: &mut ConfigReading<'_>) {
    let texts = |at: &str, key: &str| reading.texts(&joined(at, key)).unwrap_or_default();
    let mut faults = Vec::new();
    for (place, at) in tables.iter().enumerate() {
        for earlier in tables.iter().take(place).filter(|it| texts(it, "from") == texts(at, "from")) {
            let names = [at, earlier].map(|at| reading.text(&joined(at, "name")).unwrap_or_default());
            let known = texts(earlier, "values");
            faults
                .extend(texts(at, "values").iter().filter(|it| known.contains(it)).map(|it| (at, it, names)));
        }
    }
    for (at, value, [name, earlier]) in faults {
        let what = format!(
            "is a value of kind {name:?} and of kind {earlier:?}, which is first and would get all its records"
        );
        reading.reject(
            &joined(at, "values"),
            Some(value),
            ValueFault::new(what, "list the value in one kind"),
        );
    }
}

/// The name of a kind.
const KIND_NAME: Parsed<String> = Parsed {
    remedy: "give a name of 1 to 32 letters, digits, '.', '_' and '-'",
    parse: |text| {
        let legal = |c: char| c.is_ascii_alphanumeric() || ['.', '_', '-'].contains(&c);
        let is_valid = text.len() <= 32 && text.chars().all(legal);
        if is_valid { Ok(text.to_owned()) } else { Err("is not a valid name of a kind".to_owned()) }
    },
    toml: |name| quoted(name),
};

/// The header or field that contains the kind of a record.
const KIND_SOURCE: Parsed<IdSource> = Parsed {
    remedy: "give the header or the path that contains the kind: header:NAME, json:/pointer, avro:/path or protobuf:/path",
    parse: |text| match text.parse() {
        Ok(LoneSource(IdSource::Key | IdSource::Value)) => Err("is not supported for kinds".to_owned()),
        Ok(LoneSource(source)) => Ok(source),
        Err(error) => Err(error.to_string()),
    },
    toml: |source| quoted(&IdPart::from(source.clone()).to_string()),
};

/// One or more texts, none of them empty.
const KIND_VALUES: ListForm<String> = ListForm(Shape::List, |key, reading| {
    let values = reading.texts(key).unwrap_or_default();
    if values.is_empty() || values.iter().any(String::is_empty) {
        let remedy = "list the values of records of this kind, as in values = [\"payment\"]";
        reading.reject(key, None, ValueFault::new("is missing, or has an empty value", remedy));
        return None;
    }
    Some(values.to_vec())
});
